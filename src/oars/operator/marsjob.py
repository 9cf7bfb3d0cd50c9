"""MarsJobs of KubeDL as a kind of the operator: a Mars cluster with KubeDL's names, variables and status."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from oars.base.errors import SpecError
from oars.convert import convert_one
from oars.convert.fields import Unmet
from oars.convert.mars import ROLES
from oars.engines.mars.shape import SUPERVISOR_PORT, WEB_PORT, WORKER_PORT
from oars.exposure import Alias
from oars.kube.client import Client
from oars.kube.kinds import Kind, Object, register
from oars.model import HEAD, Cause, Desired, DrainRequest, Group, MemberId
from oars.operator import crd, marsjob_gang, marsjob_queue, marsjob_schedule
from oars.operator.marsjob_status import KEEP, LOST_WORKERS, WAITING, MarsJobStatus, follow, is_ended, keeps_pods
from oars.operator.resources import Course, Key, ResourceKind, compute_cluster
from oars.operator.safe_fields import INGRESSES, Right
from oars.places.kube import names
from oars.places.kube.state.root import ResourceRoot
from oars.spec.resources import cpu as parse_cpu
from oars.spec.resources import memory as parse_memory

PODS = Right("", "pods")
# KubeDL has changed the group.
KINDS = tuple(register(Kind(group, "v1alpha1", crd.MARS_JOB_PLURAL, "MarsJob")) for group in crd.MARS_JOB_GROUPS)
PORT, PORT_NAME = 11111, "mars-port"  # of KubeDL's Services
SCHEDULER, WEB, WORKER = (role.lower() for role in ROLES)
INDEX = "replica-index"
# Fields that a ComputeCluster does not have, but that are honoured here, or are listed for a reason of their own.
_LIVE = (
    "spec.ttlSecondsAfterFinished", "spec.backoffLimit", "spec.cronPolicy",
    *(f"spec.schedulingPolicy.{field}" for field in ("queue", "minAvailable", "priority")),
    *(f"spec.marsReplicaSpecs.{role}.restartPolicy" for role in ROLES),
)  # fmt: skip
# The account of KubeDL's example, with which Mars up to 0.6 finds its pods. Nothing creates it.
KUBEDL_ACCOUNT = "kubedl-sa"
_WEB_AUTH = ("token", "none")

# Variables of KubeDL that differ from pod to pod. They replace those of the user, as in KubeDL.
FROM_POD = {
    name: {"fieldRef": {"fieldPath": path}}
    for name, path in (
        ("MARS_CONTAINER_IP", "status.podIP"),
        ("MARS_K8S_POD_NAME", "metadata.name"),
        ("MARS_K8S_POD_NAMESPACE", "metadata.namespace"),
    )
}


def desired(resource: Object) -> Desired:
    """The cluster of a MarsJob."""
    spec, _ = _converted(resource)
    spec["head"] = dict(spec.get("head") or {})
    for member in (spec["head"], *spec["workers"]):
        pod = (member.get("pod") or {}).get("spec") or {}
        if pod.get("serviceAccountName") == KUBEDL_ACCOUNT:
            del pod["serviceAccountName"]
    if _web_auth(resource) == "none":
        spec["head"]["env"] = {**spec["head"].get("env", {}), "OARS_WEB_AUTH": "none"}
    spec.pop("lifetime", None)  # a job whose time is over has failed; it is not deleted
    spec["head"] = _with_names(resource, spec["head"], HEAD, SCHEDULER, {INDEX: "0"})
    spec["workers"] = [_with_names(resource, each, "worker", WORKER, {}) for each in spec["workers"]]
    return _named(resource, compute_cluster({**resource, "spec": spec}))


def _converted(resource: Object) -> tuple[dict[str, Any], tuple[Unmet, ...]]:
    keys = ("apiVersion", "kind", "spec")
    metadata = {key: resource["metadata"][key] for key in ("name", "annotations") if key in resource["metadata"]}
    return convert_one({**{key: resource[key] for key in keys if key in resource}, "metadata": metadata})


def _web_auth(resource: Object) -> str:
    """Whether the web service requires the token. Raises SpecError."""
    found = (resource["metadata"].get("annotations") or {}).get(names.WEB_AUTH, "token")
    if found not in _WEB_AUTH:
        raise SpecError(f"The annotation {names.WEB_AUTH} is {found!r}.", f"Write {' or '.join(_WEB_AUTH)}.")
    return str(found)


def not_honoured(resource: Object, status: Mapping[str, Any]) -> list[str]:
    """The fields without effect, or with less than in KubeDL, each with the reason."""
    spec = resource["spec"]
    found = [f"{each.path}: {each.reason}" for each in _converted(resource)[1] if not each.path.startswith(_LIVE)]
    if spec.get("cronPolicy") and (problem := marsjob_schedule.problem(resource)):
        found.append(f"spec.cronPolicy: {problem}")
    if reason := marsjob_gang.problem(resource, status):
        fields = [each for each in marsjob_gang.FIELDS if (spec.get("schedulingPolicy") or {}).get(each)]
        found += [f"spec.schedulingPolicy.{each}: {reason}" for each in fields]
    if reason := marsjob_queue.problem(resource, status):
        found.append(f"metadata.labels: {reason}")
    if (spec.get("schedulingPolicy") or {}).get("priority") and not marsjob_queue.honours_priority(resource, status):
        found.append("spec.schedulingPolicy.priority: only Kueue takes it; the pods have that of their priority class")
    for role, each in spec["marsReplicaSpecs"].items():
        path = f"spec.marsReplicaSpecs.{role}"
        account = ((each.get("template") or {}).get("spec") or {}).get("serviceAccountName")
        if role.lower() != WEB and account == KUBEDL_ACCOUNT:
            reason = "this Mars needs no rights; the pods have an account of their own"
            found.append(f"{path}.template.spec.serviceAccountName: {reason}")
        if role.lower() == WEB and each.get("restartPolicy"):
            found.append(f"{path}.restartPolicy: the head serves the web page, so the Scheduler's policy applies")
    return [*found, *_pods_at_the_end(spec)]


def _pods_at_the_end(spec: Mapping[str, Any]) -> list[str]:
    """What of cleanPodPolicy cannot be kept: pods belong to Deployments, so none of them ends for good."""
    policy = spec.get("cleanPodPolicy") or KEEP
    if policy == "Running":
        return [
            "spec.cleanPodPolicy: pods that have ended, such as evicted ones, are removed with their Deployment, too"
        ]
    if policy != KEEP:
        return []
    limits = [each for each in ("activeDeadlineSeconds", "backoffLimit") if spec.get(each) is not None]
    stopped = f"; at {' and '.join(limits)} all pods are stopped" if limits else ""
    restarted = (
        "when the scheduler ends, the pods stay, but Kubernetes starts its container again, as in any Deployment"
    )
    return [f"spec.cleanPodPolicy: {restarted}{stopped}"]


def labels(resource: Object, role: str) -> dict[str, str]:
    """KubeDL's labels."""
    group = str(resource["apiVersion"]).partition("/")[0]
    return {"group-name": group, "job-name": resource["metadata"]["name"], "replica-type": role}


