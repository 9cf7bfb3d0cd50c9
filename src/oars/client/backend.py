"""The interface of a backend (this machine, a Kubernetes namespace) and of one cluster in it, and the types they share.

Not every cluster can do everything: a local process has no containers. What only some handles offer is a protocol of
its own (SupportsExec, …), so that callers test for the capability and never for the kind of place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from oars.base.errors import NotFound, SpecError, TimedOut, UsageError
from oars.base.text import suggest
from oars.engines.base import Access
from oars.places.report import Report

if TYPE_CHECKING:
    from oars.kube.exec import ExecSession
    from oars.plan.changes import Change
    from oars.spec.cluster import ClusterSpec
    from oars.spec.status import Gone, Status

Progress = Callable[[str], None]
STOP_SECONDS = 60.0  # for a cluster to stop
KUBERNETES_FIELDS = ("context", "namespace", "kubeconfig", "mode")


def ignore(_: str) -> None:
    """Discard a progress message."""


@dataclass(frozen=True)
class PlaceCapabilities:
    """What holds for all clusters of a place, also before there is a backend."""

    has_namespaces: bool
    shares_files: bool  # members see the files of this machine
    limits_memory: bool  # always; otherwise only where the user has cgroups


PLACES: Mapping[str, PlaceCapabilities] = {
    "local": PlaceCapabilities(has_namespaces=False, shares_files=True, limits_memory=False),
    "kubernetes": PlaceCapabilities(has_namespaces=True, shares_files=False, limits_memory=True),
}


def capabilities(place: str) -> PlaceCapabilities:
    """Raises SpecError if there is no such place."""
    if place not in PLACES:
        raise SpecError(f"There is no place {place!r}.{suggest(place, [*PLACES])}", f"Places: {', '.join(PLACES)}.")
    return PLACES[place]


@dataclass(frozen=True)
class Location:
    """Where to create a cluster or look for one. `place` None: on this machine, then on Kubernetes. `mode` applies to
    clusters that are created: operator, direct, or None to detect it."""

    place: str | None = None
    context: str | None = None
    namespace: str | None = None
    kubeconfig: str | None = None
    mode: str | None = None

    def reference(self, name: str, namespace: str = "") -> str:
        """A name and the options with which an `oars` command finds it here, for hints."""
        options = {"--kubeconfig": self.kubeconfig, "--context": self.context, "-n": namespace or self.namespace}
        return name + "".join(f" {option} {value}" for option, value in options.items() if value)


def no_answer(place: str, what: str, seconds: float) -> TimedOut:
    """The error for a place that did not answer in time; `what` was asked for: clusters or jobs."""
    who = f"The local {what}" if place == "local" else place.capitalize()
    return TimedOut(f"{who} did not answer within {seconds:.0f} s.")


def make_location(label: Callable[[str], str], **fields: str | None) -> Location:
    """A Location in which a field that only Kubernetes has implies `place="kubernetes"`. `label` turns the name of a
    field into what the user wrote, for the error about a contradiction."""
    place = fields.get("place")
    given = [name for name in KUBERNETES_FIELDS if fields.get(name)]
    if given and place not in (None, "kubernetes"):
        message = f"{label(given[0])} applies to Kubernetes only, but {label('place')} is {place!r}."
        raise UsageError(message, f"Omit {label(given[0])} or {label('place')}.")
    return Location(**{**fields, "place": place or ("kubernetes" if given else None)})


@dataclass(frozen=True)
class Driver:
    """The Python and the environment for a program that connects to its cluster with the engine's own API."""

    python: str
    env: Mapping[str, str] = field(repr=False)  # has all of this process's variables, any secrets in them too


@dataclass(frozen=True)
class CreateOptions:
    """How to create a cluster. tied: it ends with this process. modules: a directory whose modules workers can import;
    None: the directory of the running script. cwd: the directory in which local members run; None: the present one.
    job: the mark of the job that it is for."""

    tied: bool
    progress: Progress = ignore
    modules: str | None = None
    cwd: str | None = None
    job: str = ""


@dataclass(frozen=True)
class LogOptions:
    """What to read of a member's log. since: only later lines, in seconds since the epoch. `on_trouble` is called with
    a sentence when following is interrupted for long."""

    follow: bool = False
    tail: int | None = None
    previous: bool = False
    container: str = ""
    since: float | None = None
    on_trouble: Progress = ignore


WHOLE_LOG = LogOptions()


