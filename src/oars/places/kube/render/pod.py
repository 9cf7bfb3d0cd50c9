"""Renders the pod template of a group: the engine's own command in the engine's own image. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from oars.base.errors import SpecError
from oars.model import HEAD, Desired, Group, Probe, Process, Role
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import overlay
from oars.places.kube.render.values import FILES, POD_FIELDS, SCRATCH, SECRETS, pod_values, secret_files
from oars.plan.desired import digest
from oars.plan.fill import fill, fill_mapping

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
# Every second, to add at most that to the start. The threshold is high, as a busy member may be slow to answer.
PROBE_PACE = {"periodSeconds": 1, "timeoutSeconds": 3, "failureThreshold": 5}
_FILE = re.compile(r"\$\(file\.([\w.-]+)\)")


def labels(desired: Desired) -> dict[str, str]:
    return names.labels(desired.name, desired.engine)


def template(desired: Desired, group: Group) -> Object:
    """The PodTemplateSpec of a group, with the user's overlay. It is minimal: Kubernetes tracks the ownership of every
    field at every write of a pod, its ReplicaSet and its Deployment, which is measurable with 300 clusters. So pods
    have only the labels that select them; the recommended labels are on their owners."""
    is_head = group.role is Role.HEAD
    metadata: Object = {"labels": names.pod_labels(desired.name, HEAD if is_head else group.name)}
    if files := mounted_files(desired, group):
        metadata["annotations"] = {names.FILES: digest(files)}  # pods must be replaced when their files change
    ours = {"metadata": metadata, "spec": _spec(desired, group)}
    where = "head.pod" if is_head else f"workers[{group.name}].pod"
    return with_default_container(overlay.merged(ours, group.pod, where))


def with_default_container(pod_template: Object) -> Object:
    """If there are several containers, make the engine's the default of kubectl, unless the user sets one."""
    containers = pod_template["spec"]["containers"]
    if len(containers) > 1:
        annotations = pod_template["metadata"].setdefault("annotations", {})
        annotations.setdefault(DEFAULT_CONTAINER, containers[0]["name"])
    return pod_template


def used_files(process: Process) -> dict[str, str]:
    """The files that the command or its environment names. Other places use the rest."""
    named = set(_FILE.findall(" ".join([*process.argv, *process.env.values()])))
    return {name: text for name, text in process.files.items() if name in named}


def mounted_files(desired: Desired, group: Group) -> dict[str, str]:
    """The group's files by name, filled in. Kubernetes does not expand variables in files, so only values that are the
    same in every pod, such as ports, are filled in."""
    values = pod_values(desired.name, desired.shape, group)
    fixed = {name: value for name, value in values.items() if "$(" not in value}
    return fill_mapping(used_files(group.process), fixed)


def file_key(group: Group, name: str) -> str:
    """The file's key in the ConfigMap. Groups may have different files of the same name."""
    return f"{group.name}.{name}"


def _spec(desired: Desired, group: Group) -> Object:
    process = group.process
    return {
        "automountServiceAccountToken": False,
        "containers": [_container(desired, group)],
        "enableServiceLinks": False,  # a Service called ray would set RAY_PORT, which Ray reads
        "securityContext": NON_ROOT,
        "serviceAccountName": names.root(desired.name),
        # A member hands over its data before its pod is deleted; more time would only block resources.
        "terminationGracePeriodSeconds": math.ceil(process.stop.grace),
        "volumes": _volumes(desired, group),
    }


def _container(desired: Desired, group: Group) -> Object:
    values = pod_values(desired.name, desired.shape, group)
    process = group.process
    ports = [{"name": _port_name(p.alias or p.name), "containerPort": p.default} for p in process.ports]
    container = {
        "name": group.role.value,
        "image": image(desired),
        "command": [fill(word, values) for word in process.argv],
        "env": environment(desired, group),
        "ports": ports,
        "resources": _resources(group),
        "securityContext": NO_PRIVILEGES,
        "volumeMounts": _mounts(desired, group),
        "workingDir": SCRATCH,  # the image's working directory may not be writable for our user
    }
    if process.probe is not None:
        container["readinessProbe"] = {**_probe(process.probe, process), **PROBE_PACE}
    return container


