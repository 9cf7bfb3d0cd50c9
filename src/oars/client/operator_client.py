"""A client's access to clusters that an operator reconciles: ComputeClusters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from oars import engines
from oars.base import codec
from oars.base.errors import Denied, SpecError, UsageError
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.informer import Informer, raise_failure, start_all, stop_all, wait_all_synced
from oars.kube.kinds import CONFIG_MAP, CRD, LEASE, POD, Kind, Object
from oars.kube.lease import find_held_lease
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
from oars.spec.status import Endpoints, GroupStatus, MemberStatus, Phase, Status

OPERATOR_LEASE = "oars-operator"
OPERATOR_NAMESPACE = "oars-system"  # unless the CRD names another
SYNC_SECONDS = 30.0


async def find_mode(client: Client, namespace: str) -> str:
    """operator if an operator is installed, runs and watches this namespace; else direct."""
    if not await is_served(client, namespace):
        return "direct"
    try:
        lease = await find_held_lease(client, await operator_namespace(client), OPERATOR_LEASE)
    except ApiError as error:
        if error.status == 403:  # we may not read the Lease; where the CRD is installed, an operator most likely runs
            return "operator"
        raise
    return "operator" if lease and not _others(lease, namespace) else "direct"


async def check_watched(client: Client, namespace: str) -> None:
    """Raise UsageError if the operator watches other namespaces only. One that does not run may come back."""
    lease = await get_if_allowed(client, LEASE, OPERATOR_LEASE, await operator_namespace(client))
    if lease and (others := _others(lease, namespace)):
        hint = f"Use `--namespace {others[0]}`, or `--mode direct`."
        raise UsageError(f"The operator does not watch the namespace {namespace!r}: only {', '.join(others)}.", hint)


def _others(lease: Object, namespace: str) -> list[str]:
    """The namespaces that the operator watches, if this is not one of them; empty: it watches this one."""
    annotation = str((lease["metadata"].get("annotations") or {}).get(names.OPERATOR_WATCHES, ""))
    watched = [each for each in annotation.split(",") if each]
    return [] if namespace in watched else watched


async def is_served(client: Client, namespace: str | None) -> bool:
    """True if the CRD is installed and we may list ComputeClusters."""
    try:
        await client.list(COMPUTE_CLUSTER, namespace, limit=1)
    except ApiError as error:
        if error.status in (403, 404):
            return False
        raise
    return True


async def operator_namespace(client: Client) -> str:
    """The namespace of the operator, as its CRD says. A complete installation lets everybody read that."""
    definition = await get_if_allowed(client, CRD, f"{COMPUTE_CLUSTER.plural}.{COMPUTE_CLUSTER.group}")
    annotations = definition["metadata"].get("annotations") if definition else None
    return str((annotations or {}).get(names.OPERATOR_HOME, OPERATOR_NAMESPACE))


async def get_if_allowed(client: Client, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
    """The object; None if it does not exist or we may not read it."""
    try:
        return await client.get(kind, name, namespace)
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise


async def list_all(client: Client, namespace: str | None) -> list[Object]:
    try:
        return (await client.list(COMPUTE_CLUSTER, namespace)).items
    except ApiError as error:
        if error.status in (403, 404):
            return []
        raise


async def create(client: Client, name: str, namespace: str, spec: ClusterSpec) -> Object:
    """Create the ComputeCluster and return it."""
    metadata = {"name": name, "namespace": namespace}
    head = {"apiVersion": COMPUTE_CLUSTER.api_version, "kind": COMPUTE_CLUSTER.kind, "metadata": metadata}
    return await client.create({**head, "spec": _resource_spec(name, spec, namespace)})


def _resource_spec(name: str, spec: ClusterSpec, namespace: str) -> Object:
    """The spec of the resource. The first group's number is `replicas`, which `kubectl scale` and autoscalers use; the
    resource's own namespace is left out."""
    if spec.namespace.name == namespace:
        spec = spec.model_copy(update={"namespace": spec.namespace.model_copy(update={"name": None})})
    resource_spec: Object = load.dump(load.Manifest(name, spec))["spec"]
    resource_spec.pop("place", None)
    if spec.workers:
        resource_spec["replicas"] = spec.workers[0].replicas
        for group in resource_spec.get("workers", ())[:1]:
            del group["replicas"]
    return resource_spec


