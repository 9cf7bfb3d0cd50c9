"""The engine interface. Each built-in engine is a package of these modules:

shape.py        pure: spec → roles, argv, environment, ports, endpoints      (control plane)
options.py      the model of the engine's own block in a spec                (control plane; pydantic)
live.py         queries the running head, drains workers                     (control plane; no engine installed)
head_plugin.py  code that runs inside the head                               (optional; stdlib and the engine only)
head_helper.py  a script that runs next to the head                          (optional; stdlib and the engine only)
launch.py       starts a member from a preloaded Python                      (optional; stdlib and the engine only)
driver_hook.py  makes the engine's own client find the cluster               (optional; the driver's Python)
session.py      connects a client and makes an executor                      (the user's Python; imports the engine)

web_guard.py, next to this module, is a script too: it makes the web server of a head require the cluster's token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from oars.base.errors import EngineUnreachable
from oars.base.text import command
from oars.model import Demand, Drained, DrainOutcome, LabelRule, MemberId, Needs, Placement, Shape, View

if TYPE_CHECKING:  # session.py also runs in environments without pydantic
    from oars.spec.cluster import ClusterSpec, Part, WorkerGroup

ASK_SECONDS = 120.0
SPILL_SHARE = 0.95  # of the size of a spill volume, for the engine


class Wire(Protocol):
    """Access to a running head, independent of the place."""

    @property
    def addresses(self) -> Mapping[MemberId, Mapping[str, str]]:
        """host:port of each member's ports by name, as the engine itself writes them."""

    @property
    def incarnations(self) -> Mapping[MemberId, str]:
        """The incarnation of each running member."""

    def fill(self, text: str) -> str:
        """Fill in the head's values in a template of the shape (endpoints, driver_env)."""

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        """Send a request to the head's port of that name, with the port's token if it has one (Port.secret). Raises
        EngineUnreachable without a 2xx reply in time."""

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = ASK_SECONDS) -> Any:
        """Send a request to `script` (the engine's head_helper.py), which runs next to the head.

        The script lives as long as the head and has its environment. It reads one JSON object per line from stdin and
        writes one per line to stdout: {"ok": …} or {"error": "…"}. Raises EngineUnreachable."""


@dataclass(frozen=True)
class Shell:
    """How `oars shell` greets its user and, where Oars is not installed (in a pod), connects.

    `connect` is Python source that assigns `client` and uses only the engine; it finds the shape's driver_env and
    OARS_ADDRESS in the environment."""

    connect: str = ""
    greeting: str = "`client` is connected."


@dataclass(frozen=True)
class Footprint:
    """What the engine's own library uses on a machine, outside the directories of Oars."""

    shared_memory: bool = False  # it stores objects in /dev/shm
    temporary: tuple[str, ...] = ()  # how the names of its files in /tmp begin
    permanent: tuple[str, ...] = ()  # names in /tmp that it creates once per machine and never deletes


class LiveEngine(Protocol):
    """The part of an engine that the loop needs: it queries and changes a running head."""

    async def look(self, wire: Wire) -> View:
        """Return the head's view of its members. Never writes. Returns View(up=False, message=…) for a head that is
        not up."""

    async def reconcile(self, wire: Wire, view: View) -> None:
        """Correct the engine's own records of members that are gone or back, and warn clients of `view.unservable`
        where the engine can. May write. Called in each pass whose `look` found the head up, before the steps are
        performed."""
        return None

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        """Move what only these workers hold, and let running work finish, in at most `deadline` seconds.

        It runs in the background. The outcome of each worker: MOVED (other workers hold its data), FINISHED (it had
        nothing to move) or REFUSED; `waits_for` says why. A refused worker is in service again when its deadline has
        passed, and is drained again later: an engine that cannot move data refuses as long as something refers to it.
        A worker that the engine does not know has finished. A drained worker is not ready (see look): if it becomes
        ready again before it is removed, it is drained again.
        force: take the workers out of service and drain what is possible within seconds; refuse nothing."""


class Engine(LiveEngine, Protocol):
    """The control plane's part of an engine. A plug-in may inherit from this class: what is optional has a default."""

    @property
    def name(self) -> str: ...

    @property
    def session(self) -> str:
        """Dotted name of the module that implements Session."""

    @property
    def shell(self) -> Shell:
        return Shell()

    @property
    def footprint(self) -> Footprint:
        return Footprint()

    @property
    def immutable_options(self) -> Mapping[str, str]:
        """Options that a running cluster cannot change, by their name in files, with the reason.

        They need a new head and break connected clients, so a change is refused."""
        return {}

    def options_model(self) -> type[Part] | None:
        """The model of the block that a spec has under this engine's name. None: the engine reads `spec.options`."""
        return None

    def needs(self, spec: ClusterSpec) -> Needs: ...

    def check(self, spec: ClusterSpec) -> None:
        """Raise SpecError for what this engine does not support."""

    def shape(self, spec: ClusterSpec) -> Shape: ...


