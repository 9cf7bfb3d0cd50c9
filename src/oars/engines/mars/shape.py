"""Mars as processes: one supervisor, workers, and the sub-processes each of them has. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oars.base.errors import SpecError
from oars.engines.mars.scripts import HEAD_PLUGIN, LAUNCH
from oars.model import Group, Needs, Port, Probe, Process, Resources, Role, Shape, Stop

if TYPE_CHECKING:  # this module is also imported where there is no pydantic
    from oars.spec.cluster import ClusterSpec, Head, WorkerGroup

XORBITS = ("xorbits==0.8.2", "xoscar==0.4.6", "numpy<2", "pandas<2.3", "pyarrow<17", "setuptools<80")
PYMARS_BUILD = ("setuptools<66", "wheel", "cython<3", "numpy<1.25", "pandas<1.6", "scipy<1.11", "cloudpickle<3")
PYMARS = (
    "pymars==0.10.0", "numpy<1.25", "pandas<1.6", "scipy<1.11", "scikit-learn<1.3", "sqlalchemy<2", "setuptools<66",
    "cython<3", "python-dateutil<3", "cloudpickle<3",
)  # fmt: skip
IMAGES = {"xorbits": "xprobe/xorbits:v0.8.2-py3.11", "pymars": "marsproject/mars:v0.10.0"}
PACKAGES = {"xorbits": "xorbits._mars", "pymars": "mars"}

SUPERVISOR_PORT, WEB_PORT, WORKER_PORT, JOINED_PORT, FIRST_SUB_PORT = 7103, 7104, 7105, 7106, 7110
IO_PROCESSES = 1
SERVICES = ("cluster", "session", "storage", "meta", "lifecycle", "scheduling", "subtask", "task")
LIBRARIES = (
    "services.storage.spill", "services.storage.transfer", "services.web.supervisor", "services.web.api.web",
    "optimization.logical.chunk", "optimization.logical.tileable", "tensor", "dataframe", "learn", "remote",
)  # fmt: skip
# Mars notices a silent worker by itself after this long. We tell it at once of those we know to be gone, and bring back
# those it gave up wrongly (a suspended laptop): see live. So this matters only where nobody watches.
NODE_TIMEOUT = 30
# Without it work of one session that finds all slots taken by another's is never looked at again.
SUBMIT_PERIOD = 0.5
STOP = Stop(signal="INT", grace=8.0)
# Named by launch.py; Mars' own names could be anybody's.
LITTER = ("/dev/shm/oars-$(tag)-*", "/dev/shm/sem.oars-$(tag)-*")
WEB = {"web": {"host": "$(bind)", "port": "$(port.web)", "extra_discovery_modules": ["oars_mars_inside"]}}
LOG_FORMAT = "%(asctime)s %(name)s %(process)d %(levelname)s %(message)s"
# What launch.py applies anew in every member, though Mars read it when it was imported.
LATE_ENV = ("CUDA_VISIBLE_DEVICES", "MARS_CPU_TOTAL", "MARS_LOG_DIR", "MARS_MEMORY_TOTAL", "XOSCAR_DIR")


def needs(spec: ClusterSpec) -> Needs:
    if spec.mars.distribution == "xorbits":
        return Needs("xorbits", ("xorbits", "xoscar"), XORBITS, ">=3.9,<3.13")
    return Needs("pymars", ("mars",), PYMARS, ">=3.8,<3.12", PYMARS_BUILD)


def check(spec: ClusterSpec) -> None:
    for group in spec.workers:
        if group.resources or group.labels:
            raise SpecError(
                f"workers.{group.name}: Mars cannot schedule on resources or labels.",
                "Leave them out, or use Dask or Ray.",
            )
    web = spec.mars.config.get("web", {})
    if not isinstance(web, dict):
        raise SpecError("mars.config.web is not a map.", "Write it as in Mars' own configuration file.")
    for name in ("host", "port"):
        if name in web:
            raise SpecError(f"mars.config.web.{name}: this is given by the place the cluster runs on.", "Leave it out.")


def shape(spec: ClusterSpec) -> Shape:
    address = "http://$(head.host):$(head.web)"
    return Shape(
        head=Group("head", Role.HEAD, 1, _supervisor(spec), _head_resources(spec.head)),
        workers=tuple(_worker_group(spec, group) for group in spec.workers),
        endpoints={"client": address, "dashboard": address},
        image=IMAGES[spec.mars.distribution],
        driver_env={"OARS_MARS_DISTRIBUTION": spec.mars.distribution},
    )


def _head_resources(head: Head) -> Resources:
    return Resources(head.cpu, head.memory, shared_memory=head.memory or 0)


def _supervisor(spec: ClusterSpec) -> Process:
    """As many processes as it has processors; the first serves the web and is enough for most."""
    sub_ports = _sub_ports(math.ceil(spec.head.cpu) - 1)
    arguments = (
        "--plugin", "$(file.head_plugin.py)",
        "-e", "$(host):$(port.supervisor)", *_port_list(sub_ports), "--n-process", str(len(sub_ports)),
    )  # fmt: skip
    return Process(
        argv=_argv(spec, "supervisor", arguments),
        env=_env(spec, spec.head.env, _head_resources(spec.head)),
        ports=(Port("supervisor", SUPERVISOR_PORT), Port("web", WEB_PORT), *sub_ports),
        files={"launch.py": LAUNCH, "head_plugin.py": HEAD_PLUGIN, "config.yml": _config(spec, WEB)},
        probe=Probe("web", "/api/cluster/nodes?role=0"),
        **_common(spec, "supervisor"),
    )


def _worker_group(spec: ClusterSpec, group: WorkerGroup) -> Group:
    resources = Resources(group.cpu, group.memory, group.gpu, group.memory or 0)  # all data lies in shared memory
    return Group(group.name, Role.WORKER, group.replicas, _worker(spec, group, resources), resources)


def _worker(spec: ClusterSpec, group: WorkerGroup, resources: Resources) -> Process:
    """One process for each processor and each graphics processor, one for transfers, and the one they belong to."""
    slots = math.ceil(group.cpu)
    sub_ports = _sub_ports(slots + group.gpu + IO_PROCESSES)
    memory = () if group.memory is None else ("--mem-bytes", str(group.memory))
    arguments = (
        "--joined", "$(host):$(port.joined)",
        "-e", "$(host):$(port.worker)", *_port_list(sub_ports), "-s", "$(head.host):$(head.supervisor)",
        "--n-cpu", str(slots), *memory, "--n-io-process", str(IO_PROCESSES),
        "--cuda-devices", ",".join(str(device) for device in range(group.gpu)),
    )  # fmt: skip
    return Process(
        argv=_argv(spec, "worker", arguments),
        env=_env(spec, group.env, resources),
        ports=(Port("worker", WORKER_PORT), Port("joined", JOINED_PORT), *sub_ports),
        files={"launch.py": LAUNCH, "config.yml": _config(spec, {})},
        probe=Probe("joined"),
        **_common(spec, "worker"),
    )


def _argv(spec: ClusterSpec, role: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    return (
        "python3", "$(file.launch.py)", "--", spec.mars.distribution, role, "$(member):$(incarnation)", "$(dir)",
        *arguments, "-f", "$(file.config.yml)", "--log-level", "WARNING", "--log-format", LOG_FORMAT,
    )  # fmt: skip


def _common(spec: ClusterSpec, role: str) -> dict[str, Any]:
    return {
        "entry": "$(file.launch.py)",
        "preload": _preload(spec),
        "late_env": LATE_ENV,
        "stop": STOP,
        "litter": LITTER,
    }


def _preload(spec: ClusterSpec) -> tuple[str, ...]:
    """All that the members would import one by one as they start and when the first work comes."""
    package = PACKAGES[spec.mars.distribution]
    services = (f"services.{service}.{role}" for service in SERVICES for role in ("supervisor", "worker"))
    pages = (f"services.{service}.api.web" for service in SERVICES if service != "subtask")
    modules = ("deploy.oscar.supervisor", "deploy.oscar.worker", *services, *pages, *LIBRARIES)
    return (*(f"{package}.{module}" for module in modules), "sqlalchemy", "uvloop")


def _sub_ports(count: int) -> tuple[Port, ...]:
    return tuple(Port(f"sub{number}", FIRST_SUB_PORT + number, on_service=False) for number in range(max(0, count)))


def _port_list(ports: tuple[Port, ...]) -> tuple[str, ...]:
    return ("-p", ",".join(f"$(port.{port.name})" for port in ports)) if ports else ()


def _env(spec: ClusterSpec, own: Mapping[str, str], resources: Resources) -> dict[str, str]:
    memory = {} if resources.memory is None else {"MARS_MEMORY_TOTAL": str(resources.memory)}
    # A slot is a process with one processor: more threads in each would only be in each other's way.
    threads = {f"{library}_NUM_THREADS": "1" for library in ("MKL", "OMP", "OPENBLAS")}
    devices = {} if resources.gpu else {"CUDA_VISIBLE_DEVICES": ""}
    fixed = {"MARS_CPU_TOTAL": str(math.ceil(resources.cpu)), "MARS_LOG_DIR": "$(dir)", "XOSCAR_DIR": "$(dir)"}
    return {**threads, **devices, **spec.env, **own, **memory, **fixed}


def _config(spec: ClusterSpec, more: Mapping[str, Any]) -> str:
    """Mars reads YAML, which JSON is; but a port must be a number there, so its quotes go."""
    ours = {
        "@inherits": "@default",
        "cluster": {"node_timeout": NODE_TIMEOUT},
        "scheduling": {"submit_period": SUBMIT_PERIOD},
    }
    config = _merge(_merge(ours, spec.mars.config), more)
    return json.dumps(config, indent=1).replace('"$(port.web)"', "$(port.web)")


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge(merged[name], value) if both else value
    return merged
