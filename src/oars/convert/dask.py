"""dask-kubernetes' DaskCluster, DaskWorkerGroup, DaskAutoscaler and DaskJob."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from oars.convert import commands, pods
from oars.convert.clusters import cluster, filled
from oars.convert.fields import Fields
from oars.convert.tables import DASK_OPTION, DASK_PROGRAM, DASK_WORKERS
from oars.spec import resources

_ADDRESS = re.compile("DASK_SCHEDULER_ADDRESS")
# The entry point of Dask's images installs these packages when a pod starts.
_ENTRY_POINT = (
    "Oars does not run the entry point of Dask's images, which installs these packages; put them into an image: "
    "`oars image build --engine dask --package PACKAGE`"
)
EXTRA_PACKAGES = {f"EXTRA_{kind}_PACKAGES": _ENTRY_POINT for kind in ("APT", "CONDA", "PIP")}
SCHEDULER = pods.Engine((8786, 8787), _ADDRESS, on_service=(8786, 8787), without_effect=EXTRA_PACKAGES)
WORKER = pods.Engine((8788,), _ADDRESS, without_effect=EXTRA_PACKAGES)
NOT_STARTED = (DASK_OPTION, DASK_PROGRAM, DASK_WORKERS)  # reasons why a command is not kept
FLAGS = (
    "dashboard", "no-dashboard", "nanny", "no-nanny", "jupyter", "no-jupyter", "reconnect", "no-reconnect", "show",
    "no-show", "lifetime-restart", "no-lifetime-restart",
)  # fmt: skip
REPEATED = ("preload",)
# Options of workers that Dask also reads from its configuration, by the variables that set it.
CONFIGURED = {
    "lifetime": "DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION",
    "lifetime-stagger": "DASK_DISTRIBUTED__WORKER__LIFETIME__STAGGER",
}
LIFETIME_RESTART = "DASK_DISTRIBUTED__WORKER__LIFETIME__RESTART"
PRELOAD = "DASK_DISTRIBUTED__WORKER__PRELOAD"
_PROGRAMS = {
    "worker": (("dask-worker",), ("dask", "worker"), ("python", "-m", "distributed.cli.dask_worker")),
    "scheduler": (("dask-scheduler",), ("dask", "scheduler"), ("python", "-m", "distributed.cli.dask_scheduler")),
}


@dataclass
class DaskCluster:
    """A DaskCluster, to which the file's worker groups and autoscaler are added."""

    image: str | None
    head: dict[str, Any]
    groups: list[dict[str, Any]]
    blocks: dict[str, Any]

    @property
    def spec(self) -> dict[str, Any]:
        return cluster("dask", self.image, self.head, self.groups, **self.blocks)


def dask_cluster(spec: Fields) -> DaskCluster:
    worker = spec.block("worker")
    scheduler = spec.block("scheduler")
    pod = pods.read_pod(worker, "worker", WORKER)
    image = pod.image
    head: dict[str, Any] = {}
    options: dict[str, Any] = {}
    idle: Any = spec.whole("idleTimeout")
    if "spec" in scheduler:
        head_pod = pods.read_pod(scheduler, "head", SCHEDULER)
        image = image or head_pod.image
        arguments = _options(head_pod, "scheduler")
        idle = idle or arguments.parsed("idle-timeout", resources.duration)
        options = _scheduler_options(arguments)
        head = {**pods.read_sizes(head_pod), "env": head_pod.env, "pod": head_pod.overlay(image)}
    service = scheduler.block("service")
    pods.read_service_ports(service, SCHEDULER)
    expose = filled({"type": service.text("type")})
    blocks = {"expose": expose, "lifetime": {"idle": f"{idle:g}s"} if idle else {}, "dask": options}
    return DaskCluster(image, head, [_group("default", worker, pod, image)], blocks)


def worker_group(name: str, worker: Fields, cluster_image: str | None) -> dict[str, Any]:
    """A group from the `worker` part of a DaskCluster or of a DaskWorkerGroup."""
    return _group(name, worker, pods.read_pod(worker, "worker", WORKER), cluster_image)