@dataclass(frozen=True)
class Access:
    """What a client needs: the endpoint, and the environment with which the engine's own API finds the cluster. The
    environment names the files of secrets and never contains a secret."""

    name: str
    engine: str
    address: str
    dashboard: str
    env: Mapping[str, str]
    namespace: str = ""  # on Kubernetes

    def command(self, verb: str) -> str:
        """The command line `oars VERB` for this cluster, for hints."""
        return command(verb, self.name, namespace=self.namespace)


class Session(Protocol):
    """The user's part of an engine: a module with these functions. It may also have `async def connect_async(access)`,
    which returns an asynchronous client of the running event loop."""

    connect: Callable[[Access], Any]
    """The engine's own client, connected."""
    disconnect: Callable[[Any], None]
    executor: Callable[[Access], Executor]


Outcomes = Mapping[str, tuple[DrainOutcome, str]]  # of drained workers, with what refused ones wait for


def drained(members: Sequence[MemberId], outcomes: Outcomes) -> list[Drained]:
    """The result of a drain. A member without an outcome is unknown to the engine, and has finished."""
    unknown = (DrainOutcome.FINISHED, "")
    return [Drained(member, *outcomes.get(member, unknown)) for member in members]


# What reading a reply raises that is not JSON, or has other fields or types: another program may have answered.
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
LARGEST = 1e18  # of what an engine reports


def checked(view: View) -> View:
    """The view, if the loop can calculate with it. Raises ValueError for one with other values than the model has: no
    report may stop a pass."""
    members = view.members.items()
    texts = [text for member, each in members for text in (member, each.address, each.incarnation)]
    numbers: list[object] = [amount for _, each in members for amount in (each.idle, each.held)]
    for demand in view.demand or ():
        texts += [demand.gang, *demand.needs]
        numbers += [demand.count, demand.running, *demand.needs.values()]
        numbers += [] if demand.seconds is None else [demand.seconds]
    numbers += [each for each in (view.idle, view.no_client) if each is not None]
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{text!r} is not text")
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= LARGEST:
            raise ValueError(f"{number!r} is not a number that Oars can use")
    return view


def demands(entries: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> tuple[Demand, ...]:
    """The demand that a script next to the head reports. `names`: the engine's names of resources → those of Oars."""
    return tuple(
        Demand(
            needs={names.get(name, name): amount for name, amount in entry["needs"].items()},
            count=entry["count"],
            running=entry.get("running", 0),
            seconds=entry.get("seconds"),
            labels=tuple(
                LabelRule(key, frozenset(values), negated) for key, values, negated in entry.get("labels", ())
            ),
            gang=entry.get("gang", ""),
            placement=Placement(entry.get("placement", "")),
            floor=entry.get("floor", False),
        )
        for entry in entries
    )


def drain_outcomes(reply: Any, requested: Collection[str], error: str) -> Outcomes:
    """Read the reply to a drain request: {worker: {"outcome": …, "reason": …}}. A head that an older Oars started
    replies {worker: reason}, with an empty reason for a drained worker.

    A worker that the reply omits is unknown to the head and may be removed. So a reply that is not the head's own must
    never be accepted: raises EngineUnreachable(error) unless the reply names requested workers only."""
    try:
        if all(name in requested for name in reply):
            return {name: _outcome(value) for name, value in reply.items()}
    except UNREADABLE as invalid:
        raise EngineUnreachable(error) from invalid
    raise EngineUnreachable(error)


def _outcome(value: Any) -> tuple[DrainOutcome, str]:
    if isinstance(value, str):
        return (DrainOutcome.REFUSED if value else DrainOutcome.FINISHED), value
    outcome, reason = DrainOutcome(value["outcome"]), value.get("reason", "")
    if not isinstance(reason, str) or bool(reason) != (outcome is DrainOutcome.REFUSED):
        raise ValueError(value)
    return outcome, reason


def spill_limit(group: WorkerGroup) -> int | None:
    """How many bytes the engine itself may spill: less than the volume has, because Kubernetes evicts a pod that writes
    more."""
    return int(group.spill.size * SPILL_SHARE) if group.spill and group.spill.size else None


def script(module: str, name: str) -> str:
    """Source of the file `name` next to a module's `__file__`. Places copy it to the engine's environment, where Oars
    is not installed: a script imports the standard library and the engine only, and no other script."""
    return Path(module).with_name(name).read_text(encoding="utf-8")


WEB_GUARD = script(__file__, "web_guard.py")
