"""Renders the pod template of a group: the engine's own command in the engine's own image. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from oars.base.errors import SpecError
from oars.model import HEAD, Desired, Group, Role
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import overlay
from oars.places.kube.render.values import (
    CHOSEN_SPILL,
    DRIVER,
    FILES,
    POD_FIELDS,
    SCRATCH,
    SECRETS,
    SPILL,
    pod_values,
    secret_files,
    spill_mounts,
)
from oars.plan.desired import digest
from oars.plan.fill import fill, fill_mapping

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
GPU = "nvidia.com/gpu"
STORAGE = "ephemeral-storage"
DISK, MEMORY = "disk", "memory"  # media of spill volumes; any other is a storage class
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
# A busy head must stay in its Service: 20 to 60 s, as long as clients and workers try to connect.
HEAD_PROBE_PACE = {**PROBE_PACE, "failureThreshold": 20}
_FILE = re.compile(r"\$\(file\.([\w.-]+)\)")
_MOUNTS = {"tmp": SCRATCH, "shm": "/dev/shm", "oars-files": FILES, "oars-secrets": SECRETS}
VOLUME_SHARE = 0.95  # of a volume, that the engine uses
# Several spill paths: the engine uses one of them, and pods of a Deployment have no number, so the pod's name chooses.
# Links to it, then runs the engine's own command.
CHOOSE_SPILL = (
    'set -e; link=$1; prefix=$2; count=$3; shift 3; sum=`printf %s "$HOSTNAME" | cksum | cut -d " " -f 1`; '
    'number=`expr "$sum" % "$count"` || true; ln -sfn "$prefix-$number" "$link"; exec "$@"'
)


CLOSING = 5  # seconds of the grace period that remain to end the process when it has handed over
LONGEST_GRACE = 600.0  # for which cluster-autoscaler waits at most


def template(desired: Desired, group: Group) -> Object:
    """The PodTemplateSpec of a group, with the user's overlay. It is small: Kubernetes tracks the ownership of every
    field at every write of a pod, its ReplicaSet and its Deployment, which is measurable with 300 clusters."""
    is_head = group.role is Role.HEAD
    files, volumes = mounted_files(desired, group), _volumes(desired, group)
    metadata: Object = {
        "labels": {
            **names.labels(desired.name, desired.engine, group.role.value),
            **desired.labels,
            **names.pod_labels(desired.name, HEAD if is_head else group.name),
        }
    }
    content = {names.FILES: digest(files)} if files else {}  # pods must be replaced when their files change
    if annotations := {**desired.annotations, **content}:
        metadata["annotations"] = annotations
    spec = {
        "automountServiceAccountToken": False,
        "containers": [_container(desired, group, volumes)],
        "enableServiceLinks": False,  # a Service called ray would set RAY_PORT, which Ray reads
        "securityContext": NON_ROOT,
        "serviceAccountName": names.root(desired.name),
        "terminationGracePeriodSeconds": grace_period(desired, group),
        "volumes": volumes,
    }
    where = "head.pod" if is_head else f"workers[{group.name}].pod"
    return with_default_container(overlay.merged({"metadata": metadata, "spec": spec}, group.pod, where))


def grace_period(desired: Desired, group: Group) -> int:
    """Seconds from SIGTERM to SIGKILL: the user's, or as long as one attempt to drain may take."""
    spec, process = group.pod.get("spec"), group.process
    own = spec.get("terminationGracePeriodSeconds") if isinstance(spec, Mapping) else None
    if isinstance(own, int):
        return own
    if process.hand_over is None:
        return math.ceil(process.stop.grace)
    return math.ceil(max(process.hand_over.grace, min(LONGEST_GRACE, desired.drain_timeout + CLOSING)))


def with_default_container(pod_template: Object) -> Object:
    """If there are several containers, make the engine's the default of kubectl, unless the user sets one."""
    containers = pod_template["spec"]["containers"]
    if len(containers) > 1:
        annotations = pod_template["metadata"].setdefault("annotations", {})
        annotations.setdefault(DEFAULT_CONTAINER, containers[0]["name"])
    return pod_template


def mounted_files(desired: Desired, group: Group) -> dict[str, str]:
    """The files that the group's command or environment names, filled in, and those that a driver in the pod needs.
    Other places use the rest. Kubernetes does not expand variables in files, so only values that are the same in every
    pod, such as ports, are filled in."""
    process, values = group.process, pod_values(desired.name, desired.shape, group)
    named = set(_FILE.findall(" ".join([*process.argv, *process.env.values()])))
    fixed = {name: value for name, value in values.items() if "$(" not in value}
    files = fill_mapping({name: text for name, text in process.files.items() if name in named}, fixed)
    return {**files, **{f"{DRIVER}/{name}": text for name, text in desired.shape.driver_files.items()}}


def file_key(group: Group, name: str) -> str:
    """The file's key in the ConfigMap. Groups may have different files of the same name."""
    return f"{group.name}.{name.replace('/', '.')}"


