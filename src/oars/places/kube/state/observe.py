"""Derives members and their states from pods and Deployments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from oars.model import HEAD, Death, Member, MemberId, MemberState, Role
from oars.places.kube import names
from oars.places.kube.names import Object


def deployment_of(pod: Object) -> str:
    """The name of the Deployment whose ReplicaSet created the pod; empty if there is none. Labels are no proof: anybody
    can set them, and `kubectl debug --copy-to=x --keep-labels` copies them. A ReplicaSet adopts such a copy, but only
    pods that it created have a generated name."""
    metadata = pod["metadata"]
    template = (metadata.get("labels") or {}).get("pod-template-hash")
    owners = metadata.get("ownerReferences") or ()
    owner = next((each["name"] for each in owners if each.get("controller") and each["kind"] == "ReplicaSet"), "")
    is_created = owner and metadata.get("generateName", "").startswith(owner)
    return str(owner).removesuffix(f"-{template}") if template and is_created else ""


def is_member(pod: Object) -> bool:
    """True if the Deployment created the pod that its labels imply. Users can put a cluster's labels on any pod, also
    on those of their own Deployments, or change the labels of a member; we ignore such pods."""
    labels = pod["metadata"].get("labels") or {}
    cluster, group, revision = (str(labels.get(name, "")) for name in (names.CLUSTER, names.GROUP, names.REVISION))
    if not cluster or not group:
        return False
    creator = deployment_of(pod)
    if group == HEAD:
        return creator == names.head(cluster)
    return creator in (names.workers(cluster, group), names.workers(cluster, group, revision))


def is_staying(pod: Object) -> bool:
    """True if the pod counts as a replica: it is a member, is not being removed, and has not ended for good (an evicted
    pod is replaced)."""
    return is_member(pod) and is_up(pod) and names.LEAVING not in pod["metadata"].get("annotations", {})


def is_up(pod: Object) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and phase(pod) not in ("Failed", "Succeeded")


def phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def condition(obj: Object, kind: str) -> Mapping[str, Any]:
    """The condition of that type; empty if there is none."""
    conditions: Iterable[Mapping[str, Any]] = obj.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def is_ready(pod: Object) -> bool:
    """True if the pod passes its probes."""
    return condition(pod, "Ready").get("status") == "True"


def is_running(pod: Object) -> bool:
    """True if the engine's process runs, ready or not."""
    return "running" in _container(pod).get("state", {})


def group_name(obj: Object) -> str:
    """The group of a pod or Deployment; '' without the label."""
    return str((obj["metadata"].get("labels") or {}).get(names.GROUP, ""))


def role(obj: Object) -> Role:
    """The role of a member or Deployment. Its value is also the name of the engine's container."""
    return Role.HEAD if group_name(obj) == HEAD else Role.WORKER


def group(pod: Object, revisions: Mapping[str, str]) -> str:
    """The group's name. Pods of an older revision form a separate group, NAME@REVISION."""
    name, revision = group_name(pod), pod["metadata"]["labels"].get(names.REVISION, "")
    return name if revisions.get(name, revision) == revision else f"{name}@{revision}"


def containers(pod: Object) -> list[str]:
    """Names of all containers, the engine's first; sidecars, init containers and ephemeral containers follow."""
    spec, own = pod["spec"], role(pod).value
    kinds = ("containers", "initContainers", "ephemeralContainers")
    named = [str(container["name"]) for kind in kinds for container in spec.get(kind) or ()]
    return sorted(named, key=lambda name: name != own)


def members(pods: Iterable[Object], revisions: Mapping[str, str]) -> tuple[Member, ...]:
    """The members among the pods: the newest head and all workers. `revisions`: the desired ones by group."""
    return tuple(_member(pod, revisions) for pod in _member_pods(pods))


