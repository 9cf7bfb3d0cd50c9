"""What Ray needs to run: a spec → the head, the raylets, their arguments, ports and environment. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from oars.base.errors import SpecError
from oars.engines.ray.scripts import LAUNCH
from oars.model import Group, Needs, Port, Probe, Process, Resources, Role, Shape, Stop

if TYPE_CHECKING:  # the user's half also runs where there is no pydantic
    from oars.spec.cluster import ClusterSpec, Head, WorkerGroup

MEMBER_LABEL = "oars.dev/member"
INCARNATION_LABEL = "oars.dev/incarnation"
GROUP_LABEL = "oars.dev/group"

OBJECT_STORE_SHARE = 0.3  # of a member's memory, as Ray itself takes it of a machine's
OBJECT_STORE_LEAST = 80 * 2**20  # Ray refuses less than 75 MiB
RESERVED_RESOURCES = ("CPU", "GPU", "memory", "object_store_memory")

# Every raylet listens on these. All are fixed: agents that choose for themselves make the raylet wait for them.
NODE_PORTS = (
    Port("node-manager", 6380, on_service=False),
    Port("object-manager", 6381, on_service=False),
    Port("runtime-env", 6382, on_service=False),
    Port("agent-grpc", 6383, on_service=False),
    Port("agent", 52365, on_service=False),
    Port("metrics", 8080, on_service=False),
)
# Users of Ray on Kubernetes know the first port by the name of what listened there once.
HEAD_PORTS = (
    Port("client", 6379, alias="redis-primary"),
    Port("dashboard", 8265),
    Port("ray-client", 10001),
    *NODE_PORTS,
)
GCS_PROBE = Probe("dashboard", "/api/gcs_healthz")
RAYLET_PROBE = Probe("agent", "/api/local_raylet_healthz")  # answers when the raylet has joined
PORT_OPTIONS = {
    "node-manager": "--node-manager-port",
    "object-manager": "--object-manager-port",
    "runtime-env": "--runtime-env-agent-port",
    "agent-grpc": "--dashboard-agent-grpc-port",
    "agent": "--dashboard-agent-listen-port",
    "metrics": "--metrics-export-port",
}

# Read when the engine runs, so members and clusters that differ in them can be forked from one Python.
LATE_ENV = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

# A driver ends itself, with an error, when the head is gone for this long (Ray's default: a minute). One that missed
# the change of heads would wait for ever, so a new head keeps still for a little longer. Members wait longer: on
# Kubernetes a first head may be slow, and on one machine the keeper replaces them at once.
DRIVER_PATIENCE = 3
NEW_HEAD_PAUSE = 5
MEMBER_PATIENCE = 20
PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"

MEMBER_ENV = {
    PATIENCE: str(MEMBER_PATIENCE),
    "OARS_RAY_LINGER": str(NEW_HEAD_PAUSE),  # read by launch.py
    "RAY_USAGE_STATS_ENABLED": "0",
    # The server for drivers outside starts a process for each, by fork; gRPC's own care for forks kills one in three
    # of those that come soon after the start (a segmentation fault in its event engine).
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "SPT_NOENV": "1",  # renaming itself, a process of Ray would overwrite its environment, by which we know it
}


# A driver that nodes cannot dial speaks through a server beside the head.
OUTSIDE = "ray://$(head.host):$(head.ray-client)"


def needs(spec: ClusterSpec) -> Needs:
    return Needs(distribution="ray", modules=("ray",), requirements=("ray[default]==2.60.0", "numpy>=2"))


def check(spec: ClusterSpec) -> None:
    """Raise SpecError for what Ray cannot do."""
    for group in spec.workers:
        where = f"workers[{group.name}]"
        for name, amount in group.resources.items():
            if name in RESERVED_RESOURCES:
                raise SpecError(f"{where}.resources: {name!r} is Ray's own.", "Use cpu, gpu or memory instead.")
            if amount != int(amount):
                raise SpecError(f"{where}.resources: {name} is {amount}; Ray counts in whole numbers.")
        _check_labels(where, group.labels)
    if spec.ray.object_store_memory is not None and spec.ray.object_store_memory < OBJECT_STORE_LEAST:
        raise SpecError("ray.objectStoreMemory: Ray needs at least 80Mi.")
    shape(spec)  # sizes are refused where they are reckoned: a place may fill in some that the user did not give


def _check_labels(where: str, labels: Mapping[str, str]) -> None:
    for name, value in labels.items():
        if any(mark in name + value for mark in ",= $"):
            raise SpecError(f"{where}.labels: {name}={value} holds one of ',', '=', '$' or a space.")
        if name.startswith(("ray.io/", "oars.dev/")):
            raise SpecError(f"{where}.labels: names starting with {name.split('/')[0]}/ are taken.")


def shape(spec: ClusterSpec) -> Shape:
    dashboard = {"dashboard": "http://$(head.host):$(head.dashboard)"} if spec.ray.dashboard else {}
    return Shape(
        head=_head(spec),
        workers=tuple(_workers(spec, group) for group in spec.workers),
        endpoints={
            "client": "$(head.host):$(head.client)",
            "outside": OUTSIDE,
            **dashboard,
        },
        secrets=("token",) if spec.ray.auth == "token" else (),
        dashboard_secret="token" if dashboard and spec.ray.auth == "token" else "",
        image="rayproject/ray:2.60.0-py311",
        needs_helper=True,
        driver_env=_driver_env(spec),
        outside_env={"RAY_ADDRESS": OUTSIDE},
    )


def _driver_env(spec: ClusterSpec) -> dict[str, str]:
    """`ray.init()` finds the cluster."""
    return {
        **_auth(spec),
        "RAY_ADDRESS": "$(head.host):$(head.client)",
        # Keeps Ray from taking a loopback address for a mistake and calling the machine's outer one, where nobody
        # listens. It is named after the systems on which that is the default.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        PATIENCE: str(DRIVER_PATIENCE),
    }


def _auth(spec: ClusterSpec) -> dict[str, str]:
    """A token that the user's own environment or home directory has for another cluster must not come in between."""
    if spec.ray.auth == "none":
        return {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": "$(secret.token)"}


def _head(spec: ClusterSpec) -> Group:
    """With workers the head only keeps the books; alone it does the work."""
    alone = not any(group.replicas for group in spec.workers)
    resources = _resources(spec, spec.head, "head")
    arguments = [
        "--head",
        "--port=$(port.client)",
        "--dashboard-host=$(bind)",
        "--dashboard-port=$(port.dashboard)",
        "--ray-client-server-port=$(port.ray-client)",
        *([] if spec.ray.dashboard else ["--include-dashboard=false"]),
        *_node(spec, resources, {}, "head"),
        f"--num-cpus={_cpus(resources.cpu) if alone else 0}",
        "--num-gpus=0",
    ]
    probe = GCS_PROBE if spec.ray.dashboard else RAYLET_PROBE
    process = _process(spec, arguments, spec.head.env, HEAD_PORTS, probe)
    return Group("head", Role.HEAD, 1, process, resources)


def _workers(spec: ClusterSpec, group: WorkerGroup) -> Group:
    resources = _resources(spec, group, f"workers[{group.name}]", group.gpu)
    amounts = {name: int(amount) for name, amount in sorted(group.resources.items())}
    arguments = [
        "--address=$(head.host):$(head.client)",
        *_node(spec, resources, group.labels, group.name),
        f"--num-cpus={_cpus(resources.cpu)}",
        f"--num-gpus={resources.gpu}",
        *([f"--resources={json.dumps(amounts)}"] if amounts else []),
    ]
    process = _process(spec, arguments, group.env, NODE_PORTS, RAYLET_PROBE)
    return Group(group.name, Role.WORKER, group.replicas, process, resources)


def _node(spec: ClusterSpec, resources: Resources, labels: Mapping[str, str], group: str) -> Iterable[str]:
    """What every raylet is told. Its labels say which member it is: one that died is not taken for its successor."""
    ours = {MEMBER_LABEL: "$(member)", INCARNATION_LABEL: "$(incarnation)", GROUP_LABEL: group}
    yield "--node-ip-address=$(host)"
    yield "--node-name=$(member)"
    yield "--temp-dir=$(dir)"
    yield "--labels=" + ",".join(f"{name}={value}" for name, value in {**labels, **ours}.items())
    for name, option in PORT_OPTIONS.items():
        yield f"{option}=$(port.{name})"
    yield "--min-worker-port=0"  # the system chooses: a fixed range would be shared by all raylets of a machine
    yield "--max-worker-port=0"
    if resources.memory is not None:
        yield f"--memory={resources.memory - resources.shared_memory}"  # for tasks; the store is not theirs
    if resources.shared_memory:
        yield f"--object-store-memory={resources.shared_memory}"


def _resources(spec: ClusterSpec, member: Head | WorkerGroup, where: str, gpu: int = 0) -> Resources:
    """The object store is part of the memory, and something must be left for tasks."""
    store = _store(spec, member.memory) or 0
    if member.memory is not None and store >= member.memory:
        raise SpecError(
            f"{where}.memory must be larger than Ray's object store, which needs {store / 2**20:.0f}Mi of it.",
            f"Raise {where}.memory, or lower ray.objectStoreMemory if that is given.",
        )
    return Resources(member.cpu, member.memory, gpu, store)


def _store(spec: ClusterSpec, memory: int | None) -> int | None:
    """Bytes of shared memory for objects; None: Ray chooses."""
    share = None if memory is None else max(OBJECT_STORE_LEAST, int(memory * OBJECT_STORE_SHARE))
    return spec.ray.object_store_memory or share


def _cpus(cpu: float) -> int:
    """Ray counts whole processors on a node."""
    return max(1, math.ceil(cpu))


def _process(
    spec: ClusterSpec, arguments: list[str], env: Mapping[str, str], ports: tuple[Port, ...], probe: Probe
) -> Process:
    light = {} if spec.ray.dashboard else {"OARS_RAY_LIGHT": "1"}  # read by launch.py
    return Process(
        argv=("ray", "start", *arguments, "--disable-usage-stats", "--log-color=false", "--block"),
        env={**MEMBER_ENV, **light, **_auth(spec), **spec.env, **env},
        ports=ports,
        files={"launch.py": LAUNCH},
        entry="$(file.launch.py)",
        preload=("ray.scripts.scripts",),
        late_env=LATE_ENV,
        stop=Stop("TERM", 3.0),
        probe=probe,
        litter=("/tmp/oars-ray-$(tag)",),
    )