def spec(resource: Object) -> ClusterSpec:
    return read(str(resource["metadata"]["name"]), resource["spec"])


def read(name: str, data: Mapping[str, Any]) -> ClusterSpec:
    """Parse the stored spec. The schema of the CRD does not catch every mistake that other writers can make."""
    try:
        return load.build({**data, "place": "kubernetes"}, option_model=engines.option_model).spec
    except SpecError as error:
        message = f"The spec of cluster {name!r} in Kubernetes is invalid: {error.message}"
        hint = f"{error.hint} Correct it with `kubectl edit computecluster {name}`.".strip()
        raise SpecError(message, hint, error.details) from error


async def change(client: Client, before: Object, changed: ClusterSpec, *, force: bool) -> None:
    """Patch the spec unless it was written since `before` was read (409). The force annotation names the generation
    that it applies to; if the patch does not create a new generation, it is written again with the current one."""
    name, namespace, version = (before["metadata"][key] for key in ("name", "namespace", "resourceVersion"))
    named_before = (before["spec"].get("namespace") or {}).get("name")
    spec_patch = merge_patch(before["spec"], _resource_spec(name, changed, "" if named_before else namespace))
    foreseen = before["metadata"]["generation"] + 1
    annotations = {names.FORCE: str(foreseen) if force else None}
    body = {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": spec_patch}
    after = await client.patch(COMPUTE_CLUSTER, name, namespace, body)
    if force and after["metadata"]["generation"] != foreseen:
        now = {"metadata": {"annotations": {names.FORCE: str(after["metadata"]["generation"])}}}
        await client.patch(COMPUTE_CLUSTER, name, namespace, now)


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """The JSON merge patch (RFC 7386) that turns `before` into `after`."""
    patch: Object = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if changed := merge_patch(old, value):
                patch[key] = changed
        elif old != value or key not in before:
            patch[key] = value
    return patch


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
        await client.get(COMPUTE_CLUSTER, name, namespace)
    except ApiError as error:
        if is_not_found(error):
            return False
        if error.status != 403:
            raise
    else:
        return True
    try:
        with denied_with_rule():
            files = await client.get(CONFIG_MAP, names.root(name), namespace)
    except ApiError as error:
        if is_not_found(error):
            return False
        raise
    return ownership.is_owned_by(files, COMPUTE_CLUSTER.kind, name)


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
    """The status that the operator wrote, and the state of the pods."""
    told = resource.get("status") or {}
    is_seen = bool(pods) or "observedGeneration" in told
    metadata = resource["metadata"]
    groups = tuple(codec.load(GroupStatus, group) for group in told.get("groups") or ())
    retiring = status_codec.load_state(told).retiring
    causes = status_codec.load_causes(told.get("causes"))
    message = told.get("message", "").removesuffix(causes[0].hint if causes else "").rstrip()
    status = Status(
        name=metadata["name"],
        engine=resource["spec"]["engine"],
        place="kubernetes",
        phase=Phase(told.get("phase") or "Pending"),
        reason=told.get("reason", ""),
        message=message or ("" if is_seen else "The operator has not processed it yet."),
        endpoints=codec.load(Endpoints, told.get("endpoints") or {}),
        groups=groups,
        members=_members(told, pods),
        mode="operator",
        namespace=metadata["namespace"],
        generation=told.get("observedGeneration", 0),
    )
    if metadata.get("deletionTimestamp"):
        status = replace(status, phase=Phase.STOPPING)
    trouble = status.message if status.phase is not Phase.READY and status.reason != "Draining" else ""
    is_listed = (status.reason, trouble) in {(cause.reason, cause.message) for cause in causes}
    first = (Cause(status.reason or status.phase.value, trouble),) if trouble and not is_listed else ()
    return Report(status, (*first, *causes, *draining(status.name, retiring)))


def _members(status: Mapping[str, Any], pods: list[Object]) -> tuple[MemberStatus, ...]:
    """The pods as they are, ready if the engine reported so to the operator."""
    members = observe.members(pods, {})
    now, state = time.time(), status_codec.load_state(status)
    observed = Observed(members, state, observe.deaths(pods, now))
    observed = replace(observed, state=replace(state, failures=failures((), observed, state, now)))
    return member_statuses(observed, status_codec.load_view(status, members))
