"""What a new spec changes in a local cluster. Pure."""

from __future__ import annotations

from typing import Any

from oars.plan.changes import Change, Effect, lines_between
from oars.plan.desired import NUMBERS
from oars.spec.cluster import ClusterSpec, WorkerGroup

# What can change in a running cluster, besides the numbers of its groups.
SETTINGS = {"autoscale", "drain", "lifetime"}
# The settings above, and what does not affect a local cluster.
_TOP_LEVEL = ("place", "image", "replicas", "namespace", "expose", "min_ready", *SETTINGS)
IGNORED: dict[str, Any] = {**dict.fromkeys(_TOP_LEVEL, True), "head": {"eviction"}}


def compare(before: ClusterSpec, after: ClusterSpec) -> list[Change]:
    """Only numbers of workers and settings of the loop can change. Memory that the new spec omits stays as chosen at
    creation."""
    old, new = _members(before), _members(after)
    for group in new["workers"]:
        chosen: dict[str, Any] = next((each for each in old["workers"] if each["name"] == group["name"]), {})
        group["memory"] = group["memory"] or chosen.get("memory")
    new["head"]["memory"] = new["head"]["memory"] or old["head"]["memory"]
    for group in (*old["workers"], *new["workers"]):
        for number in NUMBERS:
            del group[number]
    if old != new:
        message = (
            "On this machine only the numbers of workers, autoscaling, drain and lifetime can change; for "
            "anything else recreate the cluster."
        )
        return [Change(Effect.REFUSED, message, lines_between(old, new))]
    found = []
    for now, then in zip(before.workers, after.workers, strict=True):
        if now.replicas != then.replicas:
            effect = Effect.ADDED if then.replicas > now.replicas else Effect.DRAINED
            message = f"The group {now.name!r} changes from {now.replicas} to {then.replicas} workers."
            found.append(Change(effect, message))
    bounds = NUMBERS - {"replicas"}
    loop_settings = [
        {
            **spec.model_dump(mode="json", by_alias=True, include=SETTINGS),
            "workers": [_numbers(group, bounds) for group in spec.workers],
        }
        for spec in (before, after)
    ]
    if lines := lines_between(*loop_settings):
        found.append(Change(Effect.IN_PLACE, "Settings of the control loop change.", lines))
    return found


def _members(spec: ClusterSpec) -> dict[str, Any]:
    """The part of the spec that members depend on, with the default of cpu."""
    data = spec.model_dump(mode="json", by_alias=True, exclude=IGNORED)
    data["head"]["cpu"] = spec.head.processors
    for group, written in zip(data["workers"], spec.workers, strict=True):
        group["cpu"] = written.processors
    return data


def with_numbers(before: ClusterSpec, after: ClusterSpec) -> ClusterSpec:
    """The old spec with the numbers and settings of the new one, which differs in nothing else."""
    data = before.model_dump()
    data |= after.model_dump(include=SETTINGS)
    numbers = {group.name: _numbers(group, NUMBERS) for group in after.workers}
    data["workers"] = [{**group, **numbers.get(group["name"], {})} for group in data["workers"]]
    return type(before).model_validate(data)


def _numbers(group: WorkerGroup, which: set[str]) -> dict[str, Any]:
    return {"name": group.name, **group.model_dump(include=which)}
