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
    $(spill)           a private directory of this member for data that does not fit in memory, removed with it
    $(spill.all)       all such directories of this member, separated by ':', each on another disk
    $(file.NAME)       path of a file of Process.files, written before the start
    $(secret.NAME)     path of a file of the cluster's secrets, readable by the owner only
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, NewType

from oars.exposure import Alias, Exposure

MemberId = NewType("MemberId", str)

HEAD = MemberId("head")
GROUP_LABEL = "oars.dev/group"  # a label that every group has: its name
OUT_OF_MEMORY = "ran out of memory"  # how a place reports that a limit of memory ended a member (Death.reason)


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
    secret: str = ""  # it speaks HTTP and requires this file of the cluster's secrets as a bearer token
    metrics: bool = False  # serves /metrics for Prometheus
    for_members: bool = False  # members reach it through the Service; clients do not need it, and may not


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
class HandOver:
    """How a worker hands over what it holds when its stop signal comes, where members may end that were not drained:
    evicted pods. `env` switches it on; `$(hand-over)` in it is the number of seconds that the worker may take. It ends
    as soon as nothing is left to hand over; `grace` is the limit, or one attempt to drain if that may take longer."""

    env: Mapping[str, str]
    grace: float = 120.0


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
    hand_over: HandOver | None = None
    probe: Probe | None = None
    # Glob patterns of what a killed process leaves outside $(dir), such as shared memory. $(tag): its OARS_TAG.
    litter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resources:
    """What one member may use. memory in bytes; None: not limited."""

    cpu: float = 1.0
    memory: int | None = None
    gpu: int = 0
    shared_memory: int = 0  # bytes it needs in /dev/shm; part of memory


@dataclass(frozen=True)
class Spill:
    """Where members write data that does not fit in memory. medium: "disk", "memory" or a storage class, for places
    that create a volume if there are no paths."""

    paths: tuple[str, ...] = ()
    size: int | None = None  # bytes of one member
    medium: str = "disk"


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
    spill: Spill | None = None  # None: in the member's scratch directory
    restart: Restart = Restart.ALWAYS
    max_restarts: int | None = None  # for ON_FAILURE; None: no limit
    cpu_request: float | None = None  # reserved for each member; None: `resources.cpu`, which is the limit
    burst: bool = False  # cpu is reserved but not a limit
    pod: Mapping[str, Any] = field(default_factory=dict)  # a PodTemplateSpec, merged over the rendered one
    fingerprint: str = ""  # hash of everything the user wrote that such members depend on
    min: int | None = None  # bounds of replicas for autoscaling; None: not autoscaled
    max: int | None = None
    adapted: int = 0  # another number: autoscaling begins anew, also if replicas was set by hand
    priority: int = 0  # autoscaling prefers groups with a higher one
    labels: Mapping[str, str] = field(default_factory=dict)  # that the engine schedules by, besides GROUP_LABEL
    # What the engine's scheduler may place on one member: "cpu", "gpu", "memory" and names of the user. Empty: as
    # `resources` says.
    offers: Mapping[str, float] = field(default_factory=dict)
    number_label: str = ""  # in which the place numbers the members; empty: it does not
    first_number: int = 0


@dataclass(frozen=True)
class Autoscale:
    """How autoscaling decides (docs/autoscaling.md). Times in seconds."""

    enabled: bool = False
    scale_down_delay: float = 60.0  # a group keeps the most members that it needed within this time
    horizon: float = 5.0  # the work of known duration that is there is to be done within this time
    settle: float = 0.5  # demand that has not grown for this long is complete
    step: float = 15.0  # between two scale-downs of a group
    share: float = 0.5  # of the members that hold data: how many leave in one step
    patience: float = 120.0  # after which members that cannot start block their group
    patience_node_autoscaler: float = 600.0  # the same while a node autoscaler is adding nodes for them
    pause: float = 30.0  # for which a group stays blocked at least; doubles each time
    max_pause: float = 600.0
    memory_high: float = 0.6  # a group grows if its members use more than this share of their memory,
    memory_aim: float = 0.5  # until they use this share


@dataclass(frozen=True)
class Lifetime:
    """After how many seconds the cluster ends by itself: without work, without a client, or in any case; 0: never."""

    idle: float = 0.0
    no_client: float = 0.0
    max: float = 0.0

    @property
    def is_limited(self) -> bool:
        return any((self.idle, self.no_client, self.max))


