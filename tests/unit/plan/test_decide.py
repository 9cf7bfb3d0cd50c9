"""decide, as tables: what is there and what shall be → the steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oars.model import (
    HEAD,
    Drain,
    Ensure,
    Failure,
    LoopState,
    MemberId,
    MemberState,
    MemberView,
    Observed,
    Remove,
    Retiring,
    Role,
    Step,
    View,
)
from oars.plan import decide as module
from oars.plan.decide import decide, ready, with_drain_reply
from tests.unit.plan.clusters import NOW, desired, head, view_of, worker

NOTHING_NOTED = LoopState()
BUSY, IDLE, HOLDS = MemberView(True), MemberView(True, idle=3.0), MemberView(True, idle=3.0, held=5)
W0, W1, W2, W3 = (MemberId(f"worker-{n}") for n in range(4))


def steps_of(observed: Observed, view: View | None = None, **wanted: object) -> tuple[Step, ...]:
    return decide(replace(desired(), **wanted), observed, view or view_of(observed), NOW).steps  # type: ignore[arg-type]


def names(step: Step) -> tuple[MemberId, ...]:
    return step.members


def test_from_nothing_everything_starts_at_once() -> None:
    first, second = steps_of(Observed())
    assert isinstance(first, Ensure) and names(first) == (HEAD,)
    assert isinstance(second, Ensure) and names(second) == (W0, W1, W2)


def test_at_rest_nothing_is_done() -> None:
    observed = Observed((head(), worker(0), worker(1), worker(2)))
    decision = decide(desired(), observed, view_of(observed), NOW)
    assert decision.steps == ()
    assert decision.notes == LoopState()
    assert decision.again_after == module.RESTING


def test_missing_workers_get_the_lowest_free_names() -> None:
    (step,) = steps_of(Observed((head(), worker(1))))
    assert isinstance(step, Ensure) and set(names(step)) == {W0, W1, W2}


def test_a_dead_worker_is_started_again_at_once_and_its_death_remembered() -> None:
    dead = worker(1, MemberState.EXITED, reason="was killed by SIGKILL", tail=("last words",))
    observed = Observed((head(), worker(0), dead, worker(2)))
    decision = decide(desired(), observed, view_of(observed), NOW)
    (step,) = decision.steps
    assert isinstance(step, Ensure) and W1 in names(step)
    failure = decision.notes.failures[W1]
    assert (failure.count, failure.until, failure.reason, failure.tail) == (
        1, NOW, "was killed by SIGKILL", ("last words",),
    )  # fmt: skip


@pytest.mark.parametrize(("deaths", "pause"), [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (30, 60.0)])
def test_one_that_keeps_dying_waits_longer_each_time(deaths: int, pause: float) -> None:
    before = Failure(deaths, NOW - 1, NOW - 1, "old", "ended")
    dead = replace(worker(1, MemberState.EXITED), started=NOW - 0.5)
    observed = Observed((head(), worker(0), dead, worker(2)), LoopState(failures={W1: before}))
    decision = decide(desired(), observed, view_of(observed), NOW)
    assert decision.steps == ()
    assert decision.notes.failures[W1].until == NOW + pause
    later = replace(observed, notes=decision.notes)
    (step,) = decide(desired(), later, view_of(later), NOW + pause).steps
    assert isinstance(step, Ensure) and W1 in names(step)


def test_after_a_good_while_deaths_are_counted_anew() -> None:
    before = Failure(5, NOW - 100, NOW - 90, "old", "ended")
    dead = replace(worker(1, MemberState.EXITED), started=NOW - module.STABLE - 1)
    observed = Observed((head(), worker(0), dead, worker(2)), LoopState(failures={W1: before}))
    assert decide(desired(), observed, view_of(observed), NOW).notes.failures[W1].count == 1


def test_deaths_long_past_are_forgotten() -> None:
    old = Failure(1, NOW - module.REMEMBER - 1, 0.0, "1", "ended")
    observed = Observed((head(), worker(0), worker(1), worker(2)), LoopState(failures={W1: old}))
    assert decide(desired(), observed, view_of(observed), NOW).notes.failures == {}


def test_a_lost_head_takes_its_workers_along() -> None:
    observed = Observed((head(MemberState.EXITED), worker(0), worker(1), worker(2)))
    decision = decide(desired(), observed, View(), NOW)
    start, remove, again = decision.steps
    assert isinstance(start, Ensure) and names(start) == (HEAD,)
    assert isinstance(remove, Remove) and names(remove) == (W0, W1, W2) and remove.grace == 0.0
    assert isinstance(again, Ensure) and set(names(again)) == {W0, W1, W2}
    assert set(decision.notes.failures) == {HEAD}


def test_workers_that_die_of_the_head_s_death_are_not_blamed() -> None:
    observed = Observed((replace(head(), incarnation="9"), worker(0, MemberState.EXITED), worker(1)))
    decision = decide(replace(desired(2)), observed, View(), NOW)
    assert decision.notes.failures == {}
    assert any(isinstance(step, Remove) and names(step) == (W1,) for step in decision.steps)


def test_a_head_in_back_off_starts_nothing() -> None:
    failure = Failure(4, NOW - 1, NOW + 3, "1", "ended")
    observed = Observed((head(MemberState.EXITED),), LoopState(failures={HEAD: failure}))
    assert decide(desired(), observed, View(), NOW).steps == ()


class TestScaleDown:
    def test_one_that_serves_again_before_it_is_removed_is_drained_again(self) -> None:
        """It was started again meanwhile, or had not joined when it was drained: it may hold something by now."""
        notes = LoopState(retiring={W2: Retiring(NOW, drained=True)})
        observed = Observed((head(), worker(0), worker(1), worker(2)), notes)
        (remove,) = decide(desired(2), observed, view_of(observed), NOW).steps
        assert isinstance(remove, Remove) and names(remove) == (W2,)
        serving = view_of(replace(observed, notes=LoopState()))
        again = decide(desired(2), observed, serving, NOW)
        assert again.steps == (Drain((W2,)),)
        emptying = replace(observed, notes=again.notes)  # meanwhile it takes no work, and counts as not ready
        assert decide(desired(2), emptying, view_of(observed), NOW + 1).steps == (Drain((W2,)),)
        by_force = replace(desired(2), force=True)
        assert names(decide(by_force, observed, serving, NOW).steps[0]) == (W2,)
        assert isinstance(decide(by_force, observed, serving, NOW).steps[0], Remove)

    def test_drains_before_it_removes(self) -> None:
        observed = Observed((head(), worker(0), worker(1), worker(2)))
        decision = decide(desired(2), observed, view_of(observed), NOW)
        assert decision.steps == (Drain((W2,)),)
        waiting = replace(observed, notes=decision.notes)
        assert decide(desired(2), waiting, view_of(waiting), NOW + 1).steps == (Drain((W2,)),)
        drained = replace(observed, notes=with_drain_reply(decision.notes, W2, True, "", NOW))
        (remove,) = decide(desired(2), drained, view_of(drained), NOW + 2).steps
        assert isinstance(remove, Remove) and names(remove) == (W2,) and remove.grace is None

    def test_keeps_the_one_it_cannot_empty(self) -> None:
        notes = with_drain_reply(LoopState(retiring={W2: Retiring(NOW)}), W2, False, "a pinned item", NOW)
        observed = Observed((head(), worker(0), worker(1), worker(2)), notes)
        decision = decide(desired(2), observed, view_of(observed), NOW + 1000)
        assert decision.steps == (Drain((W2,)),)
        assert decision.notes.retiring[W2].waits_for == "a pinned item"

    @pytest.mark.parametrize(
        ("views", "victim"),
        [
            ({}, W2),
            ({W0: BUSY, W1: BUSY}, W2),  # not listed
            ({W0: BUSY, W2: BUSY}, W1),
            ({W0: HOLDS, W2: HOLDS}, W1),
            ({W0: IDLE, W1: BUSY}, W2),
            ({W0: IDLE, W1: BUSY, W2: MemberView(True, idle=9.0, incarnation="another")}, W2),
            ({W0: replace(BUSY, held=5), W1: replace(BUSY, held=1), W2: replace(BUSY, held=9)}, W1),
            ({W0: IDLE, W1: BUSY, W2: BUSY}, W0),
            ({W0: HOLDS, W1: BUSY, W2: BUSY}, W0),  # idle comes before empty
            ({W0: replace(HOLDS, held=7), W1: replace(HOLDS, held=8), W2: BUSY}, W0),
            ({W0: replace(HOLDS, idle=99.0), W1: replace(HOLDS, idle=1.0), W2: BUSY}, W1),  # for how long is no matter
            ({W0: replace(IDLE, idle=99.0), W1: IDLE, W2: HOLDS}, W1),
            ({W0: BUSY, W1: BUSY, W2: BUSY}, W2),
        ],
    )
    def test_chooses_idle_then_least_data_then_newest(
        self, views: dict[MemberId, MemberView], victim: MemberId
    ) -> None:
        observed = Observed((head(), worker(0), worker(1), worker(2)))
        decision = decide(desired(2), observed, View(up=True, members=views), NOW)
        assert list(decision.notes.retiring) == [victim]

    def test_one_that_has_not_started_goes_before_one_that_is_idle(self) -> None:
        observed = Observed((head(), worker(0), worker(1, MemberState.WAITING), worker(2)))
        decision = decide(desired(2), observed, View(up=True, members={W0: IDLE, W2: IDLE}), NOW)
        assert list(decision.notes.retiring) == [W1]

    @pytest.mark.parametrize("newest", range(3))
    def test_of_pods_the_one_made_last_is_the_newest(self, newest: int) -> None:
        """Their names end in random letters."""
        ids = [MemberId(f"demo-worker-5d9c7b-{letters}") for letters in ("xk2vd", "b8hfq", "74682")]
        pods = [
            replace(worker(n), id=ids[n], made=NOW - (1 if n == newest else 50 + n), started=NOW - 1) for n in range(3)
        ]
        observed = Observed((head(), *pods))
        assert list(decide(desired(2), observed, view_of(observed), NOW).notes.retiring) == [ids[newest]]

    def test_the_dead_go_first_and_without_drain(self) -> None:
        observed = Observed((head(), worker(0), worker(1, MemberState.EXITED), worker(2)))
        (step,) = steps_of(observed, shape=desired(2).shape)
        assert isinstance(step, Remove) and names(step) == (W1,)

    def test_takes_back_who_is_still_in_service_when_more_are_wanted_again(self) -> None:
        observed = Observed((head(), worker(0), worker(1), worker(2)), LoopState(retiring={W2: Retiring(NOW)}))
        decision = decide(desired(3), observed, view_of(observed), NOW)
        assert decision.steps == () and decision.notes.retiring == {}

    def test_replaces_who_is_drained_already(self) -> None:
        observed = Observed(
            (head(), worker(0), worker(1), worker(2)), LoopState(retiring={W2: Retiring(NOW, drained=True)})
        )
        steps = steps_of(observed)
        ensure, remove = steps
        assert isinstance(ensure, Ensure) and set(names(ensure)) == {W0, W1, W3}
        assert isinstance(remove, Remove) and names(remove) == (W2,)

    def test_a_group_that_is_gone_from_the_spec_is_drained_too(self) -> None:
        stray = replace(worker(0), id=MemberId("gpu-0"), group="gpu")
        observed = Observed((head(), worker(0), worker(1), worker(2), stray))
        assert steps_of(observed) == (Drain((MemberId("gpu-0"),)),)


def test_stopping_removes_everyone_together() -> None:
    observed = Observed((head(), worker(0)))
    (step,) = steps_of(observed, running=False)
    assert isinstance(step, Remove) and set(names(step)) == {HEAD, W0} and step.grace is None
    assert steps_of(Observed(), running=False) == ()


def test_an_answer_about_an_older_incarnation_does_not_count() -> None:
    observed = Observed((head(), replace(worker(0), incarnation="7")))
    member = observed.members[1]
    assert not ready(member, observed, View(up=True, members={W0: MemberView(True, incarnation="6")}))
    assert ready(member, observed, View(up=True, members={W0: MemberView(True, incarnation="7")}))
    assert ready(member, observed, View(up=True, members={W0: MemberView(True)}))


def test_what_is_emptied_must_go_even_if_it_was_taken_back() -> None:
    assert with_drain_reply(LoopState(), W0, True, "", NOW).retiring[W0].drained
    assert with_drain_reply(LoopState(), W0, False, "x", NOW) == LoopState()


class TestPlacesThatHeal:
    """Kubernetes starts what is missing; only we know that a new head needs new workers."""

    @staticmethod
    def seen(head_is: str, workers_of: str = "0", notes: LoopState = NOTHING_NOTED) -> Observed:
        members = (replace(head(), head=head_is), *(replace(worker(n), head=workers_of) for n in range(3)))
        return Observed(members, notes, heals=True)

    def test_everything_is_asked_for_always_and_nothing_else(self) -> None:
        found = steps_of(self.seen("a:0"))
        assert [type(step) for step in found] == [Ensure, Ensure]
        assert found[1].members == (worker(0).id, worker(1).id, worker(2).id)

    def test_the_first_head_is_remembered_and_its_workers_serve(self) -> None:
        observed = self.seen("a:0")
        decision = decide(desired(), observed, view_of(observed), NOW)
        assert (decision.notes.head, decision.notes.head_changes) == ("a:0", 0)
        assert all(ready(m, observed, view_of(observed)) for m in observed.members if m.role is Role.WORKER)

    @pytest.mark.parametrize("new", ["b:0", "a:1"], ids=["another pod", "started again in place"])
    def test_a_new_head_gets_new_workers_once(self, new: str) -> None:
        observed = self.seen(new, notes=LoopState(head="a:0"))
        decision = decide(desired(), observed, view_of(observed), NOW)
        assert (decision.notes.head, decision.notes.head_changes) == (new, 1)
        assert isinstance(decision.steps[-1], Remove) and decision.steps[-1].grace == 0.0
        assert set(decision.steps[-1].members) == {worker(n).id for n in range(3)}
        after = self.seen(new, "1", decision.notes)
        assert not any(isinstance(step, Remove) for step in steps_of(after))

    @pytest.mark.parametrize(("before", "started"), [("a:0", False), ("", True)], ids=["replaced", "the first"])
    def test_workers_start_with_the_first_head_but_after_one_that_is_being_replaced(
        self, before: str, started: bool
    ) -> None:
        observed = self.seen("b:0", notes=LoopState(head=before))
        coming = replace(observed, members=(replace(observed.members[0], state=MemberState.WAITING),))
        groups = [step.group.name for step in steps_of(coming) if isinstance(step, Ensure)]
        assert groups == ["head", *(["default"] if started else [])]

    def test_who_retires_is_counted_until_it_is_gone(self) -> None:
        notes = LoopState(retiring={worker(2).id: Retiring(NOW)}, head="a:0")
        observed = self.seen("a:0", notes=notes)
        steps = decide(desired(workers=2), observed, view_of(observed), NOW).steps
        ensure = next(step for step in steps[1:] if isinstance(step, Ensure))
        assert len(ensure.members) == 3

    def test_an_older_description_of_a_group_goes_when_the_new_one_serves(self) -> None:
        old = [replace(worker(n), id=MemberId(f"old-{n}"), group="default@1", head="0") for n in range(3)]
        observed = self.seen("a:0", notes=LoopState(head="a:0"))
        both = replace(observed, members=(*observed.members, *old))
        assert set(decide(desired(), both, view_of(both), NOW).notes.retiring) == {m.id for m in old}
        half = replace(both, members=(*observed.members[:3], *old))
        assert not decide(desired(), half, view_of(half), NOW).notes.retiring

    def test_the_engine_is_asked_again_soon_only_while_it_may_tell_more(self) -> None:
        observed = self.seen("a:0")
        unlisted = View(up=True)
        assert decide(desired(), observed, unlisted, NOW).again_after == module.HEALING_SOON
        deaf = replace(observed, members=(replace(observed.members[0], answers=False), *observed.members[1:]))
        assert decide(desired(), deaf, View(), NOW).again_after == module.HEALING_WAITING
        assert decide(desired(), observed, view_of(observed), NOW).again_after == module.HEALING_RESTING