def _with_names(
    resource: Object, member: Mapping[str, Any], container: str, role: str, more: Mapping[str, str]
) -> dict[str, Any]:
    """The head or a worker group, whose pods have KubeDL's labels and the variables that differ from pod to pod."""
    pod = json.loads(json.dumps(member.get("pod") or {}))
    metadata, spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels(resource, role), **more}
    containers = spec.setdefault("containers", [])
    own = next((each for each in containers if each.get("name") == container), None)
    if own is None:
        own = {"name": container}
        containers.insert(0, own)
    plain = {**_variables(resource), "MARS_CLUSTER_DETAIL": _detail(resource, role, member)}
    tuning = _memory_variables(resource["spec"]) if role == WORKER else {}
    others = [each for each in own.get("env") or () if each.get("name") not in {*plain, *FROM_POD, *tuning}]
    from_pod = [{"name": key, "valueFrom": source} for key, source in FROM_POD.items()]
    own["env"] = [*others, *from_pod, *({"name": key, "value": value} for key, value in tuning.items())]
    given = {key: value for key, value in (member.get("env") or {}).items() if key not in FROM_POD}
    return {**member, "pod": pod, "env": {**given, **plain}}


def _detail(resource: Object, role: str, member: Mapping[str, Any]) -> str:
    """What programs read to find the other members. All pods of a Deployment have the same variables, so the index is
    0 in each; a worker's own is the label replica-index of its pod."""
    name, namespace = resource["metadata"]["name"], resource["metadata"]["namespace"]
    addresses = {
        SCHEDULER: [f"{name}-{SCHEDULER}-0.{namespace}.svc:{SUPERVISOR_PORT}"],
        WEB: [f"{name}-{WEB}-0.{namespace}.svc:{PORT}"],
    }
    task: dict[str, Any] = {"type": role, "index": 0}
    if role == WORKER:
        sizes = (("cpu_procs", "cpu", _processors), ("phy_mem", "memory", parse_memory))
        task["resources"] = {key: parse(member[field]) for key, field, parse in sizes if field in member}
    return json.dumps({"cluster": addresses, "task": task}, sort_keys=True)


def _processors(value: object) -> int:
    return math.ceil(parse_cpu(value))


def _variables(resource: Object) -> dict[str, str]:
    """The variables of KubeDL that are the same in all pods; the engine sets MARS_CPU_TOTAL, MARS_MEMORY_TOTAL and
    those of the cache."""
    name = resource["metadata"]["name"]
    web = f"http://{name}-{WEB}-0"
    return {
        "MARS_CPU_USE_PROCESS_STAT": "1",
        "MARS_K8S_GROUP_LABELS": "job-name",
        "OARS_MARS_ALIASES": " ".join([web, f"{web}:{PORT}", f"{web}:{WEB_PORT}"]),
    }