def _volumes(desired: Desired, group: Group) -> list[Object]:
    # The helper must see the head's scratch files, and a read-only root file system needs a volume for them. Otherwise
    # the container's own /tmp is cheaper.
    context = overlay.container(group.pod, group.role.value).get("securityContext")
    is_read_only = isinstance(context, Mapping) and context.get("readOnlyRootFilesystem")
    needs_scratch = is_read_only or (group.role is Role.HEAD and desired.helper)
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}] if needs_scratch else []
    if shared := group.resources.shared_memory:
        limit = max(shared, min(math.ceil(shared / VOLUME_SHARE), group.resources.memory or shared))
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(limit)}})
    volumes += _spill_volumes(group)
    if files := [{"key": file_key(group, name), "path": name} for name in mounted_files(desired, group)]:
        volumes.append({"name": "oars-files", "configMap": {"name": names.root(desired.name), "items": files}})
    if items := [{"key": name, "path": name} for name in secret_files(desired.shape)]:
        secret = {"secretName": names.root(desired.name), "defaultMode": 0o440, "items": items}
        volumes.append({"name": "oars-secrets", "secret": secret})
    return volumes


def _spill_volumes(group: Group) -> Iterator[Object]:
    """Directories of the node, or a volume that ends with the pod."""
    if (spill := group.spill) is None:
        return
    for number, path in enumerate(spill.paths):
        yield {"name": f"spill-{number}", "hostPath": {"path": path, "type": "Directory"}}
    if spill.paths:
        return
    limit = {} if spill.size is None else {"sizeLimit": str(spill.size)}
    if spill.medium in (DISK, MEMORY):
        medium = {"medium": "Memory"} if spill.medium == MEMORY else {}
        yield {"name": "spill-0", "emptyDir": {**medium, **limit}}
        return
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(spill.size)}},
        "storageClassName": spill.medium,
    }
    yield {"name": "spill-0", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}


def _mounts(group: Group, volumes: list[Object]) -> list[Object]:
    """Pods of one node share a directory of the node, so each has its own directory in it."""
    own = {"subPathExpr": "$(POD_NAME)"} if group.spill and group.spill.paths else {}
    spill = [{"name": f"spill-{number}", "mountPath": path, **own} for number, path in enumerate(spill_mounts(group))]
    return volume_mounts({v["name"]: _MOUNTS[v["name"]] for v in volumes if v["name"] in _MOUNTS}) + spill


def volume_mounts(paths: Mapping[str, str]) -> list[Object]:
    """Mounts by name of the volume. Volumes of Oars are read-only."""
    return [
        {"name": name, "mountPath": path, **({"readOnly": True} if name.startswith("oars-") else {})}
        for name, path in paths.items()
    ]


def _command(group: Group, values: Mapping[str, str]) -> list[str]:
    command, count = [fill(word, values) for word in group.process.argv], len(spill_mounts(group))
    uses_one = any("$(spill)" in text for text in (*group.process.argv, *group.process.env.values()))
    chosen = ["sh", "-c", CHOOSE_SPILL, "sh", CHOSEN_SPILL, SPILL, str(count)] if count > 1 and uses_one else []
    return chosen + command


def _container(desired: Desired, group: Group, volumes: list[Object]) -> Object:
    values, process = pod_values(desired.name, desired.shape, group), group.process
    container: Object = {
        "name": group.role.value,
        "image": image(desired),
        "command": _command(group, values),
        "env": environment(desired, group),
        # Kubernetes allows 15 characters in the name of a port.
        "ports": [{"name": (p.alias or p.name)[:15].rstrip("-"), "containerPort": p.default} for p in process.ports],
        "resources": _resources(group),
        "securityContext": NO_PRIVILEGES,
        "volumeMounts": _mounts(group, volumes),
        "workingDir": SCRATCH,  # the image's working directory may not be writable for our user
    }
    if process.probe is not None:
        port = next(port.default for port in process.ports if port.name == process.probe.port)
        path = process.probe.path
        check = {"httpGet": {"path": path, "port": port}} if path else {"tcpSocket": {"port": port}}
        container["readinessProbe"] = {**check, **(HEAD_PROBE_PACE if group.role is Role.HEAD else PROBE_PACE)}
    return container


def image(desired: Desired) -> str:
    if not desired.image:
        raise SpecError(
            f"image: no image is given, and the engine {desired.engine} has no default.",
            "Set `image` to an image that contains the engine, such as REGISTRY/NAME:TAG.",
        )
    return desired.image


def environment(desired: Desired, group: Group) -> list[Object]:
    """The container's variables. Those of the downward API come first, as later ones refer to them."""
    values = pod_values(desired.name, desired.shape, group)
    seconds = {"hand-over": str(max(1, grace_period(desired, group) - CLOSING))}
    hand_over = fill_mapping(group.process.hand_over.env, seconds) if group.process.hand_over else {}
    variables = {"HOME": SCRATCH, **hand_over, **fill_mapping(group.process.env, values)}
    if desired.shape.driver_files:  # also for programs of a plain `kubectl exec`
        own = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = ":".join(filter(None, [f"{FILES}/{DRIVER}", own]))
    texts = [*variables.values(), *(fill(word, values) for word in group.process.argv)]
    texts += [mount["subPathExpr"] for mount in _mounts(group, []) if "subPathExpr" in mount]
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
    if group.spill and group.spill.size and group.spill.medium == DISK and not group.spill.paths:
        amounts[STORAGE] = str(group.spill.size)  # the node must have it; the volume's sizeLimit is the limit
    unlimited = {STORAGE, *(["cpu"] if group.burst else [])}
    limits = {name: amount for name, amount in amounts.items() if name not in unlimited}
    requested = resources.cpu if group.cpu_request is None else group.cpu_request
    return {"requests": {**amounts, "cpu": cpu_quantity(requested)}, "limits": limits}


def cpu_quantity(cpu: float) -> str:
    return f"{cpu:g}" if cpu == int(cpu) else f"{round(cpu * 1000)}m"
