"""`oars run`: a cluster for one script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import Denied, NotFound, OarsError, UsageError
from oars.cli import signals
from oars.cli.options import ClusterOptions, cluster_options, quiet_option
from oars.cli.progress import Progress

if TYPE_CHECKING:
    from oars.client.cluster import AsyncCluster

GRACE = 10.0  # for the script to end after Ctrl-C, before it is told again and louder
_PR_SET_PDEATHSIG = 1


class ScriptCommand(click.Command):
    """Options stand before SCRIPT, and then all that follows SCRIPT is its own; or, if none stands before it, they may
    follow, and `--` ends them where the script has options of the same name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        after = bool(args) and not args[0].startswith("-")
        ctx.allow_interspersed_args = ctx.ignore_unknown_options = after
        return super().parse_args(ctx, args)


@click.command(cls=ScriptCommand)
@cluster_options
@quiet_option
@click.argument("script", type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(script: str, args: tuple[str, ...], options: ClusterOptions, quiet: bool) -> int:
    """Start a cluster, run SCRIPT as its driver, stop the cluster. The exit code is the script's.

    The script finds its cluster with the engine's own words: distributed.Client(), ray.init(); for Mars
    oars.connect(). Its output is passed on as it is.

    \b
    oars run --engine ray train.py --epochs 3          all after SCRIPT is the script's
    oars run train.py --engine ray -- --workers 8      or options after SCRIPT, up to --
    """
    home = _home(script)
    with Progress(quiet=quiet) as progress:
        cluster = options.cluster(progress=progress, tied=True, modules=str(home))
        progress(f"{cluster.name}: starting")
        driver = _Driver(cluster, progress, [script, *args])
        code = signals.run(driver.run(), driver.told)
    return code


class _Driver:
    """The script and its cluster, from start to end."""

    def __init__(self, cluster: AsyncCluster, progress: Progress, argv: list[str]) -> None:
        self._cluster = cluster
        self._progress = progress
        self._argv = argv
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        async with contextlib.AsyncExitStack() as stack:
            await self._cluster.start()
            stack.push_async_callback(self._stop)
            self._progress.close()  # from here on the terminal is the script's
            return await self._drive()

    async def _stop(self) -> None:
        """The script's result counts, even if the cluster goes slowly; its keeper sees to the rest."""
        try:
            with self._progress.again() as progress:
                progress(f"{self._cluster.name}: stopping")
                await self._cluster.stop()
        except OarsError as error:
            self._progress.say(f"warning: {error.message}")
        finally:
            await self._cluster.close()

    async def _drive(self) -> int:
        driver = self._cluster.driver()
        env = {"PYTHONUNBUFFERED": "1", **driver.env}  # output comes when it is written, also through a pipe
        start = asyncio.create_subprocess_exec
        self._process = process = await start(driver.python, *self._argv, env=env, preexec_fn=_die_with(os.getpid()))
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await self._end(process)
            raise
        return code if code >= 0 else 128 - code

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Ask as we were asked (a terminal has told the script itself), then more firmly."""
        ladder = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
        if _told_by_terminal():
            ladder.insert(0, None)  # type: ignore[arg-type]
        for number in ladder:
            if number is not None:
                _send(process, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await process.wait()
                    return

    def told(self, count: int) -> None:
        """Of a signal. Ctrl-C again: no more waiting for the script."""
        if self._process is None:
            self._progress(f"{self._cluster.name}: stopping")
        elif count > 1:
            _send(self._process, signal.SIGKILL)


def _home(script: str) -> Path:
    """The directory whose modules Python will import for this script; the workers shall find them too."""
    path = Path(os.path.realpath(script))
    if not path.exists():
        raise NotFound(f"There is no script {script!r}.", "Check the path; it is relative to the current directory.")
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(f"{script!r} is a directory, not a script.", "Name a Python file.")
    if not os.access(path, os.R_OK):
        raise Denied(f"The script {script!r} may not be read.", "Check its owner and its mode.")
    return path if path.is_dir() else path.parent


def _told_by_terminal() -> bool:
    """Ctrl-C at a terminal reaches its whole foreground group, the script included."""
    for descriptor in (0, 1, 2):
        if os.isatty(descriptor):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _die_with(parent: int) -> Any:
    """Run in the child before the script: if we are killed, so is it, as is the cluster it works on."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return arrange if sys.platform == "linux" else None
