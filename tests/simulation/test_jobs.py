"""Limits of jobs: the operator's real reconciler on a virtual clock, killed after some of its writes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from oars.kube.kinds import Object
from oars.spec.job_status import JobState, JobStatus, Outcome
from tests.simulation.api_server import Key
from tests.simulation.batch import Batch
from tests.simulation.jobs import CLEANUP_SECONDS, CLUSTER, NAMESPACE, JobHistory, Replica

START_DEADLINE = 600.0
TRAIN: Key = ("computejobs", NAMESPACE, "train")


@dataclass
class Stuck(Batch):
    """No cluster gets ready, or no pod gets a node."""

    what: str = ""

    async def _make_ready(self, key: Key, uid: str) -> None:
        if self.what != "cluster":
            await super()._make_ready(key, uid)

    async def _run_pod(self, key: Key, uid: str) -> None:
        if self.what != "pod":
            return await super()._run_pod(key, uid)
        while (pod := self._pod(key, uid)) is not None and "deletionTimestamp" not in pod["metadata"]:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(1.0)
        self._drop(key, uid)


class Waiting(JobHistory):
    """One job whose driver cannot start."""

    def __init__(self, seed: int, what: str) -> None:
        super().__init__(seed)
        self.batch = Stuck(self.server, self.random, self.log, self._check_start, what=what)
        self.replicas = [Replica("operator", self)]
        self.seconds = 0.0

    async def _story(self) -> None:
        spec: dict[str, Any] = {"cluster": CLUSTER, "entrypoint": ["true"], "startDeadline": f"{START_DEADLINE:g}s"}
        body: Object = {"kind": "ComputeJob", "metadata": {"name": "train", "namespace": NAMESPACE}}
        self.server.create("computejobs", {**body, "spec": {**spec, "retries": 3, "recoveries": 3}})
        began = self.clock.now
        while not self.verdict().state.is_final:
            self._raise_problem()
            assert self.clock.now < began + 2 * START_DEADLINE, self.verdict()
            await asyncio.sleep(1.0)
        self.seconds = self.clock.now - began
        self.is_troubled = False
        await asyncio.sleep(CLEANUP_SECONDS)
        self._raise_problem()
        self._check_end()

    def verdict(self) -> JobStatus:
        return self._status(self.server.get(TRAIN))


@pytest.mark.parametrize("what", ["cluster", "pod"])
@pytest.mark.parametrize("seed", range(5))
def test_job_whose_driver_does_not_start_in_time_fails_and_nothing_starts_later(what: str, seed: int) -> None:
    history = Waiting(seed, what)
    history.run()
    found = history.verdict()
    assert (found.state, found.reason, found.exit_code) == (JobState.FAILED, "StartDeadlineExceeded", None)
    assert [(each.outcome, each.started) for each in found.attempts] == [(Outcome.FAILED, None)]
    assert START_DEADLINE <= history.seconds <= START_DEADLINE + 60, "an operator that was killed takes its time"
    assert not history.starts and not list(history.server.find("pods"))
    (job,) = history.server.find("jobs")
    assert job["spec"]["suspend"] is True, "a request to create the driver that arrives now is refused"