@dataclass(frozen=True)
class Inquiry:
    """How a program next to the head learns how long the engine has had no work and no client: by a GET of `path`, or
    by a request {"op": "look", "address": …} to `script` (the engine's head_helper.py). The reply is a JSON object with
    the seconds "idle" and "no_client"."""

    port: str
    path: str = ""
    script: str = ""


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
    image: str = ""  # the default image
    needs_helper: bool = False  # the engine needs the helper next to the head (Wire.ask)
    moves_data: bool = True  # a drain moves the worker's data; False: only a worker that is idle anyway can leave
    driver_env: Mapping[str, str] = field(default_factory=dict)  # makes the engine's own client find the cluster
    driver_files: Mapping[str, str] = field(default_factory=dict)  # Python modules on every driver's PYTHONPATH
    outside_env: Mapping[str, str] = field(default_factory=dict)  # overrides it where "outside" is the address
    inquiry: Inquiry | None = None  # None: the engine does not report what `lifetime` needs
    log_patterns: tuple[LogPattern, ...] = ()  # what the engine's own log lines mean; plan/logs.py has the general ones

    @property
    def dashboard_secret(self) -> str:
        """The file of the secrets that the dashboard requires as a token; empty: it requires none."""
        ports = self.head.process.ports if "dashboard" in self.endpoints else ()
        return next((port.secret for port in ports if port.dashboard), "")


@dataclass(frozen=True)
class DrainRequest:
    """A user wants this worker drained and replaced. `incarnation`: only this one; empty: any. `force`: discard what it
    holds."""

    incarnation: str = ""
    force: bool = False


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
    labels: Mapping[str, str] = field(default_factory=dict)  # of everything that the place creates for the cluster
    annotations: Mapping[str, str] = field(default_factory=dict)
    expose: Exposure = field(default_factory=Exposure)
    aliases: tuple[Alias, ...] = ()
    is_head_evictable: bool = False  # the place may move the head, and so discard the cluster's data
    keeps_head: bool = False  # a change that needs another head waits until the head is gone
    helper: bool = False  # a helper runs beside the head
    tied: bool = False  # the cluster ends when its owner is gone
    mode: str = ""  # who runs the loop, where there is a choice: "operator" or "direct"
    operator_namespace: str = ""  # of the operator's pods, which must reach the head; empty: none needs to
    running: bool = True  # False: remove everything
    force: bool = False  # remove workers even if that loses what they hold
    drain_timeout: float = 60.0  # seconds that one attempt to drain may take
    drain: Mapping[MemberId, DrainRequest] = field(default_factory=dict)  # workers to drain and replace
    drain_all: bool = False  # drain all workers when their work is done, and start none: the cluster is about to end
    autoscale: Autoscale = Autoscale()
    lifetime: Lifetime = Lifetime()
    created_at: float = 0.0  # of the cluster, for `lifetime`; 0: unknown
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
    blocked: str = ""  # for Waiting: why it cannot start for now, as a clause: "no node has enough cpu"
    is_node_coming: bool = False  # for a blocked one: a node autoscaler is adding a node for it
    departing: str = ""  # why the place will end it, as a clause: "node-1 is cordoned"
    is_doomed: bool = False  # for a departing one: it ends within minutes, whether it is replaced or not


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
    reason: str = ""  # why it must leave although its group needs as many workers, as a clause


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
class GroupScaling:
    """The number of members that autoscaling chose for a group, and what the spec said when it began: if its number
    differs now but the rest does not, somebody has set the number by hand."""

    target: int
    declared: int
    min: int
    max: int
    adapted: int = 0


@dataclass(frozen=True)
class LoopState:
    """What the loop remembers between passes and across its own restarts; the place stores it."""

    retiring: Mapping[MemberId, Retiring] = field(default_factory=dict)
    failures: Mapping[MemberId, Failure] = field(default_factory=dict)
    head: str = ""  # incarnation of the head that `head_epoch` counts; empty: it has not started yet
    head_epoch: int = 0  # how many heads came before it
    head_lost_at: float | None = None  # when the one before it was lost; None: long ago, or never
    ready_since: float | None = None
    scaling: Mapping[str, GroupScaling] = field(default_factory=dict)


@dataclass(frozen=True)
class Pace:
    """How many seconds apart polling pays at this place: while something may change at any moment, while we wait for
    something that the place announces itself, and when everything is ready."""

    soon: float = 0.1
    waiting: float = 0.1
    resting: float = 1.0


@dataclass(frozen=True)
class Limit:
    """The members of these groups (None: of all) may take at most `amount` of a resource: the size of the machine, or a
    quota. `message` is a clause, such as "this machine has 8 processors"."""

    message: str
    resource: str
    amount: float
    groups: frozenset[str] | None = None


@dataclass(frozen=True)
class Observed:
    """The observed state."""

    members: tuple[Member, ...] = ()
    state: LoopState = LoopState()
    deaths: Mapping[MemberId, Death] = field(default_factory=dict)
    pace: Pace = Pace()
    causes: tuple[Cause, ...] = ()  # what the place itself knows of why something is missing
    remarks: tuple[Cause, ...] = ()  # worth knowing, though nothing is missing
    refused: Mapping[str, str] = field(default_factory=dict)  # group → why no more members can be created, as a clause
    limits: tuple[Limit, ...] = ()  # of what autoscaling may add
    is_head_leaving: bool = False  # a change is about to replace the head, which still runs
    has_head_room: bool = True  # False: the head has no room yet, and workers that start could take it

    @cached_property
    def _by_id(self) -> dict[MemberId, Member]:
        return {member.id: member for member in self.members}

    def member(self, wanted: MemberId) -> Member | None:
        return self._by_id.get(wanted)


