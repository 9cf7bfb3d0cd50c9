"""The model: desired state (Desired), observed state (Observed), the engine's report (View), next steps (Step). Frozen
data, no I/O.

Text with `$(…)` in an argv, an environment value, a file or an address is a template. The place fills it in:

    $(host)            the address of this member (127.0.0.1; the pod's address)
    $(bind)            the address that it listens on (127.0.0.1; all addresses of a pod)
    $(port.NAME)       this member's own port of that name (allocated, or Port.default where members have addresses)
    $(head.host)       the address of the head (127.0.0.1; the Service's name)
    $(head.NAME)       the head's port of that name, as a number
    $(member)          the member's id, such as worker-0
    $(incarnation)     changes each time this member is started
    $(dir)             a private scratch directory of this member, removed with it
    $(file.NAME)       path of a file of Process.files, written before the start
    $(secret.NAME)     path of a file of the cluster's secrets, readable by the owner only
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NewType

MemberId = NewType("MemberId", str)

HEAD = MemberId("head")


class Role(StrEnum):
    HEAD = "head"
    WORKER = "worker"
    DRIVER = "driver"  # a program of the user that runs on the cluster and ends by itself


# What is wanted


@dataclass(frozen=True)
class Port:
    """A port of a member. `default` is its number where every member has its own address."""

    name: str
    default: int
    on_service: bool = True  # reachable through the head's Service; False: members dial it by address
    alias: str = ""  # its name in the Service, if the engine's users know it by another
    dashboard: bool = False  # serves the page that people look at


@dataclass(frozen=True)
class Probe:
    """How a member shows that it is up: a page that answers 200 or, without a path, an open port."""

    port: str
    path: str = ""


@dataclass(frozen=True)
class Stop:
    """The signal that ends a process, and its grace period in seconds."""

    signal: str = "TERM"
    grace: float = 10.0


@dataclass(frozen=True)
class Process:
    """One program to run. `argv` is the command as an image or a PATH has it. `entry` is the same program as Python:
    "module:function" or a script's path ("$(file.NAME)"), run with sys.argv = argv. Places that run in the engine's
    environment fork it from a Python that has imported `preload`; others run argv."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[Port, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    entry: str = ""
    preload: tuple[str, ...] = ()
    # Environment variables that the program reads when it runs, not when it is imported: they may differ between
    # members that are forked from one Python. Any other difference needs a second fork server.
    late_env: tuple[str, ...] = ()
    stop: Stop = Stop()
    probe: Probe | None = None
    # Glob patterns of what a killed process leaves outside $(dir), such as shared memory; named by $(tag), which the
    # process finds in OARS_TAG.
    litter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resources:
    """What one member may use. memory in bytes; None: not limited."""

    cpu: float = 1.0
    memory: int | None = None
    gpu: int = 0
    shared_memory: int = 0  # bytes it needs in /dev/shm; part of memory


