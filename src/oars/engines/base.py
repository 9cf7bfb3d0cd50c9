"""What an engine is. One folder each:

shape.py    pure: spec → roles, argv, environment, ports, endpoints      (in the control plane)
live.py     asks the running head: who is there, drain                   (in the control plane; no engine installed)
head_helper.py   a script run next to the head, in the engine's environment   (optional; stdlib and the engine only)
session.py  the user's side: connect, executor                           (in the user's Python; imports the engine)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from oars.base.errors import EngineUnreachable
from oars.model import Drained, MemberId, Needs, Shape, View

if TYPE_CHECKING:  # the user's half of an engine also runs in environments without pydantic
    from oars.spec.cluster import ClusterSpec


class Wire(Protocol):
    """The way to a running head, whatever the place."""

    @property
    def addresses(self) -> Mapping[MemberId, Mapping[str, str]]:
        """host:port of every member's ports by name, as the engine itself would write them."""

    @property
    def incarnations(self) -> Mapping[MemberId, str]:
        """The incarnation of every member that runs."""

    @property
    def answering(self) -> frozenset[MemberId]:
        """Members of which the place itself knows, by its own probes, that they answer."""

    def fill(self, text: str) -> str:
        """A template of the shape (endpoints, driver_env) with the head's values."""

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        """Ask the head's port of that name. Raises EngineUnreachable when there is no 2xx answer in time."""

    async def ask(self, script: str, request: Mapping[str, Any]) -> Any:
        """Have `script` (the engine's head_helper.py) answer a request next to the head.

        The script runs for as long as the head does, in its environment, with the head's env variables: it reads one
        JSON object a line from stdin and writes one a line to stdout, {"ok": …} or {"error": "…"}.
        Raises EngineUnreachable."""


class Engine(Protocol):
    """The control plane's half."""

    @property
    def name(self) -> str: ...

    @property
    def session(self) -> str:
        """Dotted name of the module with the user's half (see Session)."""

    def needs(self, spec: ClusterSpec) -> Needs: ...

    def check(self, spec: ClusterSpec) -> None:
        """Raise SpecError for what this engine cannot do."""

    def shape(self, spec: ClusterSpec) -> Shape: ...

    async def look(self, wire: Wire) -> View:
        """Who is there. Never raises for a head that is not up: View(up=False, message=…)."""

    async def drain(self, wire: Wire, members: Sequence[MemberId], force: bool) -> Sequence[Drained]:
        """Empty these workers: move what only they hold, let running work finish. May take a while (it runs beside the
        loop) but ends within about a minute; it is called again for those that were not done.
        A worker that could not be emptied (done=False, waits_for says why) is in service again as before.
        One that the engine does not know holds nothing: done. One that is done is not ready any more (see look): should
        it be so again before it could be removed, it is drained once more.
        force: stop it taking work, and done whatever it holds."""


@dataclass(frozen=True)
class Access:
    """What a client needs: the endpoint, and the environment that makes the engine's own words find it (it names the
    files of the secrets, never the secrets themselves)."""

    name: str
    engine: str
    address: str
    dashboard: str
    env: Mapping[str, str]
    dashboard_secret: str = ""  # the file with what the dashboard asks a person for, if it does


class Session(Protocol):
    """The user's half: a module with these functions."""

    connect: Callable[[Access], Any]
    """The engine's own client, connected."""
    disconnect: Callable[[Any], None]
    executor: Callable[[Access], Executor]


def waits_for(answer: Any, asked: Collection[str], stranger: str) -> Mapping[str, str]:
    """Who shall go → what it waits for. One that is missing is not there any more and may go: so nothing may be taken
    for an answer but the head's own, which speaks of nobody else. Raises EngineUnreachable with the word `stranger`."""
    if isinstance(answer, dict) and all(who in asked and isinstance(said, str) for who, said in answer.items()):
        return answer
    raise EngineUnreachable(stranger)
