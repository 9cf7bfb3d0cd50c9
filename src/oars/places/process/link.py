"""Link: how the members on this machine and those on other machines find each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oars.model import Role


@dataclass(frozen=True)
class Link:
    """A cluster over several machines, seen from one of them. The head's machine listens for the others at `join`."""

    role: Role  # what runs on this machine: HEAD or WORKER
    join: str  # host:port
    host: str  # the address of this machine that members bind to and are reached at
    ports: Mapping[str, int] = field(default_factory=dict)  # fixed port numbers of this machine's members, by name
    spec_digest: str = ""  # for workers: of the head's spec that this machine's members were planned for