class Restart(StrEnum):
    """Whether a member that exits is started again."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


@dataclass(frozen=True)
class Group:
    """Members that are alike. The head is a group of one."""

    name: str
    role: Role
    replicas: int
    process: Process
    resources: Resources = Resources()
    restart: Restart = Restart.ALWAYS
    max_restarts: int | None = None  # for ON_FAILURE; None: no limit
    burst: bool = False  # cpu is reserved but not a limit
    pod: Mapping[str, Any] = field(default_factory=dict)  # a PodTemplateSpec, merged over the rendered one
    fingerprint: str = ""  # hash of everything the user wrote that such members depend on


@dataclass(frozen=True)
class LogPattern:
    """A regular expression for log lines that explain why a member died.

    `meaning` is a clause such as "the disk is full", formatted with the groups of `pattern`. `row_pattern` finds
    details in the same lines; each is formatted with `row`. `reason` is set if the meaning is a cause of its own."""

    pattern: str
    meaning: str
    hint: str
    reason: str = ""
    row_pattern: str = ""
    row: str = ""


@dataclass(frozen=True)
class Shape:
    """What an engine makes of a spec: the head, the worker groups, and how clients reach it (templates as above)."""

    head: Group
    workers: tuple[Group, ...]
    endpoints: Mapping[str, str]  # "client", "dashboard"; "outside": the client's, where no member can be dialled
    secrets: tuple[str, ...] = ()  # kinds the cluster needs: "tls" (ca.pem, cert.pem, key.pem), "token"
    dashboard_secret: str = ""  # the file of those that the dashboard asks a person for
    image: str = ""  # the default image
    needs_helper: bool = False  # the engine needs the helper next to the head (Wire.ask)
    driver_env: Mapping[str, str] = field(default_factory=dict)  # makes the engine's own client find the cluster
    outside_env: Mapping[str, str] = field(default_factory=dict)  # overrides it where "outside" is the address
    log_patterns: tuple[LogPattern, ...] = ()  # what the engine's own log lines mean; plan/logs.py has the general ones


@dataclass(frozen=True)
class Exposure:
    """How the head is reached from outside."""

    type: str = "ClusterIP"
    host: str = ""
    ingress_class: str = ""
    tls_secret: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Desired:
    """The complete desired state: a place needs nothing else."""

    name: str
    engine: str
    place: str
    shape: Shape
    drivers: tuple[Group, ...] = ()
    namespace: str = ""
    create_namespace: bool = False
    image: str = ""
    expose: Exposure = Exposure()
    helper: bool = False  # a helper runs beside the head
    tied: bool = False  # the cluster ends when its owner is gone
    mode: str = ""  # who runs the loop, where there is a choice: "operator" or "direct"
    running: bool = True  # False: remove everything
    force: bool = False  # remove workers even if that loses what they hold
    drain_timeout: float = 60.0  # seconds that one attempt to drain may take
    head_epoch: int = 0  # which head the workers serve; the loop fills it in
    generation: int = 0  # grows with every change of the spec

    @property
    def groups(self) -> tuple[Group, ...]:
        return (self.shape.head, *self.shape.workers, *self.drivers)


# What exists


class MemberState(StrEnum):
    """What the place knows of a member; only the engine knows whether it is ready."""

    WAITING = "Waiting"  # it will run: being started, or started again by the place itself
    RUNNING = "Running"
    EXITED = "Exited"  # it stays so until it is ensured again


@dataclass(frozen=True)
class Member:
    """One process or pod, as the place sees it."""

    id: MemberId
    role: Role
    group: str
    state: MemberState
    incarnation: str = ""  # changes with every start; empty: not started yet
    head_epoch: int = 0  # of the head that it was started for
    started_at: float = 0.0
    created_at: float = 0.0  # orders members whose ids have no number
    pid: int | None = None
    address: str = ""
    reason: str = ""  # for Waiting and Exited: short, such as "killed by SIGKILL"
    tail: tuple[str, ...] = ()  # last log lines, for Exited
    exit_code: int | None = None  # for Exited, if known
    probe_ready: bool = True  # False: the place's own probe has not succeeded (yet)


@dataclass(frozen=True)
class Death:
    """The last time that a member ended by itself. `count`: how often so far, if the place counts."""

    incarnation: str
    at: float
    started_at: float
    reason: str
    tail: tuple[str, ...] = ()
    count: int = 1


@dataclass(frozen=True)
class Retiring:
    """A worker chosen to leave. It stays chosen across restarts of the loop: what was drained is what gets removed."""

    since: float
    drained: bool = False
    waits_for: str = ""


@dataclass(frozen=True)
class Failure:
    """How often a member died in a row, and when it may be started again."""

    count: int
    last: float
    until: float
    incarnation: str
    reason: str
    tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoopState:
    """What the loop remembers between passes and across its own restarts; the place stores it."""

    retiring: Mapping[MemberId, Retiring] = field(default_factory=dict)
    failures: Mapping[MemberId, Failure] = field(default_factory=dict)
    head: str = ""  # incarnation of the head that `head_epoch` counts; empty: it has not started yet
    head_epoch: int = 0  # how many heads came before it
    ready_since: float | None = None


@dataclass(frozen=True)
class Pace:
    """How many seconds apart polling pays at this place: while something may change at any moment, while we wait for
    something that the place announces itself, and when everything is ready."""

    soon: float = 0.1
    waiting: float = 0.1
    resting: float = 1.0


@dataclass(frozen=True)
class Observed:
    """The observed state."""

    members: tuple[Member, ...] = ()
    state: LoopState = LoopState()
    deaths: Mapping[MemberId, Death] = field(default_factory=dict)
    pace: Pace = Pace()
    causes: tuple[Cause, ...] = ()  # what the place itself knows of why something is missing
    remarks: tuple[Cause, ...] = ()  # worth knowing, though nothing is missing

    @cached_property
    def _by_id(self) -> dict[MemberId, Member]:
        return {member.id: member for member in self.members}

    def member(self, wanted: MemberId) -> Member | None:
        return self._by_id.get(wanted)


# What the engine reports


@dataclass(frozen=True)
class MemberView:
    """What the engine reports of a member. `held`: bytes only it holds; `idle`: seconds without work, 0 while it works
    or if unknown."""

    ready: bool
    address: str = ""
    idle: float = 0.0
    held: int = 0
    incarnation: str = ""  # if the engine can tell; a report about an older one does not count


@dataclass(frozen=True)
class Demand:
    """Work that waits for workers: how many tasks of one kind, and what each needs."""

    resources: Resources
    count: int


@dataclass(frozen=True)
class View:
    """What the engine's head reports. `up` False: it does not answer (yet); `message` says why."""

    up: bool = False
    message: str = ""
    members: Mapping[MemberId, MemberView] = field(default_factory=dict)
    demand: tuple[Demand, ...] = ()
    draining: frozenset[MemberId] = frozenset()  # drains under way, as the loop knows; they take no work
    unlisted: Mapping[MemberId, float] = field(default_factory=dict)  # running workers → seconds without being listed


