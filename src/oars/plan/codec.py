"""A Shape as plain data and back, so that whoever carries it out needs neither the spec nor its library. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from oars.model import Group, Port, Probe, Process, Resources, Role, Shape, Stop


def dump_shape(shape: Shape) -> dict[str, Any]:
    return asdict(shape)


def load_shape(data: Mapping[str, Any]) -> Shape:
    return Shape(
        head=_group(data["head"]),
        workers=tuple(_group(group) for group in data["workers"]),
        endpoints=data["endpoints"],
        secrets=tuple(data["secrets"]),
        dashboard_secret=data["dashboard_secret"],
        image=data["image"],
        needs_helper=data["needs_helper"],
        driver_env=data["driver_env"],
        outside_env=data["outside_env"],
    )


def _group(data: Mapping[str, Any]) -> Group:
    role, resources = Role(data["role"]), Resources(**data["resources"])
    return Group(data["name"], role, data["replicas"], _process(data["process"]), resources)


def _process(data: Mapping[str, Any]) -> Process:
    lists = {name: tuple(data[name]) for name in ("argv", "preload", "late_env", "litter")}
    ports = tuple(Port(**port) for port in data["ports"])
    probe = Probe(**data["probe"]) if data["probe"] else None
    return Process(**{**data, **lists, "ports": ports, "stop": Stop(**data["stop"]), "probe": probe})
