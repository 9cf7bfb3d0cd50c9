"""The engine interface. Each built-in engine is a package of these modules:

shape.py        pure: spec → roles, argv, environment, ports, endpoints      (control plane)
options.py      the model of the engine's own block in a spec                (control plane; pydantic)
live.py         queries the running head, drains workers                     (control plane; no engine installed)
head_plugin.py  code that runs inside the head                               (optional; stdlib and the engine only)
head_helper.py  a script that runs next to the head                          (optional; stdlib and the engine only)
launch.py       starts a member from a preloaded Python                      (optional; stdlib and the engine only)
session.py      connects a client and makes an executor                      (the user's Python; imports the engine)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from oars.base.errors import EngineUnreachable
from oars.model import Drained, MemberId, Needs, Shape, View

if TYPE_CHECKING:  # session.py also runs in environments without pydantic
    from oars.spec.cluster import ClusterSpec, Part

ASK_SECONDS = 120.0


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
        """Send a request to the head's port of that name. Raises EngineUnreachable without a 2xx reply in time."""

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


class Engine(Protocol):
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

    async def look(self, wire: Wire) -> View:
        """Return the head's view of its members. Never writes. Returns View(up=False, message=…) for a head that is
        not up."""

    async def reconcile(self, wire: Wire, view: View) -> None:
        """Correct the engine's own records of members that are gone or back. May write. Called after each `look` that
        found the head up."""
        return None

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        """Move what only these workers hold, and let running work finish, in at most `deadline` seconds.

        It runs in the background and is called again for workers that were not done. A worker that could not be
        drained (done=False, waits_for says why) is in service again when its deadline has passed. A worker that the
        engine does not know holds nothing and is done. A worker that is done is not ready (see look): if it becomes
        ready again before it is removed, it is drained again.
        force: take the workers out of service and report them done, whatever they hold."""


@dataclass(frozen=True)
class Access:
    """What a client needs: the endpoint, and the environment with which the engine's own API finds the cluster. The
    environment names the files of secrets and never contains a secret."""

    name: str
    engine: str
    address: str
    dashboard: str
    env: Mapping[str, str]
    dashboard_secret: str = ""  # the file with the secret that the dashboard prompts for, if it does


class Session(Protocol):
    """The user's part of an engine: a module with these functions."""

    connect: Callable[[Access], Any]
    """The engine's own client, connected."""
    disconnect: Callable[[Any], None]
    executor: Callable[[Access], Executor]


def drained(members: Sequence[MemberId], waits_for: Mapping[str, str]) -> list[Drained]:
    """The result of a drain: a member that waits for nothing is done."""
    return [Drained(member, not waits_for.get(member), waits_for.get(member, "")) for member in members]


def obstacles(reply: Any, requested: Collection[str], error: str) -> Mapping[str, str]:
    """Check the reply to a drain request: worker → what it waits for.

    A worker that the reply omits is unknown to the head and may be removed. So a reply that is not the head's own must
    never be accepted: raises EngineUnreachable(error) unless the reply names requested workers only."""
    if isinstance(reply, dict) and all(name in requested and isinstance(text, str) for name, text in reply.items()):
        return reply
    raise EngineUnreachable(error)


def script(module: str, name: str) -> str:
    """Source of the file `name` next to a module's `__file__`. Places copy it to the engine's environment, where Oars
    is not installed: a script imports the standard library and the engine only, and no other script."""
    return Path(module).with_name(name).read_text(encoding="utf-8")
