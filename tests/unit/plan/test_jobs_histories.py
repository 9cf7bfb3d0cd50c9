"""decide_job with random histories: crashes after any write, drivers that end in any way, heads that die, nodes and
places that do not answer, queues that admit and evict, users that cancel, suspend, resume and delete."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oars.plan.jobs import (
    EVICTED,
    MAX_ATTEMPTS,
    NODE_LOST,
    ClusterSeen,
    ClusterState,
    DriverSeen,
    DriverState,
    Hold,
    JobPolicy,
    JobRequest,
    JobSeen,
    JobStep,
    cluster_name,
    decide_job,
    with_failed_pass,
)
from oars.spec.job_status import JobState, JobStatus, Outcome

RAISES = -1
SHARED = "demo"  # the cluster of jobs without one of their own
HOLD = Hold("WaitsForQueue", "The queue has not admitted it.")
ALIVE = (DriverState.STARTING, DriverState.RUNNING)


@dataclass
class World:
    """What the place stores and runs. Each method is one write."""

    policy: JobPolicy
    status: JobStatus = field(default_factory=JobStatus)
    request: JobRequest = field(default_factory=JobRequest)
    now: float = 0.0
    heads: dict[str, int] = field(default_factory=dict)  # cluster → incarnation of its head
    ready: set[str] = field(default_factory=set)
    drivers: dict[int, DriverSeen] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    logs: set[int] = field(default_factory=set)
    is_blind: bool = False  # nothing answers
    is_deleted: bool = False
    verdict: JobStatus | None = None

    def __post_init__(self) -> None:
        if not self.policy.has_own_cluster:
            self.status = JobStatus(cluster=SHARED)
            self.heads[SHARED] = 1
            self.ready.add(SHARED)

    @property
    def cluster(self) -> str:
        return cluster_name("j", self.status.attempt) if self.policy.has_own_cluster else SHARED

    def seen(self) -> JobSeen:
        n, name = self.status.attempt, self.cluster
        if self.is_blind:
            return JobSeen(ClusterSeen(ClusterState.UNKNOWN), DriverSeen(DriverState.UNKNOWN))
        cluster = ClusterSeen() if self.policy.has_own_cluster else ClusterSeen(ClusterState.FAILED)
        if name in self.heads:
            state = ClusterState.READY if name in self.ready else ClusterState.STARTING
            cluster = ClusterSeen(state, str(self.heads[name]))
        driver = self.drivers.get(n, DriverSeen())
        return JobSeen(cluster, driver, n in self.logs or driver.state is not DriverState.ENDED)

    def store(self, status: JobStatus) -> None:
        before = {attempt.n: attempt for attempt in self.status.attempts}
        for attempt in status.attempts:
            known = before.get(attempt.n)
            if known is not None and known.ended is not None:
                assert attempt == known, "an attempt that has ended does not change"
            elif attempt.ended is not None:
                driver = self.drivers.get(attempt.n, DriverSeen())
                assert driver.state not in ALIVE, "there is no verdict about a driver that runs"
        assert status.attempt - self.status.attempt in (0, 1), "no attempt is skipped"
        last = self.status.last
        if status.attempt > self.status.attempt and last is not None:
            assert last.outcome in (Outcome.FAILED, Outcome.LOST, Outcome.STOPPED), "the reason for another attempt"
            assert last.reason
            self._check_next_attempt(last.n)
        if self.verdict is not None:
            assert status == self.verdict, "a verdict does not change"
        if status.state.is_final and self.verdict is None:
            self.verdict = status
        last = status.last
        if last is not None and last.ended is not None:
            self.request = replace(self.request, evicted="")  # the next attempt queues anew
            self._check_budgets(status)
        self.status = status

    def _check_next_attempt(self, last: int) -> None:
        driver = self.drivers.get(last, DriverSeen())
        assert self.request.hold is None, "nothing is created before it is admitted"
        assert driver.state not in ALIVE
        if not self.policy.has_own_cluster:
            assert driver.state is not DriverState.UNREACHABLE, "it may still use the cluster"

    def _check_budgets(self, status: JobStatus) -> None:
        outcomes = [each.outcome for each in status.attempts]
        assert all(each.outcome is Outcome.STOPPED for each in status.attempts if each.reason == EVICTED)
        if status.attempt <= MAX_ATTEMPTS:
            assert (status.failed, status.lost) == (outcomes.count(Outcome.FAILED), outcomes.count(Outcome.LOST))

    def perform(self, step: JobStep) -> None:
        n, name = self.status.attempt, self.cluster
        driver = self.drivers.get(n, DriverSeen())
        match step:
            case JobStep.MAKE_CLUSTER:
                assert self.policy.has_own_cluster and self.request.hold is None
                self.heads.setdefault(name, 1)
            case JobStep.START_DRIVER if driver.state is DriverState.ABSENT:  # the name is the lock
                assert self.request.hold is None
                self.drivers[n] = DriverSeen(DriverState.STARTING)
                self.starts[n] = self.starts.get(n, 0) + 1
            case JobStep.STOP_DRIVER if driver.state in (DriverState.ABSENT, DriverState.STARTING):
                self.drivers[n] = DriverSeen(DriverState.CLOSED)
            case JobStep.STOP_DRIVER if driver.state is DriverState.RUNNING:
                self.drivers[n] = DriverSeen(DriverState.ENDED, 143, self.now)
            case JobStep.KEEP_LOG:
                self.logs.add(n)
            case JobStep.REMOVE_CLUSTER:
                last = self.status.last
                assert last is not None and self.policy.has_own_cluster
                assert last.ended is not None, "the verdict is stored before anything is removed"
                self.heads.pop(name, None)
                self.ready.discard(name)
            case JobStep.REMOVE_DRIVER:
                self.drivers.pop(n, None)
            case JobStep.DELETE_JOB:
                assert self.verdict is not None and self.verdict.ended is not None
                ttl = self.policy.ttl
                assert self.request.delete or (ttl is not None and self.now >= self.verdict.ended + ttl)
                self.is_deleted = True
                self.drivers.clear()  # Kubernetes collects them
                if self.policy.has_own_cluster:
                    self.heads.clear()

    def run_pass(self, writes: int | None = None) -> None:
        """One pass, which crashes after that many writes. RAISES: it fails, which is reported."""
        if self.is_deleted:
            return
        if writes == RAISES:
            self.store(with_failed_pass(self.status, OSError("no space"), "the log"))
            return
        decision = decide_job("j", self.policy, self.request, self.status, self.seen(), self.now)
        left = 99 if writes is None else writes
        if left <= 0:
            return
        self.store(decision.status)
        for step in decision.steps[: left - 1]:
            self.perform(step)

    def check(self) -> None:
        assert all(count == 1 for count in self.starts.values()), "one driver per attempt"
        assert sum(each.state in ALIVE for each in self.drivers.values()) <= 1
        if not self.policy.has_own_cluster:
            might_run = (*ALIVE, DriverState.UNREACHABLE)
            assert sum(each.state in might_run for each in self.drivers.values()) <= 1


policies = st.builds(
    JobPolicy,
    retries=st.integers(0, 3),
    recoveries=st.integers(0, 3),
    first_backoff=st.sampled_from([1.0, 10.0]),
    never=st.sampled_from([(), ((2, 2),)]),
    retried=st.sampled_from([(), ((1, 1),)]),
    deadline=st.sampled_from([None, 40.0]),
    attempt_deadline=st.sampled_from([None, 15.0]),
    start_deadline=st.sampled_from([30.0, 300.0]),
    cleanup=st.sampled_from(["running", "all", "none"]),
    after_failure=st.sampled_from([0.0, 30.0]),
    ttl=st.sampled_from([None, 50.0]),
    has_own_cluster=st.booleans(),
)
events = st.one_of(
    st.tuples(st.just("advance"), st.integers(1, 5)),  # so that most histories have drivers that run
    st.tuples(st.just("advance"), st.integers(1, 5)),
    st.tuples(st.just("pass"), st.sampled_from([None, RAISES, 0, 1, 2])),
    st.tuples(st.just("time"), st.integers(1, 30)),
    st.tuples(st.sampled_from(["ready", "head", "gone", "run"]), st.just(0)),
    st.tuples(st.sampled_from(["unreachable", "back"]), st.just(0)),
    st.tuples(st.sampled_from(["blind", "answer"]), st.just(0)),
    st.tuples(st.sampled_from(["hold", "admit", "evict"]), st.just(0)),
    st.tuples(st.just("end"), st.sampled_from([0, 1, 2, 137])),
    st.tuples(st.just("lose"), st.just(0)),
    st.tuples(st.sampled_from(["cancel", "suspend", "resume", "delete"]), st.just(0)),
)


def happen(world: World, event: str, value: int | None) -> None:
    if event == "pass":
        world.run_pass(value)
    elif event == "advance":
        for each in (value or 0) * ("time", "pass", "ready", "run"):
            happen(world, each, 1 if each == "time" else None)
            world.check()
    elif event == "time":
        world.now += value or 0
    elif event in USERS:
        world.request = replace(world.request, **USERS[event])
    elif event in ("blind", "answer"):
        world.is_blind = event == "blind"
    elif event == "evict":
        last = world.status.last
        if last is not None and last.ended is None:  # an attempt that the queue has admitted
            world.request = replace(world.request, evicted="The quota is used.")
    else:
        _happen_to_members(world, event, value)


USERS: dict[str, dict[str, Any]] = {
    "cancel": {"cancel": True},
    "delete": {"delete": True},
    "suspend": {"suspend": True},
    "resume": {"suspend": False},
    "hold": {"hold": HOLD},
    "admit": {"hold": None},
}


def _happen_to_members(world: World, event: str, value: int | None) -> None:
    n, name = world.status.attempt, world.cluster
    driver = world.drivers.get(n, DriverSeen())
    match event:
        case "ready" if name in world.heads:
            world.ready.add(name)
        case "head" if name in world.heads:
            world.heads[name] += 1
        case "gone":
            world.heads.pop(name, None)
            world.ready.discard(name)
        case "run" if driver.state is DriverState.STARTING:
            world.drivers[n] = DriverSeen(DriverState.RUNNING)
        case "end" | "lose" | "unreachable" if driver.state is DriverState.RUNNING:
            world.drivers[n] = {
                "end": DriverSeen(DriverState.ENDED, value, world.now),
                "lose": DriverSeen(DriverState.LOST),
                "unreachable": DriverSeen(DriverState.UNREACHABLE, ended=world.now, reason=NODE_LOST),
            }[event]
        case "back":  # the node kills what was deleted meanwhile
            for number, each in world.drivers.items():
                if each.state is DriverState.UNREACHABLE:
                    world.drivers[number] = DriverSeen(DriverState.LOST)


@settings(max_examples=400, deadline=None)
@given(policies, st.lists(events, min_size=10, max_size=60), st.sampled_from([0, 1, 2]))
def test_every_history_ends_with_one_verdict_and_one_driver_per_attempt(
    policy: JobPolicy, history: list[tuple[str, int | None]], code: int
) -> None:
    world = World(policy)
    for event, value in history:
        happen(world, event, value)
        world.check()
    for event in ("resume", "admit", "answer", "back"):
        happen(world, event, 0)
    for _ in range(300):  # from now on nothing fails except the driver
        for event, value in (("time", 2), ("ready", 0), ("run", 0), ("pass", None), ("end", code), ("pass", None)):
            happen(world, event, value)
            world.check()
        is_over = world.verdict is not None and not (policy.has_own_cluster and world.seen().cluster.head)
        if is_over and (world.is_deleted or not (policy.ttl or world.request.delete)):
            break
    assert world.status.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    assert world.is_deleted is (policy.ttl is not None or world.request.delete)
    if policy.has_own_cluster and policy.cleanup != "none":
        assert not world.heads
    succeeded = [n for n, each in world.drivers.items() if each.state is DriverState.ENDED and each.exit_code == 0]
    if world.status.state is JobState.SUCCEEDED and policy.cleanup != "all" and not world.is_deleted:
        assert succeeded == [world.status.attempt]
    assert world.status.failed <= policy.retries + 1
    assert world.status.lost <= policy.recoveries + 1
