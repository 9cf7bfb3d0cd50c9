"""Faults between a client and the API server, and the seeded script that chooses them.

This module does no input or output: a script chooses a fault for each request. The same seed and the same requests
give the same faults.
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
    """A request in Kubernetes' terms."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    agent: str = ""

    @property
    def writes(self) -> bool:
        """True if it modifies the cluster; exec in a pod does not count."""
        return self.verb in WRITES and self.subresource not in STREAMS

    @property
    def streams(self) -> bool:
        """True if the response is a stream."""
        return self.verb == "watch" or self.subresource in STREAMS


@dataclass(frozen=True)
class Pass:
    """No fault."""


@dataclass(frozen=True)
class Delay:
    """Forward the request after `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Drop:
    """Close the connection without a response; if `applied`, after the API server has handled the request."""

    applied: bool = False


@dataclass(frozen=True)
class Answer:
    """Respond with this status without asking the API server."""

    status: int


@dataclass(frozen=True)
class EndWatch:
    """After `events` events cut the watch, send nothing more, or send a 410 event (expired)."""

    events: int = 0
    how: Literal["cut", "silent", "expired"] = "cut"


@dataclass(frozen=True)
class Stale:
    """Repeat the response to the previous read of the same path."""


@dataclass(frozen=True)
class Die:
    """Refuse everything from the client from this request on, as if it had died.

    If `applied`, the API server still handles this request, but the client gets no response.
    """

    applied: bool = True


@dataclass(frozen=True)
class DieOnChange:
    """As `Die(applied=True)`, but only if this write changes an object. Otherwise the client gets the response."""


Fault = Pass | Delay | Drop | Answer | EndWatch | Stale | Die | DieOnChange


@dataclass(frozen=True)
class Rule:
    """The requests that get a fault; fields are file name patterns."""

    fault: Fault
    verb: str = "*"
    resource: str = "*"
    name: str = "*"
    agent: str = "*"
    skip: int = 0
    times: int | None = None
    chance: float = 1.0

    def matches(self, request: Request) -> bool:
        """True if the request matches the rule's patterns."""
        verb_fits = request.writes if self.verb == "write" else fnmatchcase(request.verb, self.verb)
        return (
            verb_fits
            and fnmatchcase(request.resource, self.resource)
            and fnmatchcase(request.name, self.name)
            and fnmatchcase(request.agent, self.agent)
        )


def die_after(write: int, applied: bool = True) -> Rule:
    """Return a rule that lets the client die at its n-th write, counted from 1."""
    return Rule(Die(applied), verb="write", skip=write - 1, times=1)


@dataclass
class Script:
    """Rules in order: the first one that applies chooses the fault."""

    rules: Sequence[Rule] = ()
    seed: int = 0
    _seen: dict[int, int] = field(default_factory=dict)
    _struck: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def decide(self, request: Request) -> Fault:
        """Choose the fault for a request."""
        for number, rule in enumerate(self.rules):
            if rule.matches(request) and self._strikes(number, rule):
                return rule.fault
        return Pass()

    def _strikes(self, number: int, rule: Rule) -> bool:
        seen = self._seen[number] = self._seen.get(number, 0) + 1
        struck = self._struck.get(number, 0)
        if seen <= rule.skip or (rule.times is not None and struck >= rule.times):
            return False
        # Draw a random number only if needed, so that rules without a chance do not change the sequence.
        if rule.chance < 1 and self._random.random() >= rule.chance:
            return False
        self._struck[number] = struck + 1
        return True


def parse(method: str, target: str, agent: str = "", body: bytes = b"") -> Request:
    """Parse a request as the API server does. The name of a new object is in the body only."""
    url = urlsplit(target)
    query = parse_qs(url.query)
    parts = [part for part in url.path.split("/") if part]
    rest = _after_version(parts)
    if rest is None:
        return Request(method.lower(), url.path, agent=agent)
    namespace = ""
    # /namespaces/x/pods is a resource in x; /namespaces/x and its subresources are the namespace itself.
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = [*rest, "", "", ""][:3]
    verb = _verb(method, bool(name), query.get("watch", ["0"])[0] in ("1", "true"))
    if verb == "create" and not name:
        name = name_in(body)
    return Request(verb, resource, namespace, name, subresource, agent)


def _after_version(parts: list[str]) -> list[str] | None:
    """Return the part of the path below group and version, or nothing if it names no resource."""
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
