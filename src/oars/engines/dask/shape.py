"""Dask's shape: spec → scheduler and workers with arguments, ports and environment. Pure.

Oars restarts dead workers as Dask's nanny would, so workers run without a nanny.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oars.base.errors import SpecError
from oars.engines.base import WEB_GUARD, script, spill_limit
from oars.model import Group, HandOver, Inquiry, LogPattern, Needs, Port, Probe, Process, Resources, Role, Shape, Stop
from oars.spec.resources import cache_size

if TYPE_CHECKING:  # session.py also runs in environments without pydantic
    from oars.engines.dask.options import DaskOptions
    from oars.spec.cluster import ClusterSpec, WorkerGroup

LAUNCH, HEAD_PLUGIN, HEAD_HELPER, JUPYTER_GUARD = (
    script(__file__, f"{name}.py") for name in ("launch", "head_plugin", "head_helper", "jupyter_guard")
)

# Read by launch.py: the incarnation that a worker reports, and where it checks that the scheduler is up.
LAUNCH_ENV = {"OARS_INCARNATION": "$(incarnation)", "OARS_HEALTH": "$(head.host):$(head.dashboard)"}
TOKEN_ENV = {"OARS_TOKEN_FILE": "$(secret.token)"}  # read by the guards, and by clients for the link to Jupyter
GUARD_ENV = {**TOKEN_ENV, "OARS_WEB_BIND": "$(bind)"}  # read by web_guard.py
MEMORY = "DASK_DISTRIBUTED__WORKER__MEMORY__"
MAX_SPILL, MAX_PAUSE = 0.9, 0.94  # below Dask's threshold for termination, 0.95
HAND_OVER = HandOver({"OARS_HAND_OVER": "1"})  # read by head_helper.py, in workers
GPU = "GPU"  # Dask's conventional resource name for graphics processors

# Imported once, in the fork server. The dashboard takes more than half of a scheduler's import time.
PRELOAD = ("distributed.cli.dask_scheduler", "distributed.cli.dask_worker", "distributed.dashboard.scheduler")

# As set by Dask's nanny: return freed memory to the system, and leave threads to Dask.
NANNY_ENV = {
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

TLS = "DASK_DISTRIBUTED__COMM__TLS__"
ENCRYPT = "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"
CONFIG = "DASK_INTERNAL_INHERIT_CONFIG"  # with it Dask passes a whole configuration to its own processes

LOG_PATTERNS = (
    LogPattern(  # launch.py
        r"Out of memory: (\d+ MiB) in use, limit (\d+ MiB)",
        "it ran out of memory ({0} in use; it exits at {1}, 95 % of its memory)",
        "Give it more `memory`, or use smaller partitions.",
    ),
    LogPattern(  # Dask's nanny
        r"Worker exceeded (\d+%) memory budget",
        "it ran out of memory (its nanny ended it at {0})",
        "Give it more `memory`, or use smaller partitions.",
    ),
    LogPattern(
        "Mismatched versions",
        "its versions differ from those of the head",
        "Use the same image for the head, all workers and the driver, and the same versions in the client.",
        "VersionMismatch",
        r"(?m)^\|\s*(?!Package\b)([\w.-]+)\s*\|\s*([^|\s]+)\s*\|\s*([^|\s]+)\s*\|",
        "{0}: head {2}, here {1}",
    ),
    LogPattern(
        "(?i)handshake fail|certificate verify failed",
        "the head rejected it: it was started for another head or certificate",
        "Oars replaces it together with the head. If this goes on, recreate the cluster.",
    ),
)


def options_model() -> type[DaskOptions]:
    from oars.engines.dask.options import DaskOptions

    return DaskOptions


def _options(spec: ClusterSpec) -> DaskOptions:
    from oars.spec.options import parse_options

    return parse_options(options_model(), spec)


def needs(spec: ClusterSpec) -> Needs:
    return Needs(
        distribution="distributed",
        modules=("distributed",),
        # pyarrow: dask.dataframe needs it. lz4: Dask's own images have it, and Dask warns if only one side has it.
        # prometheus-client: without it, /metrics says that it is missing.
        requirements=(
            "dask==2026.8.0",
            "distributed==2026.8.0",
            "numpy>=2",
            "pandas>=2",
            "pyarrow>=16",
            "bokeh>=3.1",
            "lz4>=4.3.2",
            "prometheus-client>=0.20",
        ),
    )


def check(spec: ClusterSpec) -> None:
    """Raise SpecError for what Dask does not support."""
    options = _options(spec)
    _check_config(options.config)
    if options.jupyter and _is_guarded(spec):
        message = "dask.jupyter: browsers cannot open Jupyter behind a dashboard that requires the token."
        raise SpecError(message, "Remove dashboardAuth: Jupyter requires the token by itself.")
    for group in spec.workers:
        where = f"workers[{group.name}]"
        if group.labels:
            raise SpecError(f"{where}.labels: Dask does not schedule on labels.", "Use resources instead.")
        if GPU in group.resources and group.gpu:
            raise SpecError(f"{where}.resources: {GPU} duplicates gpu.", "Remove one of them.")


def _check_config(config: Mapping[str, Any]) -> None:
    try:
        json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(f"dask.config: {error}.", "Use strings, numbers, true, false, lists and mappings.") from error
    for name in ("distributed", "array", "dataframe"):
        if not isinstance(config.get(name, {}), dict):
            raise SpecError(f"dask.config.{name} is not a mapping.", "Write it as in dask.yaml.")
    scheduler = config.get("distributed", {}).get("scheduler")
    if not isinstance(scheduler, dict | None):
        raise SpecError("dask.config.distributed.scheduler is not a mapping.", "Write it as in dask.yaml.")
    worker = config.get("distributed", {}).get("worker")
    if not isinstance(worker, dict | None) or not isinstance((worker or {}).get("memory"), dict | None):
        raise SpecError("dask.config.distributed.worker.memory is not a mapping.", "Write it as in dask.yaml.")
    preload = (scheduler or {}).get("preload")
    if not isinstance(preload, str | list | None):
        raise SpecError("dask.config.distributed.scheduler.preload is not a list.", "Write a list of modules or files.")


def shape(spec: ClusterSpec) -> Shape:
    return Shape(
        head=_head(spec),
        workers=tuple(_workers(spec, group) for group in spec.workers),
        endpoints={"client": _address(spec), "dashboard": "http://$(head.host):$(head.dashboard)/status"},
        secrets=(*(["tls"] if _is_encrypted(spec) else []), *(["token"] if _guards(spec) else [])),
        image="ghcr.io/dask/dask:2026.8.0-py3.11",
        needs_helper=True,
        driver_env={**_client_env(spec), **(TOKEN_ENV if _options(spec).jupyter else {})},
        inquiry=Inquiry("dashboard", path="/oars/members.json"),
        log_patterns=LOG_PATTERNS,
    )


def _head(spec: ClusterSpec) -> Group:
    options = _options(spec)
    # Dask ignores the preloads of the configuration if the command line has one.
    scheduler = options.config.get("distributed", {}).get("scheduler") or {}
    configured = scheduler.get("preload") or []
    guards = _guards(spec)
    own = [*(f"$(file.{name})" for name in guards), "$(file.oars_scheduler.py)", "$(file.oars_drain.py)"]
    preloads = [*own, *([configured] if isinstance(configured, str) else configured)]
    arguments = (
        "scheduler",
        "--protocol", options.protocol,
        "--host", "$(bind)",
        "--port", "$(port.client)",
        "--dashboard-address", "$(bind):$(port.dashboard)",
        *(word for preload in preloads for word in ("--preload", str(preload))),
        *(["--jupyter"] if options.jupyter else []),
    )  # fmt: skip
    process = _process(spec, arguments, spec.head.env)
    process = replace(
        process,
        env={**process.env, **(GUARD_ENV if guards else {})},
        late_env=(*process.late_env, *(GUARD_ENV if guards else ())),
        ports=(
            Port("client", 8786),
            Port("dashboard", 8787, dashboard=True, secret="token" if _is_guarded(spec) else "", metrics=True),
        ),
        files={
            "launch.py": LAUNCH,
            "oars_scheduler.py": HEAD_PLUGIN,
            "oars_drain.py": HEAD_HELPER,
            **guards,
        },
        probe=Probe("dashboard", "/health"),
    )
    return Group("head", Role.HEAD, 1, process, Resources(spec.head.processors, spec.head.memory))


def _workers(spec: ClusterSpec, group: WorkerGroup) -> Group:
    """The system chooses the worker's main port; only the scheduler needs it, and learns it from the worker."""
    threads = max(1, math.ceil(group.processors))
    amounts = {**group.resources, **({GPU: group.gpu} if group.gpu else {})}
    resources = ",".join(f"{name}={amount:g}" for name, amount in amounts.items())
    arguments = (
        "worker", _address(spec),
        "--no-nanny",
        "--name", "$(member)",
        "--host", "$(host)",
        "--dashboard-address", "$(bind):$(port.http)", "--no-dashboard",
        "--local-directory", "$(spill)",
        "--nthreads", str(threads),
        "--memory-limit", "auto" if group.memory is None else str(group.memory),
        *(("--resources", resources) if resources else ()),
    )  # fmt: skip
    thresholds = _thresholds(spec, group)
    process = _process(spec, arguments, {**thresholds, **group.env})
    process = replace(process, late_env=(*process.late_env, *thresholds), hand_over=HAND_OVER)
    size = Resources(group.processors, group.memory, group.gpu)
    offers = {"cpu": threads, **group.resources, "gpu": group.gpu or group.resources.get(GPU, 0)}
    return Group(group.name, Role.WORKER, group.replicas, process, size, offers=offers)


