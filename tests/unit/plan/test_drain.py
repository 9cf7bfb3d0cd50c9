"""Workers that must leave although their group needs them, and clusters that finish their work before they end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oars.model import (
    Decision,
    Demand,
    Drain,
    DrainRequest,
    Ensure,
    MemberId,
    MemberState,
    Observed,
    Remove,
    Retiring,
    View,
)
from oars.plan.decide import decide, with_drain_reply
from oars.plan.empty import QUIET_SECONDS, empty, is_quiet
from oars.plan.why import draining
from tests.unit.plan.clusters import NOW, STEADY, desired, head, observe, view_of, worker

W0, W1, W2, W3 = (MemberId(f"worker-{n}") for n in range(4))
ALL = observe(head(), worker(0), worker(1), worker(2))


def ensured(decision: Decision) -> tuple[MemberId, ...]:
    return next(s.members for s in decision.steps if isinstance(s, Ensure) and s.group.name == "default")


def drained(decision: Decision) -> tuple[MemberId, ...]:
    return next((s.members for s in decision.steps if isinstance(s, Drain)), ())


def removed(decision: Decision) -> tuple[MemberId, ...]:
    return next((s.members for s in decision.steps if isinstance(s, Remove)), ())


class TestRequest:
    def test_worker_is_drained_and_its_successor_starts_at_once(self) -> None:
        wanted = replace(desired(), drain={W1: DrainRequest()})
        decision = decide(wanted, ALL, view_of(ALL), NOW)
        assert drained(decision) == (W1,) and not removed(decision)
        assert ensured(decision) == (W0, W2, W3, W1)

    def test_only_the_incarnation_that_was_meant_is_drained(self) -> None:
        for incarnation, leaves in (("3", True), ("2", False)):
            wanted = replace(desired(), drain={W1: DrainRequest(incarnation)})
            assert bool(drained(decide(wanted, ALL, view_of(ALL), NOW))) is leaves

    def test_head_is_never_drained(self) -> None:
        wanted = replace(desired(), drain={MemberId("head"): DrainRequest()})
        assert not drained(decide(wanted, ALL, view_of(ALL), NOW))

    def test_worker_that_must_leave_is_not_taken_back_when_workers_are_missing(self) -> None:
        state = replace(STEADY, retiring={W1: Retiring(NOW), W2: Retiring(NOW)})
        observed = replace(ALL, state=state)
        wanted = replace(desired(), drain={W1: DrainRequest()})
        decision = decide(wanted, observed, view_of(observed), NOW)
        assert set(decision.state.retiring) == {W1}
        assert decision.state.retiring[W1].reason == "its drain was requested"

    def test_drained_worker_is_removed_and_the_group_is_complete(self) -> None:
        wanted = replace(desired(), drain={W1: DrainRequest()})
        everyone = observe(head(), worker(0), worker(1), worker(2), worker(3))
        state = decide(wanted, everyone, view_of(everyone), NOW).state
        observed = replace(everyone, state=with_drain_reply(state, W1, True, "", NOW))
        assert removed(decide(wanted, observed, view_of(observed), NOW)) == (W1,)
        after = observe(head(), worker(0), worker(2), worker(3))
        decision = decide(wanted, after, view_of(after), NOW)
        assert set(ensured(decision)) == {W0, W2, W3} and not decision.state.retiring

    def test_force_applies_to_the_named_worker_only(self) -> None:
        wanted = replace(desired(), drain={W1: DrainRequest(force=True), W2: DrainRequest()})
        retiring = {W1: Retiring(NOW, drained=True), W2: Retiring(NOW, drained=True)}
        observed = replace(ALL, state=replace(STEADY, retiring=retiring))
        serving = view_of(ALL)  # the engine lists both: the one that is not forced must be drained again
        decision = decide(wanted, observed, serving, NOW)
        assert removed(decision) == (W1,) and drained(decision) == (W2,)
        assert removed(decide(wanted, observed, View(message="silent"), NOW)) == (W1,)

    def test_why_names_the_reason_and_the_command(self) -> None:
        retiring = {W1: Retiring(NOW, waits_for="2 results", reason="node-1 is cordoned"), W2: Retiring(NOW)}
        held, moving = draining("demo", "team", 3, retiring)
        assert held.message == (
            "worker-1 is replaced because node-1 is cordoned, and is kept until it is safe to remove: 2 results."
        )
        assert "`oars drain demo worker-1 --force -n team`" in held.hint
        assert moving.message == "worker-2 hands over its data before it is removed."


class TestDeparture:
    @pytest.mark.parametrize("is_doomed", [True, False])
    def test_departing_worker_is_drained_at_once_only_if_it_ends_soon(self, is_doomed: bool) -> None:
        leaving = replace(worker(1), departing="node-1 is cordoned", is_doomed=is_doomed)
        observed = observe(head(), worker(0), leaving, worker(2))
        decision = decide(desired(), observed, view_of(observed), NOW)
        assert drained(decision) == ((W1,) if is_doomed else ()) and W3 in ensured(decision)
        assert decision.state.retiring[W1].reason == "node-1 is cordoned"

    def test_worker_of_a_cordoned_node_is_drained_when_its_successor_serves(self) -> None:
        leaving = replace(worker(1), departing="node-1 is cordoned")
        observed = observe(head(), worker(0), leaving, worker(2), worker(3))
        observed = replace(observed, state=replace(STEADY, retiring={W1: Retiring(NOW, reason="node-1 is cordoned")}))
        assert drained(decide(desired(), observed, view_of(observed), NOW)) == (W1,)

    def test_worker_that_has_not_started_there_is_replaced_too(self) -> None:
        waiting = replace(worker(1, MemberState.WAITING), departing="node-1 is cordoned")
        observed = observe(head(), worker(0), waiting, worker(2))
        assert W3 in ensured(decide(desired(), observed, view_of(observed), NOW))

    def test_surplus_is_taken_from_those_that_leave_anyway(self) -> None:
        observed = observe(head(), replace(worker(0), departing="node-1 is cordoned"), worker(1), worker(2))
        decision = decide(desired(2), observed, view_of(observed), NOW)
        assert set(decision.state.retiring) == {W0}


WORK = View(up=True, demand=(Demand({"cpu": 1}, 3),))
REST = View(up=True, demand=())


class TestEmpty:
    @pytest.mark.parametrize(
        ("view", "quiet"),
        [
            (WORK, False),
            (REST, True),
            (View(up=True), True),  # the engine cannot tell
            (View(), False),
            (View(up=True, demand=(Demand({"cpu": 1}, 3, floor=True),)), True),
            (View(up=True, demand=(Demand({"cpu": 1}, 1, running=1),)), False),
        ],
    )
    def test_quiet_means_no_work(self, view: View, quiet: bool) -> None:
        assert is_quiet(view) is quiet

    def test_workers_stay_while_there_is_work(self) -> None:
        wanted = replace(desired(), drain_all=True)
        result = empty(wanted, WORK, 0.0)
        assert result.desired is wanted and "3 tasks" in result.causes[0].message
        assert empty(wanted, REST, QUIET_SECONDS / 2).desired is wanted

    def test_workers_leave_when_the_work_is_done(self) -> None:
        wanted = replace(desired(), drain_all=True)
        result = empty(wanted, REST, QUIET_SECONDS)
        decision = decide(result.desired, ALL, view_of(ALL), NOW)
        assert drained(decision) == (W0, W1, W2) and not result.causes
        held = replace(ALL, state=with_drain_reply(decision.state, W1, False, "1 result", NOW))
        assert not removed(decide(result.desired, held, view_of(held), NOW))

    def test_nothing_happens_without_a_request(self) -> None:
        assert empty(desired(), REST, 1000.0).desired == desired()
        stopped = replace(desired(), drain_all=True, running=False)
        assert empty(stopped, REST, 1000.0).desired is stopped


def test_nothing_of_a_finished_request_remains() -> None:
    """The request names an incarnation that is gone: a later worker of that name is left alone."""
    wanted = replace(desired(), drain={W0: DrainRequest("99")})
    observed: Observed = ALL
    assert not decide(wanted, observed, view_of(observed), NOW).state.retiring