# What to do


@dataclass(frozen=True)
class Ensure:
    """These members of the group must run; those that do are left alone. Idempotent. `settled`: the cluster has been
    ready for a while, so what only protects it may be added."""

    group: Group
    members: tuple[MemberId, ...]
    settled: bool = False


@dataclass(frozen=True)
class Drain:
    """Ask the engine to empty these workers; nothing is removed."""

    members: tuple[MemberId, ...]


@dataclass(frozen=True)
class Remove:
    """Remove these members for good. grace 0: immediately, there is nothing left to save."""

    members: tuple[MemberId, ...]
    reason: str
    grace: float | None = None  # None: what their Stop says


Step = Ensure | Drain | Remove


@dataclass(frozen=True)
class Pause:
    """Seconds until the next pass at the latest. `limited`: it is only a poll, which the rate limiter may delay."""

    seconds: float
    limited: bool = False


@dataclass(frozen=True)
class Decision:
    """What to do now, what to remember, and when to look again."""

    steps: tuple[Step, ...]
    state: LoopState
    pause: Pause


@dataclass(frozen=True)
class Cause:
    """Why something is not ready: a CamelCase reason, a sentence, what to do, and the log lines that matter."""

    reason: str
    message: str
    hint: str = ""
    lines: tuple[str, ...] = ()
    members: tuple[str, ...] = ()  # whom it is about


@dataclass(frozen=True)
class Drained:
    """The reply to a Drain, for one member: done, or what it still waits for."""

    member: MemberId
    done: bool
    waits_for: str = ""


@dataclass(frozen=True)
class Needs:
    """What an engine must have installed. `modules` prove that it is; `distribution` has the version."""

    distribution: str
    modules: tuple[str, ...]
    requirements: tuple[str, ...]
    python: str = ">=3.11"
    build_requirements: tuple[str, ...] = ()  # installed first; then `requirements` are built without isolation
