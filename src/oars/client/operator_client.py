"""A client's access to clusters that an operator reconciles: ComputeClusters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from typing import TypeVar

from oars.base import codec
from oars.base.errors import Denied, UsageError
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.informer import Informer, raise_failure, start_all, stop_all, wait_all_synced
from oars.kube.kinds import CONFIG_MAP, CRD, LEASE, POD, Object
from oars.kube.lease import find_held_lease, is_held
from oars.kube.merge_patch import merge_patch
from oars.model import Cause, Observed
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state import observe, ownership, status_codec
from oars.places.kube.state.cache import trimmed_pod
from oars.places.kube.why.api_errors import denied_with_rule
from oars.places.report import Report
from oars.plan.decide import failures
from oars.plan.status import member_statuses
from oars.plan.why import draining
from oars.spec import load
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Endpoints, GroupStatus, Phase, Status

SYNC_SECONDS = 30.0
MISSED_RENEWALS = 3  # durations of a Lease; clocks may differ a little
NO_OPERATOR = Cause(
    "NoOperator",
    "No operator is running: changes and repairs are delayed until one is.",
    "Run `oars operator status`; `oars operator install` installs or restores it.",
)

T = TypeVar("T")


async def find_mode(client: Client, namespace: str) -> str:
    """operator if an operator is installed, runs and watches this namespace; else direct."""
    if not await is_served(client, namespace):
        return "direct"
    try:
        lease = await find_held_lease(client, await operator_namespace(client), names.OPERATOR_NAME)
    except ApiError as error:
        if error.status == 403:  # we may not read the Lease; where the CRD is installed, an operator most likely runs
            return "operator"
        raise
    return "operator" if lease and not _others(lease, namespace) else "direct"


async def check_watched(client: Client, namespace: str) -> None:
    """Raise UsageError if the operator watches other namespaces only. One that does not run may come back."""
    lease = await if_allowed(client.get(LEASE, names.OPERATOR_NAME, await operator_namespace(client)))
    if lease and (others := _others(lease, namespace)):
        hint = f"Use namespace {others[0]!r}, or mode 'direct'."
        raise UsageError(f"The operator does not watch the namespace {namespace!r}: only {', '.join(others)}.", hint)


async def find_absence(client: Client, namespace: str) -> Cause | None:
    """The cause that keeps clusters in this namespace from being reconciled: no operator leads, or it watches other
    namespaces. None: one does, or we may not know."""
    try:
        lease = await client.get(LEASE, names.OPERATOR_NAME, await operator_namespace(client))
    except ApiError as error:
        if is_not_found(error):
            return NO_OPERATOR
        if error.status == 403:
            return None
        raise
    if not is_held(lease, tolerance=MISSED_RENEWALS):
        return NO_OPERATOR
    if others := _others(lease, namespace):
        message = f"The operator does not watch the namespace {namespace!r}: only {', '.join(others)}."
        return replace(NO_OPERATOR, message=f"{message} Changes and repairs are delayed until one does.")
    return None


def with_absence(report: Report, absence: Cause | None) -> Report:
    """A report that begins with the absence of an operator, if it is absent."""
    if absence is None:
        return report
    status = replace(report.status, reason=absence.reason, message=absence.message)
    return Report(status, (absence, *report.causes))


def _others(lease: Object, namespace: str) -> list[str]:
    """The namespaces that the operator watches, if this is not one of them; empty: it watches this one."""
    annotation = str((lease["metadata"].get("annotations") or {}).get(names.OPERATOR_WATCHES, ""))
    watched = [each for each in annotation.split(",") if each]
    return [] if namespace in watched else watched


async def is_served(client: Client, namespace: str | None) -> bool:
    """True if the CRD is installed and we may list ComputeClusters."""
    return await if_allowed(client.list(COMPUTE_CLUSTER, namespace, limit=1)) is not None


async def operator_namespace(client: Client) -> str:
    """The namespace of the operator, as its CRD says. A complete installation lets everybody read that."""
    definition = await if_allowed(client.get(CRD, f"{COMPUTE_CLUSTER.plural}.{COMPUTE_CLUSTER.group}"))
    annotations = definition["metadata"].get("annotations") if definition else None
    return str((annotations or {}).get(names.OPERATOR_NAMESPACE, names.DEFAULT_OPERATOR_NAMESPACE))


async def if_allowed(request: Awaitable[T]) -> T | None:
    """The response; None if the object or its kind does not exist, or we may not read it."""
    try:
        return await request
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise


def resource_spec(name: str, spec: ClusterSpec, namespace: str) -> Object:
    """The spec of the resource. The first group's number is `replicas`, which `kubectl scale` and autoscalers use; the
    resource's own namespace is left out."""
    if spec.namespace.name == namespace:
        spec = spec.model_copy(update={"namespace": spec.namespace.model_copy(update={"name": None})})
    dumped: Object = load.dump(load.Manifest(name, spec))["spec"]
    dumped.pop("place", None)
    if spec.workers:
        dumped["replicas"] = spec.workers[0].replicas
        for group in dumped.get("workers", ())[:1]:
            del group["replicas"]
    return dumped


