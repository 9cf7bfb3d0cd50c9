"""The contract of executors. Subclass it; the program with the checks is started once per class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from oars.client.sync import Cluster
from oars.testing import executor_program
from oars.testing.cluster import OneCluster, kill_and_wait, pids, replace_workers, until
from oars.testing.driver import DriverProgram, HasDriver

LOST_SECONDS = 30.0  # within which calls fail when their cluster is gone
CONNECTED = """
import time
from concurrent.futures import BrokenExecutor, wait
from oars import executor
from oars.base.errors import ClusterLost
if __name__ == "__main__":
    with executor() as ex:
        assert ex.submit(abs, -1).result(60) == 1
"""
HOLD = (
    CONNECTED
    + """
        kept = [ex.submit(bytes, 2_000_000) for _ in range(8)]
        wait(kept, 60)
        print("held", flush=True)
        input()
        print("intact", {len(future.result()) for future in kept}, flush=True)
"""
)
REPEAT = (
    CONNECTED
    + """
        import os, tempfile
        def nap(path):
            if os.path.exists(path): return "again"
            open(path, "w").close()
            time.sleep(600)
        with tempfile.TemporaryDirectory() as directory:
            paths = [f"{directory}/{n}" for n in range(2)]
            futures = [ex.submit(nap, path) for path in paths]
            while not all(map(os.path.exists, paths)): time.sleep(0.01)
            print("started", flush=True)
            print("ran", *(future.result(120) for future in futures), flush=True)
"""
)
CHURN = (
    CONNECTED
    + """
        def make(size):
            time.sleep(0.1)
            return bytes(size)
        futures = [ex.submit(make, 3_000_000 + n) for n in range(80)]
        futures[4].result(60)
        print("started", flush=True)
        print("made", sum(len(future.result(120)) for future in futures) - 80 * 3_000_000, flush=True)
"""
)
LOSE = (
    CONNECTED
    + """
        futures = [ex.submit(time.sleep, 600) for _ in range(8)]
        while not futures[0].running(): time.sleep(0.01)
        print("started", flush=True)
        errors = [future.exception(120) for future in futures]
        assert all(isinstance(error, BrokenExecutor) and isinstance(error, ClusterLost) for error in errors), errors
        print("lost", errors[0], flush=True)
        if input() == "again":
            print("again", ex.submit(pow, 2, 3).result(120), flush=True)
"""
)
SOURCE = Path(executor_program.__file__)
CHECKS = [name.removeprefix("check_") for name in vars(executor_program) if name.startswith("check_")]


class ExecutorContract:
    """What a concurrent.futures.Executor does, by executor_program.py. Subclasses provide a fixture `program`."""

    setup: ClassVar[str] = "from oars import executor as make"  # see executor_program.py
    omitted: ClassVar[Mapping[str, str]] = {}  # check → why this executor need not pass it

    @pytest.mark.parametrize("check", CHECKS)
    def test_executor(self, check: str, program: DriverProgram) -> None:
        if check in self.omitted:
            pytest.skip(self.omitted[check])
        program.tell(f"check_{check}")
        line = program.expect(f"ed check_{check}", executor_program.LIMIT * 4)
        assert line.startswith("passed"), "\n".join(program.seen)


class EngineExecutorContract(ExecutorContract, OneCluster):
    """The executor of an engine, on a cluster with two workers. Set `spec`, and `setup` with `held`."""

    @pytest.fixture(scope="class")
    @classmethod
    def program(cls, cluster: Cluster) -> Iterator[DriverProgram]:
        with start_checks(cluster, cls.setup) as program:
            yield program

    def test_delivered_results_do_not_keep_a_worker(self, cluster: Cluster) -> None:
        with DriverProgram(cluster, HOLD) as program:
            program.expect("held")
            cluster.scale(1)
            until(lambda: len(cluster.members()) == 2, 60)
            cluster.scale(2)
            cluster.wait(timeout=self.timeout)
            program.tell()
            program.expect("intact {2000000}")

    def test_calls_of_killed_workers_run_again(self, cluster: Cluster) -> None:
        replace_workers(cluster)
        with DriverProgram(cluster, REPEAT) as program:
            program.expect("started")
            before = pids(cluster)
            for name in [name for name in before if name != "head"]:
                kill_and_wait(cluster, name, before)
            program.expect("ran again again", executor_program.LIMIT)

    def test_large_results_arrive_while_workers_are_killed(self, cluster: Cluster) -> None:
        replace_workers(cluster)
        with DriverProgram(cluster, CHURN) as program:
            program.expect("started")
            before = pids(cluster)
            for name in [name for name in before if name != "head"]:
                kill_and_wait(cluster, name, before)
            program.expect("made 3160", executor_program.LIMIT)

    def test_calls_fail_when_the_head_dies_and_then_work_again(self, cluster: Cluster) -> None:
        with DriverProgram(cluster, LOSE) as program:
            program.expect("started")
            kill_and_wait(cluster, "head", pids(cluster))
            assert cluster.name in program.expect("lost", LOST_SECONDS)
            program.tell("again")
            program.expect("again 8")

    def test_calls_fail_when_the_cluster_is_stopped(self, cluster: Cluster) -> None:
        """The last test: the cluster is gone."""
        with DriverProgram(cluster, LOSE) as program:
            program.expect("started")
            cluster.stop()
            assert cluster.name in program.expect("lost", LOST_SECONDS)
            program.tell()
            program.expect("(end)")


@contextlib.contextmanager
def start_checks(driver: HasDriver, setup: str) -> Iterator[DriverProgram]:
    with DriverProgram(driver, SOURCE.read_text(), setup) as program:
        program.expect("ready")
        yield program
