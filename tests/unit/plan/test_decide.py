"""decide, as tables: the observed and the desired state → the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oars.model import (
    HEAD,
    Death,
    Decision,
    Drain,
    DrainRequest,
    Ensure,
    Failure,
    LoopState,
    Member,
    MemberId,
    MemberState,
    MemberView,
    Observed,
    Pace,
    Pause,
    Remove,
    Retiring,
    Role,
    Step,
    View,
)
from oars.plan import decide as module
from oars.plan.decide import decide, is_ready, with_drain_reply
from tests.unit.plan.clusters import NOW, STEADY, desired, head, observe, view_of, worker

NEW = LoopState()
BUSY, IDLE, HOLDS = MemberView(True), MemberView(True, idle=3.0), MemberView(True, idle=3.0, held=5)
W0, W1, W2, W3 = (MemberId(f"worker-{n}") for n in range(4))


def decided(observed: Observed, view: View | None = None, **wanted: Any) -> Decision:
    return decide(replace(desired(), **wanted), observed, view or view_of(observed), NOW)


def changes(decision: Decision, observed: Observed) -> tuple[Step, ...]:
    """Without those Ensure steps that name only members that exist and have not exited: they change nothing."""
    alive = {m.id for m in observed.members if m.state is not MemberState.EXITED}
    return tuple(s for s in decision.steps if not isinstance(s, Ensure) or not alive.issuperset(s.members))


def changes_of(observed: Observed, view: View | None = None, **wanted: Any) -> tuple[Step, ...]:
    return changes(decided(observed, view, **wanted), observed)


def test_from_nothing_everything_starts_at_once() -> None:
    first, second = decided(Observed()).steps
    assert isinstance(first, Ensure) and first.members == (HEAD,)
    assert isinstance(second, Ensure) and second.members == (W0, W1, W2)


def test_workers_start_when_the_head_has_its_room() -> None:
    waiting = replace(head(MemberState.WAITING), incarnation="")
    for members in ((), (waiting,)):
        assert [step.members for step in decided(Observed(members, has_head_room=False)).steps] == [(HEAD,)]
    assert len(decided(Observed((waiting,))).steps) == 2


@pytest.mark.parametrize("epoch", [0, 1])
def test_workers_leave_if_the_head_finds_no_room(epoch: int) -> None:
    blocked = replace(head(MemberState.WAITING), incarnation="", blocked="no node has room")
    workers = [replace(worker(number, state), head_epoch=epoch) for number, state in enumerate(MemberState)]
    observed = Observed((blocked, *workers), LoopState(head_epoch=epoch), has_head_room=False)
    ensured, removed = decided(observed, View()).steps
    assert isinstance(ensured, Ensure) and ensured.members == (HEAD,)
    assert removed == Remove((W0, W1), "they have no head", grace=0.0)


def test_lost_head_is_remembered_for_a_while() -> None:
    """A pod that was deleted leaves no death."""
    another = replace(head(), incarnation="2")
    state = decided(observe(another)).state
    assert (state.head_epoch, state.head_lost_at) == (1, NOW)
    for later, expected in ((NOW + module.REMEMBER - 1, NOW), (NOW + module.REMEMBER, None)):
        assert decide(desired(), observe(another, state=state), View(), later).state.head_lost_at == expected
    ahead = replace(state, head_lost_at=NOW + 999)
    assert decided(observe(another, state=ahead)).state.head_lost_at == NOW, "the clock was set back"


def test_at_rest_every_group_is_ensured_and_nothing_changes() -> None:
    observed = observe(head(), worker(0), worker(1), worker(2))
    decision = decided(observed)
    assert [type(step) for step in decision.steps] == [Ensure, Ensure]
    assert changes(decision, observed) == ()
    assert decision.state == LoopState(head="1", ready_since=NOW)
    assert decision.pause == Pause(observed.pace.resting, limited=True)
    later = decide(desired(), replace(observed, state=decision.state), view_of(observed), NOW + 5)
    assert later.state == decision.state, "the state changes at rest"


def test_cluster_is_settled_when_it_has_been_ready_for_a_while() -> None:
    observed = observe(head(), worker(0), worker(1), worker(2), state=replace(STEADY, ready_since=NOW))
    for now, settled in ((NOW + module.SETTLED - 1, False), (NOW + module.SETTLED, True)):
        first = decide(desired(), observed, view_of(observed), now).steps[0]
        assert isinstance(first, Ensure) and first.settled is settled
    assert decide(desired(4), observed, view_of(observed), NOW + 99).state.ready_since is None


def test_missing_workers_get_the_lowest_free_names() -> None:
    (step,) = changes_of(observe(head(), worker(1)))
    assert isinstance(step, Ensure) and set(step.members) == {W0, W1, W2}


def test_dead_worker_is_restarted_at_once_and_its_death_remembered() -> None:
    dead = worker(1, MemberState.EXITED, reason="was killed by SIGKILL", tail=("last words",))
    observed = observe(head(), worker(0), dead, worker(2))
    decision = decided(observed)
    (step,) = changes(decision, observed)
    assert isinstance(step, Ensure) and W1 in step.members
    failure = decision.state.failures[W1]
    assert (failure.count, failure.until, failure.reason, failure.tail) == (
        1, NOW, "was killed by SIGKILL", ("last words",),
    )  # fmt: skip


@pytest.mark.parametrize(("deaths", "pause"), [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (30, 60.0)])
def test_member_that_keeps_dying_waits_longer_each_time(deaths: int, pause: float) -> None:
    before = Failure(deaths, NOW - 1, NOW - 1, "old", "ended")
    dead = replace(worker(1, MemberState.EXITED), started_at=NOW - 0.5)
    observed = observe(head(), worker(0), dead, worker(2), state=replace(STEADY, failures={W1: before}))
    decision = decided(observed)
    assert changes(decision, observed) == ()
    assert decision.state.failures[W1].until == NOW + pause
    assert not decision.pause.limited and 0 < decision.pause.seconds <= pause
    later = replace(observed, state=decision.state)
    (step,) = changes(decide(desired(), later, view_of(later), NOW + pause), later)
    assert isinstance(step, Ensure) and W1 in step.members


def test_count_of_deaths_starts_again_after_a_good_run() -> None:
    before = Failure(5, NOW - 100, NOW - 90, "old", "ended")
    dead = replace(worker(1, MemberState.EXITED), started_at=NOW - module.STABLE - 1)
    observed = observe(head(), worker(0), dead, worker(2), state=replace(STEADY, failures={W1: before}))
    assert decided(observed).state.failures[W1].count == 1


def test_old_deaths_are_forgotten() -> None:
    old = Failure(1, NOW - module.REMEMBER - 1, 0.0, "1", "ended")
    observed = observe(head(), worker(0), worker(1), worker(2), state=replace(STEADY, failures={W1: old}))
    assert decided(observed).state.failures == {}


def test_workers_of_a_lost_head_are_removed_and_start_again_when_the_new_one_runs() -> None:
    observed = observe(head(MemberState.EXITED), worker(0), worker(1), worker(2))
    decision = decided(observed, View())
    start, remove = decision.steps
    assert isinstance(start, Ensure) and start.members == (HEAD,)
    assert isinstance(remove, Remove) and remove.members == (W0, W1, W2) and remove.grace == 0.0
    assert set(decision.state.failures) == {HEAD}
    assert (decision.state.head, decision.state.head_epoch) == ("", 1)
    coming = observe(replace(head(MemberState.WAITING), incarnation="5"), state=decision.state)
    waiting = decided(coming, View())
    assert [step.group.name for step in waiting.steps if isinstance(step, Ensure)] == ["head"]
    assert (waiting.state.head, waiting.state.head_epoch) == ("5", 1)
    running = observe(replace(head(), incarnation="5"), state=waiting.state)
    (again,) = changes_of(running)
    assert isinstance(again, Ensure) and again.members == (W0, W1, W2)


def test_workers_that_died_with_their_head_are_not_blamed() -> None:
    observed = observe(replace(head(), incarnation="9"), worker(0, MemberState.EXITED), worker(1))
    decision = decide(desired(2), observed, View(), NOW)
    assert decision.state.failures == {}
    assert any(isinstance(step, Remove) and step.members == (W1,) for step in decision.steps)


@pytest.mark.parametrize(("seconds", "replaced"), [(module.JOIN_TIMEOUT - 1, False), (module.JOIN_TIMEOUT + 1, True)])
def test_worker_that_never_joins_the_head_is_replaced(seconds: float, replaced: bool) -> None:
    observed = observe(head(), worker(0), worker(1), worker(2))
    view = replace(view_of(observed), members={W0: BUSY, W2: BUSY}, unlisted={W1: seconds})
    removed = [step.members for step in decided(observed, view).steps if isinstance(step, Remove)]
    assert removed == ([(W1,)] if replaced else [])


def test_worker_that_the_place_started_after_the_new_head_stays_though_the_loss_was_recorded() -> None:
    """The loop recorded the loss of the head and died; the place started the head and one worker meanwhile."""
    later = replace(worker(0), started_at=NOW - 5)
    new = replace(head(), incarnation="9", started_at=NOW - 10)
    observed = observe(new, later, worker(1), state=LoopState(head="", head_epoch=1))
    decision = decide(desired(2), observed, view_of(observed), NOW)
    removed = [step.members for step in decision.steps if isinstance(step, Remove)]
    assert removed == [(worker(1).id,)]
    assert decision.state.head_epoch == 1


def test_worker_that_the_place_starts_after_the_new_head_stays() -> None:
    """Its Deployment keeps the template of an earlier epoch, because others from it have joined the new head."""
    new = replace(head(), incarnation="9", started_at=NOW - 10)
    starting = replace(worker(1, MemberState.WAITING), started_at=0.0, created_at=NOW - 5)
    earlier = replace(worker(2, MemberState.WAITING), started_at=0.0, created_at=NOW - 50)
    observed = observe(new, worker(0), starting, earlier, state=LoopState(head="9", head_epoch=1))
    decision = decide(desired(3), observed, View(joined=frozenset({W0})), NOW)
    assert [step.members for step in decision.steps if isinstance(step, Remove)] == [(W2,)]


@pytest.mark.parametrize("is_up", [True, False], ids=["the head answers", "the head is silent"])
def test_worker_that_joined_the_new_head_stays_though_it_was_started_for_an_earlier_one(is_up: bool) -> None:
    """The loop recorded the loss of the head and died. Workers that had waited for a head joined the next one."""
    new = replace(head(), incarnation="9", started_at=NOW - 10)
    observed = observe(new, worker(0), worker(1), state=LoopState(head="", head_epoch=1))
    view = replace(view_of(observed) if is_up else View(), joined=frozenset({W0}))
    decision = decide(desired(2), observed, view, NOW)
    assert [step.members for step in decision.steps if isinstance(step, Remove)] == [(W1,)]
    (ensure,) = [step for step in decision.steps if isinstance(step, Ensure) and step.group.role is Role.WORKER]
    assert W0 in ensure.members and len(ensure.members) == 2


def test_workers_that_started_after_a_new_head_stay() -> None:
    """The place replaced head and workers while no loop ran."""
    new = replace(head(), incarnation="9")
    after = replace(worker(0), started_at=new.started_at + 1)
    decision = decide(desired(2), observe(new, after, worker(1)), View(up=True, members={W0: BUSY}), NOW)
    assert (decision.state.head, decision.state.head_epoch) == ("9", 0)
    assert not any(isinstance(step, Remove) for step in decision.steps)


@pytest.mark.parametrize("before", ["", "1"], ids=["never observed alive", "observed alive"])
def test_head_in_back_off_starts_nothing(before: str) -> None:
    failure = Failure(4, NOW - 1, NOW + 3, "1", "ended")
    observed = observe(head(MemberState.EXITED), state=LoopState(failures={HEAD: failure}, head=before))
    assert decided(observed, View()).steps == ()


class TestScaleDown:
    def test_drained_worker_that_is_ready_again_is_drained_again(self) -> None:
        """It was started again meanwhile, or had not joined when it was drained: it may hold something by now."""
        state = replace(STEADY, retiring={W2: Retiring(NOW, drained=True)})
        observed = observe(head(), worker(0), worker(1), worker(2), state=state)
        (remove,) = changes(decide(desired(2), observed, view_of(observed), NOW), observed)
        assert isinstance(remove, Remove) and remove.members == (W2,)
        serving = view_of(replace(observed, state=LoopState()))
        again = decide(desired(2), observed, serving, NOW)
        assert changes(again, observed) == (Drain((W2,)),)
        draining = replace(observed, state=again.state)  # meanwhile it takes no work, and counts as not ready
        assert changes(decide(desired(2), draining, view_of(observed), NOW + 1), draining) == (Drain((W2,)),)
        forced = replace(desired(2), force=True)
        (step,) = changes(decide(forced, observed, serving, NOW), observed)
        assert isinstance(step, Remove) and step.members == (W2,)

    def test_drains_before_it_removes(self) -> None:
        observed = observe(head(), worker(0), worker(1), worker(2))
        decision = decide(desired(2), observed, view_of(observed), NOW)
        assert changes(decision, observed) == (Drain((W2,)),)
        waiting = replace(observed, state=decision.state)
        assert changes(decide(desired(2), waiting, view_of(waiting), NOW + 1), waiting) == (Drain((W2,)),)
        drained = replace(observed, state=with_drain_reply(decision.state, W2, True, "", NOW))
        (remove,) = changes(decide(desired(2), drained, view_of(drained), NOW + 2), drained)
        assert isinstance(remove, Remove) and remove.members == (W2,) and remove.grace is None

    def test_keeps_a_worker_that_cannot_be_drained(self) -> None:
        retiring = replace(STEADY, retiring={W2: Retiring(NOW)})
        state = with_drain_reply(retiring, W2, False, "a pinned item", NOW)
        observed = observe(head(), worker(0), worker(1), worker(2), state=state)
        decision = decide(desired(2), observed, view_of(observed), NOW + 1000)
        assert changes(decision, observed) == (Drain((W2,)),)
        assert decision.state.retiring[W2].waits_for == "a pinned item"

    @pytest.mark.parametrize(
        ("seconds", "views", "leaves"),
        [
            (11.0, {W0: BUSY, W1: IDLE, W2: BUSY}, W1),
            (11.0, {W0: IDLE, W1: BUSY, W2: replace(IDLE, pinned=True)}, W0),
            (9.0, {W0: BUSY, W1: IDLE, W2: BUSY}, W2),  # it has not been tried for long
            (11.0, {W0: BUSY, W1: BUSY, W2: BUSY}, W2),
            (11.0, {W0: HOLDS, W1: replace(IDLE, pinned=True), W2: BUSY}, W2),  # nor can another be emptied
            (11.0, {W0: IDLE, W1: IDLE, W2: HOLDS}, W2),  # it may be empty soon
        ],
    )
    def test_worker_that_holds_nothing_leaves_instead_of_one_that_cannot_be_emptied(
        self, seconds: float, views: dict[MemberId, MemberView], leaves: MemberId
    ) -> None:
        retiring = replace(STEADY, retiring={W2: Retiring(NOW)})
        state = with_drain_reply(retiring, W2, False, "an actor", NOW)
        observed = observe(head(), worker(0), worker(1), worker(2), state=state)
        decision = decide(desired(2), observed, View(up=True, members=views), NOW + seconds)
        assert list(decision.state.retiring) == [leaves]

    def test_worker_whose_drain_was_requested_is_not_exchanged(self) -> None:
        state = replace(STEADY, retiring={W2: Retiring(NOW, waits_for="an actor")})
        observed = observe(head(), worker(0), worker(1), worker(2), state=state)
        wanted = replace(desired(2), drain={W2: DrainRequest()})
        views = {W0: BUSY, W1: IDLE, W2: BUSY}
        decision = decide(wanted, observed, View(up=True, members=views), NOW + 1000)
        assert list(decision.state.retiring) == [W2]

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
            ({W0: replace(HOLDS, idle=99.0), W1: replace(HOLDS, idle=1.0), W2: BUSY}, W1),  # not by how long
            ({W0: replace(IDLE, idle=99.0), W1: IDLE, W2: HOLDS}, W1),
            ({W0: BUSY, W1: BUSY, W2: BUSY}, W2),
        ],
    )
    def test_chooses_idle_then_least_data_then_newest(
        self, views: dict[MemberId, MemberView], victim: MemberId
    ) -> None:
        observed = observe(head(), worker(0), worker(1), worker(2))
        decision = decide(desired(2), observed, View(up=True, members=views), NOW)
        assert list(decision.state.retiring) == [victim]

    def test_chooses_a_worker_that_has_not_started_before_an_idle_one(self) -> None:
        observed = observe(head(), worker(0), worker(1, MemberState.WAITING), worker(2))
        decision = decide(desired(2), observed, View(up=True, members={W0: IDLE, W2: IDLE}), NOW)
        assert list(decision.state.retiring) == [W1]

    @pytest.mark.parametrize("newest", range(3))
    def test_newest_pod_is_the_one_created_last(self, newest: int) -> None:
        """Pod names end in random letters."""
        ids = [MemberId(f"demo-worker-5d9c7b-{letters}") for letters in ("xk2vd", "b8hfq", "74682")]
        ages = [1 if n == newest else 50 + n for n in range(3)]
        pods = [replace(worker(n), id=ids[n], created_at=NOW - ages[n], started_at=NOW - 1) for n in range(3)]
        observed = observe(head(), *pods)
        assert list(decide(desired(2), observed, view_of(observed), NOW).state.retiring) == [ids[newest]]

    def test_dead_workers_are_removed_first_and_without_drain(self) -> None:
        observed = observe(head(), worker(0), worker(1, MemberState.EXITED), worker(2))
        (step,) = changes_of(observed, shape=desired(2).shape)
        assert isinstance(step, Remove) and step.members == (W1,)

    def test_worker_still_in_service_is_kept_when_more_are_wanted_again(self) -> None:
        state = replace(STEADY, retiring={W2: Retiring(NOW)})
        observed = observe(head(), worker(0), worker(1), worker(2), state=state)
        decision = decided(observed)
        assert changes(decision, observed) == () and decision.state.retiring == {}

    def test_worker_that_is_already_drained_is_replaced(self) -> None:
        state = replace(STEADY, retiring={W2: Retiring(NOW, drained=True)})
        observed = observe(head(), worker(0), worker(1), worker(2), state=state)
        ensure, remove = changes_of(observed)
        assert isinstance(ensure, Ensure) and set(ensure.members) == {W0, W1, W2, W3}  # W2 until it is removed
        assert isinstance(remove, Remove) and remove.members == (W2,)

    def test_workers_of_a_group_that_left_the_spec_are_drained_too(self) -> None:
        stray = replace(worker(0), id=MemberId("gpu-0"), group="gpu")
        observed = observe(head(), worker(0), worker(1), worker(2), stray)
        assert changes_of(observed) == (Drain((MemberId("gpu-0"),)),)


def test_worker_that_is_removed_on_purpose_takes_its_failures_along() -> None:
    """Scaled to 0 and up again, it is another worker: `why` must not say that it was replaced."""
    failures = {
        W0: Failure(3, NOW - 5, NOW - 5, "1", "was killed"),
        W1: Failure(1, NOW - 5, NOW - 5, "1", "was killed"),
    }
    leaving = {W0: Retiring(NOW, drained=True)}
    observed = observe(head(), worker(0), worker(1), state=replace(STEADY, failures=failures, retiring=leaving))
    decision = decide(desired(1), observed, view_of(observed), NOW)
    assert changes(decision, observed) == (Remove((W0,), "no longer wanted"),)
    assert list(decision.state.failures) == [W1]
    state = replace(decision.state, retiring={})
    again = decide(desired(2), observe(head(), worker(0), worker(1), state=state), view_of(observed), NOW)
    assert list(again.state.failures) == [W1]


def test_worker_that_leaves_keeps_its_failures_until_then() -> None:
    failures = {W0: Failure(3, NOW - 5, NOW - 5, "1", "was killed")}
    observed = observe(head(), worker(0), state=replace(STEADY, failures=failures))
    decision = decide(desired(0), observed, view_of(observed), NOW)
    assert changes(decision, observed) == (Drain((W0,)),)
    assert decision.state.failures == failures


def test_workers_of_a_lost_head_keep_their_failures() -> None:
    failures = {W0: Failure(3, NOW - 5, NOW - 5, "1", "was killed")}
    observed = observe(replace(head(), incarnation="9"), worker(0), state=replace(STEADY, failures=failures))
    decision = decide(desired(1), observed, view_of(observed), NOW)
    assert Remove((W0,), "they have no head", grace=0.0) in decision.steps
    assert decision.state.failures == failures


def test_stopping_removes_everyone_together() -> None:
    (step,) = decided(observe(head(), worker(0)), running=False).steps
    assert isinstance(step, Remove) and set(step.members) == {HEAD, W0} and step.grace is None
    assert decided(Observed(), running=False).steps == ()


def test_report_about_an_older_incarnation_does_not_count() -> None:
    observed = observe(head(), replace(worker(0), incarnation="7"))
    member = observed.members[1]
    assert not is_ready(member, observed, View(up=True, members={W0: MemberView(True, incarnation="6")}))
    assert is_ready(member, observed, View(up=True, members={W0: MemberView(True, incarnation="7")}))
    assert is_ready(member, observed, View(up=True, members={W0: MemberView(True)}))


def test_drained_worker_must_leave_even_if_it_was_unretired_meanwhile() -> None:
    assert with_drain_reply(LoopState(), W0, True, "", NOW).retiring[W0].drained
    assert with_drain_reply(LoopState(), W0, False, "x", NOW) == LoopState()


class TestPlaceThatReplacesDeadMembers:
    """Kubernetes starts what is missing; only the loop knows that a new head needs new workers."""

    PACE = Pace(0.5, 2.0, 10.0)

    def pods(self, head_incarnation: str, epoch: int = 0, state: LoopState = NEW) -> Observed:
        members = (
            replace(head(), incarnation=head_incarnation),
            *(replace(worker(n), head_epoch=epoch) for n in range(3)),
        )
        return Observed(members, state, pace=self.PACE)

    def test_first_head_is_remembered_and_its_workers_serve(self) -> None:
        observed = self.pods("a:0")
        decision = decided(observed)
        assert (decision.state.head, decision.state.head_epoch) == ("a:0", 0)
        assert all(is_ready(m, observed, view_of(observed)) for m in observed.members if m.role is Role.WORKER)

    @pytest.mark.parametrize("new", ["b:0", "a:1"], ids=["another pod", "restarted in place"])
    def test_new_head_gets_new_workers_once(self, new: str) -> None:
        decision = decided(self.pods(new, state=LoopState(head="a:0")))
        assert (decision.state.head, decision.state.head_epoch) == (new, 1)
        assert isinstance(decision.steps[-1], Remove) and decision.steps[-1].grace == 0.0
        assert set(decision.steps[-1].members) == {W0, W1, W2}
        after = decided(self.pods(new, 1, decision.state))
        assert not any(isinstance(step, Remove) for step in after.steps)

    def test_head_that_is_replaced_counts_once_whatever_the_passes_see(self) -> None:
        """Gone, not started, started: one new epoch."""
        state = LoopState(head="a:0")
        for incarnation in (None, "", "b:0", "b:0"):
            members = () if incarnation is None else (replace(head(), incarnation=incarnation),)
            state = decide(desired(), Observed(members, state), View(), NOW).state
            assert state.head_epoch == 1
        assert state.head == "b:0"

    @pytest.mark.parametrize(("before", "started"), [("a:0", False), ("", True)], ids=["replaced", "the first"])
    def test_workers_start_with_the_first_head_but_only_after_one_that_is_being_replaced(
        self, before: str, started: bool
    ) -> None:
        coming = Observed((replace(head(MemberState.WAITING), incarnation=""),), LoopState(head=before))
        groups = [step.group.name for step in decided(coming, View()).steps if isinstance(step, Ensure)]
        assert groups == ["head", *(["default"] if started else [])]

    def test_retiring_worker_is_counted_until_it_is_removed(self) -> None:
        observed = self.pods("a:0", state=LoopState(retiring={W2: Retiring(NOW)}, head="a:0"))
        steps = decide(desired(2), observed, view_of(observed), NOW).steps
        ensure = next(step for step in steps[1:] if isinstance(step, Ensure))
        assert len(ensure.members) == 3

    def test_deaths_that_the_place_counts_are_taken_over(self) -> None:
        observed = self.pods("a:0", state=LoopState(head="a:0"))
        dead = replace(worker(1), state=MemberState.WAITING, reason="exited with code 1")
        deaths = {W1: Death("pod:4", NOW - 1, NOW - 2, "exited with code 1", count=4)}
        observed = replace(observed, members=(*observed.members[:2], dead, observed.members[3]), deaths=deaths)
        decision = decided(observed)
        assert decision.state.failures[W1].count == 4
        assert W1 in decision.steps[1].members, "a place that restarts it itself must not lose count of it"
        again = decided(replace(observed, state=decision.state))
        assert again.state == decision.state, "the same death is counted twice"

    def test_older_revision_of_a_group_retires_when_the_new_one_is_ready(self) -> None:
        old = self.old_revision(3)
        both = self.pods("a:0", state=LoopState(head="a:0"))
        both = replace(both, members=(*both.members, *old))
        assert set(decided(both).state.retiring) == {m.id for m in old}
        half = replace(both, members=(*both.members[:3], *old))
        assert not decided(half).state.retiring

    def test_older_revision_does_not_make_up_for_the_new_one(self) -> None:
        observed = self.pods("a:0", state=LoopState(head="a:0", ready_since=NOW - 99))
        rollout = replace(observed, members=(*observed.members[:2], *self.old_revision(3)))
        decision = decided(rollout)
        assert decision.pause.seconds < self.PACE.resting and decision.state.ready_since is None

    @pytest.mark.parametrize(
        ("leaving", "started"),
        [
            ({}, 0),
            ({"since": NOW - module.SURGE_SECONDS + 1}, 0),
            ({"since": NOW - module.SURGE_SECONDS - 1}, 3),
            ({"since": NOW, "waits_for": "an actor"}, 3),
        ],
        ids=["changed just now", "for a while", "for too long", "refused"],
    )
    def test_two_quick_changes_do_not_run_three_times_as_many_workers(
        self, leaving: dict[str, Any], started: int
    ) -> None:
        """Workers of the revision that never served leave first. Those of the newest wait, but not for long."""
        serving = self.old_revision(3)
        between = [replace(worker(n), id=MemberId(f"mid-{n}"), group="default@2") for n in range(3)]
        state = LoopState(head="a:0", retiring={m.id: Retiring(**leaving) for m in between if leaving})
        observed = self.pods("a:0", state=state)
        observed = replace(observed, members=(observed.members[0], *serving, *between))
        decision = decided(observed, View(up=True, members={m.id: MemberView(True) for m in serving}))
        assert set(decision.state.retiring) == {m.id for m in between}
        (workers,) = [s for s in decision.steps if isinstance(s, Ensure) and s.group.role is Role.WORKER]
        assert len(workers.members) == started

    @staticmethod
    def old_revision(count: int) -> tuple[Member, ...]:
        return tuple(replace(worker(n), id=MemberId(f"old-{n}"), group="default@1") for n in range(count))

    def test_engine_is_polled_soon_only_while_it_may_report_more(self) -> None:
        observed = self.pods("a:0")
        assert decided(observed, View(up=True)).pause == Pause(self.PACE.soon)
        deaf = replace(observed, members=(replace(observed.members[0], probe_ready=False), *observed.members[1:]))
        assert decided(deaf, View()).pause == Pause(self.PACE.waiting, limited=True)
        assert decided(observed, view_of(observed)).pause == Pause(self.PACE.resting, limited=True)


def test_thousands_of_deaths_give_the_longest_pause() -> None:
    dead = worker(1, MemberState.EXITED)
    deaths = {W1: Death("9", NOW, NOW, "exited with code 1", count=5000)}
    observed = Observed((head(), worker(0), dead, worker(2)), LoopState(head="1"), deaths)
    assert decide(desired(), observed, view_of(observed), NOW).state.failures[W1].until == NOW + module.LONGEST_PAUSE


class TestClockSteps:
    """Times were recorded before the clock was set, or by a node whose clock differs."""

    DEAD = worker(1, MemberState.EXITED)
    FAILURE = Failure(4, NOW, NOW + 4.0, DEAD.incarnation, "was killed")
    OBSERVED = Observed((head(), worker(0), DEAD, worker(2)), LoopState(failures={W1: FAILURE}, head="1"))

    def started(self, observed: Observed, now: float) -> bool:
        decision = decide(desired(), observed, view_of(observed), now)
        return any(W1 in step.members for step in decision.steps if isinstance(step, Ensure))

    def test_without_a_step_the_pause_is_kept(self) -> None:
        assert not self.started(self.OBSERVED, NOW + 3.9)
        assert self.started(self.OBSERVED, NOW + 4.1)

    @pytest.mark.parametrize("step", [-1.0, -3600.0, -1e9])
    def test_dead_member_does_not_stay_dead_if_the_clock_goes_back(self, step: float) -> None:
        now = NOW + step
        decision = decide(desired(), self.OBSERVED, view_of(self.OBSERVED), now)
        assert decision.state.failures[W1] == replace(self.FAILURE, last=now, until=now + 4.0)
        assert decision.pause.seconds <= 4.0
        later = replace(self.OBSERVED, state=decision.state)
        assert not self.started(later, now + 3.9), "the whole pause, but no longer"
        assert self.started(later, now + 4.1)

    def test_early_start_is_all_that_a_step_forward_causes(self) -> None:
        decision = decide(desired(), self.OBSERVED, view_of(self.OBSERVED), NOW + 1e6)
        assert not [step for step in decision.steps if isinstance(step, Remove | Drain)]
        assert self.started(self.OBSERVED, NOW + 1e6)

    def test_death_in_the_future_counts_as_now(self) -> None:
        """As reported by a node whose clock is ahead."""
        death = Death(self.DEAD.incarnation, NOW + 3600, NOW + 3600 - 5, "was killed", count=5)
        observed = Observed(self.OBSERVED.members, LoopState(head="1"), {W1: death})
        found = decide(desired(), observed, view_of(observed), NOW).state.failures[W1]
        assert (found.count, found.last, found.until) == (5, NOW, NOW + 8.0)

    def test_failures_are_forgotten_in_time(self) -> None:
        now = NOW - 3600
        decision = decide(desired(), self.OBSERVED, view_of(self.OBSERVED), now)
        again = Observed((head(), worker(0), worker(1), worker(2)), decision.state)
        assert decide(desired(), again, view_of(again), now + module.REMEMBER + 1).state.failures == {}

    @pytest.mark.parametrize("step", [-3600.0, 0.0])
    def test_cluster_settles_after_a_step_back(self, step: float) -> None:
        ready = Observed((head(), worker(0), worker(1), worker(2)), LoopState(head="1", ready_since=NOW))
        state = decide(desired(), ready, view_of(ready), NOW + step).state
        later = decide(desired(), replace(ready, state=state), view_of(ready), NOW + step + module.SETTLED)
        (first, *_) = later.steps
        assert isinstance(first, Ensure) and first.settled

    def test_retiring_worker_has_a_past(self) -> None:
        state = LoopState(head="1", retiring={W3: Retiring(NOW + 3600)})
        observed = Observed((head(), worker(0), worker(1), worker(2), worker(3)), state)
        assert decide(desired(), observed, view_of(observed), NOW).state.retiring[W3].since == NOW
