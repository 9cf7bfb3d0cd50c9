"""Ray's shape: spec → head and raylets with arguments, ports and environment. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from oars.base.errors import SpecError
from oars.engines.base import script
from oars.model import Group, HandOver, Inquiry, LogPattern, Needs, Port, Probe, Process, Resources, Role, Shape, Stop
from oars.spec.resources import cache_size

if TYPE_CHECKING:  # session.py also runs in environments without pydantic
    from oars.engines.ray.options import RayOptions
    from oars.spec.cluster import ClusterSpec, Head, WorkerGroup

LAUNCH, HEAD_HELPER = script(__file__, "launch.py"), script(__file__, "head_helper.py")

MEMBER_LABEL = "oars.dev/member"
INCARNATION_LABEL = "oars.dev/incarnation"
GROUP_LABEL = "oars.dev/group"

STORE_SHARE = 0.3  # of a member's memory; Ray takes the same share of a machine's
MIN_OBJECT_STORE = 80 * 2**20  # Ray refuses less than 75 MiB
SPILL_ENV = ("RAY_object_spilling_config", "RAY_object_spilling_directory")  # the option would override them
RESERVED_RESOURCES = ("CPU", "GPU", "memory", "object_store_memory")

# Ports of every raylet. All are fixed: a raylet waits for agents that choose their own.
NODE_PORTS = (
    Port("node-manager", 6380, on_service=False),
    Port("object-manager", 6381, on_service=False),
    Port("runtime-env", 6382, on_service=False),
    Port("agent-grpc", 6383, on_service=False),
    Port("agent", 52365, on_service=False),
    Port("metrics", 8080, on_service=False, metrics=True),
)
GCS_PROBE = Probe("dashboard", "/api/gcs_healthz")
RAYLET_PROBE = Probe("agent", "/api/local_raylet_healthz")  # replies once the raylet has joined
PORT_OPTIONS = {
    "node-manager": "--node-manager-port",
    "object-manager": "--object-manager-port",
    "runtime-env": "--runtime-env-agent-port",
    "agent-grpc": "--dashboard-agent-grpc-port",
    "agent": "--dashboard-agent-listen-port",
    "metrics": "--metrics-export-port",
}

# Read when Ray starts, not when it is imported, so members that differ in them can share a fork server.
LATE_ENV = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

# A driver exits with an error when the head is gone for this long (Ray's default: 60 s). A driver that did not notice
# the change of heads would wait forever, so a new head waits a little longer before it listens. Members wait longer:
# on Kubernetes the first head may be slow, and locally Oars replaces them at once.
DRIVER_RECONNECT_SECONDS = 3
NEW_HEAD_DELAY_SECONDS = 5
MEMBER_RECONNECT_SECONDS = 20
RECONNECT_TIMEOUT = "RAY_gcs_rpc_server_reconnect_timeout_s"

ADDRESS = "$(head.host):$(head.client)"

MEMBER_ENV = {
    "RAY_ADDRESS": ADDRESS,  # lets `ray.init()` find the cluster in every member; `ray start` does not read it
    RECONNECT_TIMEOUT: str(MEMBER_RECONNECT_SECONDS),
    "OARS_RAY_NEW_HEAD_DELAY": str(NEW_HEAD_DELAY_SECONDS),  # read by launch.py
    "RAY_enable_autoscaler_v2": "1",  # else the GCS does not get what `request_resources` asks for
    "RAY_USAGE_STATS_ENABLED": "0",
    # The Ray Client server forks a process per driver. gRPC's fork support kills one in three of those that connect
    # soon after the start (a segmentation fault in its event engine).
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "SPT_NOENV": "1",  # Ray renames its processes and would overwrite the environment by which Oars finds them
}

# For so long `ray start` itself drains a raylet at SIGTERM.
HAND_OVER = HandOver({"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "$(hand-over)"})

# Drivers that nodes cannot connect to use the Ray Client server on the head.
OUTSIDE = "ray://$(head.host):$(head.ray-client)"

LOG_PATTERNS = (
    LogPattern(
        r"raylet \[exit code=-9\]",
        "its raylet was killed, as the kernel does if the memory runs out",
        "If it happens again, give it more `memory`, or lower `cache`.",
    ),
    LogPattern(
        "(?i)version mismatch|the cluster was started with:",
        "its versions differ from those of the head",
        "Use the same image for the head, all workers and the driver, and the same versions in the client.",
        "VersionMismatch",
        r"(?s)The cluster was started with:\s*Ray: (\S+)\s*Python: (\S+)\s*"
        r"This process .{0,200}?was started with:\s*Ray: (\S+)\s*Python: (\S+)",
        "head: Ray {0}, Python {1}; here: Ray {2}, Python {3}",
    ),
    LogPattern(
        "authentication error|UNAUTHENTICATED",
        "the head rejected it: it was started for another head or token",
        "Oars replaces it together with the head. If this goes on, recreate the cluster.",
    ),
)


def options_model() -> type[RayOptions]:
    from oars.engines.ray.options import RayOptions

    return RayOptions


def _options(spec: ClusterSpec) -> RayOptions:
    from oars.spec.options import parse_options

    return parse_options(options_model(), spec)


def needs(spec: ClusterSpec) -> Needs:
    return Needs(distribution="ray", modules=("ray",), requirements=("ray[default]==2.60.0", "numpy>=2"))


def check(spec: ClusterSpec) -> None:
    """Raise SpecError for what Ray does not support."""
    for group in spec.workers:
        where = f"workers[{group.name}]"
        for name, amount in group.resources.items():
            if name in RESERVED_RESOURCES:
                raise SpecError(f"{where}.resources: {name!r} is reserved by Ray.", "Use cpu, gpu or memory instead.")
            if amount != int(amount):
                raise SpecError(f"{where}.resources: {name} is {amount}; Ray accepts whole numbers only.")
        _check_labels(where, group.labels)
    store = _options(spec).object_store_memory
    if store is not None and store < MIN_OBJECT_STORE:
        raise SpecError("ray.objectStoreMemory: Ray needs at least 80Mi.")
    shape(spec)  # checks the sizes, which a place may have filled in


def _check_labels(where: str, labels: Mapping[str, str]) -> None:
    for name, value in labels.items():
        if any(mark in name + value for mark in ",= $"):
            raise SpecError(f"{where}.labels: {name}={value} contains ',', '=', '$' or a space.")
        if name.startswith(("ray.io/", "oars.dev/")):
            raise SpecError(f"{where}.labels: the prefix {name.split('/')[0]}/ is reserved.")


def shape(spec: ClusterSpec) -> Shape:
    options = _options(spec)
    dashboard = {"dashboard": "http://$(head.host):$(head.dashboard)"} if options.dashboard else {}
    return Shape(
        head=_head(spec),
        workers=tuple(_workers(spec, group) for group in spec.workers),
        endpoints={
            "client": ADDRESS,
            "outside": OUTSIDE,
            **dashboard,
        },
        secrets=("token",) if options.auth == "token" else (),
        image="rayproject/ray:2.60.0-py311",
        needs_helper=True,
        moves_data=False,
        driver_env={  # lets `ray.init()` find the cluster
            **_auth(spec),
            "RAY_ADDRESS": ADDRESS,
            # Without it Ray replaces a loopback address by the machine's external one, where nothing listens. The name
            # comes from the systems on which "0" is the default.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            RECONNECT_TIMEOUT: str(DRIVER_RECONNECT_SECONDS),
        },
        outside_env={"RAY_ADDRESS": OUTSIDE},
        inquiry=Inquiry("client", script=HEAD_HELPER),
        log_patterns=LOG_PATTERNS,
    )


def _auth(spec: ClusterSpec) -> dict[str, str]:
    """Overrides a token for another cluster in the user's environment or home directory."""
    if _options(spec).auth == "none":
        return {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": "$(secret.token)"}


def _head(spec: ClusterSpec) -> Group:
    """The head runs tasks only if the cluster has no workers, and will not have any."""
    has_workers = any(group.replicas or group.max for group in spec.workers)
    dashboard = _options(spec).dashboard
    resources = _resources(spec, spec.head, "head")
    arguments = [
        "--head",
        "--no-monitor",  # Ray's own autoscaler: it would warn of work that Oars is about to serve
        "--port=$(port.client)",
        "--dashboard-host=$(bind)",
        "--dashboard-port=$(port.dashboard)",
        "--ray-client-server-port=$(port.ray-client)",
        *([] if dashboard else ["--include-dashboard=false"]),
        *_node(resources, {}, "head"),
        f"--num-cpus={0 if has_workers else _cpus(resources.cpu)}",
        "--num-gpus=0",
    ]
    probe = GCS_PROBE if dashboard else RAYLET_PROBE
    ports = (
        Port("client", 6379, alias="redis-primary"),  # as KubeRay calls the port of the GCS
        Port("dashboard", 8265, dashboard=True, secret="" if _options(spec).auth == "none" else "token"),
        Port("ray-client", 10001),
        *NODE_PORTS,
    )
    failing = {"RAY_enable_infeasible_task_early_exit": "1"} if _options(spec).fail_infeasible else {}
    process = _process(spec, arguments, {**failing, **spec.head.env}, ports, probe)
    return Group("head", Role.HEAD, 1, process, resources)


def _workers(spec: ClusterSpec, group: WorkerGroup) -> Group:
    resources = _resources(spec, group, f"workers[{group.name}]", group.gpu, group.cache)
    amounts = {name: int(amount) for name, amount in sorted(group.resources.items())}
    env = {**spec.env, **group.env}
    # Without it, several raylets of one machine would share a directory, which outlives each of them. Ray lets all
    # users write to the directory, so it is one below the private one.
    spills = group.spill is not None or not any(name in env for name in SPILL_ENV)
    arguments = [
        f"--address={ADDRESS}",
        *_node(resources, group.labels, group.name),
        *(["--object-spilling-directory=$(spill)/ray-spill"] if spills else []),
        f"--num-cpus={_cpus(resources.cpu)}",
        f"--num-gpus={resources.gpu}",
        *([f"--resources={json.dumps(amounts)}"] if amounts else []),
    ]
    process = replace(_process(spec, arguments, group.env, NODE_PORTS, RAYLET_PROBE), hand_over=HAND_OVER)
    offers = {"cpu": _cpus(resources.cpu), "gpu": resources.gpu, **amounts}
    if resources.memory is not None:
        offers["memory"] = resources.memory - resources.shared_memory
    return Group(group.name, Role.WORKER, group.replicas, process, resources, offers=offers)


def _node(resources: Resources, labels: Mapping[str, str], group: str) -> Iterable[str]:
    """Arguments of every raylet. Its labels name the member and its incarnation."""
    own_labels = {MEMBER_LABEL: "$(member)", INCARNATION_LABEL: "$(incarnation)", GROUP_LABEL: group}
    yield "--node-ip-address=$(host)"
    yield "--node-name=$(member)"
    yield "--temp-dir=$(dir)"
    yield "--labels=" + ",".join(f"{name}={value}" for name, value in {**labels, **own_labels}.items())
    for name, option in PORT_OPTIONS.items():
        yield f"{option}=$(port.{name})"
    yield "--min-worker-port=0"  # chosen by the system: all raylets of a machine would share a fixed range
    yield "--max-worker-port=0"
    if resources.memory is not None:
        yield f"--memory={resources.memory - resources.shared_memory}"  # for tasks, without the object store
    if resources.shared_memory:
        yield f"--object-store-memory={resources.shared_memory}"


def _resources(
    spec: ClusterSpec, member: Head | WorkerGroup, where: str, gpu: int = 0, cache: int | str | None = None
) -> Resources:
    """The object store is part of the memory and must leave some for tasks. Without both sizes Ray chooses its own."""
    store = _options(spec).object_store_memory or 0
    if cache is not None and store:
        raise SpecError(f"{where}.cache and ray.objectStoreMemory both set the object store.", "Remove one of them.")
    if isinstance(cache, int):
        store = cache
    elif not store and member.memory is not None:
        store = cache_size(cache, member.memory) if cache else max(MIN_OBJECT_STORE, int(member.memory * STORE_SHARE))
    if 0 < store < MIN_OBJECT_STORE:
        size = f"{store / 2**20:.0f}Mi"
        raise SpecError(f"{where}.cache is {size}; Ray's object store needs at least 80Mi.", f"Raise {where}.cache.")
    if member.memory is not None and store >= member.memory:
        raise SpecError(
            f"{where}.memory must be larger than Ray's object store, which takes {store / 2**20:.0f}Mi of it.",
            f"Raise {where}.memory, or lower {where}.cache or ray.objectStoreMemory if it is set.",
        )
    return Resources(member.processors, member.memory, gpu, store)


def _cpus(cpu: float) -> int:
    """Ray accepts whole processors only."""
    return max(1, math.ceil(cpu))


def _process(
    spec: ClusterSpec, arguments: list[str], env: Mapping[str, str], ports: tuple[Port, ...], probe: Probe
) -> Process:
    agents = {} if _options(spec).dashboard else {"OARS_RAY_MINIMAL_AGENTS": "1"}  # read by launch.py
    return Process(
        argv=("ray", "start", *arguments, "--disable-usage-stats", "--log-color=false", "--block"),
        env={**MEMBER_ENV, **agents, **_auth(spec), **spec.env, **env},
        ports=ports,
        files={"launch.py": LAUNCH},
        entry="$(file.launch.py)",
        preload=("ray.scripts.scripts",),
        late_env=LATE_ENV,
        stop=Stop("TERM", 3.0),
        probe=probe,
        litter=("/tmp/oars-ray-$(tag)-*",),
    )
