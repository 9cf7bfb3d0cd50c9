"""How a member has ended, as its fork server tells: late on a busy machine, or never."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from oars.places.local.fork_client import EXIT_SECONDS, ForkServerClient, Launch
from oars.places.local.process import gone, identify

PROGRAM = "import time\ntime.sleep(60)\n"
AT_ONCE = EXIT_SECONDS / 2


@asynccontextmanager
async def nursery(folder: Path) -> AsyncIterator[tuple[ForkServerClient, int]]:
    """With one child."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    made = ForkServerClient(sys.executable, os.environ, folder / "log", lambda: None)
    try:
        yield made, await made.spawn(Launch(["x"], str(script), os.environ, str(folder), str(folder / "log")))
    finally:
        await made.close(kill=True)


async def kill(pid: int) -> None:
    identity = identify(pid)
    assert identity is not None
    os.kill(pid, signal.SIGKILL)
    assert await gone([identity], 30)


def test_one_that_does_not_get_the_processor_is_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with nursery(tmp_path) as (made, pid):
            made._process.send_signal(signal.SIGSTOP)
            await kill(pid)
            asking = asyncio.create_task(made.exit_reason(pid))
            await asyncio.sleep(1.5)
            assert not asking.done()
            made._process.send_signal(signal.SIGCONT)
            assert await asking == "was killed by SIGKILL"

    asyncio.run(story())


def test_for_one_that_is_gone_nobody_waits(tmp_path: Path) -> None:
    async def story() -> None:
        async with nursery(tmp_path) as (made, pid):
            made._process.kill()
            await asyncio.to_thread(made._process.wait, 30)
            await kill(pid)
            async with asyncio.timeout(AT_ONCE):
                assert await made.exit_reason(pid) == ""

    asyncio.run(story())


def test_nor_for_word_of_anothers_child(tmp_path: Path) -> None:
    async def story() -> None:
        async with nursery(tmp_path) as (made, pid):
            async with asyncio.timeout(AT_ONCE):
                assert await made.exit_reason(os.getpid()) is None
            await kill(pid)

    asyncio.run(story())