def _thresholds(spec: ClusterSpec, group: WorkerGroup) -> dict[str, str]:
    """Environment variables for the thresholds of Dask's memory manager, except for those that its configuration sets:
    shares of the memory at which it moves results to disk (target: by their own size, spill: by that of the process)
    and starts no more tasks (pause); and the most bytes on disk."""
    limits: dict[str, float] = {}
    if group.cache is not None and group.memory is not None:
        target = round(cache_size(group.cache, group.memory) / group.memory, 3)
        spill = round(min(target + 0.1, MAX_SPILL), 3)
        limits = {"target": target, "spill": spill, "pause": round(min(max(0.8, spill + 0.05), MAX_PAUSE), 3)}
    if (most := spill_limit(group)) is not None:
        limits["max-spill"] = most
    worker = _options(spec).config.get("distributed", {}).get("worker") or {}
    configured = worker.get("memory") or {}
    chosen = {name: limit for name, limit in limits.items() if name not in configured}
    return {MEMORY + name.upper().replace("-", "_"): f"{limit:.15g}" for name, limit in chosen.items()}


def _process(spec: ClusterSpec, arguments: tuple[str, ...], env: Mapping[str, str]) -> Process:
    """A worker's process, which is also the base of the head's."""
    return Process(
        argv=("dask", *arguments),
        env={**NANNY_ENV, **_client_env(spec), **spec.env, **env, **LAUNCH_ENV},
        ports=(Port("http", 8788, on_service=False, metrics=True),),
        files={"launch.py": LAUNCH},
        entry="$(file.launch.py)",
        preload=PRELOAD,
        late_env=tuple(LAUNCH_ENV),
        stop=Stop("TERM", 5.0),
        probe=Probe("http", "/health"),
    )


