"""KubeDL's MarsJob."""

from __future__ import annotations

import re
from typing import Any

from oars.convert import commands, pods
from oars.convert.clusters import cluster, filled
from oars.convert.fields import Fields

ROLES = ("Scheduler", "WebService", "Worker")
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
    head, image = _member(roles.block("Scheduler"), "head", priority_class, None)
    worker = roles.block("Worker")
    replicas = worker.whole("replicas")
    group, worker_image = _member(worker, "worker", priority_class, image)
    name = image or worker_image
    group = {"name": "default", "replicas": 1 if replicas is None else replicas, **group, **_memory(spec)}
    distribution = {} if name and "xorbits" in name else {"distribution": "pymars"}
    host = filled({"host": spec.text("webHost")})
    seconds = spec.whole("activeDeadlineSeconds")
    lifetime = {"max": f"{seconds}s"} if seconds else {}
    return cluster("mars", name, head, [group], expose=host, lifetime=lifetime, mars=distribution)


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
