"""The inside nouns: what a cluster shall be (Desired), what is there (Observed), what the engine says (View), what to
do next (Step). Plain frozen data, no I/O.

Text with `$(…)` in an argv, an environment value, a file or an address is filled in by the place that runs it:

    $(host)            the address this member binds to and is reached at (127.0.0.1; the pod's address)
    $(bind)            where it listens if that is another address (127.0.0.1; all addresses of a pod)
    $(port.NAME)       this member's own port of that name (asked for locally; Port.default on Kubernetes)
    $(head.host)       where the head is reached (127.0.0.1; the Service's name)
    $(head.NAME)       the head's port of that name, as a number
    $(member)          the member's id, such as worker-0
    $(incarnation)     changes each time this member is started anew
    $(dir)             a private scratch directory of this member, removed with it
    $(file.NAME)       path of a file of Process.files, written before the start
    $(secret.NAME)     path of a file of the cluster's secrets, readable by the owner only
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NewType

MemberId = NewType("MemberId", str)

HEAD = MemberId("head")
NOTHING: Mapping[str, str] = {}


class Role(StrEnum):
    HEAD = "head"
    WORKER = "worker"


@dataclass(frozen=True)
class Port:
    """A port of a member. `default` is what it is where every member has an address of its own."""

    name: str
    default: int
    on_service: bool = True  # others find it by the head's name; False: only members use it, by address
    alias: str = ""  # its name in a Service, where users of the engine know it by another


@dataclass(frozen=True)
class Probe:
    """Where a member says that it is there: a page that answers 200 or, without a path, a port that is open."""

    port: str
    path: str = ""


@dataclass(frozen=True)
class Stop:
    """How a process of this kind ends by itself: the signal it heeds and how long it may take."""

    signal: str = "TERM"
    grace: float = 10.0


@dataclass(frozen=True)
class Process:
    """One program to run. `argv` is the command as an image or a PATH has it. `entry` is the same program as Python:
    "module:function" or a script's path ("$(file.NAME)"), run with sys.argv = argv. Places that run in the engine's
    environment use it, forked from a Python that has imported `preload` already; others run argv."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[Port, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    entry: str = ""
    preload: tuple[str, ...] = ()
    # Environment variables the program reads when it runs, not when it is imported: they may differ between members
    # that are forked from one Python. Other differences make the place start the program afresh.
    late_env: tuple[str, ...] = ()
    stop: Stop = Stop()
    probe: Probe | None = None
    # Glob patterns of what a killed process leaves outside $(dir), e.g. shared memory; named by $(tag), which
    # the process finds in OARS_TAG.
    litter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resources:
    """What one member may use. memory in bytes; None: not limited."""

    cpu: float = 1.0
    memory: int | None = None
    gpu: int = 0
    shared_memory: int = 0  # bytes it needs in /dev/shm; part of memory


@dataclass(frozen=True)
class Group:
    """Members that are alike. The head is a group of one."""

    name: str
    role: Role
    replicas: int
    process: Process
    resources: Resources = Resources()


@dataclass(frozen=True)
class Shape:
    """What an engine makes of a spec: the head, the worker groups, and how clients reach it (templates as above)."""

    head: Group
    workers: tuple[Group, ...]
    endpoints: Mapping[str, str]  # "client", "dashboard"; "outside": the client's, where no member can be dialled
    secrets: tuple[str, ...] = ()  # kinds the cluster needs: "tls" (ca.pem, cert.pem, key.pem), "token"
    dashboard_secret: str = ""  # the file of those that the dashboard asks a person for
    image: str = ""  # that its users usually take, where images are
    needs_helper: bool = False  # its live half has questions for a script beside the head (Wire.ask)
    driver_env: Mapping[str, str] = field(default_factory=dict)  # makes the engine's own words find the cluster
    outside_env: Mapping[str, str] = field(default_factory=dict)  # the same, over it, where "outside" is the address


