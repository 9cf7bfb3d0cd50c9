"""Runs a script as the driver of a cluster of its own."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oars.base.children import kill_with
from oars.base.errors import Denied, NotFound, OarsError, UsageError
from oars.client.backend import Progress, capabilities

if TYPE_CHECKING:
    from oars.client.cluster import AsyncCluster

SEND = "Add them to the image, or send them with the engine's own API."
GRACE_SECONDS = 10.0  # for the script to end after a signal, before the next stronger one


@dataclass(frozen=True)
class FrontDoor:
    """What a script's run needs of its caller."""

    progress: Progress
    give_terminal: Callable[[], None]  # called before the script starts, which then has the terminal
    take_terminal: Callable[[], AbstractContextManager[Progress]]  # shows progress after the script
    warn: Callable[[str], None]
    has_sent_interrupt: Callable[[], bool]  # Ctrl-C reaches the script without us


class ScriptRun:
    """Starts the cluster, runs the script, stops the cluster."""

    def __init__(self, cluster: AsyncCluster, argv: Sequence[str], caller: FrontDoor) -> None:
        self._cluster = cluster
        self._argv = argv
        self._caller = caller
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        """The script's exit code. A cancelled run ends the script first."""
        is_remote = not capabilities(self._cluster.place).shares_files
        if is_remote and (names := own_modules(self._argv)):
            self._caller.warn(
                f"{', '.join(names)} cannot be imported in the pods: files beside the script are not sent. {SEND}"
            )
        await self._cluster.start()
        try:
            self._caller.give_terminal()
            return await self._run_script()
        finally:
            await self._stop()

    def on_signal(self, count: int) -> None:
        """A second signal kills the script."""
        if self._process is None:
            self._caller.progress(f"{self._cluster.name}: stopping")
        elif count > 1:
            _send(self._process, signal.SIGKILL)

    async def _stop(self) -> None:
        """A cluster that stops too slowly does not change the script's exit code."""
        try:
            with self._caller.take_terminal() as progress:
                progress(f"{self._cluster.name}: stopping")
                await self._cluster.stop()
        except OarsError as error:
            self._caller.warn(error.message)
        finally:
            await self._cluster.close()

    async def _run_script(self) -> int:
        driver = self._cluster.driver()
        env = {"PYTHONUNBUFFERED": "1", **driver.env}  # shows output at once, even through a pipe
        start = asyncio.create_subprocess_exec
        self._process = process = await start(driver.python, *self._argv, env=env, preexec_fn=kill_with(os.getpid()))
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await self._end(process)
            raise
        return code if code >= 0 else 128 - code

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Send stronger and stronger signals."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if number is not signal.SIGINT or not self._caller.has_sent_interrupt():
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


def own_modules(argv: Sequence[str]) -> list[str]:
    """The modules and packages beside a script that it imports itself. `argv`: the script, or -m and a module."""
    if argv[0] == "-m":
        directory, script = Path.cwd(), Path(argv[1].replace(".", "/") + ".py")
    else:
        directory, script = module_directory(argv[0]), Path(argv[0])
        script = script / "__main__.py" if script.is_dir() else script
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []  # Python will report it
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    names = {name.partition(".")[0] for name in imported} - {""}
    return sorted(name for name in names if (directory / f"{name}.py").is_file() or (directory / name).is_dir())


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
