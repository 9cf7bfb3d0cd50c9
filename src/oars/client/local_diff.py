"""What a new spec changes in a local cluster. Pure."""

from __future__ import annotations

from typing import Any

from oars.plan.changes import Change, Effect, lines_between
from oars.spec.cluster import ClusterSpec

# These do not affect a local cluster.
IGNORED = {"place", "image", "replicas", "namespace", "expose", "lifetime", "min_ready"}


def compare(before: ClusterSpec, after: ClusterSpec) -> list[Change]:
    """Only numbers of workers can change. Memory that the new spec omits stays as chosen at creation."""
    old, new = (spec.model_dump(mode="json", exclude=IGNORED) for spec in (before, after))
    for group in new["workers"]:
        chosen: dict[str, Any] = next((each for each in old["workers"] if each["name"] == group["name"]), {})
        group["memory"] = group["memory"] or chosen.get("memory")
    new["head"]["memory"] = new["head"]["memory"] or old["head"]["memory"]
    current = {group["name"]: group.pop("replicas") for group in old["workers"]}
    wanted = {group["name"]: group.pop("replicas") for group in new["workers"]}
    if old != new:
        message = "On this machine only the numbers of workers can change; for anything else recreate the cluster."
        return [Change(Effect.REFUSED, message, lines_between(old, new))]
    return [
        Change(
            Effect.ADDED if count > current[name] else Effect.DRAINED,
            f"The group {name!r} changes from {current[name]} to {count} workers.",
        )
        for name, count in wanted.items()
        if count != current[name]
    ]
