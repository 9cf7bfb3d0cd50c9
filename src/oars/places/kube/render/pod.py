"""Renders the pod template of a group: the engine's own command in the engine's own image. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from oars.base.errors import SpecError
from oars.model import HEAD, Desired, Group, Role
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
_MOUNTS = {"tmp": SCRATCH, "shm": "/dev/shm", "oars-files": FILES, "oars-secrets": SECRETS}


def template(desired: Desired, group: Group) -> Object:
    """The PodTemplateSpec of a group, with the user's overlay. It is minimal: Kubernetes tracks the ownership of every
    field at every write of a pod, its ReplicaSet and its Deployment, which is measurable with 300 clusters. So pods
    have only the labels that select them; the recommended labels are on their owners."""
    is_head, files, volumes = group.role is Role.HEAD, mounted_files(desired, group), _volumes(desired, group)
    metadata: Object = {"labels": names.pod_labels(desired.name, HEAD if is_head else group.name)}
    if files:
        metadata["annotations"] = {names.FILES: digest(files)}  # pods must be replaced when their files change
    spec = {
        "automountServiceAccountToken": False,
        "containers": [_container(desired, group, {volume["name"]: _MOUNTS[volume["name"]] for volume in volumes})],
        "enableServiceLinks": False,  # a Service called ray would set RAY_PORT, which Ray reads
        "securityContext": NON_ROOT,
        "serviceAccountName": names.root(desired.name),
        # A member hands over its data before its pod is deleted; more time would only block resources.
        "terminationGracePeriodSeconds": math.ceil(group.process.stop.grace),
        "volumes": volumes,
    }
    where = "head.pod" if is_head else f"workers[{group.name}].pod"
    return with_default_container(overlay.merged({"metadata": metadata, "spec": spec}, group.pod, where))


def with_default_container(pod_template: Object) -> Object:
    """If there are several containers, make the engine's the default of kubectl, unless the user sets one."""
    containers = pod_template["spec"]["containers"]
    if len(containers) > 1:
        annotations = pod_template["metadata"].setdefault("annotations", {})
        annotations.setdefault(DEFAULT_CONTAINER, containers[0]["name"])
    return pod_template


def mounted_files(desired: Desired, group: Group) -> dict[str, str]:
    """The files that the group's command or environment names, filled in. Other places use the rest. Kubernetes does
    not expand variables in files, so only values that are the same in every pod, such as ports, are filled in."""
    process, values = group.process, pod_values(desired.name, desired.shape, group)
    named = set(_FILE.findall(" ".join([*process.argv, *process.env.values()])))
    fixed = {name: value for name, value in values.items() if "$(" not in value}
    return fill_mapping({name: text for name, text in process.files.items() if name in named}, fixed)


def file_key(group: Group, name: str) -> str:
    """The file's key in the ConfigMap. Groups may have different files of the same name."""
    return f"{group.name}.{name}"


def _volumes(desired: Desired, group: Group) -> list[Object]:
    # The helper must see the head's scratch files, and a read-only root file system needs a volume for them. Otherwise
    # the container's own /tmp is cheaper.
    context = overlay.container(group.pod, group.role.value).get("securityContext")
    is_read_only = isinstance(context, Mapping) and context.get("readOnlyRootFilesystem")
    needs_scratch = is_read_only or (group.role is Role.HEAD and desired.helper)
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}] if needs_scratch else []
    if group.resources.shared_memory:
        limit = str(group.resources.shared_memory)
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}})
    if files := [{"key": file_key(group, name), "path": name} for name in mounted_files(desired, group)]:
        volumes.append({"name": "oars-files", "configMap": {"name": names.root(desired.name), "items": files}})
    if items := [{"key": name, "path": name} for name in secret_files(desired.shape)]:
        secret = {"secretName": names.root(desired.name), "defaultMode": 0o440, "items": items}
        volumes.append({"name": "oars-secrets", "secret": secret})
    return volumes


def volume_mounts(paths: Mapping[str, str]) -> list[Object]:
    """Mounts by name of the volume. Volumes of Oars are read-only."""
    return [
        {"name": name, "mountPath": path, **({"readOnly": True} if name.startswith("oars-") else {})}
        for name, path in paths.items()
    ]


def _container(desired: Desired, group: Group, mounts: Mapping[str, str]) -> Object:
    values, process = pod_values(desired.name, desired.shape, group), group.process
    container: Object = {
        "name": group.role.value,
        "image": image(desired),
        "command": [fill(word, values) for word in process.argv],
        "env": environment(desired, group),
        # Kubernetes allows 15 characters in the name of a port.
        "ports": [{"name": (p.alias or p.name)[:15].rstrip("-"), "containerPort": p.default} for p in process.ports],
        "resources": _resources(group),
        "securityContext": NO_PRIVILEGES,
        "volumeMounts": volume_mounts(mounts),
        "workingDir": SCRATCH,  # the image's working directory may not be writable for our user
    }
    if process.probe is not None:
        port = next(port.default for port in process.ports if port.name == process.probe.port)
        path = process.probe.path
        check = {"httpGet": {"path": path, "port": port}} if path else {"tcpSocket": {"port": port}}
        container["readinessProbe"] = {**check, **PROBE_PACE}
    return container


def image(desired: Desired) -> str:
    if not desired.image:
        raise SpecError(
            f"image: no image is given, and the engine {desired.engine} has no default.",
            "Set `image`, or --image REGISTRY/NAME:TAG, to an image that contains the engine.",
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
