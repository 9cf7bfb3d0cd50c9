"""Running a command in a container, over WebSocket."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from oars.base.errors import OarsError, TimedOut
from oars.kube.channels import Failed, Sink, Source, pump
from oars.kube.client import Client
from oars.kube.errors import ApiError, Unreachable
from oars.kube.kinds import POD
from oars.kube.transport import WebSocket

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_WITH_CLOSE = "v5.channel.k8s.io"  # the only one in which stdin can end (Kubernetes 1.30)
_PROTOCOLS = (_WITH_CLOSE, "v4.channel.k8s.io")
_CLOSE_SECONDS = 5.0
# In the words of runc and crun.
_MISSING = re.compile(r'exec: "([^"]*)": (?:executable file not found|stat .*no such file)')


@dataclass(frozen=True)
class Completed:
    """A command that has ended."""

    code: int
    stdout: bytes
    stderr: bytes


class ExecSession:
    """A running command. Read both `stdout` and `stderr`: the command waits for whoever does not."""

    def __init__(self, socket: WebSocket, pod: str) -> None:
        self._socket = socket
        self._pod = pod
        self._out, self._err = Source(), Source()
        self._stdin = Sink(socket, _STDIN)
        self._status = bytearray()
        self._task = asyncio.create_task(self._receive())

    @property
    def stdout(self) -> asyncio.StreamReader:
        """What the command prints; with a terminal, errors too."""
        return self._out.reader

    @property
    def stderr(self) -> asyncio.StreamReader:
        """What it complains of."""
        return self._err.reader

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def write(self, data: bytes) -> None:
        """Send to stdin; waits while the command does not read."""
        self._stdin.write(data)
        await self._stdin.drain()

    async def close_stdin(self) -> None:
        """Tell the command that no more comes."""
        if self._socket.protocol != _WITH_CLOSE:
            hint = "Kubernetes 1.30 or newer is needed for input that ends."
            raise OarsError("This API server cannot end a command's input.", hint)
        await self._stdin.flush()
        self._stdin.close()
        await self._socket.send_bytes(bytes([_CLOSE, _STDIN]))

    async def resize(self, width: int, height: int) -> None:
        """Tell the terminal's size."""
        size = json.dumps({"Width": width, "Height": height}).encode()
        await self._socket.send_bytes(bytes([_RESIZE]) + size)

    async def wait(self) -> int:
        """The command's exit code, when it has ended."""
        await asyncio.wait([self._task])
        if not self._status:
            hint = "The pod may be gone, or the API server was restarted: look at the pod and try again."
            raise Unreachable(f"The connection to pod {self._pod} broke while a command ran in it.", hint)
        return exit_code(json.loads(self._status), self._pod)

    async def close(self) -> None:
        """Let go. A command that still runs gets no input and its terminal hangs up; it may go on."""
        self._stdin.abort(ConnectionResetError("closed"))
        self._out.end()
        self._err.end()
        with suppress(TimeoutError, *Failed):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._socket.close()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _receive(self) -> None:
        with suppress(*Failed):
            await pump(self._socket, self._take)
        self._stdin.abort(ConnectionResetError("the command has ended"))
        self._out.end()
        self._err.end()
        with suppress(*Failed):
            await self._socket.close()

    async def _take(self, channel: int, data: bytes) -> None:
        if channel == _STDOUT:
            await self._out.feed(data)
        elif channel == _STDERR:
            await self._err.feed(data)
        elif channel == _STATUS:
            self._status += data


class NoSuchCommand(OarsError):
    """The container has no such program."""

    exit_code = 127  # as shells have it


def exit_code(status: Mapping[str, Any], pod: str) -> int:
    """The exit code in the Status that ends a command; raises if it never ran."""
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    if status.get("reason") == "NonZeroExitCode":
        for cause in causes:
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
    if missing := _MISSING.search(str(status.get("message"))):
        raise NoSuchCommand(f"There is no {missing[1]!r} in pod {pod}.", "Use an image that has it.")
    raise ApiError(int(status.get("code") or 500), status)


async def execute(  # noqa: PLR0913 (the API's own options)
    client: Client,
    namespace: str,
    pod: str,
    command: Sequence[str],
    *,
    container: str = "",
    stdin: bool = False,
    tty: bool = False,
) -> ExecSession:
    """Start a command in a container."""
    params = [("command", word) for word in command]
    params += [("container", container)] if container else []
    # A terminal has no second stream for errors.
    flags = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
    params += [(name, "true" if flag else "false") for name, flag in flags.items()]
    socket = await client.websocket(POD.path(namespace, pod, "exec"), params, _PROTOCOLS)
    return ExecSession(socket, pod)


async def run(  # noqa: PLR0913 (as subprocess.run)
    client: Client,
    namespace: str,
    pod: str,
    command: Sequence[str],
    *,
    container: str = "",
    input: bytes = b"",
    timeout: float = 60.0,  # noqa: ASYNC109 (the deadline of the command, told as such)
) -> Completed:
    """Run a command to its end and collect what it says. It should read all of its input: Kubernetes may not notice
    the end of one that leaves more than a little unread."""
    try:
        async with asyncio.timeout(timeout):
            session = await execute(client, namespace, pod, command, container=container, stdin=bool(input))
            async with session:
                said = session.stdout.read(), session.stderr.read()
                out, err, _ = await asyncio.gather(*said, _give(session, input))
                code = await session.wait()
    except TimeoutError as late:
        message = f"`{' '.join(command)[:60]}` in pod {pod} has not ended after {timeout:g} s."
        raise TimedOut(message, "Give it more time, or look at what it waits for.") from late
    return Completed(code, out, err)


async def _give(session: ExecSession, data: bytes) -> None:
    if not data:
        return
    with suppress(*Failed):  # a command need not read its input to the end
        await session.write(data)
        await session.close_stdin()
