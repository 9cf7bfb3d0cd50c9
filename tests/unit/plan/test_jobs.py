"""decide_job as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oars.plan.jobs import (
    ClusterSeen,
    ClusterState,
    DriverSeen,
    DriverState,
    Hold,
    JobDecision,
    JobPolicy,
    JobRequest,
    JobSeen,
    JobStep,
    active_seconds,
    decide_job,
    driver_seconds,
    policy_of,
    with_failed_pass,
)
from oars.spec.job import JobSpec
from oars.spec.job_status import Attempt, JobState, JobStatus, Outcome

NOW = 1000.0
READY = ClusterSeen(ClusterState.READY, "h1")
RUNNING = DriverSeen(DriverState.RUNNING)
CANCEL, SUSPEND, NOTHING = JobRequest(cancel=True), JobRequest(suspend=True), JobRequest()
POLICY = JobPolicy()


def ended(code: int, at: float = NOW) -> DriverSeen:
    return DriverSeen(DriverState.ENDED, code, at)


def running(n: int = 1, **fields: Any) -> JobStatus:
    attempt = Attempt(n, f"j-{n}", NOW - 20, "h1", NOW - 10)
    status = JobStatus(JobState.RUNNING, cluster=f"j-{n}", attempt=n, started=NOW - 20, active_since=NOW - 20)
    return replace(status, attempts=(attempt,), **fields)


def decide(
    status: JobStatus,
    seen: JobSeen = JobSeen(),  # noqa: B008 (frozen)
    request: JobRequest = NOTHING,
    policy: JobPolicy = POLICY,
    now: float = NOW,
) -> JobDecision:
    return decide_job("j", policy, request, status, seen, now)


def settle(driver: DriverSeen, policy: JobPolicy = POLICY, **fields: Any) -> JobStatus:
    return decide(running(**fields), JobSeen(READY, driver), policy=policy).status


def test_failed_pass_is_shown_until_a_pass_succeeds() -> None:
    def fail(status: JobStatus) -> JobStatus:
        failed = with_failed_pass(status, OSError("no space"), "the log")
        assert replace(failed, reason=status.reason, message=status.message) == status
        return failed

    failed = fail(running())
    assert (failed.reason, failed.message) == ("PassFailed", "Could not reconcile the job: no space. Oars retries.")
    assert decide(failed, JobSeen(READY, RUNNING)).status == running()
    retrying = settle(ended(1), policy=JobPolicy(retries=1))
    assert fail(retrying) != retrying and decide(fail(retrying)).status == retrying
    verdict = settle(ended(1))
    assert fail(verdict) == verdict


class TestStart:
    def test_names_are_stored_before_anything_is_made(self) -> None:
        decision = decide(JobStatus())
        assert decision.status.state is JobState.STARTING
        assert decision.status.last == Attempt(1, "j-1", NOW)
        assert decision.steps == ()

    def test_cluster_is_made_then_awaited_then_driver_starts(self) -> None:
        status = decide(JobStatus()).status
        assert decide(status).steps == (JobStep.MAKE_CLUSTER,)
        assert decide(status, JobSeen(ClusterSeen(ClusterState.STARTING))).steps == ()
        decision = decide(status, JobSeen(READY))
        assert decision.steps == (JobStep.START_DRIVER,)
        assert decision.status.last is not None
        assert decision.status.last.head == "h1"

    def test_existing_cluster_keeps_its_name(self) -> None:
        policy = JobPolicy(has_own_cluster=False)
        decision = decide(JobStatus(cluster="demo"), policy=policy)
        assert decision.status.last is not None
        assert decision.status.last.cluster == "demo"

    def test_job_in_a_queue_waits_and_its_clock_stands(self) -> None:
        decision = decide(JobStatus(), request=JobRequest(hold=Hold("NotAdmitted", "It waits.")))
        assert decision.status.state is JobState.QUEUED
        assert decision.status.active_since is None
        assert decision.steps == ()

    def test_cluster_that_cannot_be_made_uses_recoveries(self) -> None:
        status = decide(JobStatus()).status
        failed = JobSeen(ClusterSeen(ClusterState.FAILED, message="no image"))
        decision = decide(status, failed)
        assert decision.steps == (JobStep.STOP_DRIVER,)
        closed = replace(failed, driver=DriverSeen(DriverState.CLOSED))
        after = decide(decision.status, closed).status
        assert (after.state, after.lost, after.reason) == (JobState.RETRYING, 1, "ClusterFailed")
        assert "no image" in after.message


class TestVerdict:
    @pytest.mark.parametrize(
        ("driver", "policy", "state", "outcome", "reason"),
        [
            (ended(0), POLICY, JobState.SUCCEEDED, Outcome.SUCCEEDED, ""),
            (ended(1), POLICY, JobState.FAILED, Outcome.FAILED, "BadExit"),
            (ended(1), JobPolicy(retries=1), JobState.RETRYING, Outcome.FAILED, "BadExit"),
            (ended(2), JobPolicy(retries=1, never=((2, 2),)), JobState.FAILED, Outcome.FAILED, "BadExit"),
            (ended(3), JobPolicy(retries=1, retried=((1, 1),)), JobState.FAILED, Outcome.FAILED, "BadExit"),
            (ended(137), JobPolicy(retries=1, retried=((128, 255),)), JobState.RETRYING, Outcome.FAILED, "BadExit"),
            (DriverSeen(DriverState.LOST), POLICY, JobState.RETRYING, Outcome.LOST, "DriverLost"),
            (DriverSeen(DriverState.LOST, reason="Evicted"), POLICY, JobState.RETRYING, Outcome.LOST, "Evicted"),
            (DriverSeen(DriverState.LOST), JobPolicy(recoveries=0), JobState.FAILED, Outcome.LOST, "DriverLost"),
        ],
    )
    def test_exit_decides(
        self, driver: DriverSeen, policy: JobPolicy, state: JobState, outcome: Outcome, reason: str
    ) -> None:
        status = settle(driver, policy)
        assert status.last is not None
        assert (status.state, status.last.outcome, status.reason) == (state, outcome, reason)
        assert status.last.exit_code == driver.exit_code

    def test_budgets_are_separate(self) -> None:
        policy = JobPolicy(retries=1, recoveries=1)
        assert settle(ended(1), policy, lost=1).state is JobState.RETRYING
        assert settle(DriverSeen(DriverState.LOST), policy, failed=1).state is JobState.RETRYING
        assert settle(ended(1), policy, failed=1).state is JobState.FAILED
        assert settle(DriverSeen(DriverState.LOST), policy, lost=1).state is JobState.FAILED

    def test_bad_exit_after_the_head_was_replaced_is_a_loss(self) -> None:
        seen = JobSeen(ClusterSeen(ClusterState.READY, "h2"), ended(1))
        status = decide(running(), seen).status
        assert (status.state, status.reason, status.lost, status.failed) == (JobState.RETRYING, "HeadLost", 1, 0)

    @pytest.mark.parametrize(
        "gone", [ClusterSeen(), ClusterSeen(ClusterState.FAILED), ClusterSeen(ClusterState.FOREIGN)]
    )
    def test_driver_whose_cluster_is_gone_is_stopped_and_its_bad_exit_is_a_loss(self, gone: ClusterSeen) -> None:
        stopping = decide(running(), JobSeen(gone, RUNNING))
        assert (stopping.status.reason, stopping.steps) == ("HeadLost", (JobStep.STOP_DRIVER,))
        status = decide(running(), JobSeen(gone, ended(1))).status
        assert (status.state, status.reason, status.lost) == (JobState.RETRYING, "HeadLost", 1)

    def test_driver_that_is_nowhere_is_closed_before_it_counts_as_lost(self) -> None:
        stopping = decide(running(), JobSeen(READY))
        assert (stopping.status.reason, stopping.steps) == ("DriverLost", (JobStep.STOP_DRIVER,))
        status = decide(stopping.status, JobSeen(READY, DriverSeen(DriverState.LOST))).status
        assert (status.state, status.reason, status.lost) == (JobState.RETRYING, "DriverLost", 1)

    def test_success_counts_although_the_head_was_lost(self) -> None:
        assert decide(running(), JobSeen(ClusterSeen(), ended(0))).status.state is JobState.SUCCEEDED

    @pytest.mark.parametrize("driver", [ended(0), DriverSeen(DriverState.LOST), DriverSeen(DriverState.UNREACHABLE)])
    def test_log_is_kept_before_the_verdict(self, driver: DriverSeen) -> None:
        first = decide(running(), JobSeen(READY, driver, is_log_kept=False))
        assert (first.steps, first.status.state) == ((JobStep.KEEP_LOG,), JobState.RUNNING)
        assert decide(running(), JobSeen(READY, driver)).status.last != running().last

    def test_times_are_those_of_the_driver_not_of_the_look(self) -> None:
        """The operator was away."""
        created = replace(running(), attempts=(Attempt(1, "j-1", NOW - 20, "h1"),))
        seen = DriverSeen(DriverState.ENDED, 0, NOW - 3, started=NOW - 12)
        last = decide(created, JobSeen(READY, seen)).status.last
        assert last is not None
        assert (last.started, last.ended) == (NOW - 12, NOW - 3)
        skewed = DriverSeen(DriverState.ENDED, 0, NOW + 60, started=NOW - 900)
        last = decide(created, JobSeen(READY, skewed)).status.last
        assert last is not None
        assert (last.started, last.ended) == (NOW - 20, NOW)

    def test_unknown_is_not_lost(self) -> None:
        seen = JobSeen(ClusterSeen(ClusterState.UNKNOWN), DriverSeen(DriverState.UNKNOWN))
        assert decide(running(), seen).status == running()

    def test_final_status_does_not_change(self) -> None:
        status = settle(ended(0))
        for seen in (JobSeen(READY, ended(1)), JobSeen(ClusterSeen(), RUNNING), JobSeen()):
            for request in (CANCEL, SUSPEND, JobRequest(delete=True)):
                assert decide(status, seen, request).status == status


class TestStop:
    def test_head_lost_stops_the_driver_and_starts_the_next_attempt_after_the_backoff(self) -> None:
        seen = JobSeen(ClusterSeen(ClusterState.STARTING, "h2"), RUNNING)
        stopping = decide(running(), seen)
        assert stopping.steps == (JobStep.STOP_DRIVER,)
        status = decide(stopping.status, replace(seen, driver=ended(143)), now=NOW + 1).status
        assert (status.state, status.lost, status.retry_at) == (JobState.RETRYING, 1, NOW + 11)
        assert decide(status, replace(seen, driver=ended(143)), now=NOW + 2).steps == (JobStep.REMOVE_CLUSTER,)
        assert decide(status, now=NOW + 2).status.attempt == 1  # the backoff
        following = decide(status, now=NOW + 12).status
        assert (following.attempt, following.cluster, following.state) == (2, "j-2", JobState.STARTING)

    def test_next_attempt_waits_until_the_cluster_is_gone(self) -> None:
        status = replace(settle(ended(1), JobPolicy(retries=1)), retry_at=NOW)
        assert decide(status, JobSeen(READY, ended(1)), now=NOW + 5).status.attempt == 1

    @pytest.mark.parametrize(
        ("code", "at", "state"),
        [
            (0, NOW - 1, JobState.SUCCEEDED),  # before the request
            (0, NOW + 1, JobState.CANCELLED),  # a program that handles SIGTERM
            (143, NOW + 1, JobState.CANCELLED),
            (1, NOW - 1, JobState.FAILED),
        ],
    )
    def test_driver_that_ended_before_the_cancellation_has_won(self, code: int, at: float, state: JobState) -> None:
        stopping = decide(running(), JobSeen(READY, RUNNING), CANCEL).status
        assert decide(stopping, JobSeen(READY, ended(code, at)), CANCEL, now=NOW + 2).status.state is state

    def test_cancel_before_the_start_closes_the_attempt_first(self) -> None:
        status = decide(JobStatus()).status
        stopping = decide(status, request=CANCEL)
        assert stopping.steps == (JobStep.STOP_DRIVER,)
        assert not stopping.status.state.is_final
        closed = JobSeen(driver=DriverSeen(DriverState.CLOSED))
        assert decide(stopping.status, closed, CANCEL).status.state is JobState.CANCELLED

    def test_driver_that_cannot_be_reached_is_lost_and_a_new_cluster_is_safe(self) -> None:
        lost = DriverSeen(DriverState.UNREACHABLE, ended=NOW - 1, reason="NodeLost", message="Node n is away.")
        status = decide(running(), JobSeen(READY, lost)).status
        assert (status.state, status.reason, status.lost) == (JobState.RETRYING, "NodeLost", 1)
        assert decide(status, JobSeen(READY, lost)).steps == (JobStep.REMOVE_CLUSTER,)
        assert decide(status, JobSeen(driver=lost), now=NOW + 11).status.attempt == 2
        cancelled = decide(running(), JobSeen(READY, RUNNING), CANCEL).status
        late = replace(lost, ended=NOW + 30)
        assert decide(cancelled, JobSeen(READY, late), CANCEL, now=NOW + 90).status.state is JobState.CANCELLED

    def test_driver_that_cannot_be_reached_keeps_others_from_a_shared_cluster(self) -> None:
        policy = JobPolicy(has_own_cluster=False)
        lost = JobSeen(READY, DriverSeen(DriverState.UNREACHABLE, ended=NOW - 1, reason="NodeLost"))
        status = decide(running(), lost, policy=policy).status
        waiting = decide(status, lost, policy=policy, now=NOW + 1000)
        assert (waiting.status.attempt, waiting.steps) == (1, ())
        assert "may still use" in waiting.status.message
        assert decide(waiting.status, lost, CANCEL, policy, NOW + 1001).status.state is JobState.CANCELLED
        assert decide(waiting.status, JobSeen(READY), policy=policy, now=NOW + 1001).status.attempt == 2

    def test_cancel_between_attempts(self) -> None:
        status = settle(ended(1), JobPolicy(retries=1))
        assert decide(status, request=CANCEL).status.state is JobState.CANCELLED

    def test_suspend_removes_all_and_resume_is_not_counted(self) -> None:
        stopping = decide(running(), JobSeen(READY, RUNNING), SUSPEND)
        settled = decide(stopping.status, JobSeen(READY, ended(143)), SUSPEND, now=NOW + 1).status
        assert settled.state is JobState.RUNNING  # something is left
        left = decide(settled, JobSeen(READY, ended(143)), SUSPEND, now=NOW + 2)
        assert left.steps == (JobStep.REMOVE_CLUSTER,)
        rests = decide(left.status, request=SUSPEND, now=NOW + 3)
        assert (rests.status.state, rests.pause) == (JobState.SUSPENDED, None)
        resumed = decide(rests.status, now=NOW + 100).status
        assert (resumed.attempt, resumed.failed, resumed.lost) == (2, 0, 0)

    def test_suspend_that_is_withdrawn_at_once_still_completes(self) -> None:
        stopping = decide(running(), JobSeen(READY, RUNNING), SUSPEND).status
        settled = decide(stopping, JobSeen(READY, ended(143)), now=NOW + 1).status
        assert (settled.failed, settled.lost) == (0, 0)
        assert decide(settled, now=NOW + 2).status.attempt == 2


class TestDeadlines:
    def test_deadline_counts_all_attempts_but_not_the_time_suspended(self) -> None:
        policy = JobPolicy(deadline=30.0)
        assert decide(running(), JobSeen(READY, RUNNING), policy=policy).steps == ()
        stopping = decide(running(), JobSeen(READY, RUNNING), policy=policy, now=NOW + 10)
        assert stopping.steps == (JobStep.STOP_DRIVER,)
        failed = decide(stopping.status, JobSeen(READY, ended(143, NOW + 11)), policy=policy, now=NOW + 11).status
        assert (failed.state, failed.reason) == (JobState.FAILED, "DeadlineExceeded")
        suspended = replace(running(), state=JobState.SUSPENDED, active_seconds=20.0, active_since=None)
        assert active_seconds(suspended, NOW + 500) == 20.0

    def test_deadline_applies_while_the_job_waits_for_its_backoff(self) -> None:
        status = settle(ended(1), JobPolicy(retries=9, first_backoff=300))
        assert decide(status, policy=JobPolicy(deadline=30.0), now=NOW + 40).status.state is JobState.FAILED

    def test_attempt_deadline_counts_as_a_bad_exit(self) -> None:
        policy = JobPolicy(attempt_deadline=10.0, retries=1)
        stopping = decide(running(), JobSeen(READY, RUNNING), policy=policy)
        status = decide(stopping.status, JobSeen(READY, ended(143)), policy=policy, now=NOW + 1).status
        assert (status.state, status.failed, status.reason) == (JobState.RETRYING, 1, "AttemptDeadlineExceeded")

    def test_attempt_deadline_that_has_passed_does_not_shorten_the_backoff(self) -> None:
        policy = JobPolicy(attempt_deadline=10.0, retries=1)
        status = settle(ended(1), policy)
        assert decide(status, policy=policy, now=NOW + 1).pause == 9.0

    def test_start_deadline(self) -> None:
        policy = JobPolicy(start_deadline=15.0)
        status = decide(JobStatus()).status
        stopping = decide(status, JobSeen(ClusterSeen(ClusterState.STARTING)), policy=policy, now=NOW + 15)
        closed = JobSeen(READY, DriverSeen(DriverState.CLOSED))
        failed = decide(stopping.status, closed, policy=policy, now=NOW + 16).status
        assert (failed.state, failed.reason) == (JobState.FAILED, "StartDeadlineExceeded")

    @pytest.mark.parametrize(
        ("policy", "reason", "state"),
        [
            (JobPolicy(deadline=15.0, retries=1), "DeadlineExceeded", JobState.FAILED),
            (JobPolicy(attempt_deadline=5.0, retries=1), "AttemptDeadlineExceeded", JobState.RETRYING),
            (JobPolicy(deadline=99.0, attempt_deadline=5.0), "AttemptDeadlineExceeded", JobState.FAILED),
            (JobPolicy(), "DeadlineExceeded", JobState.FAILED),  # it was withdrawn meanwhile
        ],
    )
    def test_driver_that_the_place_stopped_was_late(self, policy: JobPolicy, reason: str, state: JobState) -> None:
        late = DriverSeen(DriverState.LOST, ended=NOW, reason="DeadlineExceeded")
        status = decide(running(), JobSeen(READY, late), policy=policy).status
        assert (status.state, status.reason) == (state, reason)

    def test_time_that_a_driver_may_exist(self) -> None:
        assert driver_seconds(JobPolicy(), running(), NOW) is None
        assert driver_seconds(JobPolicy(deadline=30.0), running(), NOW) == 10.0
        assert driver_seconds(JobPolicy(deadline=5.0), running(), NOW) == 0.0
        attempt = JobPolicy(deadline=999.0, attempt_deadline=60.0, start_deadline=100.0)
        assert driver_seconds(attempt, running(), NOW) == 140.0

    def test_clock_that_was_set_back_counts_as_nothing(self) -> None:
        assert active_seconds(running(), NOW - 500) == 0.0

    def test_backoff_doubles_up_to_its_limit(self) -> None:
        policy = JobPolicy(retries=99, first_backoff=10, longest_backoff=35)
        delays = [(settle(ended(1), policy, failed=n).retry_at or 0) - NOW for n in range(4)]
        assert delays == [10, 20, 35, 35]


class TestForeignCluster:
    SEEN = ClusterSeen(ClusterState.FOREIGN, message="It belongs to somebody else.")

    def test_job_whose_cluster_names_are_taken_fails_when_its_recoveries_are_used(self) -> None:
        status, now = JobStatus(), NOW
        for _ in range(50):
            driver = DriverSeen(DriverState.CLOSED if status.last and status.last.stopping else DriverState.ABSENT)
            decision = decide(status, JobSeen(self.SEEN, driver), now=now)
            assert JobStep.REMOVE_CLUSTER not in decision.steps
            status, now = decision.status, now + 400
        assert (status.state, status.reason, status.attempt) == (JobState.FAILED, "ClusterFailed", 4)
        assert decide(status, JobSeen(self.SEEN, DriverSeen()), now=now).pause is None

    def test_name_that_is_free_later_is_not_needed(self) -> None:
        status = replace(settle(ended(1), JobPolicy(retries=1)), retry_at=NOW)
        assert decide(status, JobSeen(self.SEEN, ended(1)), now=NOW + 1).status.attempt == 2


class TestQueue:
    EVICTED = JobRequest(evicted="Another team needs it.")

    def test_evicted_attempt_stops_and_counts_in_no_budget(self) -> None:
        stopping = decide(running(), JobSeen(READY, RUNNING), self.EVICTED)
        assert stopping.steps == (JobStep.STOP_DRIVER,)
        assert "Another team needs it." in stopping.status.message
        status = decide(stopping.status, JobSeen(READY, ended(143)), self.EVICTED).status
        assert status.last is not None
        assert (status.last.outcome, status.last.reason) == (Outcome.STOPPED, "QueueEvicted")
        assert (status.failed, status.lost, status.state.is_final) == (0, 0, False)
        removing = decide(status, JobSeen(READY, ended(143)))
        assert removing.steps == (JobStep.REMOVE_CLUSTER,)
        waiting = JobRequest(hold=Hold("QueueWaiting", "It waits."))
        queued = decide(status, JobSeen(driver=ended(143)), waiting).status
        assert (queued.state, queued.reason, queued.active_since) == (JobState.QUEUED, "QueueWaiting", None)
        assert decide(queued, JobSeen(driver=ended(143))).status.attempt == 2

    def test_driver_that_ended_before_the_eviction_has_won(self) -> None:
        assert decide(running(), JobSeen(READY, ended(0)), self.EVICTED).status.state is JobState.SUCCEEDED

    def test_backoff_comes_before_the_queue(self) -> None:
        status = settle(ended(1), JobPolicy(retries=1))
        waiting = JobRequest(hold=Hold("QueueWaiting", "It waits."))
        assert decide(status, JobSeen(driver=ended(1)), waiting).status.state is JobState.RETRYING
        later = decide(status, JobSeen(driver=ended(1)), waiting, now=NOW + 1000)
        assert later.status.state is JobState.QUEUED


class TestHold:
    HOLD = JobRequest(hold=Hold("InvalidSpec", "engine: there is no engine x."))

    def test_nothing_is_created(self) -> None:
        queued = decide(JobStatus(), request=self.HOLD)
        assert (queued.status.state, queued.status.reason, queued.pause) == (JobState.QUEUED, "InvalidSpec", None)
        starting = decide(decide(JobStatus()).status, request=self.HOLD)
        assert (starting.status.state, starting.steps) == (JobState.STARTING, ())
        assert starting.status.message == "engine: there is no engine x."

    def test_driver_that_runs_continues_and_keeps_its_deadlines_and_its_verdict(self) -> None:
        seen = JobSeen(READY, RUNNING)
        shown = decide(running(), seen, self.HOLD)
        assert (shown.status.state, shown.status.reason, shown.steps) == (JobState.RUNNING, "InvalidSpec", ())
        policy = JobPolicy(deadline=5.0)
        assert decide(shown.status, seen, self.HOLD, policy).steps == (JobStep.STOP_DRIVER,)
        assert decide(shown.status, JobSeen(READY, ended(0)), self.HOLD).status.state is JobState.SUCCEEDED

    def test_it_can_be_cancelled(self) -> None:
        cancel = replace(self.HOLD, cancel=True)
        assert decide(JobStatus(), request=cancel).status.state is JobState.CANCELLED
        assert decide(running(), JobSeen(READY, RUNNING), cancel).steps == (JobStep.STOP_DRIVER,)


class TestEnd:
    def test_cluster_is_removed_after_the_verdict_is_stored(self) -> None:
        first = decide(running(), JobSeen(READY, ended(0)))
        assert first.steps == ()
        assert decide(first.status, JobSeen(READY, ended(0))).steps == (JobStep.REMOVE_CLUSTER,)
        assert decide(first.status, JobSeen(driver=ended(0))).pause is None

    def test_removal_of_a_cluster_is_requested_once(self) -> None:
        leaving = JobSeen(ClusterSeen(ClusterState.TERMINATING, "h1"), ended(1))
        after_end = decide(settle(ended(1)), leaving)
        assert (after_end.steps, after_end.pause) == ((), None)
        retrying = settle(ended(1), JobPolicy(retries=1))
        between = decide(retrying, leaving, now=NOW + 60)
        assert (between.steps, between.status) == ((), retrying) and between.pause == 10, "the watch wakes it earlier"
        assert decide(retrying, JobSeen(driver=ended(1)), now=NOW + 60).status.attempt == 2
        suspended = decide(retrying, leaving, SUSPEND)
        assert suspended.status.state is not JobState.SUSPENDED and suspended.pause == 10

    def test_cluster_that_somebody_deletes_while_the_driver_runs_is_lost_when_it_is_gone(self) -> None:
        leaving = ClusterSeen(ClusterState.TERMINATING, "h1")
        assert decide(running(), JobSeen(leaving, RUNNING)).steps == ()
        assert decide(running(), JobSeen(ClusterSeen(), RUNNING)).status.reason == "HeadLost"

    @pytest.mark.parametrize(
        ("policy", "steps"),
        [
            (JobPolicy(cleanup="none"), ()),
            (JobPolicy(cleanup="all"), (JobStep.REMOVE_CLUSTER, JobStep.REMOVE_DRIVER)),
            (JobPolicy(has_own_cluster=False), ()),
            (JobPolicy(after_success=60.0), ()),
            (JobPolicy(after_failure=60.0), (JobStep.REMOVE_CLUSTER,)),
        ],
    )
    def test_cleanup(self, policy: JobPolicy, steps: tuple[JobStep, ...]) -> None:
        assert decide(settle(ended(0)), JobSeen(READY, ended(0)), policy=policy).steps == steps

    def test_ttl_counts_from_the_end(self) -> None:
        status, policy = settle(ended(0)), JobPolicy(ttl=60.0)
        assert decide(status, policy=policy, now=NOW + 20).pause == 40.0
        assert decide(status, policy=policy, now=NOW + 60).steps == (JobStep.DELETE_JOB,)

    def test_driver_that_reappears_is_stopped(self) -> None:
        assert JobStep.STOP_DRIVER in decide(settle(ended(0)), JobSeen(driver=RUNNING)).steps

    def test_delete_cancels_first(self) -> None:
        delete = JobRequest(delete=True)
        assert decide(running(), JobSeen(READY, RUNNING), delete).steps == (JobStep.STOP_DRIVER,)
        assert decide(settle(ended(0)), request=delete).steps == (JobStep.DELETE_JOB,)


def test_policy_of_a_spec() -> None:
    spec = JobSpec.model_validate(
        {
            "cluster": {"name": "demo"},
            "entrypoint": "make all",
            "retries": 2,
            "retryOn": {"exitCodes": [1, "128-255"], "never": [2]},
            "backoff": {"first": "1s", "most": "1m"},
            "deadline": "8h",
            "cleanup": {"policy": "all", "after": {"failed": "10m"}},
            "ttlAfterFinished": "24h",
        }
    )
    assert policy_of(spec) == JobPolicy(
        retries=2, retried=((1, 1), (128, 255)), never=((2, 2),), first_backoff=1.0, longest_backoff=60.0,
        deadline=8 * 3600.0, start_deadline=3600.0, cleanup="all", after_failure=600.0, ttl=86400.0,
        has_own_cluster=False,
    )  # fmt: skip
