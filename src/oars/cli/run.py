"""`oars run`: run a script on a cluster of its own."""

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
    from oars.service import AsyncCluster

GRACE_SECONDS = 10.0  # for the script to end after a signal, before the next stronger one
_PR_SET_PDEATHSIG = 1


class ScriptCommand(click.Command):
    """If options precede SCRIPT, everything after it belongs to the script. Otherwise options may follow SCRIPT, up to
    `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        may_follow = bool(args) and not args[0].startswith("-")
        ctx.allow_interspersed_args = ctx.ignore_unknown_options = may_follow
        return super().parse_args(ctx, args)


@click.command(cls=ScriptCommand)
@cluster_options
@quiet_option
@click.argument("script", type=click.Path())
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(script: str, args: tuple[str, ...], options: ClusterOptions, quiet: bool) -> int:
    """Create a cluster, run SCRIPT as its driver, stop the cluster. The exit code is the script's.

    The script connects with the engine's own API: distributed.Client(), ray.init(); for Mars oars.connect(). Its output
    is not changed.

    \b
    oars run --engine ray train.py --epochs 3          everything after SCRIPT belongs to the script
    oars run train.py --engine ray -- --workers 8      or options after SCRIPT, up to --
    """
    from oars.service.specs import generate_name

    modules = module_directory(script)
    with Progress(quiet=quiet) as progress:
        name, spec = options.resolve(None, generate_name)
        cluster = options.service.new(
            name, spec, timeout=options.timeout, progress=progress, tied=True, modules=str(modules)
        )
        progress(f"{name}: starting")
        run = _ScriptRun(cluster, progress, [script, *args])
        return signals.run(run.run(), run.on_signal)


class _ScriptRun:
    """Starts the cluster, runs the script, stops the cluster."""

    def __init__(self, cluster: AsyncCluster, progress: Progress, argv: list[str]) -> None:
        self._cluster = cluster
        self._progress = progress
        self._argv = argv
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        await self._cluster.start()
        try:
            self._progress.close()  # the terminal now belongs to the script
            return await self._run_script()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        """A cluster that stops too slowly does not change the script's exit code."""
        try:
            with self._progress.again() as progress:
                progress(f"{self._cluster.name}: stopping")
                await self._cluster.stop()
        except OarsError as error:
            self._progress.say(f"warning: {error.message}")
        finally:
            await self._cluster.close()

    async def _run_script(self) -> int:
        driver = self._cluster.driver()
        env = {"PYTHONUNBUFFERED": "1", **driver.env}  # shows output at once, even through a pipe
        start = asyncio.create_subprocess_exec
        self._process = process = await start(driver.python, *self._argv, env=env, preexec_fn=_kill_with(os.getpid()))
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _end(process)
            raise
        return code if code >= 0 else 128 - code

    def on_signal(self, count: int) -> None:
        """A second signal kills the script."""
        if self._process is None:
            self._progress(f"{self._cluster.name}: stopping")
        elif count > 1:
            _send(self._process, signal.SIGKILL)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Send stronger and stronger signals. The first one is not sent if the terminal has sent it already."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if number is not signal.SIGINT or not _shares_terminal():
            _send(process, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
                return


def module_directory(script: str) -> Path:
    """The directory whose modules the script can import, and so must the workers."""
    path = Path(os.path.realpath(script))
    if not path.exists():
        raise NotFound(f"There is no script {script!r}.", f"Check the path; it is relative to {os.getcwd()}.")
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise UsageError(
            f"{script!r} is a directory, not a script.", "Give a Python file, or a directory with a __main__.py."
        )
    if not os.access(path, os.R_OK):
        raise Denied(
            f"No permission to read the script {script!r}.", f"Run `ls -l {script}` to check its owner and mode."
        )
    return path if path.is_dir() else path.parent


def _shares_terminal() -> bool:
    """True if Ctrl-C at the terminal reaches the script, too: it is sent to the whole foreground process group."""
    for descriptor in (0, 1, 2):
        if os.isatty(descriptor):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _kill_with(parent: int) -> Any:
    """A function for the child to run before the script, so that the kernel kills the script when this process dies."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def request_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return request_signal if sys.platform == "linux" else None