def image(desired: Desired) -> str:
    if not desired.image:
        raise SpecError(
            f"image: no image is given, and the engine {desired.engine} has no default one.",
            "Name one that contains the engine: --image REGISTRY/NAME:TAG.",
        )
    return desired.image


def environment(desired: Desired, group: Group) -> list[Object]:
    """The container's variables. Those of the downward API come first, as later ones refer to them."""
    values = pod_values(desired.name, desired.shape, group)
    variables = {"HOME": SCRATCH, **fill_mapping(group.process.env, values)}
    texts = [*variables.values(), *(fill(word, values) for word in group.process.argv)]
    downward = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in POD_FIELDS.items()
        if any(f"$({name})" in text for text in texts)
    ]
    # The API server drops an empty value, and kubectl would show a difference at every apply.
    plain = [{"name": name, "value": text} if text else {"name": name} for name, text in variables.items()]
    return [*downward, *plain]


def service_variables(desired: Desired) -> dict[str, str]:
    """The variables that service links would set (such as RAY_HEAD_SERVICE_HOST), with the Service's name as host."""
    service = names.head(desired.name)
    found = {}
    for owner in dict.fromkeys((service, names.head(desired.engine))):
        prefix = owner.upper().replace("-", "_")
        found[f"{prefix}_SERVICE_HOST"] = service
        ports = [port for port in desired.shape.head.process.ports if port.on_service]
        for port in ports:
            found.setdefault(f"{prefix}_SERVICE_PORT", str(port.default))
            name = (port.alias or port.name).upper().replace("-", "_")
            found[f"{prefix}_SERVICE_PORT_{name}"] = str(port.default)
    return found


def _resources(group: Group) -> Object:
    resources = group.resources
    amounts = {"cpu": cpu_quantity(resources.cpu)}
    if resources.memory is not None:
        amounts["memory"] = str(resources.memory)
    if resources.gpu:
        amounts[GPU] = str(resources.gpu)
    limits = {name: amount for name, amount in amounts.items() if name != "cpu" or not group.burst}
    return {"requests": amounts, "limits": limits}


def cpu_quantity(cpu: float) -> str:
    return f"{cpu:g}" if cpu == int(cpu) else f"{round(cpu * 1000)}m"


def _probe(probe: Probe, process: Process) -> Object:
    port = next(port.default for port in process.ports if port.name == probe.port)
    return {"httpGet": {"path": probe.path, "port": port}} if probe.path else {"tcpSocket": {"port": port}}


def _volumes(desired: Desired, group: Group) -> list[Object]:
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}] if _needs_scratch(desired, group) else []
    if group.resources.shared_memory:
        limit = str(group.resources.shared_memory)
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
    files = [{"key": file_key(group, name), "path": name} for name in used_files(group.process)]
    if files:
        volumes.append({"name": "oars-files", "configMap": {"name": names.root(desired.name), "items": files}})
    if secret_files(desired.shape):
        items = [{"key": name, "path": name} for name in secret_files(desired.shape)]
        secret = {"secretName": names.root(desired.name), "defaultMode": 0o440, "items": items}
        volumes.append({"name": "oars-secrets", "secret": secret})
    return volumes


def _needs_scratch(desired: Desired, group: Group) -> bool:
    """True if the pod needs a volume for scratch files: the helper must see the head's, or the user makes the root file
    system read-only. Otherwise the container's own /tmp is cheaper."""
    if group.role is Role.HEAD and desired.helper:
        return True
    context = overlay.container(group.pod, group.role.value).get("securityContext")
    return isinstance(context, Mapping) and bool(context.get("readOnlyRootFilesystem"))


def _mounts(desired: Desired, group: Group) -> list[Object]:
    paths = {"tmp": SCRATCH, "shm": "/dev/shm", "oars-files": FILES, "oars-secrets": SECRETS}
    volumes = [volume["name"] for volume in _volumes(desired, group)]
    read_only = {"readOnly": True}
    return [
        {"name": name, "mountPath": paths[name], **(read_only if name.startswith("oars-") else {})} for name in volumes
    ]


def _port_name(name: str) -> str:
    """The name cut to the 15 characters that Kubernetes allows."""
    return name[:15].rstrip("-")
