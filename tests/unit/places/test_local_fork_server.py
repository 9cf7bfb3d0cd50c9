"""How a member has ended, as its fork server tells: late on a busy machine, or never."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from oars.places.local.fork_client import ForkServerClient, Launch
from oars.places.local.process import gone, identify, marked
from oars.places.process.machine import UNKNOWN_EXIT, Exit
from oars.testing.place import until

PROGRAM = "import time\ntime.sleep(60)\n"
SECONDS = 30.0


@asynccontextmanager
async def fork_server(folder: Path, **variables: str) -> AsyncIterator[tuple[ForkServerClient, int]]:
    """With one child."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    env = {**os.environ, **variables}
    made = ForkServerClient(sys.executable, env, folder / "log", lambda: None)
    try:
        yield made, await made.spawn(Launch(["x"], str(script), env, str(folder), str(folder / "log")))
    finally:
        await made.close(kill=True)


async def kill(pid: int) -> None:
    identity = identify(pid)
    assert identity is not None
    os.kill(pid, signal.SIGKILL)
    assert await gone([identity], 30)


async def announced(made: ForkServerClient, pid: int) -> Exit:
    async with asyncio.timeout(SECONDS):
        while (found := made.exit_of(pid)) is None:  # noqa: ASYNC110 (nobody announces that a fork server died)
            await asyncio.sleep(0.02)
    return found


def test_forked_member_shows_its_label(tmp_path: Path) -> None:
    """Sweeps find the processes of a member by it, also those that nobody recorded."""

    async def story() -> None:
        async with fork_server(tmp_path, OARS_MARK="fork-test", OARS_MEMBER="worker-0:3") as (made, pid):

            async def is_labelled() -> bool:
                return {f.identity.pid: f.member for f in marked("fork-test")} == {made.pid: "", pid: "worker-0:3"}

            await until(is_labelled)
            await kill(pid)

    asyncio.run(story())


def test_exit_status_is_awaited_while_the_fork_server_is_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        async with fork_server(tmp_path) as (made, pid):
            made._process.send_signal(signal.SIGSTOP)
            await kill(pid)
            assert made.exit_of(pid) is None, "it will be announced"
            made._process.send_signal(signal.SIGCONT)
            assert await announced(made, pid) == Exit("was killed by SIGKILL", -signal.SIGKILL)

    asyncio.run(story())


def test_death_by_a_real_time_signal_is_reported(tmp_path: Path) -> None:
    """Such a signal has no name in Python. The fork server's client goes on."""

    async def story() -> None:
        async with fork_server(tmp_path) as (made, pid):
            os.kill(pid, 40)
            assert await announced(made, pid) == Exit("was killed by signal 40", -40)
            assert made.alive

    asyncio.run(story())


def test_request_for_a_dead_child_does_not_block(tmp_path: Path) -> None:
    async def story() -> None:
        async with fork_server(tmp_path) as (made, pid):
            made._process.kill()
            await asyncio.to_thread(made._process.wait, 30)
            await kill(pid)
            assert await announced(made, pid) == UNKNOWN_EXIT

    asyncio.run(story())


def test_exit_of_an_unknown_child_is_ignored(tmp_path: Path) -> None:
    async def story() -> None:
        async with fork_server(tmp_path) as (made, pid):
            assert made.exit_of(os.getpid()) == UNKNOWN_EXIT
            await kill(pid)

    asyncio.run(story())
