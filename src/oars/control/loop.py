"""The loop: observe → look → decide → perform → status. One pass for one cluster; whoever owns it calls it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.base.text import listed
from oars.engines.base import Engine, Wire
from oars.model import (
    HEAD,
    Cause,
    Desired,
    Drain,
    Drained,
    Ensure,
    LoopState,
    MemberId,
    Observed,
    Remove,
    Shape,
    Step,
    View,
)
from oars.places.base import Place
from oars.plan.decide import decide, with_drain_reply
from oars.plan.status import status
from oars.plan.why import explain
from oars.spec.status import Status

LOOK_SECONDS = 5.0  # a head that does not answer in this time is not up
DRAIN_PAUSE = 1.0  # between two tries to drain the same worker

log = get_logger(__name__)


class Loop:
    """The one loop, for one cluster in one place."""

    def __init__(self, place: Place, engine: Engine, clock: Callable[[], float]) -> None:
        self._place = place
        self._engine = engine
        self._clock = clock
        self._draining: dict[MemberId, asyncio.Task[Sequence[Drained]]] = {}
        self._drain_again: dict[MemberId, float] = {}
        self._filled: tuple[Shape, Mapping[str, str]] | None = None
        self.status: Status | None = None
        self.causes: tuple[Cause, ...] = ()

    async def once(self, desired: Desired) -> float:
        """One pass; returns after how many seconds the next is due at the latest."""
        observed = await self._place.observe()
        observed = replace(observed, notes=self._with_drain_answers(observed.notes))
        view = self._without_draining(await self._look(observed))
        decision = decide(desired, observed, view, self._clock())
        observed = replace(observed, notes=decision.notes)
        endpoints = self._endpoints(desired, observed)
        await self._place.record(decision.notes)
        problems = await self._perform(decision.steps, desired)
        causes = (*problems, *explain(desired, observed, view))
        self.status, self.causes = status(desired, observed, view, causes, endpoints), causes
        await self._place.record(decision.notes, self.status, causes)
        return decision.again_after

    async def close(self) -> None:
        for task in self._draining.values():
            task.cancel()
        await asyncio.gather(*self._draining.values(), return_exceptions=True)

    def _endpoints(self, desired: Desired, observed: Observed) -> Mapping[str, str]:
        """Known as soon as the head has its ports, and the same until other ones are asked for."""
        if observed.member(HEAD) is None:
            return {}
        if self._filled is None or self._filled[0] != desired.shape:
            wire = self._place.wire()
            self._filled = desired.shape, {name: wire.fill(text) for name, text in desired.shape.endpoints.items()}
        return self._filled[1]

    async def _look(self, observed: Observed) -> View:
        head = observed.member(HEAD)
        if head is None or not head.answers:
            return View(message="the head is not ready")
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._engine.look(self._place.wire())
        except TimeoutError:
            return View(message=f"no answer within {LOOK_SECONDS:.0f} s")
        except OarsError as error:
            return View(message=error.message)

    def _without_draining(self, view: View) -> View:
        """One that is being emptied takes no work, also if it is wanted again or the engine has not begun with it."""
        if not self._draining:
            return view
        members = {m: replace(seen, ready=seen.ready and m not in self._draining) for m, seen in view.members.items()}
        return replace(view, members=members)

    async def _perform(self, steps: Sequence[Step], desired: Desired) -> tuple[Cause, ...]:
        """Carry out each step; one that fails does not keep the others from being tried, and is tried again."""
        problems = []
        for step in steps:
            try:
                await self._perform_one(step, desired)
            except (OarsError, OSError) as error:
                log.warning(pairs("step failed", step=type(step).__name__, error=error))
                problems.append(Cause("StepFailed", f"Could not {_in_words(step)}: {error}."))
        return tuple(problems)

    async def _perform_one(self, step: Step, desired: Desired) -> None:
        match step:
            case Ensure():
                await self._place.ensure(desired, step)
            case Remove():
                log.info(pairs("remove", members=listed(step.members), reason=step.reason))
                await self._place.remove(desired, step)
            case Drain():
                self._start_drains(step.members, desired)

    def _start_drains(self, members: Sequence[MemberId], desired: Desired) -> None:
        """In the background: a drain may take long, and healing must go on meanwhile."""
        now = self._clock()
        due = [m for m in members if m not in self._draining and self._drain_again.get(m, 0.0) <= now]
        if due:
            log.info(pairs("drain", members=listed(due)))
            task = asyncio.create_task(self._drain(self._place.wire(), due, desired))
            self._draining.update(dict.fromkeys(due, task))

    async def _drain(self, wire: Wire, members: Sequence[MemberId], desired: Desired) -> Sequence[Drained]:
        try:
            async with asyncio.timeout(desired.drain_seconds):
                return await self._engine.drain(wire, members, desired.force)
        except TimeoutError:
            waits_for = f"the engine did not hand over within {desired.drain_seconds:.0f} s"
        except OarsError as error:
            waits_for = error.message
        except Exception as error:  # a mistake of ours, or an engine's: the care for the cluster must go on
            log.exception(pairs("drain broke", cluster=desired.name))
            waits_for = f"its drain failed ({type(error).__name__})"
        return [Drained(member, desired.force, waits_for) for member in members]

    def _with_drain_answers(self, notes: LoopState) -> LoopState:
        """Fold in the answers of drains that have ended since the last pass."""
        for task in {task for task in self._draining.values() if task.done()}:
            for answer in task.result():
                notes = with_drain_reply(notes, answer.member, answer.done, answer.waits_for, self._clock())
            for member in [m for m, t in self._draining.items() if t is task]:
                del self._draining[member]
                self._drain_again[member] = self._clock() + DRAIN_PAUSE
        return notes


def _in_words(step: Step) -> str:
    match step:
        case Ensure():
            return f"start {', '.join(step.members)}"
        case Remove():
            return f"remove {', '.join(step.members)}"
        case Drain():
            return f"drain {', '.join(step.members)}"