def _member_pods(pods: Iterable[Object]) -> list[Object]:
    staying = sorted(filter(is_staying, pods), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    heads = [pod for pod in staying if role(pod) is Role.HEAD]
    return heads[-1:] + [pod for pod in staying if role(pod) is Role.WORKER]


def _member(pod: Object, revisions: Mapping[str, str]) -> Member:
    metadata, kind = pod["metadata"], role(pod)
    container = _container(pod)
    state, reason = container_state(pod, container)
    is_head = kind is Role.HEAD
    return Member(
        id=HEAD if is_head else MemberId(metadata["name"]),
        role=kind,
        group=HEAD if is_head else group(pod, revisions),
        state=state,
        incarnation=_incarnation(pod, container) if is_head else metadata["uid"],
        head_epoch=head_epoch(pod),
        started_at=seconds(container.get("state", {}).get("running", {}).get("startedAt")),
        created_at=seconds(metadata["creationTimestamp"]),
        address=pod.get("status", {}).get("podIP", ""),
        reason=reason,
        probe_ready=is_ready(pod),
        blocked=blocked(pod),
    )


def being_deleted(pods: Iterable[Object]) -> dict[MemberId, str]:
    """Uids of workers whose pod is being deleted while their container still runs."""
    workers = (pod for pod in pods if role(pod) is Role.WORKER and is_member(pod) and is_running(pod))
    found = (pod["metadata"] for pod in workers if pod["metadata"].get("deletionTimestamp"))
    return {MemberId(metadata["name"]): metadata["uid"] for metadata in found}


def blocked(pod: Object) -> str:
    """Why the scheduler has no node for the pod; empty if it has, or has not looked."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return ""
    return f"no node has room ({str(scheduled.get('message', '')).rstrip('.') or 'Unschedulable'})"


def refused(deployments: Iterable[Object]) -> dict[str, str]:
    """Group → why Kubernetes refuses more pods of it, such as a quota."""
    failures = ((group_name(each), condition(each, "ReplicaFailure")) for each in deployments)
    return {
        group: f"Kubernetes refuses more pods ({str(failure.get('message', '')).rstrip('.')})"
        for group, failure in failures
        if failure.get("status") == "True"
    }


def head_epoch(pod: Object) -> int:
    """The epoch of the head that a worker was started for."""
    return int(annotation(pod, names.HEAD_EPOCH) or 0)


def _incarnation(pod: Object, container: Mapping[str, Any]) -> str:
    """Identifies one start of the head: a restart of its container is a new one. Empty before the first start."""
    if not {"running", "terminated"} & container.get("state", {}).keys() and not container.get("lastState"):
        return ""
    return f"{pod['metadata']['uid']}:{container.get('restartCount', 0)}"


def head_pod(pods: Iterable[Object]) -> Object | None:
    """The newest head pod."""
    return next((pod for pod in _member_pods(pods) if role(pod) is Role.HEAD), None)


def has_room(pod: Object) -> bool:
    """True if the scheduler has chosen a node for the pod, or waits for the pods that start together with it."""
    return bool(pod["spec"].get("nodeName") or annotation(pod, names.GANG))


def outline(pod: Object) -> tuple[object, ...]:
    """The fields that change when the member changes; empty if the pod is none. Cheaper than comparing members."""
    if not is_staying(pod):
        return ()
    container = _container(pod)
    address = pod.get("status", {}).get("podIP", "")
    placed = role(pod) is Role.WORKER or has_room(pod)  # workers start when the head has
    return is_ready(pod), address, container.get("restartCount", 0), placed, *container_state(pod, container)


def is_starting(old: Object, new: Object) -> bool:
    """True if the pod is on its way to ready: it was not ready before, and has neither failed nor restarted."""
    if is_ready(old) or not is_staying(old) or not is_staying(new):
        return False
    before, after = (_container(pod) for pod in (old, new))
    return not _has_died(after) and before.get("restartCount", 0) == after.get("restartCount", 0)


def _container(pod: Object) -> Mapping[str, Any]:
    """The status of the engine's container."""
    found = pod.get("status", {}).get("containerStatuses") or ()
    return next((status for status in found if status["name"] == role(pod).value), {})


def _has_died(container: Mapping[str, Any]) -> bool:
    state = container.get("state", {})
    return "terminated" in state or state.get("waiting", {}).get("reason") == "CrashLoopBackOff"


def container_state(pod: Object, container: Mapping[str, Any]) -> tuple[MemberState, str]:
    """The member's state and its reason. A container that died counts as waiting, for the kubelet restarts it."""
    state = container.get("state", {})
    if "running" in state:
        return MemberState.RUNNING, ""
    if "terminated" in state:
        return MemberState.WAITING, ending(state["terminated"])
    waiting = state.get("waiting", {}).get("reason", "")
    if waiting == "CrashLoopBackOff":
        return MemberState.WAITING, ending(container.get("lastState", {}).get("terminated", {}))
    scheduled = condition(pod, "PodScheduled")
    if not waiting and scheduled.get("status") == "False":
        return MemberState.WAITING, str(scheduled.get("reason", "Unschedulable"))
    return MemberState.WAITING, waiting or "the pod is being created"


def ending(terminated: Mapping[str, Any]) -> str:
    if terminated.get("reason") == "OOMKilled":
        return "was killed: it needed more memory than its limit"
    code = terminated.get("exitCode")
    return "ended" if code is None else f"exited with code {code}"


def deaths(pods: Iterable[Object], now: float) -> dict[MemberId, Death]:
    """The last death of each member whose container died, with the kubelet's count of restarts."""
    found = {}
    for pod in filter(is_staying, pods):
        kind = role(pod)
        container = _container(pod)
        restarts, ended = container.get("restartCount", 0), container.get("state", {}).get("terminated")
        if not restarts and not ended and not _has_died(container):
            continue
        last = ended or container.get("lastState", {}).get("terminated") or {}
        at, started_at = seconds(last.get("finishedAt")) or now, seconds(last.get("startedAt"))
        member = HEAD if kind is Role.HEAD else MemberId(pod["metadata"]["name"])
        dead = restarts - 1 if "running" in container.get("state", {}) else restarts  # which start of the container
        incarnation = f"{pod['metadata']['uid']}:{dead}"
        found[member] = Death(incarnation, at, started_at, ending(last), count=max(1, restarts))
    return found


def seconds(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def timestamp(seconds: float) -> str:
    """Seconds since the epoch in the format of Kubernetes."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def annotation(obj: Object, name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name, ""))


def is_of(pod: Object, deployment: Object) -> bool:
    return bool(deployment_of(pod) == deployment["metadata"]["name"])


def is_rolled_out(deployment: Object) -> bool:
    """True if no pod of an older revision remains. A Deployment of generation 1 has no older revision, so we need not
    wait until its controller has observed it."""
    if deployment["metadata"]["generation"] == 1:
        return True
    return is_acted_on(deployment) and deployment["status"].get("updatedReplicas", 0) >= 1


def replaced(head: Member) -> Member:
    """The head as a member that is being replaced."""
    return replace(head, state=MemberState.WAITING, incarnation="", probe_ready=False, reason="it is being replaced")


def is_settled(deployment: Object, pods: list[Object]) -> bool:
    """True if the Deployment has no surplus pods."""
    return is_acted_on(deployment) and len(list(filter(is_up, pods))) <= deployment["spec"].get("replicas", 1)


def has_unseen(deployment: Object, pods: Iterable[Object]) -> bool:
    """True if the Deployment has more pods than our watch has reported. A ReplicaSet that is scaled down now may remove
    a pod that we do not know."""
    seen = sum(is_of(pod, deployment) and is_up(pod) for pod in pods)
    return bool(deployment.get("status", {}).get("replicas", 0) > seen)


def is_acted_on(deployment: Object) -> bool:
    """True if the Deployment's controller has observed its latest generation."""
    seen = deployment.get("status", {}).get("observedGeneration", 0)
    return bool(seen >= deployment["metadata"]["generation"])
