"""The loop: observe → look → scale → decide → perform → status. One pass for one cluster; the runner calls it again."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.base.text import join_names
from oars.engines.base import LiveEngine, Wire, checked
from oars.model import (
    HEAD,
    Cause,
    Desired,
    Drain,
    Drained,
    DrainOutcome,
    Ensure,
    LoopState,
    MemberId,
    MemberState,
    Observed,
    Pace,
    Pause,
    Remove,
    Role,
    Shape,
    Step,
    Unservable,
    View,
)
from oars.places.base import Place, PlaceError
from oars.places.report import Report
from oars.plan.autoscale import LOOK, Memory
from oars.plan.decide import decide, is_forced, with_drain_reply
from oars.plan.empty import empty, is_quiet
from oars.plan.lifetime import Outlook, outlook
from oars.plan.scale import scale, with_targets
from oars.plan.status import failed, status
from oars.plan.why import explain
from oars.spec.status import Phase, Status

LOOK_SECONDS = 5.0  # a head that does not answer in this time is not up
# Between two attempts to drain the same worker: an engine that refuses would otherwise be asked in every pass, which at
# the pace of local processes is ten times per second.
DRAIN_PAUSE = 1.0
# Requests to drain at a time; members that become due meanwhile share the next one. An engine may need a process for
# each, and must be able to answer a look as well.
MAX_DRAINS = 3
MAX_DOUBLINGS = 10  # of the pause after looks without an answer; the place's pace limits it
DOUBT_SECONDS = 10.0  # after the first answer of a head that was there before the loop
HOLD_SECONDS, RELEASE_SECONDS = 5.0, 30.0  # after which a worker counts as one that holds data, or no longer does
REPORT_SECONDS = 30.0  # between two reports of the same demand that no group can serve
DRAIN_SLACK = 10.0  # seconds beyond the deadline until an engine that keeps silent is given up

log = get_logger(__name__)


@dataclass(frozen=True)
class _Held:
    """Whether a worker holds data, since when, and what of it is settled."""

    holds: bool
    since: float
    settled: bool | None = None


class Loop:
    """The one loop, for one cluster in one place. It waits for the engine within `waiting`: a head that does not answer
    must not keep a worker of the runner from other clusters."""

    def __init__(
        self,
        place: Place,
        engine: LiveEngine,
        clock: Callable[[], float],
        waiting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self._place = place
        self._engine = engine
        self._clock = clock
        self._waiting = waiting
        self._silent = 0  # looks in a row without an answer in time
        self._scaling = Memory()
        self._draining: dict[MemberId, asyncio.Task[Sequence[Drained]]] = {}
        # These live in memory only and are monotonic: a step of the wall clock must not delay drains or kill workers.
        self._next_drain: dict[MemberId, float] = {}
        self._unlisted_since: dict[tuple[MemberId, str], float] = {}
        self._held: dict[MemberId, _Held] = {}
        self._head: str | None = None  # incarnation of the running head; empty: none runs; None: not observed yet
        self._joined: Set[tuple[MemberId, str]] = set()  # workers that it has listed
        self._in_doubt_until = math.inf  # any worker may have joined it
        self._has_answered = False
        self._quiet_since: float | None = None  # since when the engine has had no work
        self._reported: tuple[frozenset[object], float] = (
            frozenset(),
            0.0,
        )  # kinds of demand that no group can serve, and when
        self._filled: tuple[Shape, Mapping[str, str]] | None = None
        self._state: LoopState | None = None  # as last read or recorded
        # The status as of the last decision, for given causes: a pass that fails later must not show older members.
        self._status: Callable[[tuple[Cause, ...]], Status] | None = None
        self.report: Report | None = None
        self.outlook = Outlook()  # on the end of the cluster; the caller acts on it

    async def once(self, desired: Desired) -> Pause:
        """One pass."""
        before = self._state.scaling if self._state is not None else {}
        observed = await self._place.observe(with_targets(desired, before))
        self._state = observed.state
        observed = replace(observed, state=self._with_drain_replies(observed.state))
        view = await self._look(desired, observed)
        now = self._clock()
        joined = self._with_joined(observed, view)
        view = replace(
            view,
            draining=self._under_drain(),
            unlisted=self._unlisted(observed, view),
            holding=self._holding(view),
            joined=joined,
            has_answered=self._has_answered,
        )
        self.outlook = outlook(desired, view, self.outlook.expires, now)
        self._quiet_since = (self._quiet_since or now) if is_quiet(view) else None
        emptying = empty(desired, view, 0.0 if self._quiet_since is None else now - self._quiet_since)
        scaled = scale(emptying.desired, observed, view, self._scaling, now)
        self._scaling = scaled.memory
        desired, observed = scaled.desired, replace(observed, state=scaled.state)
        decision = decide(desired, observed, view, now)
        self._state = decision.state
        desired = replace(desired, head_epoch=decision.state.head_epoch)
        observed = replace(observed, state=decision.state)
        summarize = partial(
            status, desired, observed, view, endpoints=self._endpoints(desired, observed), choices=scaled.groups,
            expires=self.outlook.expires,
        )  # fmt: skip
        self._status = summarize
        await self._place.record(desired, decision.state)
        if view.up:
            await self._reconcile_engine(desired, replace(view, unservable=self._to_report(scaled.unservable)))
        causes = await self._perform(decision.steps, desired)
        causes += (*emptying.causes, *explain(desired, observed, view), *scaled.causes)
        report = Report(summarize(causes), causes)
        await self._place.record(desired, decision.state, report)
        self.report = report
        soon, pause = min(scaled.pause, emptying.pause, self.outlook.pause), decision.pause
        if soon < pause.seconds:  # limited, unless work waits for a decision
            pause = Pause(soon, limited=soon >= LOOK, is_look=True)
        return self._longer_after_silence(pause, observed.pace)

    def _longer_after_silence(self, pause: Pause, pace: Pace) -> Pause:
        """A head that did not answer in time is asked again later each time: every look occupies a connection."""
        if not self._silent:
            return pause
        later = pace.soon * 2.0 ** min(self._silent, MAX_DOUBLINGS)
        return replace(pause, seconds=max(pause.seconds, min(later, pace.resting)))

    async def report_failure(self, desired: Desired, cause: Cause) -> None:
        """Publish that a pass failed."""
        nothing = Status(desired.name, desired.engine, desired.place, Phase.PENDING)
        last = self._status((cause,)) if self._status is not None else nothing
        before = replace(last, mode=desired.mode, namespace=desired.namespace)
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
        silent, self._silent = self._silent, 0
        if head is None or not head.probe_ready:
            return View(message="the head is not ready")
        try:
            async with self._waiting(), asyncio.timeout(LOOK_SECONDS):
                return checked(await self._engine.look(self._place.wire(desired)))
        except TimeoutError:
            self._silent = silent + 1
            return View(message=f"no answer within {LOOK_SECONDS:.0f} s")
        except OarsError as error:
            return View(message=error.message)
        except Exception as error:  # an unexpected error in an engine must not stop healing
            log.exception(pairs("look raised", cluster=desired.name))
            return View(message=f"{type(error).__name__}: {error}")

    async def _reconcile_engine(self, desired: Desired, view: View) -> None:
        """Failures are logged only: the engine's own records do not decide whether members are ready."""
        try:
            async with self._waiting(), asyncio.timeout(LOOK_SECONDS):
                await self._engine.reconcile(self._place.wire(desired), view)
        except (TimeoutError, OarsError) as error:
            log.warning(pairs("engine not reconciled", cluster=desired.name, error=error or "timeout"))
        except Exception:  # an unexpected error in an engine must not stop healing
            log.exception(pairs("engine.reconcile raised", cluster=desired.name))

    def _to_report(self, found: tuple[Unservable, ...]) -> tuple[Unservable, ...] | None:
        """Repeated for clients that connect later, and for new work of the same kind."""
        now = time.monotonic()
        kinds = frozenset((tuple(sorted(each.demand.needs.items())), each.demand.labels) for each in found)
        if kinds == self._reported[0] and not (kinds and now - self._reported[1] > REPORT_SECONDS):
            return None
        self._reported = kinds, now
        return found

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
        now = time.monotonic()
        free = [m for m in members if m not in self._draining and self._next_drain.get(m, now) <= now]
        for force in (True, False):
            due = [member for member in free if is_forced(desired, member) is force]
            if due and len(set(self._draining.values())) < MAX_DRAINS:
                log.info(pairs("drain", members=join_names(due)))
                task = asyncio.create_task(self._drain(self._place.wire(desired), due, desired, force))
                self._draining.update(dict.fromkeys(due, task))

    async def _drain(self, wire: Wire, members: Sequence[MemberId], desired: Desired, force: bool) -> Sequence[Drained]:
        """`spec.drain.timeout` is the engine's deadline for this attempt; a worker that is not done is in service again
        and is asked again."""
        deadline = desired.drain_timeout
        try:
            async with asyncio.timeout(deadline + DRAIN_SLACK):
                return await self._engine.drain(wire, members, deadline, force)
        except TimeoutError:
            waits_for = f"the engine did not hand over its data within {deadline:.0f} s"
        except OarsError as error:
            waits_for = error.message
        except Exception as error:  # an unexpected error in an engine must not stop reconciliation
            log.exception(pairs("drain raised", cluster=desired.name))
            waits_for = f"its drain failed ({type(error).__name__})"
        outcome = DrainOutcome.FINISHED if force else DrainOutcome.REFUSED
        return [Drained(member, outcome, waits_for) for member in members]

    def _under_drain(self) -> frozenset[MemberId]:
        """Those that an attempt to drain is under way for, or whose next attempt is due any moment."""
        now = time.monotonic()
        self._next_drain = {member: due for member, due in self._next_drain.items() if now < due + DRAIN_PAUSE}
        return frozenset((*self._draining, *self._next_drain))

    def _unlisted(self, observed: Observed, view: View) -> dict[MemberId, float]:
        """How long the head has not listed workers that run. Unknown while it does not answer, and counted from zero
        by a new loop."""
        if not view.up:
            self._unlisted_since.clear()
            return {}
        now = time.monotonic()
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

    def _with_joined(self, observed: Observed, view: View) -> frozenset[MemberId]:
        """See View.joined."""
        now = time.monotonic()
        head = observed.member(HEAD)
        present = head.incarnation if head is not None and head.state is MemberState.RUNNING else ""
        if present != self._head:
            # Nobody has joined a head that has just started. The first looks at another one may miss somebody.
            self._joined, self._in_doubt_until = set(), 0.0 if self._head == "" else math.inf
            self._head, self._has_answered = present, False
        workers = (m for m in observed.members if m.role is Role.WORKER and m.state is MemberState.RUNNING)
        running = {(member.id, member.incarnation) for member in workers}
        if view.up:
            listed = {(m, i) for m, i in running if m in view.members and view.members[m].incarnation in ("", i)}
            self._joined, self._has_answered = running & (listed | self._joined), True
            self._in_doubt_until = min(self._in_doubt_until, now + DOUBT_SECONDS)
        return frozenset(member for member, _ in (running if now < self._in_doubt_until else self._joined))

    def _holding(self, view: View) -> Mapping[MemberId, bool]:
        """See View.holding. Nothing is known of a worker that this loop has not watched for long enough: each change of
        what is known costs a write. Nothing changes while the head does not answer."""
        if view.up:
            now, before, self._held = time.monotonic(), self._held, {}
            for member, reported in view.members.items():
                holds = reported.held > 0 or reported.pinned
                known = before.get(member, _Held(holds, now))
                since = known.since if known.holds is holds else now
                is_settled = now - since >= (HOLD_SECONDS if holds else RELEASE_SECONDS)
                self._held[member] = _Held(holds, since, holds if is_settled else known.settled)
        return {member: held.settled for member, held in self._held.items() if held.settled is not None}

    def _with_drain_replies(self, state: LoopState) -> LoopState:
        """Fold in the replies of drains that have ended since the last pass. A reply for a worker that was not to be
        drained is ignored."""
        for task in {task for task in self._draining.values() if task.done()}:
            members = [m for m, t in self._draining.items() if t is task]
            for member in members:
                del self._draining[member]
                self._next_drain[member] = time.monotonic() + DRAIN_PAUSE
            for reply in () if task.cancelled() else [each for each in task.result() if each.member in members]:
                state = with_drain_reply(state, reply.member, reply.done, reply.waits_for, self._clock())
                if reply.done:
                    log.info(pairs("drained", member=reply.member, outcome=reply.outcome))
                    self._next_drain.pop(reply.member, None)
        return state


def _in_words(step: Step | None) -> str:
    if step is None:
        return "remove leftovers"
    verb = "start" if isinstance(step, Ensure) else type(step).__name__.lower()
    return f"{verb} {join_names(step.members)}"
