"""Run commands in containers, over WebSocket."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from oars.base.errors import OarsError, TimedOut
from oars.kube.channels import ChannelReader, ChannelSocket
from oars.kube.client import Client
from oars.kube.errors import ApiError, Unreachable
from oars.kube.kinds import POD
from oars.kube.transport import NETWORK_ERRORS, WebSocket

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_V5 = "v5.channel.k8s.io"  # Kubernetes 1.30; the first protocol that can close stdin
_PROTOCOLS = (_V5, "v4.channel.k8s.io")
# The error messages of runc and crun.
_NOT_FOUND = re.compile(r'exec: "([^"]*)": (?:executable file not found|stat .*no such file)')


@dataclass(frozen=True)
class Completed:
    """The result of a command."""

    code: int
    stdout: bytes
    stderr: bytes


class NoSuchCommand(OarsError):
    """The container does not have the program."""

    exit_code = 127  # as in a shell


class ExecSession(ChannelSocket):
    """A running command. Read both `stdout` and `stderr`, or the command blocks when one buffer is full.

    Closing it leaves the command running, without input and terminal."""

    def __init__(self, socket: WebSocket, pod: str) -> None:
        self._pod = pod
        self._stdout, self._stderr = ChannelReader(), ChannelReader()
        self._status = bytearray()
        super().__init__(socket)

    @property
    def stdout(self) -> asyncio.StreamReader:
        """The command's standard output; with a terminal, also its standard error."""
        return self._stdout.stream

    @property
    def stderr(self) -> asyncio.StreamReader:
        """The command's standard error."""
        return self._stderr.stream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def write(self, data: bytes) -> None:
        """Send bytes to stdin, and wait while the command does not read them. Raises StreamClosed after its end."""
        await self._send(_STDIN, data)

    async def close_stdin(self) -> None:
        """Close the command's stdin after all written bytes."""
        if self._socket.protocol != _V5:
            raise OarsError("The API server cannot close a command's stdin.", "Use Kubernetes 1.30 or newer.")
        await self._socket.send_bytes(bytes([_CLOSE, _STDIN]))

    async def resize(self, width: int, height: int) -> None:
        """Set the size of the terminal."""
        size = json.dumps({"Width": width, "Height": height}).encode()
        await self._socket.send_bytes(bytes([_RESIZE]) + size)

    async def wait(self) -> int:
        """Wait for the command to end and return its exit code."""
        await asyncio.wait([self._task])
        if not self._status:
            hint = f"The pod was deleted or the API server restarted. Run `kubectl get pod {self._pod}` and try again."
            raise Unreachable(f"The connection to pod {self._pod} broke while a command was running in it.", hint)
        return parse_exit_code(json.loads(self._status), self._pod)

    def _end(self, is_complete: bool) -> None:
        self._stdout.end()
        self._stderr.end()

    async def _handle(self, channel: int, data: bytes) -> None:
        if channel == _STDOUT:
            await self._stdout.feed(data)
        elif channel == _STDERR:
            await self._stderr.feed(data)
        elif channel == _STATUS:
            self._status += data


def parse_exit_code(status: Mapping[str, Any], pod: str) -> int:
    """Return the exit code in a command's final Status; raise if the command did not start."""
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    if status.get("reason") == "NonZeroExitCode":
        for cause in causes:
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
    if missing := _NOT_FOUND.search(str(status.get("message"))):
        raise NoSuchCommand(f"Program {missing[1]!r} not found in pod {pod}.", "Use an image that contains it.")
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
    # A terminal merges stderr into stdout.
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
    timeout: float = 60.0,  # noqa: ASYNC109 (raises TimedOut with the command in the message)
) -> Completed:
    """Run a command to completion and return its output.

    The command should read all of its input: Kubernetes may not report the end of a command that does not."""

    async def send_input(session: ExecSession) -> None:
        if input:
            with suppress(*NETWORK_ERRORS):  # the command may end without reading all input
                await session.write(input)
                await session.close_stdin()

    try:
        async with asyncio.timeout(timeout):
            session = await execute(client, namespace, pod, command, container=container, stdin=bool(input))
            async with session:
                out, err, _ = await asyncio.gather(session.stdout.read(), session.stderr.read(), send_input(session))
                code = await session.wait()
    except TimeoutError as error:
        message = f"Timed out after {timeout:g} s waiting for `{' '.join(command)[:60]}` in pod {pod}."
        raise TimedOut(message, "Increase the timeout, or check what the command waits for.") from error
    return Completed(code, out, err)
