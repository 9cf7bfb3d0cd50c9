"""The pod template of a group: the engine's own command in the engine's own image. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oars.base.errors import SpecError
from oars.model import HEAD, Group, Probe, Process, Role, Shape
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import overlay
from oars.places.kube.render.values import FILES, POD_FIELDS, SCRATCH, SECRETS, pod_values, secret_files
from oars.plan.fill import fill, fill_mapping
from oars.spec.cluster import ClusterSpec

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
GPU = "nvidia.com/gpu"
USER = 1000
NON_ROOT = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
NO_PRIVILEGES = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# Every second: a probe adds at most that to the start. It fails late: a busy member is not a dead one.
PROBE_PACE = {"periodSeconds": 1, "timeoutSeconds": 3, "failureThreshold": 5}
_FILE = re.compile(r"\$\(file\.([\w.-]+)\)")


@dataclass(frozen=True)
class Cluster:
    """A cluster as Kubernetes shall have it: name and place, what the user said, what the engine makes of it."""

    name: str
    namespace: str
    spec: ClusterSpec
    shape: Shape
    helped: bool = False  # with our helper beside the head, for those who look after it

    @property
    def labels(self) -> dict[str, str]:
        return names.labels(self.name, self.spec.engine)


def template(cluster: Cluster, group: Group) -> Object:
    """The PodTemplateSpec of a group, with the user's overlay. Lean: Kubernetes keeps account of every field at every
    write of a pod, its ReplicaSet and its Deployment, and three hundred clusters feel each of them. So pods have only
    the labels by which they are found; the usual ones, which say no more, are on what owns them."""
    is_head = group.role is Role.HEAD
    metadata: Object = {"labels": names.pod_labels(cluster.name, HEAD if is_head else group.name)}
    if files := mounted_files(cluster, group):
        metadata["annotations"] = {names.FILES: revision(files)}  # pods that read other files are other pods
    ours = {"metadata": metadata, "spec": _spec(cluster, group)}
    where = "head.pod" if is_head else f"workers[{group.name}].pod"
    return with_default_container(overlay.merged(ours, _overlay(cluster, group), where))


def _overlay(cluster: Cluster, group: Group) -> Mapping[str, Any]:
    """What the user says of the group's pods."""
    if group.role is Role.HEAD:
        return cluster.spec.head.pod
    return next(entry.pod for entry in cluster.spec.workers if entry.name == group.name)


def with_default_container(pod_template: Object) -> Object:
    """Where there are several, kubectl logs and exec shall mean the engine's, unless the user says otherwise."""
    containers = pod_template["spec"]["containers"]
    if len(containers) > 1:
        annotations = pod_template["metadata"].setdefault("annotations", {})
        annotations.setdefault(DEFAULT_CONTAINER, containers[0]["name"])
    return pod_template


