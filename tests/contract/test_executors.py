"""Runs the executor contract against the standard library, as a reference, and against every engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from oars.client.backend import Driver
from oars.client.sync import Cluster
from oars.testing import EngineExecutorContract, ExecutorContract
from oars.testing.driver import DriverProgram
from oars.testing.executor import CHECKS, start_checks

pytestmark = [pytest.mark.live, pytest.mark.timeout(500)]


class Reference(ExecutorContract):
    """An executor of the standard library, without a cluster."""

    @pytest.fixture(scope="class")
    @classmethod
    def program(cls) -> Iterator[DriverProgram]:
        with start_checks(cls(), cls.setup) as program:
            yield program

    def driver(self) -> Driver:
        return Driver(sys.executable, os.environ)


IN_PROCESS = "threads pickle nothing and share one process"
BREAKS = "the standard library breaks the whole pool"


class TestThreads(Reference):
    setup = "from concurrent.futures import ThreadPoolExecutor\ndef make(): return ThreadPoolExecutor(2)"
    omitted: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            "map_sends_chunks",
            "calls_do_not_share_pickled_arguments",
            "call_that_cannot_be_pickled_fails_alone",
            "result_that_cannot_be_pickled_fails_its_call",
            "exception_that_cannot_be_pickled_is_described",
            "argument_that_cannot_be_unpickled_fails_its_call",
            "result_that_cannot_be_unpickled_fails_its_call",
            "call_that_kills_workers_is_given_up",
            "pickling_that_kills_workers_is_given_up",
        ),
        IN_PROCESS,
    )


class TestProcesses(Reference):
    setup = "from concurrent.futures import ProcessPoolExecutor\ndef make(): return ProcessPoolExecutor(2)"
    omitted: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            "exception_that_cannot_be_pickled_is_described",
            "argument_that_cannot_be_unpickled_fails_its_call",
            "result_that_cannot_be_unpickled_fails_its_call",
            "call_that_kills_workers_is_given_up",
        ),
        BREAKS,
    )


class TestToy(EngineExecutorContract):
    """An engine of a third party that uses Oars' executor."""

    spec: ClassVar[dict[str, Any]] = {"engine": "toy"}


LONG = [pytest.param(check, marks=pytest.mark.long) if "kills_workers" in check else check for check in CHECKS]


class QuickContract(EngineExecutorContract):
    """Leaves the deaths of workers to `make test-all`: TestToy covers them, and the engine's own contract."""

    @pytest.mark.parametrize("check", LONG)
    def test_executor(self, check: str, program: DriverProgram) -> None:
        super().test_executor(check, program)

    @pytest.mark.long
    def test_delivered_results_do_not_keep_a_worker(self, cluster: Cluster) -> None:
        super().test_delivered_results_do_not_keep_a_worker(cluster)

    @pytest.mark.long
    def test_calls_of_killed_workers_run_again(self, cluster: Cluster) -> None:
        super().test_calls_of_killed_workers_run_again(cluster)

    @pytest.mark.long
    def test_large_results_arrive_while_workers_are_killed(self, cluster: Cluster) -> None:
        super().test_large_results_arrive_while_workers_are_killed(cluster)

    def test_calls_fail_when_the_cluster_is_stopped(self, cluster: Cluster) -> None:
        """Defined here to stay the last test: pytest runs inherited tests first."""
        super().test_calls_fail_when_the_cluster_is_stopped(cluster)


class TestDask(QuickContract):
    # Fewer deaths than by default, because Oars restarts a worker later and later.
    config: ClassVar[dict[str, Any]] = {"distributed": {"scheduler": {"allowed-failures": 2}}}
    spec: ClassVar[dict[str, Any]] = {"engine": "dask", "dask": {"config": config}}
    setup = """
from oars import executor as make
from distributed import Client
client = Client()
def held(): return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
"""


class TestRay(QuickContract):
    spec: ClassVar[dict[str, Any]] = {"engine": "ray", "ray": {"dashboard": False}}
    setup = """
import oars
from oars import executor as make
ray = oars.connect()
def held(): return len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())
"""


class Mars(EngineExecutorContract):
    timeout = "180s"
    setup = """
import oars
made = []
def make():
    made.append(oars.executor())
    return made[-1]
def held():
    connection = made[-1]._connection
    return 0 if connection is None else len(connection._session.client._get_ref_counts())
"""


@pytest.mark.long  # the engine's own contract and the unit tests of its executor are in `make test`
class TestXorbits(Mars):
    spec: ClassVar[dict[str, Any]] = {"engine": "mars"}


@pytest.mark.long  # the engine's own contract and the unit tests of its executor are in `make test`
class TestPymars(Mars):
    spec: ClassVar[dict[str, Any]] = {"engine": "mars", "mars": {"distribution": "pymars"}}
