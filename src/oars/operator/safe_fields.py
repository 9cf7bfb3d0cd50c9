"""The fields of a ComputeCluster that everybody may set who may create one. Pure.

The operator creates pods, Services and Ingresses with its own rights. Without a limit, the right to create a
ComputeCluster would include the right to create any pod of the namespace. So there is a list of fields that are known
to be safe: they give an author nothing that an unprivileged pod without a ServiceAccount token does not have. Authors
who set other fields need the right to create such objects themselves (`Area.right`).

The list is data with two readers: `outside` here, and the CEL expressions of the admission policy (admission.py). A
value is a map of the fields that are safe, an Each, a tuple of the values that are safe, or a Value. A null counts as
not set, as in pod overlays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from oars.model import HEAD, Role


class Value(Enum):
    ANY = "any"
    POSITIVE = "a positive integer"


@dataclass(frozen=True)
class Each:
    """A list. An entry that lacks the field `needs` is outside."""

    entry: Node
    needs: str = ""


Node: TypeAlias = "Value | Each | tuple[Any, ...] | Mapping[str, Node]"

ANY, POSITIVE = Value.ANY, Value.POSITIVE


def _any(*names: str) -> dict[str, Node]:
    return dict.fromkeys(names, ANY)


# Probes and hooks have no `host`: the kubelet would send requests from the node's network to any address.
_HANDLER: dict[str, Node] = {
    "exec": _any("command"),
    "httpGet": _any("path", "port", "scheme"),
    "tcpSocket": _any("port"),
    "grpc": _any("port", "service"),
    "sleep": _any("seconds"),
}
_PROBE = {
    **_HANDLER,
    **_any("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold"),
}
# Users and groups other than root own nothing that a pod with these volumes can reach.
_USER: dict[str, Node] = {
    "runAsGroup": POSITIVE,
    "runAsNonRoot": (True,),
    "runAsUser": POSITIVE,
    "seccompProfile": {"type": ("RuntimeDefault",)},
}
# Other resources may be devices of the node.
_AMOUNTS = _any("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "amd.com/gpu")
_VARIABLE = {**_any("name", "value"), "valueFrom": _any("fieldRef", "resourceFieldRef")}
# No namespaces: a pod would keep pods of other namespaces from nodes, or depend on them.
_AFFINITY_TERM = _any("labelSelector", "topologyKey")
_PREFERRED = Each({"weight": ANY, "podAffinityTerm": _AFFINITY_TERM})


def _container(name: str) -> dict[str, Node]:
    """The engine's container. Others are outside: Oars does not remove their privileges."""
    return {
        "name": (name,),
        **_any("image", "imagePullPolicy", "workingDir"),
        "env": Each(_VARIABLE),
        "lifecycle": {"preStop": _HANDLER, "postStart": _HANDLER},
        "livenessProbe": _PROBE,
        "ports": Each(_any("containerPort", "name", "protocol")),  # no hostPort
        "readinessProbe": _PROBE,
        "resources": {"requests": _AMOUNTS, "limits": _AMOUNTS},
        "securityContext": {
            **_USER,
            "allowPrivilegeEscalation": (False,),
            "capabilities": {"drop": (["ALL"],)},
            "privileged": (False,),
            "readOnlyRootFilesystem": ANY,
        },
        "startupProbe": _PROBE,
        "volumeMounts": Each(_any("mountPath", "name", "readOnly")),
    }


def pod(container: str) -> dict[str, Node]:
    """The safe fields of a pod overlay. What is missing, on purpose: labels, by which Services and policies of others
    select pods; annotations that node agents and webhooks act on; ServiceAccounts and their tokens; Secrets,
    ConfigMaps and claims, whose content belongs to others; priorities, which evict pods of others."""
    annotations = ("path", "port", "scheme", "scrape")
    return {
        "metadata": {
            "annotations": {
                **_any("cluster-autoscaler.kubernetes.io/safe-to-evict", "kubectl.kubernetes.io/default-container"),
                **_any(*(f"prometheus.io/{name}" for name in annotations)),
            },
            "labels": {},
        },
        "spec": {
            # Where a pod may run is only narrowed. Required anti-affinity would also keep other pods from nodes.
            **_any("nodeSelector", "topologySpreadConstraints"),
            "affinity": {
                "nodeAffinity": ANY,
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": _PREFERRED,
                    "requiredDuringSchedulingIgnoredDuringExecution": Each(_AFFINITY_TERM),
                },
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": _PREFERRED},
            },
            # Taints reserve nodes. One without a key tolerates all of them.
            "tolerations": Each(
                {
                    "key": (
                        "amd.com/gpu", "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable",
                        "nvidia.com/gpu",
                    ),
                    **_any("effect", "operator", "tolerationSeconds", "value"),
                },
                needs="key",
            ),
            **_any("dnsConfig", "dnsPolicy", "hostAliases", "terminationGracePeriodSeconds"),
            **dict.fromkeys(("hostIPC", "hostNetwork", "hostPID", "hostUsers"), (False,)),
            "automountServiceAccountToken": (False,),
            "containers": Each(_container(container), needs="name"),
            "securityContext": {**_USER, "fsGroup": POSITIVE, "fsGroupChangePolicy": ANY},
            "volumes": Each({"name": ANY, "emptyDir": _any("medium", "sizeLimit"), "downwardAPI": ANY}),
        },
    }  # fmt: skip