def revision(content: Mapping[str, Any]) -> str:
    """A short name for the content of a template or of files: the same for the same, whoever computes it."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def used_files(process: Process) -> dict[str, str]:
    """Those that the command or its environment names; others serve places that run the engine in another way."""
    named = set(_FILE.findall(" ".join([*process.argv, *process.env.values()])))
    return {name: text for name, text in process.files.items() if name in named}


def mounted_files(cluster: Cluster, group: Group) -> dict[str, str]:
    """The content of its files. Kubernetes does not look into them, so only what is the same in every pod is filled in;
    ports are."""
    values = pod_values(cluster.name, cluster.shape, group)
    fixed = {name: value for name, value in values.items() if "$(" not in value}
    return fill_mapping(used_files(group.process), fixed)


def file_key(group: Group, name: str) -> str:
    """Its key in the ConfigMap: groups may have files of the same name that differ."""
    return f"{group.name}.{name}"


def _spec(cluster: Cluster, group: Group) -> Object:
    process = group.process
    return {
        "automountServiceAccountToken": False,
        "containers": [_container(cluster, group)],
        "enableServiceLinks": False,  # a Service called ray would set RAY_PORT, which Ray reads
        "securityContext": NON_ROOT,
        "serviceAccountName": names.root(cluster.name),
        # What a member holds is moved before it is told to go; more time would only keep its room from others.
        "terminationGracePeriodSeconds": math.ceil(process.stop.grace),
        "volumes": _volumes(cluster, group),
    }


def _container(cluster: Cluster, group: Group) -> Object:
    values = pod_values(cluster.name, cluster.shape, group)
    process = group.process
    ports = [{"name": _port_name(p.alias or p.name), "containerPort": p.default} for p in process.ports]
    container = {
        "name": group.role.value,
        "image": image(cluster),
        "command": [fill(word, values) for word in process.argv],
        "env": environment(cluster, group),
        "ports": ports,
        "resources": _resources(cluster, group),
        "securityContext": NO_PRIVILEGES,
        "volumeMounts": _mounts(cluster, group),
        "workingDir": SCRATCH,  # the image's own need not be writable for the user that we run as
    }
    if process.probe is not None:
        container["readinessProbe"] = {**_probe(process.probe, process), **PROBE_PACE}
    return container


def image(cluster: Cluster) -> str:
    chosen = cluster.spec.image or cluster.shape.image
    if not chosen:
        raise SpecError(
            f"image: no image is named, and the engine {cluster.spec.engine} has no usual one.",
            "Name one that holds the engine: --image REGISTRY/NAME:TAG.",
        )
    return chosen


def environment(cluster: Cluster, group: Group) -> list[Object]:
    """Facts of the pod first, for what follows uses them; those that nothing uses are left out."""
    values = pod_values(cluster.name, cluster.shape, group)
    ours = {"HOME": SCRATCH, **fill_mapping(group.process.env, values)}
    words = [*ours.values(), *(fill(word, values) for word in group.process.argv)]
    facts = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in POD_FIELDS.items()
        if any(f"$({name})" in word for word in words)
    ]
    # The API server drops an empty value, and kubectl would see a difference at every apply.
    return [*facts, *({"name": name, "value": text} if text else {"name": name} for name, text in ours.items())]


def service_variables(cluster: Cluster) -> dict[str, str]:
    """Those that service links would give, as scripts know them (RAY_HEAD_SERVICE_HOST), with the Service's name."""
    service = names.head(cluster.name)
    found = {}
    for owner in dict.fromkeys((service, names.head(cluster.spec.engine))):
        prefix = owner.upper().replace("-", "_")
        found[f"{prefix}_SERVICE_HOST"] = service
        ports = [port for port in cluster.shape.head.process.ports if port.on_service]
        for port in ports:
            found.setdefault(f"{prefix}_SERVICE_PORT", str(port.default))
            name = (port.alias or port.name).upper().replace("-", "_")
            found[f"{prefix}_SERVICE_PORT_{name}"] = str(port.default)
    return found


def _resources(cluster: Cluster, group: Group) -> Object:
    resources = group.resources
    said = cluster.spec.head if group.role is Role.HEAD else cluster.spec.group(group.name)
    amounts = {"cpu": cpu_quantity(resources.cpu)}
    if resources.memory is not None:
        amounts["memory"] = str(resources.memory)
    if resources.gpu:
        amounts[GPU] = str(resources.gpu)
    limits = {name: amount for name, amount in amounts.items() if name != "cpu" or not (said and said.burst)}
    return {"requests": amounts, "limits": limits}


def cpu_quantity(cpu: float) -> str:
    return f"{cpu:g}" if cpu == int(cpu) else f"{round(cpu * 1000)}m"


def _probe(probe: Probe, process: Process) -> Object:
    port = next(port.default for port in process.ports if port.name == probe.port)
    return {"httpGet": {"path": probe.path, "port": port}} if probe.path else {"tcpSocket": {"port": port}}


def _volumes(cluster: Cluster, group: Group) -> list[Object]:
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}] if _needs_scratch(cluster, group) else []
    if group.resources.shared_memory:
        limit = str(group.resources.shared_memory)
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
    files = [{"key": file_key(group, name), "path": name} for name in used_files(group.process)]
    if files:
        volumes.append({"name": "oars-files", "configMap": {"name": names.root(cluster.name), "items": files}})
    if secret_files(cluster.shape):
        items = [{"key": name, "path": name} for name in secret_files(cluster.shape)]
        secret = {"secretName": names.root(cluster.name), "defaultMode": 0o440, "items": items}
        volumes.append({"name": "oars-secrets", "secret": secret})
    return volumes


def _needs_scratch(cluster: Cluster, group: Group) -> bool:
    """A container has a directory for scratch of its own, and a volume for it would cost every pod something. It needs
    one where the helper shall see the same files, or where the user makes all else read-only."""
    if group.role is Role.HEAD and cluster.helped:
        return True
    context = overlay.container(_overlay(cluster, group), group.role.value).get("securityContext")
    return isinstance(context, Mapping) and bool(context.get("readOnlyRootFilesystem"))


def _mounts(cluster: Cluster, group: Group) -> list[Object]:
    places = {"tmp": SCRATCH, "shm": "/dev/shm", "oars-files": FILES, "oars-secrets": SECRETS}
    there = [volume["name"] for volume in _volumes(cluster, group)]
    read_only = {"readOnly": True}
    return [
        {"name": name, "mountPath": places[name], **(read_only if name.startswith("oars-") else {})} for name in there
    ]


def _port_name(name: str) -> str:
    """At most 15 characters with a letter among them."""
    return name[:15].rstrip("-")