def _memory_variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """Variables of KubeDL, with its defaults, that only programs read: they have no effect on a Mars of today, so the
    engine refuses them in a spec."""
    policy = {**(spec.get("memoryTuningPolicy") or {}), **(spec.get("workerMemoryTuningPolicy") or {})}
    store, is_lock_free = policy.get("plasmaStore"), policy.get("lockFreeFileIO")
    found = {"MARS_LOCK_FREE_FILEIO": "0" if is_lock_free is False else "1"}
    if store != "":
        found["MARS_PLASMA_DIRS"] = str(store or "/dev/shm")
    return found


def _named(resource: Object, cluster: Desired) -> Desired:
    """With the Services that KubeDL has for each pod, and its path at `webHost`."""
    name, namespace = cluster.name, cluster.namespace
    web = {"http": (80, WEB_PORT), PORT_NAME: (PORT, WEB_PORT), "web": (WEB_PORT, WEB_PORT)}

    def direct(port: int) -> dict[str, tuple[int, int]]:
        return {PORT_NAME: (port, port)}

    at_head = {INDEX: "0"}
    aliases = [
        Alias(
            f"{name}-{SCHEDULER}-0", HEAD, direct(SUPERVISOR_PORT), True, labels=labels(resource, SCHEDULER) | at_head
        ),
        Alias(f"{name}-{WEB}-0", HEAD, web, labels=labels(resource, WEB) | at_head),
    ]
    groups: list[Group] = []
    for group in cluster.shape.workers:  # the numbers of spot workers follow those of the others
        first = sum(each.replicas for each in groups)
        groups.append(replace(group, number_label=INDEX, first_number=first))
        role_labels = labels(resource, WORKER)
        aliases.append(Alias(f"{name}-{WORKER}", group.name, direct(WORKER_PORT), True, True, role_labels))
    path = f"/mars/{namespace}/{name}-{WEB}-0"
    return replace(
        cluster,
        aliases=tuple(aliases),
        shape=replace(cluster.shape, workers=tuple(groups)),
        expose=replace(cluster.expose, path=path),
    )


def restricted(resource: Object) -> dict[Right, list[str]]:
    """A MarsJob has whole pod templates: its author needs the right to create pods."""
    hosts = {INGRESSES: ["spec.webHost"]} if resource["spec"].get("webHost") else {}
    return {PODS: ["spec.marsReplicaSpecs"], **hosts}


def course(
    resource: Object, status: Mapping[str, Any], pods: Sequence[Object], causes: Sequence[Cause], now: float
) -> Course:
    """That of its pods, with what of the spec is not honoured and the address of its page."""
    found = follow(resource, status, pods, causes, now)
    metadata, host = resource["metadata"], resource["spec"].get("webHost")
    listed = status.get("notHonoured") or []
    problems = filter(None, (each.problem(resource, status) for each in (marsjob_gang, marsjob_queue)))
    is_complete = all(any(problem in line for line in listed) for problem in problems)
    if status.get("notHonouredGeneration") == metadata["generation"] and is_complete:
        return found
    fields = not_honoured(resource, status)
    address = f"{host}/mars/{metadata['namespace']}/{metadata['name']}-{WEB}-0"
    changes = {
        "notHonouredGeneration": metadata["generation"],
        "notHonoured": fields or None,
        "webServiceAddresses": [address] if host else None,
    }
    remark = Cause("NotHonoured", f"These fields have no effect, or less than in KubeDL: {'; '.join(fields)}.")
    events = (*found.events, *([remark] if fields and fields != listed else []))
    return replace(found, changes={**found.changes, **changes}, events=events)


def settle(desired: Desired, status: Mapping[str, Any]) -> Desired:
    """Workers that are not replaced leave, for they were restarted in their pods; nothing runs while the job waits for
    its queue or after its end."""
    lost = status.get(LOST_WORKERS) or {}
    groups = Counter(lost.values())
    workers = tuple(replace(each, replicas=max(0, each.replicas - groups[each.name])) for each in desired.shape.workers)
    smaller = replace(desired, shape=replace(desired.shape, workers=workers))
    return replace(
        marsjob_queue.placed(marsjob_gang.scheduled(smaller, status), status),
        drain={**desired.drain, **{MemberId(name): DrainRequest(force=True) for name in lost}},
        running=not is_ended(status) and not status.get(WAITING),
    )


async def prepare(
    client: Client, root: ResourceRoot, cluster: Desired, pods: Sequence[Object], resources: Mapping[Key, Object]
) -> float:
    """The job's PodGroup and its Workload, and the runs of its schedule."""
    queued = math.inf if is_ended(root.status) else await marsjob_gang.ensure(client, root, cluster)
    if math.isinf(queued):
        queued = await marsjob_queue.review(client, root, cluster, pods)
    return min(queued, await marsjob_schedule.run_due(client, root, resources, time.time))


RESOURCE_KINDS = tuple(
    ResourceKind(
        kind,
        desired,
        MarsJobStatus(),
        restricted,
        course,
        settle,
        lambda resource, status: keeps_pods(resource["spec"], status),
        prepare,
        policy=crd.MARS_JOB_POLICY,
        title="" if kind is KINDS[0] else f"{kind.kind}.{kind.group}",
    )
    for kind in KINDS
)
