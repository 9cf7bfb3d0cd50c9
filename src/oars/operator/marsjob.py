"""MarsJobs of KubeDL as a kind of the operator: a Mars cluster with KubeDL's names, variables and status."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from oars.convert import convert_one
from oars.convert.fields import Unmet
from oars.convert.mars import ROLES
from oars.engines.mars.shape import SUPERVISOR_PORT, WEB_PORT, WORKER_PORT
from oars.exposure import Alias
from oars.kube.kinds import Kind, Object, register
from oars.model import HEAD, Cause, Desired
from oars.operator import crd
from oars.operator.marsjob_status import MarsJobStatus, follow, is_ended
from oars.operator.resources import Course, ResourceKind, compute_cluster
from oars.operator.safe_fields import INGRESSES, Right

PODS = Right("", "pods")
# KubeDL has changed the group.
KINDS = tuple(register(Kind(group, "v1alpha1", crd.MARS_JOB_PLURAL, "MarsJob")) for group in crd.MARS_JOB_GROUPS)
PORT, PORT_NAME = 11111, "mars-port"  # of KubeDL's Services
SCHEDULER, WEB, WORKER = (role.lower() for role in ROLES)
INDEX = "replica-index"
# Fields that a ComputeCluster does not have, but that are honoured here (marsjob_status.py).
_LIVE = ("spec.ttlSecondsAfterFinished", "spec.backoffLimit", "spec.marsReplicaSpecs.Scheduler.restartPolicy")
# The account of KubeDL's example, with which Mars up to 0.6 finds its pods. Nothing creates it.
KUBEDL_ACCOUNT = "kubedl-sa"
_REPLACED = "members that end are replaced, whatever their policy says"


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
    for member in (spec.get("head") or {}, *spec["workers"]):
        pod = (member.get("pod") or {}).get("spec") or {}
        if pod.get("serviceAccountName") == KUBEDL_ACCOUNT:
            del pod["serviceAccountName"]
    spec.pop("lifetime", None)  # a job whose time is over has failed; it is not deleted
    spec["head"] = _with_names(resource, spec.get("head") or {}, HEAD, SCHEDULER, {INDEX: "0"})
    spec["workers"] = [_with_names(resource, each, "worker", WORKER, {}) for each in spec["workers"]]
    return _named(resource, compute_cluster({**resource, "spec": spec}))


def _converted(resource: Object) -> tuple[dict[str, Any], tuple[Unmet, ...]]:
    keys = ("apiVersion", "kind", "spec")
    metadata = {key: resource["metadata"][key] for key in ("name", "annotations") if key in resource["metadata"]}
    return convert_one({**{key: resource[key] for key in keys if key in resource}, "metadata": metadata})


def not_honoured(resource: Object) -> list[str]:
    """The fields without effect, each with the reason."""
    found = []
    for each in _converted(resource)[1]:
        if not each.path.startswith(_LIVE):
            reason = _REPLACED if each.path.endswith(".restartPolicy") else each.reason
            found.append(f"{each.path}: {reason}")
    for role, spec in resource["spec"]["marsReplicaSpecs"].items():
        account = ((spec.get("template") or {}).get("spec") or {}).get("serviceAccountName")
        if role.lower() != WEB and account == KUBEDL_ACCOUNT:
            path = f"spec.marsReplicaSpecs.{role}.template.spec.serviceAccountName"
            found.append(f"{path}: this Mars needs no rights; the pods have an account of their own")
    return found


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
    plain = {**_variables(resource), "MARS_CLUSTER_DETAIL": _detail(resource, role)}
    others = [each for each in own.get("env") or () if each.get("name") not in {*plain, *FROM_POD}]
    own["env"] = [*others, *({"name": key, "valueFrom": source} for key, source in FROM_POD.items())]
    given = {key: value for key, value in (member.get("env") or {}).items() if key not in FROM_POD}
    return {**member, "pod": pod, "env": {**given, **plain}}


def _detail(resource: Object, role: str) -> str:
    """What programs read to find the other members."""
    name, namespace = resource["metadata"]["name"], resource["metadata"]["namespace"]
    addresses = {
        SCHEDULER: [f"{name}-{SCHEDULER}-0.{namespace}.svc:{SUPERVISOR_PORT}"],
        WEB: [f"{name}-{WEB}-0.{namespace}.svc:{PORT}"],
    }
    return json.dumps({"cluster": addresses, "task": {"type": role, "index": 0}}, sort_keys=True)


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
    groups = []
    for group in cluster.shape.workers:
        groups.append(replace(group, number_label=INDEX))
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
    generation = resource["metadata"]["generation"]
    if status.get("notHonouredGeneration") == generation:
        return found
    metadata, host = resource["metadata"], resource["spec"].get("webHost")
    address = f"{host}/mars/{metadata['namespace']}/{metadata['name']}-{WEB}-0"
    fields = not_honoured(resource)
    changes = {
        "notHonouredGeneration": generation,
        "notHonoured": fields or None,
        "webServiceAddresses": [address] if host else None,
    }
    remark = Cause("NotHonoured", f"These fields have no effect: {'; '.join(fields)}.")
    return replace(found, changes={**found.changes, **changes}, events=(*found.events, *([remark] if fields else [])))


RESOURCE_KINDS = tuple(
    ResourceKind(
        kind,
        desired,
        MarsJobStatus(),
        restricted,
        course,
        is_ended,
        policy=crd.MARS_JOB_POLICY,
        title="" if kind is KINDS[0] else f"{kind.kind}.{kind.group}",
    )
    for kind in KINDS
)