def _client_env(spec: ClusterSpec) -> dict[str, str]:
    """Lets `distributed.Client()` find the cluster, in a driver and in a task. Sets what is switched off too: the
    environment may be inherited from a driver of another cluster."""
    env = {"DASK_SCHEDULER_ADDRESS": _address(spec), ENCRYPT: str(_is_encrypted(spec))}
    if _is_encrypted(spec):
        env[f"{TLS}CA_FILE"] = "$(secret.ca.pem)"
        for role in ("SCHEDULER", "WORKER", "CLIENT"):
            env[f"{TLS}{role}__CERT"] = "$(secret.cert.pem)"
            env[f"{TLS}{role}__KEY"] = "$(secret.key.pem)"
    if config := _options(spec).config:
        env[CONFIG] = base64.urlsafe_b64encode(json.dumps(config).encode()).decode()
    return env


def _address(spec: ClusterSpec) -> str:
    return f"{_options(spec).protocol}://$(head.host):$(head.client)"


def _is_guarded(spec: ClusterSpec) -> bool:
    return _options(spec).dashboard_auth == "token"


def _guards(spec: ClusterSpec) -> dict[str, str]:
    """Scripts that make the scheduler's web server require the token."""
    web = {"web_guard.py": WEB_GUARD} if _is_guarded(spec) else {}
    return {**web, **({"jupyter_guard.py": JUPYTER_GUARD} if _options(spec).jupyter else {})}


def _is_encrypted(spec: ClusterSpec) -> bool:
    return _options(spec).protocol == "tls"
