"""Amounts as Kubernetes writes them, and what a pod asks for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from oars.places.kube.names import Object
from oars.spec.resources import show_memory

_UNITS = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0,
    "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_AMOUNT = re.compile(r"([+-]?[\d.]+(?:[eE][+-]?\d+)?)([A-Za-z]*)")

Amounts = Mapping[str, float]


def amount(written: object) -> float:
    """'500m', '2Gi', '1e3' → a number; 0 for what is no amount."""
    match = _AMOUNT.fullmatch(str(written).strip())
    if match is None or match[2] not in _UNITS:
        return 0.0
    return float(match[1]) * _UNITS[match[2]]


def shown(resource: str, value: float) -> str:
    """The amount with the word for it: '12Gi memory', '2 cpu'."""
    return f"{figure(resource, value)} {resource}"


def figure(resource: str, value: float) -> str:
    """The amount alone, in the unit people use for that resource."""
    is_bytes = resource.endswith(("memory", "storage"))
    return show_memory(int(value)) if is_bytes else f"{value:.10g}"


def asked(pod: Object) -> dict[str, float]:
    """What the scheduler counts for a pod: what runs for good, or more if an init container needs more while it runs,
    beside the sidecars that were started before it."""
    spec = pod["spec"]
    inits = spec.get("initContainers") or ()
    total = _sum(map(_requests, [*spec["containers"], *filter(_is_sidecar, inits)]))
    beside: dict[str, float] = {}
    for container in inits:
        at_once = _sum([beside, _requests(container)])
        total |= {resource: max(total.get(resource, 0.0), value) for resource, value in at_once.items()}
        if _is_sidecar(container):
            beside = at_once
    return _sum([total, _amounts(spec.get("overhead") or {})])


def _is_sidecar(init: Object) -> bool:
    """It begins as the init containers do and stays."""
    return init.get("restartPolicy") == "Always"


def _requests(container: Object) -> dict[str, float]:
    return _amounts((container.get("resources") or {}).get("requests") or {})


def _amounts(written: Mapping[str, object]) -> dict[str, float]:
    return {resource: amount(value) for resource, value in written.items()}


def _sum(parts: Iterable[Amounts]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for resource, value in part.items():
            total[resource] = total.get(resource, 0.0) + value
    return total


def allocatable(node: Object) -> dict[str, float]:
    """What a node has for pods."""
    return _amounts(node.get("status", {}).get("allocatable") or {})


def taken(pods: Iterable[Object], node: str) -> dict[str, float]:
    """What these pods have of a node."""
    there = (pod for pod in pods if pod["spec"].get("nodeName") == node and _counts(pod))
    return _sum({**asked(pod), "pods": 1.0} for pod in there)


def _counts(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
