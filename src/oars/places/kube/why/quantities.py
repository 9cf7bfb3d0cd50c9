"""Kubernetes quantities, and the resources that pods request and nodes offer. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from oars.places.kube.names import Object
from oars.places.kube.state.observe import phase
from oars.spec.resources import show_memory

_UNITS = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0,
    "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?[\d.]+(?:[eE][+-]?\d+)?)([A-Za-z]*)")


def parse(quantity: object) -> float:
    """'500m' -> 0.5, '2Gi' -> 2**31; 0 for anything that is not a quantity."""
    match = _QUANTITY.fullmatch(str(quantity).strip())
    if match is None or match[2] not in _UNITS:
        return 0.0
    return float(match[1]) * _UNITS[match[2]]


def show(resource: str, value: float) -> str:
    """The value in the usual unit of the resource: '12Gi' of memory, '2' of cpu."""
    is_bytes = resource.endswith(("memory", "storage"))
    return show_memory(int(value)) if is_bytes else f"{value:.10g}"


def pod_requests(pod: Object) -> dict[str, float]:
    """The requests that the scheduler counts: containers and sidecars, or more if an init container needs more while
    it runs beside the sidecars that were started before it; plus the overhead."""
    spec = pod["spec"]
    inits = spec.get("initContainers") or ()
    sidecars = [init for init in inits if init.get("restartPolicy") == "Always"]
    total = _sum(map(_requests, [*spec["containers"], *sidecars]))
    running: dict[str, float] = {}
    for init in inits:
        with_init = _sum([running, _requests(init)])
        total |= {resource: max(total.get(resource, 0.0), value) for resource, value in with_init.items()}
        if init in sidecars:
            running = with_init
    return _sum([total, _parse_all(spec.get("overhead") or {})])


def allocatable(node: Object) -> dict[str, float]:
    return _parse_all(node.get("status", {}).get("allocatable") or {})


def used(pods: Iterable[Object], node: Object) -> dict[str, float]:
    """The requests of those of the given pods that occupy the node."""
    on_node = (pod for pod in pods if pod["spec"].get("nodeName") == node["metadata"]["name"])
    occupying = (pod for pod in on_node if phase(pod) not in ("Succeeded", "Failed"))
    return _sum({**pod_requests(pod), "pods": 1.0} for pod in occupying)


def _requests(container: Object) -> dict[str, float]:
    return _parse_all((container.get("resources") or {}).get("requests") or {})


def _parse_all(quantities: Mapping[str, object]) -> dict[str, float]:
    return {resource: parse(value) for resource, value in quantities.items()}


def _sum(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for resource, value in part.items():
            total[resource] = total.get(resource, 0.0) + value
    return total