async def change(client: Client, before: Object, changed: ClusterSpec, *, force: bool) -> None:
    """Patch the spec unless it was written since `before` was read (409). The force annotation names the generation
    that it applies to; if the patch does not create a new generation, it is written again with the current one."""
    name, namespace, version = (before["metadata"][key] for key in ("name", "namespace", "resourceVersion"))
    named_before = (before["spec"].get("namespace") or {}).get("name")
    spec_patch = merge_patch(before["spec"], resource_spec(name, changed, "" if named_before else namespace))
    foreseen = before["metadata"]["generation"] + 1
    annotations = {names.FORCE: str(foreseen) if force else None}
    body = {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": spec_patch}
    after = await client.patch(COMPUTE_CLUSTER, name, namespace, body)
    if force and after["metadata"]["generation"] != foreseen:
        now = {"metadata": {"annotations": {names.FORCE: str(after["metadata"]["generation"])}}}
        await client.patch(COMPUTE_CLUSTER, name, namespace, now)


async def delete(client: Client, name: str, namespace: str) -> bool:
    """True if the ComputeCluster existed. Raises Denied, and deletes nothing, if it exists and we may not delete it."""
    try:
        with denied_with_rule():
            return await client.delete(COMPUTE_CLUSTER, name, namespace, propagation="Background")
    except Denied as error:
        if await _exists(client, name, namespace):
            raise Denied(f"Cluster {name!r} belongs to an operator. {error.message}", error.hint) from error
        return False


async def _exists(client: Client, name: str, namespace: str) -> bool:
    """True if the ComputeCluster exists. If we may not read it, its ConfigMap names it as owner; raises Denied if we
    may not read that either."""
    try:
        with denied_with_rule():
            try:
                await client.get(COMPUTE_CLUSTER, name, namespace)
            except ApiError as error:
                if error.status != 403:
                    raise
                files = await client.get(CONFIG_MAP, names.root(name), namespace)
                return ownership.is_owned_by(files, COMPUTE_CLUSTER.kind, name)
    except ApiError as error:
        if is_not_found(error):
            return False
        raise
    return True


async def watch(client: Client, name: str, namespace: str, uid: str = "") -> AsyncIterator[Report]:
    """The report now and at every change, until the cluster is gone. `uid`: of the cluster; empty: any."""
    changed = asyncio.Event()

    def wake(*_: object) -> None:
        changed.set()

    selector = names.selector({names.CLUSTER: name})
    roots = Informer(client, COMPUTE_CLUSTER, namespace, fields=f"metadata.name={name}", on_change=wake)
    pods = Informer(client, POD, namespace, labels=selector, transform=trimmed_pod, on_change=wake)
    tasks = start_all((roots, pods), changed.set)
    last: Report | None = None
    try:
        with denied_with_rule():
            await wait_all_synced((roots, pods), SYNC_SECONDS)
        while resource := next(iter(roots.objects.values()), None):
            uid = uid or resource["metadata"]["uid"]
            if resource["metadata"]["uid"] != uid:
                return  # another cluster has taken the name
            changed.clear()
            raise_failure(tasks)
            report = report_of(resource, list(pods.objects.values()))
            if report != last:
                last = report
                yield report
            await changed.wait()
    finally:
        await stop_all(tasks)


def report_of(resource: Object, pods: list[Object]) -> Report:
    """The status that the operator wrote, and the state of the pods. A pod is ready if the engine reported so to the
    operator."""
    stored = resource.get("status") or {}
    is_seen = bool(pods) or "observedGeneration" in stored
    metadata = resource["metadata"]
    groups = tuple(codec.load(GroupStatus, group) for group in stored.get("groups") or ())
    now, state, members = time.time(), status_codec.load_state(stored), observe.members(pods, {})
    unknown = status_codec.unknown(stored, members)
    members = tuple(replace(each, reason=unknown.get(each.id, each.reason)) for each in members)
    observed = Observed(members, state, observe.deaths(pods, now))
    observed = replace(observed, state=replace(state, failures=failures((), observed, state, now)))
    causes = status_codec.load_causes(stored.get("causes"))
    message = stored.get("message", "").removesuffix(causes[0].hint if causes else "").rstrip()
    status = Status(
        name=metadata["name"],
        engine=resource["spec"]["engine"],
        place="kubernetes",
        phase=Phase(stored.get("phase") or "Pending"),
        reason=stored.get("reason", ""),
        message=message or ("" if is_seen else "The operator has not processed it yet."),
        endpoints=codec.load(Endpoints, stored.get("endpoints") or {}),
        groups=groups,
        members=member_statuses(observed, status_codec.load_view(stored, members)),
        mode="operator",
        namespace=metadata["namespace"],
        expires=status_codec.load_expires(stored.get("expires")),
        created=observe.seconds(metadata.get("creationTimestamp")) or None,
        generation=stored.get("observedGeneration", 0),
    )
    if metadata.get("deletionTimestamp"):
        status = replace(status, phase=Phase.STOPPING)
    trouble = status.message if status.phase is not Phase.READY and status.reason != "Draining" else ""
    is_listed = (status.reason, trouble) in {(cause.reason, cause.message) for cause in causes}
    first = (Cause(status.reason or status.phase.value, trouble),) if trouble and not is_listed else ()
    workers = sum(group.wanted for group in groups[:1])
    return Report(status, (*first, *causes, *draining(status.name, status.namespace, workers, state.retiring)))
