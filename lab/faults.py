"""Faults to come between a client and the apiserver, and the seeded script that deals them out.

Nothing here does input or output: a script is asked about one request after another and says
what shall happen to each. The same seed and the same requests give the same faults.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from lab.names import name_in

WRITES = frozenset(["create", "update", "patch", "delete", "deletecollection"])
STREAMS = frozenset(["log", "exec", "attach", "portforward", "proxy"])


@dataclass(frozen=True)
class Request:
    """What a request asks for, in Kubernetes' own words."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    agent: str = ""

    @property
    def writes(self) -> bool:
        """Whether it changes the cluster; running a command in a pod does not count."""
        return self.verb in WRITES and self.subresource not in STREAMS

    @property
    def streams(self) -> bool:
        """Whether its answer goes on and on."""
        return self.verb == "watch" or self.subresource in STREAMS


@dataclass(frozen=True)
class Pass:
    """No fault."""


@dataclass(frozen=True)
class Delay:
    """The request reaches the apiserver only after `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Drop:
    """The connection is closed without an answer; `applied`: after the apiserver has done it."""

    applied: bool = False


@dataclass(frozen=True)
class Answer:
    """The proxy answers itself: 409, 410, 429, 500 and the like."""

    status: int


@dataclass(frozen=True)
class EndWatch:
    """After `events` events a watch is cut, falls silent, or expires (410 as an event)."""

    events: int = 0
    how: Literal["cut", "silent", "expired"] = "cut"


@dataclass(frozen=True)
class Stale:
    """A read gets the answer that the last true read of the same path got."""


@dataclass(frozen=True)
class Die:
    """The client's last request: everything of it is refused from here on.

    `applied`: the apiserver still does it, but the client never hears of it.
    """

    applied: bool = True


Fault = Pass | Delay | Drop | Answer | EndWatch | Stale | Die


@dataclass(frozen=True)
class Rule:
    """Which requests a fault strikes; patterns as in file names."""

    fault: Fault
    verb: str = "*"
    resource: str = "*"
    name: str = "*"
    agent: str = "*"
    skip: int = 0
    times: int | None = None
    chance: float = 1.0

    def matches(self, request: Request) -> bool:
        """Whether this rule speaks of such a request."""
        verb_fits = request.writes if self.verb == "write" else fnmatchcase(request.verb, self.verb)
        return (
            verb_fits
            and fnmatchcase(request.resource, self.resource)
            and fnmatchcase(request.name, self.name)
            and fnmatchcase(request.agent, self.agent)
        )


def die_after(write: int, applied: bool = True) -> Rule:
    """The client dies at its n-th write, counted from 1."""
    return Rule(Die(applied), verb="write", skip=write - 1, times=1)


@dataclass
class Script:
    """Rules in order: the first one that strikes decides."""

    rules: Sequence[Rule] = ()
    seed: int = 0
    _seen: dict[int, int] = field(default_factory=dict)
    _struck: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def decide(self, request: Request) -> Fault:
        """What happens to this request."""
        for number, rule in enumerate(self.rules):
            if rule.matches(request) and self._strikes(number, rule):
                return rule.fault
        return Pass()

    def _strikes(self, number: int, rule: Rule) -> bool:
        seen = self._seen[number] = self._seen.get(number, 0) + 1
        struck = self._struck.get(number, 0)
        if seen <= rule.skip or (rule.times is not None and struck >= rule.times):
            return False
        # Drawn only when it matters, so that a sure rule does not shift the luck of the others.
        if rule.chance < 1 and self._random.random() >= rule.chance:
            return False
        self._struck[number] = struck + 1
        return True


def parse(method: str, target: str, agent: str = "", body: bytes = b"") -> Request:
    """Read a request as the apiserver would. A new object's name is in its body only."""
    url = urlsplit(target)
    query = parse_qs(url.query)
    parts = [part for part in url.path.split("/") if part]
    rest = _after_version(parts)
    if rest is None:
        return Request(method.lower(), url.path, agent=agent)
    namespace = ""
    # /namespaces/x/pods is something in x; /namespaces/x is x itself, as are its own subresources.
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = [*rest, "", "", ""][:3]
    verb = _verb(method, bool(name), query.get("watch", ["0"])[0] in ("1", "true"))
    if verb == "create" and not name:
        name = name_in(body)
    return Request(verb, resource, namespace, name, subresource, agent)


def _after_version(parts: list[str]) -> list[str] | None:
    """The path below the group and version, if it names a resource."""
    if parts[:1] == ["api"] and len(parts) > 2:
        return parts[2:]
    if parts[:1] == ["apis"] and len(parts) > 3:
        return parts[3:]
    return None


def _verb(method: str, named: bool, watching: bool) -> str:
    if method == "GET":
        return "watch" if watching else "get" if named else "list"
    if method == "DELETE":
        return "delete" if named else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())
