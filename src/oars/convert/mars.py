"""KubeDL's MarsJob."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oars.convert import commands, pods
from oars.convert.clusters import cluster, filled
from oars.convert.fields import Fields

ROLES = ("Scheduler", "WebService", "Worker")
SPOT = "spot"  # the group of spot workers
_PROGRAM = re.compile(r"(xorbits\._)?mars\.deploy\.(kubernetes|oscar|kubedl)\.(scheduler|supervisor|web|worker)")
_SCRIPTS = ("mars-scheduler", "mars-supervisor", "mars-web", "mars-worker")
# Variables that Oars sets itself, or that only other versions of Mars read.
_VARIABLES = re.compile(
    r"(MARS|XORBITS)_(SPILL_DIRS|CACHE_MEM_SIZE|LOCK_FREE_FILEIO|PLASMA_DIRS|MIN_CACHE_MEM_SIZE|WRITE_SHUFFLE_TO_DISK|"
    r"IO_PARALLEL_NUM|CPU_TOTAL|MEMORY_TOTAL|BIND_PORT)"
)
ENGINE = pods.Engine((11111, 7103, 7104), _VARIABLES, "mars")


def mars_job(spec: Fields, metadata: Fields) -> dict[str, Any]:
    roles = _roles(spec)
    priority_class = spec.block("schedulingPolicy").text("priorityClassName")
    scheduler, worker = roles.block("Scheduler"), roles.block("Worker")
    head, image = _member(scheduler, "head", priority_class, None)
    count, spot = _spot(scheduler)
    if count:
        head = _as_spot(head, spot)
    replicas = worker.whole("replicas")
    group, worker_image = _member(worker, "worker", priority_class, image)
    name = image or worker_image
    replicas = 1 if replicas is None else replicas
    groups = _with_spots({"name": "default", "replicas": replicas, **group, **_memory(spec)}, *_spot(worker))
    distribution = {} if name and "xorbits" in name else {"distribution": "pymars"}
    host = filled({"host": spec.text("webHost")})
    seconds = spec.whole("activeDeadlineSeconds")
    lifetime = {"max": f"{seconds}s"} if seconds else {}
    return cluster("mars", name, head, groups, expose=host, lifetime=lifetime, mars=distribution)


def _roles(spec: Fields) -> Fields:
    """The roles under their usual names: KubeDL accepts them in any case."""
    usual = {role.lower(): role for role in ROLES}
    given = spec.take("marsReplicaSpecs")
    if not isinstance(given, dict) or not given:
        spec.fail("marsReplicaSpecs", "must be a mapping of roles, such as Scheduler and Worker")
    return spec.child({usual.get(name.lower()) or name: role for name, role in given.items()}, "marsReplicaSpecs")


def _member(
    role: Fields, name: str, priority_class: str | None, image: str | None
) -> tuple[dict[str, Any], str | None]:
    """The fields of the head or of the workers, and their image."""
    if "template" not in role:
        return {}, None
    pod = pods.read_pod(role.block("template"), name, ENGINE)
    found = commands.words(pod.container)
    if found and not _is_mars(found):
        pod.container.unmet("command", "Oars starts Mars itself; use an initContainer, or another image")
    if priority_class:
        pod.spec.setdefault("priorityClassName", priority_class)
    fields = {**pods.read_sizes(pod), "env": pod.env}
    return filled({**fields, "pod": pod.overlay(image or pod.image)}), pod.image


def _spot(role: Fields) -> tuple[int, dict[str, Any]]:
    """How many members of the role are spot members, and what their pods have."""
    block = role.block("spotReplicaSpec")
    pod = {"metadata": filled({"labels": block.pairs("labels")})}
    # KubeDL replaces the priority class of the template, also by none.
    return block.whole("spotReplicaNumber") or 0, {
        **pod,
        "spec": {"priorityClassName": block.text("priorityClassName")},
    }


def _with_spots(group: dict[str, Any], count: int, spot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The group, and the one of its spot members: the last ones, as in KubeDL."""
    if count <= 0:
        return [group]
    if count >= group["replicas"]:
        return [_as_spot(group, spot)]
    return [
        {**group, "replicas": group["replicas"] - count},
        {**_as_spot(group, spot), "name": SPOT, "replicas": count},
    ]


def _as_spot(member: Mapping[str, Any], spot: Mapping[str, Any]) -> dict[str, Any]:
    """The member as a spot member."""
    pod = member.get("pod") or {}
    metadata = dict(pod.get("metadata") or {})
    labels = {**(metadata.get("labels") or {}), **spot["metadata"].get("labels", {})}
    own = filled({**(pod.get("spec") or {}), **spot["spec"]})
    return {**member, "pod": filled({**pod, "metadata": filled({**metadata, "labels": labels}), "spec": own})}


def _is_mars(found: list[str]) -> bool:
    """Whether the words are nothing but a program of Mars, whose options Oars sets."""
    program = commands.find(found, found[:1]) or ([], [], [])
    is_module = len(found) > 2 and found[0].startswith("python") and found[1] == "-m" and _PROGRAM.fullmatch(found[2])
    return not program[2] and bool(is_module or found[0].rsplit("/", 1)[-1] in _SCRIPTS)


def _memory(spec: Fields) -> dict[str, Any]:
    """`workerMemoryTuningPolicy`, which KubeDL's document calls `memoryTuningPolicy`."""
    found: dict[str, Any] = {}
    for name in ("memoryTuningPolicy", "workerMemoryTuningPolicy"):
        policy = spec.block(name)
        percentage, size = policy.whole("workerCachePercentage"), policy.take("workerCacheSize")
        if size is not None or percentage is not None:
            found["cache"] = size if size is not None else f"{percentage}%"
        if policy.texts("spillDirs"):
            found["spill"] = {"medium": "disk"}
    return found