@dataclass(frozen=True)
class Desired:
    """What shall be. `running` False: everything is to go. `force`: remove workers even if that loses what they
    hold."""

    name: str
    engine: str
    place: str
    shape: Shape
    running: bool = True
    force: bool = False
    drain_seconds: float = 60.0
    generation: int = 0  # grows with every change of the description

    @property
    def groups(self) -> tuple[Group, ...]:
        return (self.shape.head, *self.shape.workers)


class MemberState(StrEnum):
    """What the place knows of a member; whether it is ready only the engine can say."""

    WAITING = "Waiting"  # asked for, not started yet
    RUNNING = "Running"
    EXITED = "Exited"


@dataclass(frozen=True)
class Member:
    """One process or pod, as the place sees it."""

    id: MemberId
    role: Role
    group: str
    state: MemberState
    incarnation: str = ""  # changes with every start
    head: str = ""  # the head's incarnation when it was started; places that heal: how many heads came before (of the
    # head itself: its incarnation, which also changes when it is started again in place)
    started: float = 0.0
    pid: int | None = None
    address: str = ""
    reason: str = ""  # for Waiting and Exited: short, such as "killed by SIGKILL"
    tail: tuple[str, ...] = ()  # last log lines, for Exited
    answers: bool = True  # False: the place's own probe says that it does not (yet)
    made: float = 0.0  # when the place made it, where the number at the end of its id does not tell who is newer


@dataclass(frozen=True)
class Retiring:
    """A worker chosen to go. It stays chosen across restarts of ours, so that we never drain one and remove another."""

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
    """What the loop must remember between passes and across its own death; kept by the place."""

    retiring: Mapping[MemberId, Retiring] = field(default_factory=dict)
    failures: Mapping[MemberId, Failure] = field(default_factory=dict)
    head: str = ""  # places that heal: the incarnation of the head that the workers serve
    head_changes: int = 0  # and how many there were before it

    def with_retiring(self, retiring: Mapping[MemberId, Retiring]) -> LoopState:
        return replace(self, retiring=dict(retiring))


@dataclass(frozen=True)
class Observed:
    """What is there. Where `heals` is true the place itself replaces dead members (Kubernetes Deployments)."""

    members: tuple[Member, ...] = ()
    notes: LoopState = LoopState()
    heals: bool = False
    causes: tuple[Cause, ...] = ()  # what the place itself knows of why something is not as wanted
    remarks: tuple[Cause, ...] = ()  # what is worth knowing though it keeps nothing from being as wanted

    def member(self, wanted: MemberId) -> Member | None:
        return next((m for m in self.members if m.id == wanted), None)


@dataclass(frozen=True)
class MemberView:
    """What the engine says of a member. `held`: bytes only it holds; `idle`: seconds without work, 0 while it works or
    if that is not known."""

    ready: bool
    address: str = ""
    idle: float = 0.0
    held: int = 0
    incarnation: str = ""  # if the engine can tell; an answer about an older one does not count


@dataclass(frozen=True)
class View:
    """What the engine's head says. `up` False: it does not answer (yet); `message` says how."""

    up: bool = False
    message: str = ""
    members: Mapping[MemberId, MemberView] = field(default_factory=dict)


@dataclass(frozen=True)
class Ensure:
    """These members of the group shall run; those that do are left alone. Places that heal count them, and see to it
    that all that belongs to the group is there and as described."""

    group: Group
    members: tuple[MemberId, ...]


@dataclass(frozen=True)
class Drain:
    """Ask the engine to empty these workers; nothing is removed."""

    members: tuple[MemberId, ...]


@dataclass(frozen=True)
class Remove:
    """Take these members away for good. grace 0: at once, there is nothing left to save."""

    members: tuple[MemberId, ...]
    reason: str
    grace: float | None = None  # None: what their Stop says


Step = Ensure | Drain | Remove


@dataclass(frozen=True)
class Decision:
    """What to do now, what to remember, and when to look again at the latest."""

    steps: tuple[Step, ...]
    notes: LoopState
    again_after: float = 1.0


@dataclass(frozen=True)
class Cause:
    """Why something is not as wanted: a short word, a sentence, what to do, and the log lines that matter."""

    reason: str
    message: str
    hint: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drained:
    """The answer to a Drain, for one member: done, or what it still waits for."""

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