def _group(name: str, worker: Fields, pod: pods.Pod, cluster_image: str | None) -> dict[str, Any]:
    replicas = worker.whole("replicas")
    options = _options(pod, "worker")
    env = {**_configured(options), **pod.env}
    found = {"name": name, "replicas": 1 if replicas is None else replicas, **pods.read_sizes(pod), "env": env}
    threads = options.parsed("nthreads", resources.cpu)
    if threads is not None and "cpu" not in found:
        found["cpu"] = f"{threads:g}"
    elif threads is not None and math.ceil(resources.cpu(found["cpu"])) != threads:
        options.unmet("nthreads", "a worker has as many threads as processors: cpu")
    limit = options.take("memory-limit")
    if limit not in (None, "auto", "0") and "memory" not in found:
        found["memory"] = limit
    if amounts := options.parsed("resources", _named):
        found["resources"] = amounts
    kept = {**filled(found), "replicas": found["replicas"], "pod": pod.overlay(cluster_image)}
    return kept if kept["pod"] else {key: value for key, value in kept.items() if key != "pod"}


def _configured(options: Fields) -> dict[str, str]:
    """Options of a worker as variables of Dask's configuration."""
    given = {variable: options.take(option) for option, variable in CONFIGURED.items()}
    flags = [options.take("lifetime-restart") and "True", options.take("no-lifetime-restart") and "False"]
    preloads = options.take("preload")
    given |= {LIFETIME_RESTART: flags[0] or flags[1], PRELOAD: json.dumps(preloads) if preloads else None}
    return filled(given)


def _options(pod: pods.Pod, role: str) -> Fields:
    """The options of the engine's program. Other words of the command are reported."""
    container = pod.container
    field = "args" if "args" in container else "command"
    found = commands.words(container)
    matches = (commands.find(found, program) for program in _PROGRAMS[role])
    match = next((each for each in matches if each is not None), None)
    if found and (match is None or match[0] or match[2]):
        foreign = " ".join([*match[0], *match[2]]) if match else found[0]
        container.unmet(field, f"{DASK_PROGRAM} `dask {role}`, not with {foreign!r}")
    return container.child(commands.options(match[1], FLAGS, REPEATED) if match else {}, "args")


def _scheduler_options(options: Fields) -> dict[str, Any]:
    protocol = (options.text("protocol") or "").removesuffix("://")
    if protocol and protocol not in ("tcp", "tls"):
        options.unmet("protocol", "Oars' schedulers speak tls or tcp")
        protocol = ""
    return filled({"protocol": protocol, "jupyter": bool(options.take("jupyter")) or None})


def _named(value: object) -> dict[str, float]:
    """Dask's resources: "GPU=2 MEM=10e9"."""
    pairs = [pair.partition("=") for pair in re.split(r"[,\s]+", str(value).strip()) if pair]
    try:
        return {name: float(amount or 1) for name, _, amount in pairs}
    except ValueError:
        raise ValueError(f"{value!r} are not names with numbers, such as 'GPU=2'") from None


def add_autoscaler(spec: Fields, found: DaskCluster) -> None:
    """Like dask-kubernetes' own, it scales the default group only."""
    found.groups[0] |= filled({"min": spec.whole("minimum"), "max": spec.whole("maximum")})


def dask_job(spec: Fields, metadata: Fields) -> dict[str, Any]:
    made = dask_cluster(spec.block("cluster").block("spec"))
    pod = pods.read_pod(spec.block("job"), "driver", WORKER)
    entrypoint = [*pod.container.texts("command"), *pod.container.texts("args")]
    if not entrypoint:
        pod.container.fail("args", "is missing", "A job needs a command; Oars does not know that of the image.")
    sizes = {key: value for key, value in pods.read_sizes(pod).items() if key != "burst"}
    driver = filled({**sizes, "pod": pod.overlay(made.image)})
    return {"cluster": made.spec, "entrypoint": entrypoint, **filled({"env": pod.env, "driver": driver})}