@dataclass(frozen=True)
class Right:
    """The right to create objects of this kind."""

    group: str
    resource: str


DEPLOYMENTS = Right("apps", "deployments")
SERVICES = Right("", "services")
INGRESSES = Right("networking.k8s.io", "ingresses")


@dataclass(frozen=True)
class Area:
    """A part of the spec: its path, its safe fields, and the right that the others need. `is_list`: the path is below
    each entry of a list."""

    name: str
    block: str
    field: str
    safe: Node
    right: Right
    is_list: bool = False

    @property
    def path(self) -> str:
        block = f"{self.block}[]" if self.is_list else self.block
        return f"{block}.{self.field}" if self.field else block


# `clients` needs no right at all: it only narrows who reaches the head, and no pod gets these labels. `metrics` opens
# ports, as types of Services do.
_INGRESS_FIELDS = ("host", "ingressClass", "tlsSecret", "clients")
AREAS = (
    Area("head", "head", "pod", pod(HEAD), DEPLOYMENTS),
    Area("workers", "workers", "pod", pod(Role.WORKER.value), DEPLOYMENTS, is_list=True),
    # Paths are directories of the node. An ephemeral claim is the pod's own.
    Area("spill", "workers", "spill", _any("medium", "size"), DEPLOYMENTS, is_list=True),
    # Of pods too: services, policies, node agents and webhooks act on them.
    Area("labels", "labels", "", {}, DEPLOYMENTS),
    Area("annotations", "annotations", "", {}, DEPLOYMENTS),
    Area("serviceAnnotations", "annotations", "", {}, SERVICES),
    Area("service", "expose", "", {"type": ("ClusterIP",), "annotations": {}, **_any(*_INGRESS_FIELDS)}, SERVICES),
    Area("ingress", "expose", "", _any("type", "annotations", "clients", "metrics"), INGRESSES),
)
# Fields that decide how many members there are, and how large. All others decide what runs: a user who may not set a
# field outside the list must not run another image or other code in a pod that has it.
SIZES: Mapping[str, frozenset[str]] = {
    "": frozenset({"drain", "expose", "head", "lifetime", "minReady", "replicas", "workers"}),
    "head": frozenset({"burst", "cpu", "memory"}),
    "workers": frozenset({"burst", "cache", "cpu", "gpu", "memory", "replicas"}),
}


def restricted_fields(spec: Mapping[str, Any]) -> dict[Right, list[str]]:
    """The fields of a spec that are outside the list, by the right that they need."""
    found: dict[Right, dict[str, None]] = {}
    for area in AREAS:
        block = spec.get(area.block)
        for each in (block or ()) if area.is_list else (block or {},):
            value = each.get(area.field) if area.field else each
            found.setdefault(area.right, {}).update(dict.fromkeys(outside(area.safe, value, area.path)))
    return {right: list(paths) for right, paths in found.items() if paths}


def outside(safe: Node, value: Any, path: str) -> Iterator[str]:
    """The paths of the fields in `value` that are not safe."""
    if value is None or safe is ANY:
        return
    if isinstance(safe, Mapping) and isinstance(value, Mapping):
        for key, below in value.items():
            if key in safe:
                yield from outside(safe[key], below, f"{path}.{key}")
            elif below is not None:
                yield f"{path}.{key}"
    elif isinstance(safe, Each) and isinstance(value, list):
        for entry in value:
            if isinstance(entry, Mapping) and safe.needs and entry.get(safe.needs) is None:
                yield f"{path}[].{safe.needs}"
            yield from outside(safe.entry, entry, f"{path}[]")
    elif not (isinstance(safe, tuple | Value) and _is_safe(safe, value)):
        yield path


def _is_safe(safe: tuple[Any, ...] | Value, value: Any) -> bool:
    """Types count: 1 is not True."""
    if safe is POSITIVE:
        return type(value) is int and value > 0
    return isinstance(safe, tuple) and any(type(each) is type(value) and each == value for each in safe)
