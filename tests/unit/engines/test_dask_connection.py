"""Dask's executor when its scheduler dies, comes back, or hangs. Scheduler and worker are a process of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

import pytest

from oars.base.errors import EngineUnreachable
from oars.engines import executor as executors
from oars.engines.base import Access
from oars.engines.dask import session
from oars.engines.executor import CallLost

SECONDS = 60.0
CLUSTER = """
import asyncio, sys
from distributed import Scheduler, Worker
page = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
async def run():
    async with Scheduler(host="127.0.0.1", port=int(sys.argv[1]), **page) as scheduler:
        async with Worker(scheduler.address, nthreads=2, **page):
            print("ready", flush=True)
            await scheduler.finished()
asyncio.run(run())
"""


class Cluster:
    """A process with a scheduler and a worker; the next one has the same port."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port = port
        self._env = {**os.environ, "DASK_TEMPORARY_DIRECTORY": str(folder)}
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        words = [sys.executable, "-c", CLUSTER, str(self.port)]
        self.processes.append(subprocess.Popen(words, env=self._env, stdout=subprocess.PIPE, text=True))
        assert self.processes[-1].stdout is not None
        assert self.processes[-1].stdout.readline() == "ready\n"

    def kill(self) -> None:
        self.processes[-1].kill()
        self.processes[-1].wait()

    def send(self, number: signal.Signals) -> None:
        self.processes[-1].send_signal(number)

    @property
    def access(self) -> Access:
        return Access("demo", "dask", f"tcp://127.0.0.1:{self.port}", "", {}, "team")

    def executor(self) -> Executor:
        return session.executor(self.access)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        made = Cluster(free.getsockname()[1], tmp_path)
    made.start()
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)  # a file of another process, or a thread: there is nothing to await


def block(started: str) -> None:
    Path(started).touch()
    time.sleep(600)


def divide(number: int) -> float:
    return 12 / number


def test_results_that_are_fetched_together_include_errors(cluster: Cluster) -> None:
    with cluster.executor() as executor:
        futures = [executor.submit(divide, number) for number in range(-3, 4)]
        errors: Sequence[BaseException | None] = [future.exception(SECONDS) for future in futures]
        assert [type(error) for error in errors] == [type(None)] * 3 + [ZeroDivisionError] + [type(None)] * 3
        assert [future.result() for future in futures if not future.exception()] == [-4, -6, -12, 12, 6, 4]


def test_calls_of_a_killed_scheduler_fail_and_the_next_one_waits_for_its_successor(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.5)  # so that attempts fail while there is no scheduler
    with cluster.executor() as executor:
        running = executor.submit(block, str(tmp_path / "started"))
        until((tmp_path / "started").exists)
        cluster.kill()
        lost = running.exception(SECONDS)
        assert isinstance(lost, CallLost) and "oars why demo -n team" in str(lost)
        waiting = executor.submit(divide, 3)
        monkeypatch.setattr(session, "CONNECT_SECONDS", 30.0)
        cluster.start()
        assert waiting.result(SECONDS) == 4


def test_calls_fail_if_the_scheduler_does_not_come_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(executors, "RECONNECT_SECONDS", 1.0)
    with cluster.executor() as executor:
        assert executor.submit(divide, 3).result(SECONDS) == 4
        cluster.kill()
        errors = [executor.submit(divide, 3).exception(SECONDS) for _ in range(2)]
        assert isinstance(errors[-1], EngineUnreachable), errors
        assert f"tcp://127.0.0.1:{cluster.port} does not reply" in str(errors[-1])


@pytest.mark.parametrize(
    "connect", [session.connect, lambda access: asyncio.run(session.connect_async(access))], ids=["sync", "async"]
)
def test_connecting_to_a_scheduler_that_hangs_times_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, connect: Callable[[Access], object]
) -> None:
    monkeypatch.setattr(session, "CONNECT_SECONDS", 1.0)
    cluster.send(signal.SIGSTOP)
    with pytest.raises(EngineUnreachable, match="does not reply"):
        connect(cluster.access)


def test_closing_does_not_wait_for_a_scheduler_that_hangs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CLOSE_SECONDS", 1.0)
    executor = cluster.executor()
    assert executor.submit(divide, 3).result(SECONDS) == 4
    cluster.send(signal.SIGSTOP)
    began = time.monotonic()
    executor.shutdown()
    assert time.monotonic() - began < SECONDS / 2
