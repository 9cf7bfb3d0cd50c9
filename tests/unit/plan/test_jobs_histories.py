"""decide_job with random histories: crashes after any write, drivers that end in any way, heads that die, users that
cancel, suspend and resume."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from oars.plan.jobs import (
    ClusterSeen,
    ClusterState,
    DriverSeen,
    DriverState,
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
ENDED = (DriverState.ENDED, DriverState.LOST, DriverState.CLOSED)


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
    deleted: bool = False
    verdict: JobStatus | None = None

    def seen(self) -> JobSeen:
        n = self.status.attempt
        name = cluster_name("j", n)
        cluster = ClusterSeen()
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
        assert status.attempt - self.status.attempt in (0, 1), "no attempt is skipped"
        if status.attempt > self.status.attempt and self.status.last is not None:
            last = self.status.last
            assert last.outcome in (Outcome.FAILED, Outcome.LOST, Outcome.STOPPED), "the reason for another attempt"
            assert last.reason
        if self.verdict is not None:
            assert status == self.verdict, "a verdict does not change"
        if status.state.is_final and self.verdict is None:
            self.verdict = status
        self.status = status

    def perform(self, step: JobStep) -> None:
        n = self.status.attempt
        name = cluster_name("j", n)
        driver = self.drivers.get(n, DriverSeen())
        match step:
            case JobStep.MAKE_CLUSTER:
                self.heads.setdefault(name, 1)
            case JobStep.START_DRIVER if driver.state is DriverState.ABSENT:  # the name is the lock
                self.drivers[n] = DriverSeen(DriverState.RUNNING)
                self.starts[n] = self.starts.get(n, 0) + 1
            case JobStep.STOP_DRIVER if driver.state is DriverState.ABSENT:
                self.drivers[n] = DriverSeen(DriverState.CLOSED)
            case JobStep.STOP_DRIVER if driver.state is DriverState.RUNNING:
                self.drivers[n] = DriverSeen(DriverState.ENDED, 143, self.now)
            case JobStep.KEEP_LOG:
                self.logs.add(n)
            case JobStep.REMOVE_CLUSTER:
                last = self.status.last
                assert last is not None
                assert last.ended is not None, "the verdict is stored before anything is removed"
                self.heads.pop(name, None)
                self.ready.discard(name)
            case JobStep.REMOVE_DRIVER:
                self.drivers.pop(n, None)
            case JobStep.DELETE_JOB:
                self.deleted = True

    def run_pass(self, writes: int | None = None) -> None:
        """One pass, which crashes after that many writes. RAISES: it fails, which is reported."""
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
        assert sum(each.state is DriverState.RUNNING for each in self.drivers.values()) <= 1


policies = st.builds(
    JobPolicy,
    retries=st.integers(0, 3),
    recoveries=st.integers(0, 3),
    never=st.sampled_from([(), ((2, 2),)]),
    retried=st.sampled_from([(), ((1, 1),)]),
    deadline=st.sampled_from([None, 40.0]),
    attempt_deadline=st.sampled_from([None, 15.0]),
    start_deadline=st.sampled_from([30.0, 300.0]),
    cleanup=st.sampled_from(["running", "all", "none"]),
    after_failure=st.sampled_from([0.0, 30.0]),
)
events = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([None, RAISES, 0, 1, 2])),
    st.tuples(st.just("time"), st.integers(1, 30)),
    st.tuples(st.just("ready"), st.just(0)),
    st.tuples(st.just("head"), st.just(0)),
    st.tuples(st.just("gone"), st.just(0)),
    st.tuples(st.just("end"), st.sampled_from([0, 1, 2, 137])),
    st.tuples(st.just("lose"), st.just(0)),
    st.tuples(st.sampled_from(["cancel", "suspend", "resume"]), st.just(0)),
)


def happen(world: World, event: str, value: int | None) -> None:
    n = world.status.attempt
    name = cluster_name("j", n)
    driver = world.drivers.get(n, DriverSeen())
    match event:
        case "pass":
            world.run_pass(value)
        case "time":
            world.now += value or 0
        case "ready" if name in world.heads:
            world.ready.add(name)
        case "head" if name in world.heads:
            world.heads[name] += 1
        case "gone":
            world.heads.pop(name, None)
            world.ready.discard(name)
        case "end" if driver.state is DriverState.RUNNING:
            world.drivers[n] = DriverSeen(DriverState.ENDED, value, world.now)
        case "lose" if driver.state is DriverState.RUNNING:
            world.drivers[n] = DriverSeen(DriverState.LOST)
        case "cancel":
            world.request = replace(world.request, cancel=True)
        case "suspend" | "resume":
            world.request = replace(world.request, suspend=event == "suspend")


@settings(max_examples=400, deadline=None)
@given(policies, st.lists(events, max_size=60), st.sampled_from([0, 1, 2]))
def test_every_history_ends_with_one_verdict_and_one_driver_per_attempt(
    policy: JobPolicy, history: list[tuple[str, int | None]], code: int
) -> None:
    world = World(policy)
    for event, value in history:
        happen(world, event, value)
        world.check()
    world.request = replace(world.request, suspend=False)
    for _ in range(300):  # from now on nothing fails except the driver
        for event, value in (("time", 2), ("ready", 0), ("pass", None), ("end", code), ("pass", None)):
            happen(world, event, value)
            world.check()
        if world.verdict is not None and not world.seen().cluster.head:
            break
    assert world.status.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    if policy.cleanup != "none":
        assert not world.heads
    succeeded = [n for n, each in world.drivers.items() if each.state is DriverState.ENDED and each.exit_code == 0]
    if world.status.state is JobState.SUCCEEDED and policy.cleanup != "all":
        assert succeeded == [world.status.attempt]
    assert world.status.failed <= policy.retries + 1
    assert world.status.lost <= policy.recoveries + 1
