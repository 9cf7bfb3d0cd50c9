"""Clusters of an operator, as a client sees them: ComputeClusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from oars.base.errors import Denied, SpecError, UsageError
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.informer import Informer, await_synced, check, start, stop
from oars.kube.kinds import COMPUTE_CLUSTER, CONFIG_MAP, CRD, LEASE, POD, Kind, Object
from oars.kube.lease import held
from oars.model import Cause, MemberId, MemberState, Retiring
from oars.places.kube import names
from oars.places.kube.state import observe, ownership, replicas, status_codec
from oars.places.kube.state.cache import trimmed_pod
from oars.places.kube.state.root import FORCE
from oars.places.kube.why.api_errors import rights_told
from oars.places.report import Report
from oars.plan.why import draining
from oars.spec import load
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Endpoints, GroupStatus, MemberStatus, Phase, Status

OPERATOR_LEASE = "oars-operator"
OPERATOR_NAMESPACE = "oars-system"  # unless the definition names another
SYNC_SECONDS = 30.0


async def find_mode(client: Client, namespace: str) -> str:
    """operator, if it is installed and somebody is at work in this namespace; else direct."""
    if not await is_served(client, namespace):
        return "direct"
    try:
        lease = await held(client, await home(client), OPERATOR_LEASE)
    except ApiError as error:
        if error.status == 403:  # we may not look: where the kind is served, it is most likely looked after
            return "operator"
        raise
    return "operator" if lease and not _others(lease, namespace) else "direct"


async def check_watched(client: Client, namespace: str) -> None:
    """For whoever insists on an operator: raises if the one there is looks after other namespaces only. One that is
    away may come back."""
    lease = await seen(client, LEASE, OPERATOR_LEASE, await home(client))
    if lease and (others := _others(lease, namespace)):
        hint = "Choose one of those with --namespace, or use --mode direct."
        raise UsageError(f"The operator does not watch the namespace {namespace!r}: only {', '.join(others)}.", hint)


def _others(lease: Object, namespace: str) -> list[str]:
    """The namespaces that the operator watches, if this is not one of them."""
    said = str((lease["metadata"].get("annotations") or {}).get(names.OPERATOR_WATCHES, ""))
    watched = [each for each in said.split(",") if each]
    return [] if namespace in watched else watched


async def is_served(client: Client, namespace: str | None) -> bool:
    """Whether there are ComputeClusters here, and we may see them."""
    try:
        await client.list(COMPUTE_CLUSTER, namespace, limit=1)
    except ApiError as error:
        if error.status in (403, 404):
            return False
        raise
    return True


async def home(client: Client) -> str:
    """The namespace in which the operator was installed. Everybody may look there, where it was installed whole."""
    definition = await seen(client, CRD, f"{COMPUTE_CLUSTER.plural}.{COMPUTE_CLUSTER.group}")
    said = definition["metadata"].get("annotations") if definition else None
    return str((said or {}).get(names.OPERATOR_HOME, OPERATOR_NAMESPACE))


async def seen(client: Client, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
    """None: it is not there, or is not ours to see."""
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


async def list_names(client: Client, namespace: str) -> list[str]:
    return [str(resource["metadata"]["name"]) for resource in await list_all(client, namespace)]


async def create(client: Client, name: str, namespace: str, spec: ClusterSpec) -> Object:
    """What was made."""
    metadata = {"name": name, "namespace": namespace, "annotations": _counted(spec)}
    head = {"apiVersion": COMPUTE_CLUSTER.api_version, "kind": COMPUTE_CLUSTER.kind, "metadata": metadata}
    return await client.create({**head, "spec": _said(name, spec, namespace)})


def _said(name: str, spec: ClusterSpec, namespace: str) -> Object:
    """As a resource has it: the first group's number is the cluster's, which is what `kubectl scale` and autoscalers
    read and write; and that it is where it is need not be said."""
    if spec.namespace.name == namespace:
        spec = spec.model_copy(update={"namespace": spec.namespace.model_copy(update={"name": None})})
    said: Object = load.dump(load.Manifest(name, spec))["spec"]
    said.pop("place", None)
    if spec.workers:
        groups = said.setdefault("workers", [{}])
        said["workers"] = [{key: value for key, value in groups[0].items() if key != "replicas"}, *groups[1:]]
        said["replicas"] = spec.workers[0].replicas
    return said


def _counted(spec: ClusterSpec) -> dict[str, str]:
    """As if the first group said its number itself: if it ever does and says another, that is news."""
    first = spec.group(None)
    return {replicas.SAID: replicas.mark(first.name, first.replicas)} if first else {}


def spec(resource: Object) -> ClusterSpec:
    return read(str(resource["metadata"]["name"]), replicas.spec(resource))


def read(name: str, data: Mapping[str, Any]) -> ClusterSpec:
    """What is kept of a cluster. Others write it as well, and the API server's schema does not see every mistake."""
    try:
        return load.build({**data, "place": "kubernetes"}).spec
    except SpecError as error:
        message = f"The description of {name!r} that Kubernetes holds is wrong: {error.message}"
        raise SpecError(message, f"{error.hint} Correct it there, with kubectl.".strip(), error.details) from error


