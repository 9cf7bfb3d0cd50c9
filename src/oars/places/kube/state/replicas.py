"""How many workers the first group of a ComputeCluster shall have. Pure.

The number may stand in two places. People write it at the group, as in any file; `kubectl scale` and autoscalers read
and write `spec.replicas`, and can do little before it is there. What was written last holds. An annotation tells: it is
what the group itself said when `spec.replicas` was last made to agree; one that says something else was edited since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oars.places.kube.names import Object

SAID = "oars.dev/said-replicas"


def mark(group: str, replicas: int) -> str:
    return f"{group}={replicas}"


def spec(resource: Mapping[str, Any]) -> Object:
    """The description, with the number that holds at `replicas`."""
    number = _holding(resource)
    return {**resource["spec"]} if number is None else {**resource["spec"], "replicas": number}


def agreement(resource: Mapping[str, Any]) -> Object | None:
    """What makes `spec.replicas` the number that holds, as a merge patch; None: it is."""
    number, said = _holding(resource), _said(resource)
    if number is None or (resource["spec"].get("replicas") == number and said in ("", _seen(resource))):
        return None
    version = resource["metadata"]["resourceVersion"]  # somebody may scale it just now
    annotations = {"annotations": {SAID: said}} if said else {}
    return {"metadata": {"resourceVersion": version, **annotations}, "spec": {"replicas": number}}


def _holding(resource: Mapping[str, Any]) -> int | None:
    """None: there is no group."""
    groups, number = resource["spec"].get("workers", ({},)), resource["spec"].get("replicas")
    if not groups:
        return None
    own: int | None = groups[0].get("replicas")
    is_newer = bool(_seen(resource)) and _said(resource) not in ("", _seen(resource))
    if number is None or is_newer:
        return 1 if own is None else own
    return int(number)


def _said(resource: Mapping[str, Any]) -> str:
    """By the group itself; empty if it says no number."""
    first = (*resource["spec"].get("workers", ()), {})[0]
    return mark(first.get("name", "default"), first["replicas"]) if "replicas" in first else ""


def _seen(resource: Mapping[str, Any]) -> str:
    return str((resource["metadata"].get("annotations") or {}).get(SAID, ""))
