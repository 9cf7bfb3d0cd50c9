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
from oars.engines.base import script
from oars.model import Group, LogPattern, Needs, Port, Probe, Process, Resources, Role, Shape, Stop

if TYPE_CHECKING:  # session.py also runs in environments without pydantic
    from oars.engines.dask.options import DaskOptions
    from oars.spec.cluster import ClusterSpec, WorkerGroup

LAUNCH, HEAD_PLUGIN = script(__file__, "launch.py"), script(__file__, "head_plugin.py")

# Read by launch.py: the incarnation that a worker reports, and where it checks that the scheduler is up.
LAUNCH_ENV = {"OARS_INCARNATION": "$(incarnation)", "OARS_HEALTH": "$(head.host):$(head.dashboard)"}
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
        requirements=("dask==2026.8.0", "distributed==2026.8.0", "numpy>=2", "pandas>=2", "bokeh>=3.1"),
    )


def check(spec: ClusterSpec) -> None:
    """Raise SpecError for what Dask does not support."""
    _check_config(_options(spec).config)
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
    preload = (scheduler or {}).get("preload")
    if not isinstance(preload, str | list | None):
        raise SpecError("dask.config.distributed.scheduler.preload is not a list.", "Write a list of modules or files.")


def shape(spec: ClusterSpec) -> Shape:
    return Shape(
        head=_head(spec),
        workers=tuple(_workers(spec, group) for group in spec.workers),
        endpoints={"client": _address(spec), "dashboard": "http://$(head.host):$(head.dashboard)/status"},
        secrets=("tls",) if _is_encrypted(spec) else (),
        image="ghcr.io/dask/dask:2026.8.0-py3.11",
        needs_helper=True,
        driver_env=_client_env(spec),
        log_patterns=LOG_PATTERNS,
    )


def _head(spec: ClusterSpec) -> Group:
    options = _options(spec)
    # Dask ignores the preloads of the configuration if the command line has one.
    scheduler = options.config.get("distributed", {}).get("scheduler") or {}
    configured = scheduler.get("preload") or []
    preloads = ["$(file.oars_scheduler.py)", *([configured] if isinstance(configured, str) else configured)]
    arguments = (
        "scheduler",
        "--protocol", options.protocol,
        "--host", "$(bind)",
        "--port", "$(port.client)",
        "--dashboard-address", "$(bind):$(port.dashboard)",
        *(word for preload in preloads for word in ("--preload", str(preload))),
    )  # fmt: skip
    process = replace(
        _process(spec, arguments, spec.head.env),
        ports=(Port("client", 8786), Port("dashboard", 8787, dashboard=True)),
        files={"launch.py": LAUNCH, "oars_scheduler.py": HEAD_PLUGIN},
        probe=Probe("dashboard", "/health"),
    )
    return Group("head", Role.HEAD, 1, process, Resources(spec.head.cpu, spec.head.memory))


def _workers(spec: ClusterSpec, group: WorkerGroup) -> Group:
    """The system chooses the worker's main port; only the scheduler needs it, and learns it from the worker."""
    amounts = {**group.resources, **({GPU: group.gpu} if group.gpu else {})}
    resources = ",".join(f"{name}={amount:g}" for name, amount in amounts.items())
    arguments = (
        "worker", _address(spec),
        "--no-nanny",
        "--name", "$(member)",
        "--host", "$(host)",
        "--dashboard-address", "$(bind):$(port.http)", "--no-dashboard",
        "--local-directory", "$(dir)",
        "--nthreads", str(max(1, math.ceil(group.cpu))),
        "--memory-limit", "auto" if group.memory is None else str(group.memory),
        *(("--resources", resources) if resources else ()),
    )  # fmt: skip
    process = _process(spec, arguments, group.env)
    return Group(group.name, Role.WORKER, group.replicas, process, Resources(group.cpu, group.memory, group.gpu))


def _process(spec: ClusterSpec, arguments: tuple[str, ...], env: Mapping[str, str]) -> Process:
    """A worker's process, which is also the base of the head's."""
    return Process(
        argv=("dask", *arguments),
        env={**NANNY_ENV, **_client_env(spec), **spec.env, **env, **LAUNCH_ENV},
        ports=(Port("http", 8788, on_service=False),),
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


def _is_encrypted(spec: ClusterSpec) -> bool:
    return _options(spec).protocol == "tls"
