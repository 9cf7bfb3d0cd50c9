"""What Dask needs to run: a spec → the scheduler, the workers, their arguments, ports and environment. Pure.

The keeper does what Dask's nanny does (start again what died), so workers run without one.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from oars.base.errors import SpecError
from oars.engines.dask.scripts import HEAD_PLUGIN, LAUNCH
from oars.model import Group, Needs, Port, Probe, Process, Resources, Role, Shape, Stop

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec, WorkerGroup

HEAD_PORTS = (Port("client", 8786), Port("dashboard", 8787))
WORKER_PORTS = (Port("http", 8788, on_service=False),)
HEAD_PROBE, WORKER_PROBE = Probe("dashboard", "/health"), Probe("http", "/health")
# Read by launch.py: which incarnation a worker shall say it is, and where it sees that the scheduler is there.
FOR_LAUNCH = {"OARS_INCARNATION": "$(incarnation)", "OARS_HEALTH": "$(head.host):$(head.dashboard)"}
GPU = "GPU"  # the name under which Dask users count graphics processors

# Imported once and shared by all members. The dashboard is the greater half of what a scheduler imports.
PRELOAD = ("distributed.cli.dask_scheduler", "distributed.cli.dask_worker", "distributed.dashboard.scheduler")

# What the nanny would have set: give freed memory back to the system, and leave threads to Dask.
NANNY_ENV = {
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

TLS = "DASK_DISTRIBUTED__COMM__TLS__"
ENCRYPT = "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"
CONFIG = "DASK_INTERNAL_INHERIT_CONFIG"  # the way in which Dask hands a whole configuration to its own processes


def needs(spec: ClusterSpec) -> Needs:
    return Needs(
        distribution="distributed",
        modules=("distributed",),
        requirements=("dask==2026.8.0", "distributed==2026.8.0", "numpy>=2", "pandas>=2", "bokeh>=3.1"),
    )


def check(spec: ClusterSpec) -> None:
    """Raise SpecError for what Dask cannot do."""
    _check_config(spec)
    for group in spec.workers:
        where = f"workers[{group.name}]"
        if group.labels:
            raise SpecError(f"{where}.labels: Dask does not schedule on labels.", "Use resources instead.")
        if GPU in group.resources and group.gpu:
            raise SpecError(f"{where}.resources: {GPU} is what gpu says already.", "Use the one or the other.")


def _check_config(spec: ClusterSpec) -> None:
    try:
        json.dumps(spec.dask.config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(f"dask.config: {error}.", "Use texts, numbers, true, false, lists and maps.") from error
    for name in ("distributed", "array", "dataframe"):
        if not isinstance(spec.dask.config.get(name, {}), dict):
            raise SpecError(f"dask.config.{name} is not a map.", "Write it as in dask.yaml.")
    scheduler = spec.dask.config.get("distributed", {}).get("scheduler")
    if not isinstance(scheduler, dict | None):
        raise SpecError("dask.config.distributed.scheduler is not a map.", "Write it as in dask.yaml.")
    preload = (scheduler or {}).get("preload")
    if not isinstance(preload, str | list | None):
        raise SpecError("dask.config.distributed.scheduler.preload is not a list.", "Name modules or files in a list.")


def shape(spec: ClusterSpec) -> Shape:
    return Shape(
        head=_head(spec),
        workers=tuple(_workers(spec, group) for group in spec.workers),
        endpoints={"client": _address(spec), "dashboard": "http://$(head.host):$(head.dashboard)/status"},
        secrets=("tls",) if _encrypted(spec) else (),
        image="ghcr.io/dask/dask:2026.8.0-py3.11",
        needs_helper=True,
        driver_env=_client_env(spec),
    )


def _head(spec: ClusterSpec) -> Group:
    arguments = (
        "scheduler",
        "--protocol", spec.dask.protocol,
        "--host", "$(bind)",
        "--port", "$(port.client)",
        "--dashboard-address", "$(bind):$(port.dashboard)",
        "--preload", "$(file.oars_scheduler.py)",
        *_preloads(spec),
    )  # fmt: skip
    return Group(
        name="head",
        role=Role.HEAD,
        replicas=1,
        process=_process(spec, arguments, spec.head.env, HEAD_PORTS, {"oars_scheduler.py": HEAD_PLUGIN}),
        resources=Resources(cpu=spec.head.cpu, memory=spec.head.memory),
    )


def _preloads(spec: ClusterSpec) -> Iterator[str]:
    """With a preload on the command line Dask forgets those of the configuration."""
    scheduler = spec.dask.config.get("distributed", {}).get("scheduler") or {}
    named = scheduler.get("preload") or []
    for name in [named] if isinstance(named, str) else named:
        yield from ("--preload", str(name))


def _workers(spec: ClusterSpec, group: WorkerGroup) -> Group:
    return Group(
        name=group.name,
        role=Role.WORKER,
        replicas=group.replicas,
        process=_process(spec, tuple(_worker_arguments(spec, group)), group.env, WORKER_PORTS, {}),
        resources=Resources(cpu=group.cpu, memory=group.memory, gpu=group.gpu),
    )


def _worker_arguments(spec: ClusterSpec, group: WorkerGroup) -> Iterator[str]:
    """Its other port is chosen by the system: only the scheduler must know it, and the worker tells it."""
    yield from ("worker", _address(spec), "--no-nanny", "--name", "$(member)", "--host", "$(host)")
    yield from ("--dashboard-address", "$(bind):$(port.http)", "--no-dashboard", "--local-directory", "$(dir)")
    yield from ("--nthreads", str(max(1, math.ceil(group.cpu))))
    yield from ("--memory-limit", "auto" if group.memory is None else str(group.memory))
    resources = {**group.resources, **({GPU: group.gpu} if group.gpu else {})}
    if resources:
        yield from ("--resources", ",".join(f"{name}={amount:g}" for name, amount in resources.items()))


def _process(
    spec: ClusterSpec,
    arguments: tuple[str, ...],
    env: Mapping[str, str],
    ports: tuple[Port, ...],
    files: Mapping[str, str],
) -> Process:
    return Process(
        argv=("dask", *arguments),
        env={**NANNY_ENV, **_client_env(spec), **spec.env, **env, **FOR_LAUNCH},
        ports=ports,
        files={"launch.py": LAUNCH, **files},
        entry="$(file.launch.py)",
        preload=PRELOAD,
        late_env=tuple(FOR_LAUNCH),
        stop=Stop("TERM", 5.0),
        probe=WORKER_PROBE if ports is WORKER_PORTS else HEAD_PROBE,
    )


def _client_env(spec: ClusterSpec) -> dict[str, str]:
    """`distributed.Client()` finds the cluster, in a driver and in a task. What is switched off is said as well: the
    environment may have come from a script that is the driver of another cluster."""
    env = {"DASK_SCHEDULER_ADDRESS": _address(spec), ENCRYPT: str(_encrypted(spec))}
    if _encrypted(spec):
        env[f"{TLS}CA_FILE"] = "$(secret.ca.pem)"
        for role in ("SCHEDULER", "WORKER", "CLIENT"):
            env[f"{TLS}{role}__CERT"] = "$(secret.cert.pem)"
            env[f"{TLS}{role}__KEY"] = "$(secret.key.pem)"
    if spec.dask.config:
        env[CONFIG] = base64.urlsafe_b64encode(json.dumps(spec.dask.config).encode()).decode()
    return env


def _address(spec: ClusterSpec) -> str:
    return f"{spec.dask.protocol}://$(head.host):$(head.client)"


def _encrypted(spec: ClusterSpec) -> bool:
    return spec.dask.protocol == "tls"