class ClusterHandle(Protocol):
    """One cluster. Making a handle sends no request. A handle stays with the cluster that it created or saw first: if
    that is deleted and another takes its name, methods raise Replaced."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str:
        """The Kubernetes namespace; empty for a cluster on this machine."""

    @property
    def runs_as(self) -> str:
        """Completes "Cluster 'demo' runs …", for error messages."""

    @property
    def host(self) -> str:
        """The other host that the cluster belongs to; empty if it can be changed from here."""

    async def exists(self) -> bool: ...

    async def has_leftovers(self) -> bool:
        """True if the cluster is gone but stop() still has something to remove."""

    async def spec(self) -> ClusterSpec:
        """The spec as last written. Raises NotFound."""

    def sized(self, spec: ClusterSpec) -> ClusterSpec:
        """The spec with the memory that members get where it sets none."""

    async def report(self, timeout: float | None = None) -> Report:  # noqa: ASYNC109 (the backend has its own default)
        """The current status and causes. Raises TimedOut."""

    def watch(self) -> AsyncIterator[Report]:
        """The report now and at every change, until the cluster is gone."""

    def last_report(self) -> Report | None:
        """The last known report, without contacting anyone."""

    def fallback_status(self, problem: str) -> Status:
        """What a list shows if the cluster does not report: the last known status, and the problem."""

    async def generation(self) -> int:
        """The generation of the spec. A report with an older one does not describe this spec yet."""

    async def change(self, change: Callable[[ClusterSpec], ClusterSpec], *, force: bool = False) -> None:
        """Change numbers of workers and autoscaling. Nobody else's change is lost; `change` may be called again. force:
        do not drain."""

    async def drain(self, members: Sequence[str], *, force: bool = False) -> None:
        """Request that these workers are drained and replaced, and return at once. force: discard what they hold.
        Raises NotFound."""

    async def drain_all(self, wanted: bool) -> None:
        """Request that all workers are drained when their work is done, and none is started; or cancel that."""

    async def diff(self, spec: ClusterSpec) -> Sequence[Change]:
        """What apply() would change."""

    async def apply(self, spec: ClusterSpec, *, force: bool = False) -> None:
        """Change the cluster to this spec."""

    async def stop(self, timeout: float = STOP_SECONDS) -> bool:  # noqa: ASYNC109 (the cluster stops nevertheless)
        """Stop the cluster and wait until it is gone; False after the timeout."""

    def stop_at_exit(self) -> None:
        """Stop the cluster without an event loop, while Python shuts down."""

    async def open(self) -> None:
        """Make the cluster reachable from this process; access() and driver() need it."""

    def access(self) -> Access: ...

    def driver(self) -> Driver:
        """For a program on this machine."""

    async def dashboard_token(self) -> str:
        """The token that requests to the dashboard need; empty if they need none."""

    async def members(self) -> Sequence[str]:
        """All members that have a log."""

    def logs(self, member: str, options: LogOptions = WHOLE_LOG) -> AsyncIterator[str]: ...


class Backend(Protocol):
    """All clusters of one place."""

    @property
    def place(self) -> str:
        """local or kubernetes."""

    def where(self, *, all_namespaces: bool = False) -> str:
        """Completes "There is no cluster 'demo' …", such as "in namespace 'team'"."""

    async def login(self) -> None:
        """Obtain credentials, which may need a person. Timeouts of other calls do not include it."""

    async def create(self, name: str, spec: ClusterSpec, options: CreateOptions) -> ClusterHandle:
        """Create a cluster; it is not ready when this returns. Raises NameInUse."""

    def cancel_create(self) -> None:
        """Make a running create() fail soon."""

    def cluster(self, name: str) -> ClusterHandle: ...

    async def list(self, *, all_namespaces: bool = False) -> Sequence[ClusterHandle]: ...

    async def gone(self, *, all_namespaces: bool = False) -> Sequence[Gone]:
        """Clusters that ended by themselves within the last day, the latest last."""

    async def explain_missing(self, name: str) -> NotFound | None:
        """The error about a name that no cluster here has, if more is known than that: Oars does not track the cluster,
        or it has ended by itself."""

    async def close(self) -> None:
        """Release connections. Clusters that are not tied keep running."""


@runtime_checkable
class SupportsContainers(Protocol):
    """Members consist of containers."""

    async def containers(self) -> Mapping[str, Sequence[str]]:
        """The containers of each member, its main container first."""


@runtime_checkable
class SupportsExec(Protocol):
    """Commands can run in a member."""

    async def exec(self, argv: Sequence[str], member: str, container: str | None, *, tty: bool = False) -> ExecSession:
        """Start a command, or Python with the engine's client connected if there is none. It gets what it needs to
        find the cluster if it runs in the member's main container (None)."""


@runtime_checkable
class SupportsCopy(Protocol):
    """Files can be copied to and from a member."""

    async def copy_to(self, source: Path, target: str, member: str, container: str | None = None) -> None: ...

    async def copy_from(self, source: str, target: Path, member: str, container: str | None = None) -> None: ...


@dataclass(frozen=True)
class Usage:
    """What a member uses: CPU seconds since its start or, where the place measures that itself, the number of
    processors in use; and bytes of memory."""

    cpu_seconds: float = 0.0
    memory: int = 0
    cpu: float | None = None


@runtime_checkable
class SupportsUsage(Protocol):
    """CPU time and memory of members can be measured."""

    async def usage(self) -> Mapping[str, Usage] | None:
        """What each running member uses, with all processes that it started; None: the place does not measure it."""


@runtime_checkable
class SupportsForward(Protocol):
    """The dashboard needs a port-forward, which ends with this process."""

    def forward_dashboard(self, port: int) -> AbstractAsyncContextManager[str]:
        """Forward a local port (0: a free one) to the dashboard of the current head; its URL."""


def check_member(name: str, member: str, known: Sequence[str]) -> None:
    if member not in known:
        # One that differs in its number only is no misspelling, but a member that does not exist.
        is_other = any(_without_digits(member) == _without_digits(each) for each in known)
        meant = "" if is_other else suggest(member, known)
        hint = f"Members: {', '.join(known)}." if known else "There are none at present."
        raise NotFound(f"Cluster {name!r} has no member {member!r}.{meant}", hint)


def _without_digits(text: str) -> str:
    return text.rstrip("0123456789")


def check_container(container: str, known: Sequence[str]) -> None:
    if container not in known:
        hint = f"Containers: {', '.join(dict.fromkeys(known))}." if known else "The cluster has no pods."
        raise NotFound(f"There is no container {container!r}.{suggest(container, known)}", hint)