async def change(client: Client, before: Object, changed: ClusterSpec, *, force: bool) -> None:
    """One write, if nobody else wrote since `before` was read: the new description, and whether it may cost what
    workers hold. The same description once more, now by force, is a second one: then the description has no new
    generation that the force could be for."""
    name, namespace, version = (before["metadata"][key] for key in ("name", "namespace", "resourceVersion"))
    said_before = (before["spec"].get("namespace") or {}).get("name")
    spec_patch = merge_patch(before["spec"], _said(name, changed, "" if said_before else namespace))
    foreseen = before["metadata"]["generation"] + 1
    annotations = {FORCE: str(foreseen) if force else None, **_counted(changed)}
    body = {"metadata": {"resourceVersion": version, "annotations": annotations}, "spec": spec_patch}
    after = await client.patch(COMPUTE_CLUSTER, name, namespace, body)
    if force and after["metadata"]["generation"] != foreseen:
        now = {"metadata": {"annotations": {FORCE: str(after["metadata"]["generation"])}}}
        await client.patch(COMPUTE_CLUSTER, name, namespace, now)


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """What makes the one the other (RFC 7386): null for what is gone, at any depth; lists are replaced whole."""
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
    """Whether it was there, as far as we may see. Raises if it is there and not ours to delete: it goes on, and needs
    all that it has."""
    try:
        with rights_told():
            return await client.delete(COMPUTE_CLUSTER, name, namespace, propagation="Background")
    except Denied as error:
        if await _is_there(client, name, namespace):
            raise Denied(f"The cluster {name!r} is an operator's. {error.message}", error.hint) from error
        return False


async def _is_there(client: Client, name: str, namespace: str) -> bool:
    """Also if we may not see it: its files can tell, which hang on it. Raises if we may not see those either, as what
    we know nothing of is not ours to delete."""
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
        with rights_told():
            files = await client.get(CONFIG_MAP, names.root(name), namespace)
    except ApiError as error:
        if is_not_found(error):
            return False
        raise
    return ownership.hangs_on(files, COMPUTE_CLUSTER.kind, name)


async def watch(client: Client, name: str, namespace: str, uid: str = "") -> AsyncIterator[Report]:
    """The report now and at every change, until the cluster is gone: the one with that uid, or else the first."""
    changed = asyncio.Event()

    def wake(*_: object) -> None:
        changed.set()

    selector = names.selector({names.CLUSTER: name})
    roots = Informer(client, COMPUTE_CLUSTER, namespace, fields=f"metadata.name={name}", changed=wake)
    pods = Informer(client, POD, namespace, labels=selector, keep=trimmed_pod, changed=wake)
    tasks = start((roots, pods), changed.set)
    last: Report | None = None
    try:
        with rights_told():
            await await_synced((roots, pods), SYNC_SECONDS)
        while resource := next(iter(roots.objects.values()), None):
            uid = uid or resource["metadata"]["uid"]
            if resource["metadata"]["uid"] != uid:
                return  # another one has its name
            changed.clear()
            check(tasks)
            report = report_of(resource, list(pods.objects.values()))
            if report != last:
                last = report
                yield report
            await changed.wait()
    finally:
        await stop(tasks)


def report_of(resource: Object, pods: list[Object]) -> Report:
    """The operator's word on the cluster, and the pods as they are."""
    told = resource.get("status") or {}
    is_seen = bool(pods) or "observedGeneration" in told
    metadata = resource["metadata"]
    groups = tuple(GroupStatus(**group) for group in told.get("groups") or ())
    retiring = status_codec.load_notes(told.get("notes")).retiring
    causes = status_codec.load_causes(told.get("causes"))
    message = told.get("message", "").removesuffix(causes[0].hint if causes else "").rstrip()
    status = Status(
        name=metadata["name"],
        engine=resource["spec"]["engine"],
        place="kubernetes",
        phase=Phase(told.get("phase") or "Pending"),
        reason=told.get("reason", ""),
        message=message or ("" if is_seen else "The operator has not seen it yet."),
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
    is_listed = (status.reason, trouble) in {(cause.reason, cause.message) for cause in causes}
    first = (Cause(status.reason or status.phase.value, trouble),) if trouble and not is_listed else ()
    return Report(status, (*first, *causes, *draining(status.name, retiring)))


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
