"""Clusters of an operator, as a client sees them: ComputeClusters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from oars.base.errors import NotFound
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.informer import Informer
from oars.kube.kinds import COMPUTE_CLUSTER, POD, Object
from oars.kube.lease import holder
from oars.model import Cause, MemberId, MemberState, Retiring
from oars.places.kube import names, observe, record
from oars.places.kube.root import FORCE
from oars.places.kube.seen import trimmed_pod
from oars.places.report import Report
from oars.plan.why import draining
from oars.spec import load
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Endpoints, GroupStatus, MemberStatus, Phase, Status

OPERATOR_LEASE = "oars-operator"
OPERATOR_NAMESPACE = "oars-system"
SYNC_SECONDS = 30.0


async def find_mode(client: Client, namespace: str) -> str:
    """operator, if it is installed and somebody is at work; else direct."""
    try:
        await client.list(COMPUTE_CLUSTER, namespace, limit=1)
    except ApiError as error:
        if error.status in (403, 404):
            return "direct"
        raise
    try:
        alive = await holder(client, OPERATOR_NAMESPACE, OPERATOR_LEASE)
    except ApiError as error:
        if error.status == 403:  # we may not look: where the kind is served, it is most likely looked after
            return "operator"
        raise
    return "operator" if alive else "direct"


async def list_all(client: Client, namespace: str | None) -> list[Object]:
    try:
        return (await client.list(COMPUTE_CLUSTER, namespace)).items
    except ApiError as error:
        if error.status in (403, 404):
            return []
        raise


async def list_names(client: Client, namespace: str) -> list[str]:
    return [str(resource["metadata"]["name"]) for resource in await list_all(client, namespace)]


async def create(client: Client, name: str, namespace: str, spec: ClusterSpec) -> None:
    body = load.dump(load.Manifest(name, spec))
    body["metadata"]["namespace"] = namespace
    body["spec"].pop("place", None)
    await client.create(body)


async def get(client: Client, name: str, namespace: str) -> Object:
    try:
        return await client.get(COMPUTE_CLUSTER, name, namespace)
    except ApiError as error:
        if not is_not_found(error):
            raise
        raise NotFound(f"There is no cluster {name!r} in the namespace {namespace}.") from None


async def spec(client: Client, name: str, namespace: str) -> ClusterSpec:
    data = (await get(client, name, namespace))["spec"]
    return ClusterSpec.model_validate({**data, "place": "kubernetes"})


async def generation(client: Client, name: str, namespace: str) -> int:
    return int((await get(client, name, namespace))["metadata"]["generation"])


async def change(client: Client, name: str, namespace: str, changed: ClusterSpec, *, force: bool) -> None:
    """One write: the new description, and whether it may cost what workers hold."""
    before = await get(client, name, namespace)
    fresh = load.dump(load.Manifest(name, changed))["spec"]
    fresh.pop("place", None)
    gone = {key: None for key in before["spec"] if key not in fresh}
    annotation = str(before["metadata"]["generation"] + 1) if force else None
    body = {"metadata": {"annotations": {FORCE: annotation}}, "spec": {**fresh, **gone}}
    await client.patch(COMPUTE_CLUSTER, name, namespace, body)


async def delete(client: Client, name: str, namespace: str) -> None:
    with contextlib.suppress(ApiError):  # the kind may not be served, or not be ours to delete: then it is not there
        await client.delete(COMPUTE_CLUSTER, name, namespace, propagation="Background")


async def watch(client: Client, name: str, namespace: str) -> AsyncIterator[Report]:
    """The report now and at every change, until the cluster is gone."""
    changed = asyncio.Event()

    def wake(*_: object) -> None:
        changed.set()

    selector = names.selector({names.CLUSTER: name})
    roots = Informer(client, COMPUTE_CLUSTER, namespace, fields=f"metadata.name={name}", changed=wake)
    pods = Informer(client, POD, namespace, labels=selector, keep=trimmed_pod, changed=wake)
    tasks = [asyncio.create_task(informer.run()) for informer in (roots, pods)]
    last: Report | None = None
    try:
        async with asyncio.timeout(SYNC_SECONDS):
            await roots.synced.wait()
            await pods.synced.wait()
        while resource := next(iter(roots.objects.values()), None):
            changed.clear()
            report = report_of(resource, list(pods.objects.values()))
            if report != last:
                last = report
                yield report
            await changed.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def report_of(resource: Object, pods: list[Object]) -> Report:
    """The operator's word on the cluster, and the pods as they are."""
    told = resource.get("status") or {}
    metadata = resource["metadata"]
    groups = tuple(GroupStatus(**group) for group in told.get("groups") or ())
    retiring = record.load_notes(told.get("notes")).retiring
    status = Status(
        name=metadata["name"],
        engine=resource["spec"]["engine"],
        place="kubernetes",
        phase=Phase(told.get("phase") or "Pending"),
        reason=told.get("reason", ""),
        message=told.get("message", "") or ("" if told else "The operator has not seen it yet."),
        endpoints=Endpoints(**(told.get("endpoints") or {})),
        groups=groups,
        members=_members(pods, retiring),
        mode="operator",
        namespace=metadata["namespace"],
        generation=told.get("observedGeneration", 0),
    )
    if metadata.get("deletionTimestamp"):
        status = replace(status, phase=Phase.STOPPING)
    trouble = status.message if status.phase is not Phase.READY and status.reason != "Draining" else ""
    first = (Cause(status.reason or status.phase.value, trouble),) if trouble else ()
    return Report(status, (*first, *draining(status.name, retiring)))


def _members(pods: list[Object], retiring: Mapping[MemberId, Retiring]) -> tuple[MemberStatus, ...]:
    found = []
    for member in observe.members(pods, {}):
        if member.id in retiring:
            phase, reason = Phase.STOPPING, retiring[member.id].waits_for
        elif member.answers:
            phase, reason = Phase.READY, ""
        else:
            phase = Phase.DEGRADED if member.state is MemberState.EXITED else Phase.STARTING
            reason = member.reason
        found.append(MemberStatus(member.id, member.role, member.group, phase, member.address, None, reason))
    return tuple(found)
