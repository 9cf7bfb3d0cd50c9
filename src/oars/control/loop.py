"""The loop: observe → look → scale → decide → perform → status. One pass for one cluster; the runner calls it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.base.text import join_names
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
    MemberState,
    Observed,
    Pause,
    Remove,
    Role,
    Shape,
    Step,
    View,
)
from oars.places.base import Place, PlaceError
from oars.places.report import Report
from oars.plan.decide import decide, with_drain_reply
from oars.plan.status import failed, status
from oars.plan.why import explain
from oars.spec.status import Phase, Status

LOOK_SECONDS = 5.0  # a head that does not answer in this time is not up
# Between two attempts to drain the same worker: an engine that refuses would otherwise be asked in every pass, which at
# the pace of local processes is ten times per second.
DRAIN_PAUSE = 1.0
DRAIN_SLACK = 10.0  # seconds beyond the deadline until an engine that keeps silent is given up

log = get_logger(__name__)

Scale = Callable[[Desired, View, LoopState, float], Desired]


def _as_desired(desired: Desired, view: View, state: LoopState, now: float) -> Desired:
    return desired


class Loop:
    """The one loop, for one cluster in one place. `scale` may change the number of workers before `decide`."""

    def __init__(self, place: Place, engine: Engine, clock: Callable[[], float], scale: Scale = _as_desired) -> None:
        self._place = place
        self._engine = engine
        self._clock = clock
        self._scale = scale
        self._draining: dict[MemberId, asyncio.Task[Sequence[Drained]]] = {}
        self._next_drain: dict[MemberId, float] = {}
        self._unlisted_since: dict[tuple[MemberId, str], float] = {}
        self._filled: tuple[Shape, Mapping[str, str]] | None = None
        self._state: LoopState | None = None  # as last read or recorded
        self.report: Report | None = None

    async def once(self, desired: Desired) -> Pause:
        """One pass."""
        observed = await self._place.observe(desired)
        self._state = observed.state
        observed = replace(observed, state=self._with_drain_replies(observed.state))
        view = await self._look(desired, observed)
        now = self._clock()
        view = replace(view, draining=self._under_drain(now), unlisted=self._unlisted(observed, view))
        desired = self._scale(desired, view, observed.state, now)
        decision = decide(desired, observed, view, now)
        self._state = decision.state
        desired = replace(desired, head_epoch=decision.state.head_epoch)
        observed = replace(observed, state=decision.state)
        endpoints = self._endpoints(desired, observed)
        await self._place.record(desired, decision.state)
        causes = await self._perform(decision.steps, desired)
        causes += explain(desired, observed, view)
        report = Report(status(desired, observed, view, causes, endpoints), causes)
        await self._place.record(desired, decision.state, report)
        self.report = report
        return decision.pause

    async def report_failure(self, desired: Desired, cause: Cause) -> None:
        """Publish that a pass failed."""
        nothing = Status(desired.name, desired.engine, desired.place, Phase.PENDING)
        before = replace(self.report.status if self.report else nothing, mode=desired.mode, namespace=desired.namespace)
        self.report = Report(failed(before, cause, desired.generation), (cause,))
        if self._state is not None:  # else the recorded state could not be read, and must not be overwritten
            await self._place.record(desired, self._state, self.report)

    async def close(self) -> None:
        for task in self._draining.values():
            task.cancel()
        await asyncio.gather(*self._draining.values(), return_exceptions=True)

    def _endpoints(self, desired: Desired, observed: Observed) -> Mapping[str, str]:
        """Known as soon as the head has its ports, and constant until the shape changes."""
        if observed.member(HEAD) is None:
            return {}
        if self._filled is None or self._filled[0] != desired.shape:
            wire = self._place.wire(desired)
            self._filled = desired.shape, {name: wire.fill(text) for name, text in desired.shape.endpoints.items()}
        return self._filled[1]

    async def _look(self, desired: Desired, observed: Observed) -> View:
        head = observed.member(HEAD)
        if head is None or not head.probe_ready:
            return View(message="the head is not ready")
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                wire = self._place.wire(desired)
                view = await self._engine.look(wire)
                if view.up:
                    await self._engine.reconcile(wire, view)
                return view
        except TimeoutError:
            return View(message=f"no answer within {LOOK_SECONDS:.0f} s")
        except OarsError as error:
            return View(message=error.message)
        except Exception as error:  # an unexpected error in an engine must not stop healing
            log.exception(pairs("look raised", cluster=desired.name))
            return View(message=f"{type(error).__name__}: {error}")

    async def _perform(self, steps: Sequence[Step], desired: Desired) -> tuple[Cause, ...]:
        """Perform each step, then collect garbage. A step that fails does not keep the others from being tried, but
        without a head no workers are started."""
        causes: list[Cause] = []
        no_head = False
        for step in (*steps, None):
            if isinstance(step, Ensure) and no_head:
                continue
            try:
                causes += await self._perform_one(step, desired)
                continue
            except PlaceError as error:
                log.warning(pairs("step failed", cluster=desired.name, step=_in_words(step), error=error.message))
                causes.append(error.cause)
            except (OarsError, OSError) as error:
                log.warning(pairs("step failed", cluster=desired.name, step=_in_words(step), error=error))
                causes.append(Cause("StepFailed", f"Could not {_in_words(step)}: {error}."))
            no_head = no_head or (isinstance(step, Ensure) and step.group.role is Role.HEAD)
        return tuple(causes)

    async def _perform_one(self, step: Step | None, desired: Desired) -> Sequence[Cause]:
        match step:
            case Ensure():
                await self._place.ensure(desired, step)
            case Remove():
                log.info(pairs("remove", members=join_names(step.members), reason=step.reason))
                return await self._place.remove(desired, step)
            case Drain():
                self._start_drains(step.members, desired)
            case None:
                await self._place.collect(desired)
        return ()

    def _start_drains(self, members: Sequence[MemberId], desired: Desired) -> None:
        """In the background: a drain may take long, and healing must continue meanwhile."""
        now = self._clock()
        due = [m for m in members if m not in self._draining and self._next_drain.get(m, 0.0) <= now]
        if due:
            log.info(pairs("drain", members=join_names(due)))
            task = asyncio.create_task(self._drain(self._place.wire(desired), due, desired))
            self._draining.update(dict.fromkeys(due, task))

    async def _drain(self, wire: Wire, members: Sequence[MemberId], desired: Desired) -> Sequence[Drained]:
        """`spec.drain.timeout` is the engine's deadline for this attempt; a worker that is not done is in service again
        and is asked again."""
        deadline = desired.drain_timeout
        try:
            async with asyncio.timeout(deadline + DRAIN_SLACK):
                return await self._engine.drain(wire, members, deadline, desired.force)
        except TimeoutError:
            waits_for = f"the engine did not hand over its data within {deadline:.0f} s"
        except OarsError as error:
            waits_for = error.message
        except Exception as error:  # an unexpected error in an engine must not stop reconciliation
            log.exception(pairs("drain raised", cluster=desired.name))
            waits_for = f"its drain failed ({type(error).__name__})"
        return [Drained(member, desired.force, waits_for) for member in members]

    def _under_drain(self, now: float) -> frozenset[MemberId]:
        """Those that an attempt to drain is under way for, or whose next attempt is due any moment."""
        paused = {member for member, due in self._next_drain.items() if now < due + DRAIN_PAUSE}
        return frozenset(self._draining) | paused

    def _unlisted(self, observed: Observed, view: View) -> dict[MemberId, float]:
        """How long the head has not listed workers that run. Unknown while it does not answer, and counted from zero
        by a new loop."""
        if not view.up:
            self._unlisted_since.clear()
            return {}
        now = time.monotonic()  # it lives in memory only: a step of the wall clock must not kill workers
        missing = {
            (member.id, member.incarnation)
            for member in observed.members
            if member.role is Role.WORKER
            and member.state is MemberState.RUNNING
            and member.id not in view.members
            and member.id not in observed.state.retiring
            and member.id not in self._draining
        }
        self._unlisted_since = {each: self._unlisted_since.get(each, now) for each in missing}
        return {member: now - since for (member, _), since in self._unlisted_since.items()}

    def _with_drain_replies(self, state: LoopState) -> LoopState:
        """Fold in the replies of drains that have ended since the last pass."""
        for task in {task for task in self._draining.values() if task.done()}:
            for member in [m for m, t in self._draining.items() if t is task]:
                del self._draining[member]
                self._next_drain[member] = self._clock() + DRAIN_PAUSE
            for reply in () if task.cancelled() else task.result():
                state = with_drain_reply(state, reply.member, reply.done, reply.waits_for, self._clock())
                if reply.done:
                    self._next_drain.pop(reply.member, None)
        return state


def _in_words(step: Step | None) -> str:
    if step is None:
        return "remove leftovers"
    verb = "start" if isinstance(step, Ensure) else type(step).__name__.lower()
    return f"{verb} {join_names(step.members)}"
