"""What a place is: the verbs that the loop needs for one cluster. Every verb does what its name says and nothing else;
`oars.testing.PlaceContract` is the test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from oars.base.errors import OarsError
from oars.engines.base import Wire
from oars.model import Cause, Desired, Ensure, LoopState, Observed, Remove
from oars.places.report import Report


class Place(Protocol):
    """Members of one cluster: processes of a machine, pods of a namespace."""

    async def observe(self, desired: Desired) -> Observed:
        """What exists, and the recorded loop state. Reads only. Members of a group that differ from the desired
        revision of it are of the group `name@revision`."""

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        """Start what is missing of a group; return as soon as that is under way. Idempotent. Removes nothing, with one
        exception: a place may restart a head whose certificates expire or whose secrets are lost. May mark members
        that hold data, and protect them from disruptions. Raises PlaceError with the cause if it cannot be done."""

    async def remove(self, desired: Desired, step: Remove) -> Sequence[Cause]:
        """Remove these members, the head included; `observe` no longer lists them once they are gone. Returns what
        the removal still waits for; the loop asks again."""

    async def collect(self, desired: Desired) -> None:
        """Garbage collection: remove what earlier passes, or an earlier loop that died, left behind."""

    def wire(self, desired: Desired) -> Wire:
        """The way to the running head."""

    async def record(self, desired: Desired, state: LoopState, report: Report | None = None) -> None:
        """Store the loop state and publish the report, if they changed. Creates and removes nothing."""

    async def close(self) -> None:
        """Release connections and helpers; the members stay as they are."""


class PlaceError(OarsError):
    """A step that the place could not perform; `cause` explains it to the user."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message, cause.hint, cause.lines)
        self.cause = cause
