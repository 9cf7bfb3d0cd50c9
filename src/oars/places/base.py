"""What a place is: six verbs over one cluster, and what a front door must know to choose it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from oars.engines.base import Wire
from oars.model import Cause, Desired, Ensure, LoopState, MemberId, Observed, Remove
from oars.spec.status import Status


class Place(Protocol):
    """The loop's hands and eyes for one cluster."""

    async def observe(self) -> Observed:
        """What is there, and the notes of the last pass."""

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        """Start what is missing of a group; returns as soon as it is under way. Remembers before it acts."""

    async def remove(self, desired: Desired, step: Remove) -> None:
        """Take members away; returns when they are gone."""

    def wire(self) -> Wire:
        """The way to the running head."""

    def logs(self, member: MemberId, *, follow: bool = False, tail: int | None = None) -> AsyncIterator[str]:
        """Lines of a member's log."""

    async def record(self, notes: LoopState, status: Status | None = None, causes: tuple[Cause, ...] = ()) -> None:
        """Keep the notes and show status and causes; writes only what changed."""
