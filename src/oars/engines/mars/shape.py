"""Mars' shape: spec → supervisor and workers with their sub-processes, arguments and ports. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oars.base.errors import SpecError
from oars.engines.base import WEB_GUARD, script
from oars.model import Group, HandOver, Inquiry, Needs, Port, Probe, Process, Resources, Role, Shape, Stop
from oars.spec.resources import cache_size

if TYPE_CHECKING:  # session.py also runs in environments without pydantic
    from oars.engines.mars.options import MarsOptions
    from oars.spec.cluster import ClusterSpec, WorkerGroup

LAUNCH, HEAD_PLUGIN, DRIVER_HOOK = (
    script(__file__, name) for name in ("launch.py", "head_plugin.py", "driver_hook.py")
)
ADDRESS = "http://$(head.host):$(head.web)"
# Everybody who can use the web server can run code in the cluster. web_guard.py and driver_hook.py read these.
TOKEN_ENV = {"OARS_TOKEN_FILE": "$(secret.token)", "OARS_MARS_ADDRESS": ADDRESS}

# For programs that tasks start: launch.py puts its folder on their PYTHONPATH.
MEMBER_HOOK = {"driver/sitecustomize.py": DRIVER_HOOK}

XORBITS = ("xorbits==0.8.2", "xoscar==0.4.6", "numpy<2", "pandas<2.3", "pyarrow<17", "setuptools<80")
PYMARS_BUILD = ("setuptools<66", "wheel", "cython<3", "numpy<1.25", "pandas<1.6", "scipy<1.11", "cloudpickle<3")
PYMARS = (
    "pymars==0.10.0", "numpy<1.25", "pandas<1.6", "scipy<1.11", "scikit-learn<1.3", "sqlalchemy<2", "setuptools<66",
    "cython<3", "python-dateutil<3", "cloudpickle<3",
)  # fmt: skip
# Published by the projects. Their Python is that of the base images in the Dockerfiles of these releases.
IMAGES = {"xorbits": "xprobe/xorbits:v0.8.2-py3.11", "pymars": "marsproject/mars:v0.10.0"}
IMAGE_PYTHONS = {"xorbits": "3.11", "pymars": "3.8"}
PACKAGES = {"xorbits": "xorbits._mars", "pymars": "mars"}

SUPERVISOR_PORT, WEB_PORT, WORKER_PORT, JOINED_PORT, FIRST_SUB_PORT = 7103, 7104, 7105, 7106, 7110
IO_PROCESSES = 1
SERVICES = ("cluster", "session", "storage", "meta", "lifecycle", "scheduling", "subtask", "task")
LIBRARIES = (
    "services.storage.spill", "services.storage.transfer", "services.web.supervisor", "services.web.api.web",
    "optimization.logical.chunk", "optimization.logical.tileable", "tensor", "dataframe", "learn", "remote",
)  # fmt: skip
# Seconds after which Mars itself gives up a silent worker. Oars reports dead workers to Mars at once and restores
# workers that were given up wrongly, for example while the machine slept (live.reconcile). So this is a fallback.
NODE_TIMEOUT = 30
# Seconds. Without it Mars never reschedules subtasks that found all slots taken by another session.
SUBMIT_PERIOD = 0.5
# launch.py sets these names; Mars' own do not identify the member.
LITTER = ("/dev/shm/oars-$(tag)-*", "/dev/shm/sem.oars-$(tag)-*")
WEB = {"web": {"host": "$(bind)", "port": "$(port.web)", "extra_discovery_modules": ["oars_head_plugin"]}}
LOG_FORMAT = "%(asctime)s %(name)s %(process)d %(levelname)s %(message)s"
# launch.py applies these in each member; Mars reads them when it is imported.
LATE_ENV = (
    "CUDA_VISIBLE_DEVICES", "MARS_CACHE_MEM_SIZE", "MARS_CPU_TOTAL", "MARS_LOG_DIR", "MARS_MEMORY_TOTAL",
    "MARS_SPILL_DIRS", "OARS_WEB_BIND", "XORBITS_CACHE_MEM_SIZE", "XORBITS_SPILL_DIRS", "XOSCAR_DIR",
)  # fmt: skip
CACHE = "40%"  # of the memory, as in Mars' own deployments on Kubernetes
# Variables of other versions of Mars, and what replaces them.
_GONE = {
    "LOCK_FREE_FILEIO": "this Mars has no lock-free I/O (gone since 0.7); each worker has spill directories of its own",
    "PLASMA_DIRS": "this Mars has no plasma store; results are in shared memory",
    "MIN_CACHE_MEM_SIZE": "this Mars has no lower bound for the cache",
    "WRITE_SHUFFLE_TO_DISK": "this Mars writes shuffle data to disk only if it does not fit in shared memory",
    "IO_PARALLEL_NUM": "this Mars has no limit for parallel I/O",
}
_FIELDS = {"SPILL_DIRS": "spill.paths", "CACHE_MEM_SIZE": "cache"}


def options_model() -> type[MarsOptions]:
    from oars.engines.mars.options import MarsOptions

    return MarsOptions


def _options(spec: ClusterSpec) -> MarsOptions:
    from oars.spec.options import parse_options

    return parse_options(options_model(), spec)


def needs(spec: ClusterSpec) -> Needs:
    if _options(spec).distribution == "xorbits":
        return Needs("xorbits", ("xorbits", "xoscar"), XORBITS, ">=3.9,<3.13")
    return Needs("pymars", ("mars",), PYMARS, ">=3.8,<3.12", PYMARS_BUILD)


def check(spec: ClusterSpec) -> None:
    """Raise SpecError for what Mars does not support."""
    for group in spec.workers:
        if group.resources or group.labels:
            raise SpecError(
                f"workers.{group.name}: Mars cannot schedule on resources or labels.",
                "Remove them, or use Dask or Ray.",
            )
    _check_storage(spec)
    web = _options(spec).config.get("web", {})
    if not isinstance(web, dict):
        raise SpecError("mars.config.web is not a mapping.", "Write it as in Mars' own configuration file.")
    for name in ("host", "port"):
        if name in web:
            raise SpecError(f"mars.config.web.{name}: the place sets it.", "Remove it.")


def _check_storage(spec: ClusterSpec) -> None:
    members = [
        ("env", spec.env),
        ("head.env", spec.head.env),
        *((f"workers[{g.name}].env", g.env) for g in spec.workers),
    ]
    for where, env in members:
        for name in (f"{prefix}_{key}" for prefix in ("MARS", "XORBITS") for key in (*_GONE, *_FIELDS)):
            if name in env:
                key = name.partition("_")[2]
                if key in _GONE:
                    raise SpecError(f"{where}.{name}: {_GONE[key]}.", "Remove it.")
                raise SpecError(f"{where}.{name}: Oars sets it for each worker.", f"Use workers[].{_FIELDS[key]}.")
    storage = _options(spec).config.get("storage", {})
    if not isinstance(storage, dict):
        raise SpecError("mars.config.storage is not a mapping.", "Write it as in Mars' own configuration file.")
    if "plasma" in storage or "plasma" in (storage.get("backends") or ()):
        raise SpecError(f"mars.config.storage.plasma: {_GONE['PLASMA_DIRS']}.", "Remove it, and use workers[].cache.")
    for group in spec.workers:
        if "backends" in storage and (group.cache or group.spill):
            raise SpecError(
                f"workers[{group.name}].cache and .spill need the storage backends of Oars, but "
                "mars.config.storage.backends sets others.", "Remove one of them.",
            )  # fmt: skip


def shape(spec: ClusterSpec) -> Shape:
    distribution = _options(spec).distribution
    return Shape(
        head=_head(spec),
        workers=tuple(_workers(spec, group) for group in spec.workers),
        endpoints={"client": ADDRESS, "dashboard": ADDRESS},
        secrets=("token",),
        image=IMAGES[distribution],
        driver_env={"OARS_MARS_DISTRIBUTION": distribution, **TOKEN_ENV},
        driver_files={"sitecustomize.py": DRIVER_HOOK},
        inquiry=Inquiry("web", path="/api/oars/nodes"),
    )


def _head(spec: ClusterSpec) -> Group:
    """One process per processor; the first one also serves the web API."""
    resources = Resources(spec.head.processors, spec.head.memory, shared_memory=spec.head.memory or 0)
    sub_ports = _sub_ports(math.ceil(spec.head.processors) - 1)
    web = Port("web", WEB_PORT, dashboard=True, secret="token")
    arguments = (
        "--plugin", "$(file.web_guard.py)", "--plugin", "$(file.head_plugin.py)",
        "-e", "$(host):$(port.supervisor)", *_port_list(sub_ports), "--n-process", str(len(sub_ports)),
    )  # fmt: skip
    process = Process(
        argv=_argv(spec, "supervisor", arguments),
        env={**_env(spec, spec.head.env, resources), "OARS_WEB_BIND": "$(bind)"},
        # Between Mars' processes there is no authentication, and messages are pickles.
        ports=(Port("supervisor", SUPERVISOR_PORT, for_members=True), web, *sub_ports),
        files={
            "launch.py": LAUNCH,
            "web_guard.py": WEB_GUARD,
            "head_plugin.py": HEAD_PLUGIN,
            "config.yml": _config(spec, WEB),
            **MEMBER_HOOK,
        },
        probe=Probe("web", "/api/oars/health"),
        **_common(spec),
    )
    return Group("head", Role.HEAD, 1, process, resources)


def _workers(spec: ClusterSpec, group: WorkerGroup) -> Group:
    """One process per processor and per GPU, one for transfers, and their parent."""
    resources = Resources(
        group.processors, group.memory, group.gpu, (_cache(group) if group.cache else group.memory) or 0
    )
    slots = math.ceil(group.processors)
    sub_ports = _sub_ports(slots + group.gpu + IO_PROCESSES)
    memory = () if group.memory is None else ("--mem-bytes", str(group.memory))
    arguments = (
        "--joined", "$(host):$(port.joined)",
        "-e", "$(host):$(port.worker)", *_port_list(sub_ports), "-s", "$(head.host):$(head.supervisor)",
        "--n-cpu", str(slots), *memory, "--n-io-process", str(IO_PROCESSES),
        "--cuda-devices", ",".join(str(device) for device in range(group.gpu)),
    )  # fmt: skip
    process = Process(
        argv=_argv(spec, "worker", arguments),
        env={**_env(spec, group.env, resources), **_storage_env(spec, group)},
        ports=(Port("worker", WORKER_PORT), Port("joined", JOINED_PORT), *sub_ports),
        files={"launch.py": LAUNCH, "config.yml": _config(spec, _storage_config(group)), **MEMBER_HOOK},
        probe=Probe("joined"),
        hand_over=HandOver({"OARS_HAND_OVER": "1"}),  # read by launch.py
        **_common(spec),
    )
    offers = {"cpu": slots, "gpu": group.gpu}
    return Group(group.name, Role.WORKER, group.replicas, process, resources, offers=offers)


def _cache(group: WorkerGroup) -> int:
    """Bytes of shared memory, which holds all results; 0: the memory is not known, so there is no limit."""
    if isinstance(group.cache, int):
        return group.cache
    return 0 if group.memory is None else cache_size(group.cache or CACHE, group.memory)


def _storage_env(spec: ClusterSpec, group: WorkerGroup) -> dict[str, str]:
    """With the size of shared memory (launch.py) and a directory, Mars spills. Each distribution has its own names; a
    configuration with other storage backends is left alone."""
    storage = _options(spec).config.get("storage", {})
    cache = _cache(group)
    if not cache or "backends" in storage:
        return {}
    values = {"CACHE_MEM_SIZE": str(cache), "SPILL_DIRS": "$(spill.all)"}
    return {f"{prefix}_{name}": value for name, value in values.items() for prefix in ("MARS", "XORBITS")}


def _storage_config(group: WorkerGroup) -> dict[str, Any]:
    """Mars itself uses 95 % of the size."""
    return {"storage": {"disk": {"size": group.spill.size}}} if group.spill and group.spill.size else {}


def _argv(spec: ClusterSpec, role: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    return (
        "python3", "$(file.launch.py)", "--", _options(spec).distribution, role, "$(member):$(incarnation)", "$(dir)",
        *arguments, "-f", "$(file.config.yml)", "--log-level", "WARNING", "--log-format", LOG_FORMAT,
    )  # fmt: skip


def _common(spec: ClusterSpec) -> dict[str, Any]:
    # Preload all modules that members import when they start or when they get their first task.
    package = PACKAGES[_options(spec).distribution]
    services = (f"services.{service}.{role}" for service in SERVICES for role in ("supervisor", "worker"))
    pages = (f"services.{service}.api.web" for service in SERVICES if service != "subtask")
    modules = ("deploy.oscar.supervisor", "deploy.oscar.worker", *services, *pages, *LIBRARIES)
    return {
        "entry": "$(file.launch.py)",
        "preload": (*(f"{package}.{module}" for module in modules), "sqlalchemy", "uvloop"),
        "late_env": LATE_ENV,
        "stop": Stop(signal="INT", grace=8.0),
        "litter": LITTER,
    }


def _sub_ports(count: int) -> tuple[Port, ...]:
    return tuple(Port(f"sub{number}", FIRST_SUB_PORT + number, on_service=False) for number in range(max(0, count)))


def _port_list(ports: tuple[Port, ...]) -> tuple[str, ...]:
    return ("-p", ",".join(f"$(port.{port.name})" for port in ports)) if ports else ()


def _env(spec: ClusterSpec, own: Mapping[str, str], resources: Resources) -> dict[str, str]:
    memory = {} if resources.memory is None else {"MARS_MEMORY_TOTAL": str(resources.memory)}
    # A slot is a process with one processor; more threads would compete for it.
    threads = {f"{library}_NUM_THREADS": "1" for library in ("MKL", "OMP", "OPENBLAS")}
    devices = {} if resources.gpu else {"CUDA_VISIBLE_DEVICES": ""}
    fixed = {"MARS_CPU_TOTAL": str(math.ceil(resources.cpu)), "MARS_LOG_DIR": "$(dir)", "XOSCAR_DIR": "$(dir)"}
    fixed["OARS_ADDRESS"] = ADDRESS  # for `new_session(…)` in a member: Mars itself reads no address from a variable
    return {**threads, **devices, **spec.env, **own, **memory, **fixed, **TOKEN_ENV}


def _config(spec: ClusterSpec, more: Mapping[str, Any]) -> str:
    """JSON, which Mars reads as YAML. The port must be a number, so its quotes are removed."""
    defaults = {
        "@inherits": "@default",
        "cluster": {"node_timeout": NODE_TIMEOUT},
        "scheduling": {"submit_period": SUBMIT_PERIOD},
    }
    config = _merge(_merge(defaults, _options(spec).config), more)
    return json.dumps(config, indent=1).replace('"$(port.web)"', "$(port.web)")


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge(merged[name], value) if both else value
    return merged