# What the engine reports


@dataclass(frozen=True)
class MemberView:
    """What the engine reports of a member. `held`: bytes only it holds; `idle`: seconds without work, 0 while it works
    or if unknown; `pinned`: it has something that cannot move, such as an actor; `tasks`: how many it runs or has in
    its queue, None: unknown."""

    ready: bool
    address: str = ""
    idle: float = 0.0
    held: int = 0
    incarnation: str = ""  # if the engine can tell; a report about an older one does not count
    pinned: bool = False
    tasks: int | None = None


class Placement(StrEnum):
    """Where the parts of a gang run."""

    ANY = ""
    PACK = "pack"  # all on one member
    SPREAD = "spread"  # each on a member of its own


@dataclass(frozen=True)
class LabelRule:
    """The group's value of label `key` must be one of `values`, or must not be (`negated`)."""

    key: str
    values: frozenset[str]
    negated: bool = False


@dataclass(frozen=True)
class Demand:
    """Alike pieces of work: tasks, actors, or bundles of a placement group; and what each needs."""

    needs: Mapping[str, float]  # resource → amount, named as in Group.offers; empty: any member will do
    count: int  # those that wait and those that run
    running: int = 0
    seconds: float | None = None  # expected duration of one; None: unknown
    labels: tuple[LabelRule, ...] = ()  # groups that may run it
    gang: str = ""  # demands with the same gang start together or not at all
    placement: Placement = Placement.ANY  # of a gang
    floor: bool = False  # no work: room that the user wants to exist, whether it is used or not


@dataclass(frozen=True)
class Unservable:
    """Demand that no group can ever serve, and why, as a sentence."""

    demand: Demand
    message: str


@dataclass(frozen=True)
class View:
    """What the engine's head reports. `up` False: it does not answer (yet); `message` says why."""

    up: bool = False
    message: str = ""
    members: Mapping[MemberId, MemberView] = field(default_factory=dict)
    demand: tuple[Demand, ...] | None = None  # None: the engine cannot tell, or does not answer
    idle: float | None = None  # seconds without any work, 0 while there is some; None: as above
    no_client: float | None = None  # seconds since the last client left, or without one; our own requests do not count
    draining: frozenset[MemberId] = frozenset()  # drains under way, as the loop knows; they take no work
    unlisted: Mapping[MemberId, float] = field(default_factory=dict)  # running workers → seconds without being listed
    # Workers that have held data for a while (True), or none for a while, as the loop knows; missing ones: unknown.
    holding: Mapping[MemberId, bool] = field(default_factory=dict)
    # What the engine should report to its clients, as the loop knows; empty: nothing any more; None: nothing new.
    unservable: tuple[Unservable, ...] | None = None
    # Workers that this head has listed, as the loop knows; all that run, until a head that was there before answers.
    joined: frozenset[MemberId] = frozenset()
    has_answered: bool = False  # this head has answered before, as the loop knows


# What to do


@dataclass(frozen=True)
class Ensure:
    """These members of the group must run; those that do are left alone. Idempotent. `settled`: the cluster has been
    ready for a while, so what only protects it may be added."""

    group: Group
    members: tuple[MemberId, ...]
    settled: bool = False
    holding: Mapping[MemberId, bool] = field(default_factory=dict)  # View.holding: who moves members should spare them


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
    """Seconds until the next pass at the latest. `limited`: it is only a poll, which the rate limiter may delay.
    `is_look`: a poll that looks for new work, which has a rate of its own."""

    seconds: float
    limited: bool = False
    is_look: bool = False


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


class DrainOutcome(StrEnum):
    """How an attempt to drain a worker ended."""

    MOVED = "moved"  # other workers hold its data now; it may be removed
    FINISHED = "finished"  # it had nothing to move, and its work has ended; it may be removed
    REFUSED = "refused"  # it stays in service: removing it would lose something


@dataclass(frozen=True)
class Drained:
    """The reply to a Drain, for one member. `waits_for`: why it was refused."""

    member: MemberId
    outcome: DrainOutcome
    waits_for: str = ""

    @property
    def done(self) -> bool:
        return self.outcome is not DrainOutcome.REFUSED


@dataclass(frozen=True)
class Needs:
    """What an engine must have installed. `modules` prove that it is; `distribution` has the version."""

    distribution: str
    modules: tuple[str, ...]
    requirements: tuple[str, ...]
    python: str = ">=3.11"
    build_requirements: tuple[str, ...] = ()  # installed first; then `distribution` is built without isolation
