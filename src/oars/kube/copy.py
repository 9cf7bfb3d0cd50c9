"""Copy files to and from containers as a tar stream over exec."""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from oars.base.errors import NotFound, OarsError, TimedOut
from oars.kube.client import Client
from oars.kube.exec import ExecSession, NoSuchCommand, execute, run
from oars.kube.extract import extract

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_BLOCK_SIZE = 1 << 18
# Kubernetes hangs if a command ends with much of its input unread (`kubectl exec -i` too), so read the rest after an
# error.
_UNPACK_SCRIPT = 'tar -xpof - -C "$1" || { code=$?; cat > /dev/null; exit $code; }'
_COMMAND_NOT_FOUND = 127  # the shell's exit code
_STALL_TIMEOUT = 120.0  # seconds without progress

T = TypeVar("T")


async def copy_to(client: Client, namespace: str, pod: str, local: Path, remote: str, container: str = "") -> None:
    """Copy a file or directory to `remote`, or into it if it is a directory. Keeps modes, but not owners."""

    def read_name() -> str:
        if not local.exists():
            raise NotFound(f"No such file or directory: {local}.", "Check the path.")
        return local.resolve().name

    local_name = await asyncio.to_thread(read_name)
    if await _is_directory(client, namespace, pod, remote, container):
        remote = posixpath.join(remote, local_name)
    directory, name = _split(remote)
    command = ["sh", "-c", _UNPACK_SCRIPT, "tar", directory]
    async with await execute(client, namespace, pod, command, container=container, stdin=True) as session:
        stdout = asyncio.create_task(session.stdout.read())  # unused, but must be read
        stderr = asyncio.create_task(session.stderr.read())
        with suppress(ConnectionError):  # tar ended early; its exit code tells why
            await asyncio.to_thread(_pack, session, asyncio.get_running_loop(), local, name)
            await session.close_stdin()
        await _check_exit_code(session, stderr, pod, f"Cannot copy {local} to {remote}")
        await stdout


async def copy_from(client: Client, namespace: str, pod: str, remote: str, local: Path, container: str = "") -> None:
    """Copy a file or directory to `local`, or into it if it is a directory. Keeps modes, but not owners."""
    directory, name = _split(remote.rstrip("/") or "/")
    if name == "..":
        directory, name = remote, "."
    # The user may name a link; a link within the target is never followed.
    local = await asyncio.to_thread(local.resolve)
    target = local / name if await asyncio.to_thread(local.is_dir) else local
    command = ["tar", "-cf", "-", "-C", directory, f"./{name}"]  # a name may start with a dash
    failure = f"Cannot copy {remote} from pod {pod}"
    async with await execute(client, namespace, pod, command, container=container) as session:
        stderr = asyncio.create_task(session.stderr.read())
        try:
            await asyncio.to_thread(_unpack, session, asyncio.get_running_loop(), name, target)
            await session.stdout.read()  # tar's padding
        except (tarfile.TarError, ValueError) as error:
            await _check_exit_code(session, stderr, pod, failure)
            raise OarsError(f"{failure}: its tar wrote an invalid archive ({error}).", "Try again.") from error
        await _check_exit_code(session, stderr, pod, failure)


def _split(remote: str) -> tuple[str, str]:
    directory, name = posixpath.split(remote)
    return directory or ".", name or "."


async def _is_directory(client: Client, namespace: str, pod: str, remote: str, container: str) -> bool:
    if remote.endswith("/"):
        return True
    try:
        return (await run(client, namespace, pod, ["test", "-d", remote], container=container)).code == 0
    except NoSuchCommand:
        return False  # the image has no `test`


async def _check_exit_code(session: ExecSession, stderr: asyncio.Task[bytes], pod: str, failure: str) -> None:
    hint = "Copying needs sh and tar in the container. Use an image that contains them, or mount the files."
    no_tar = NoSuchCommand(f"Program 'tar' not found in pod {pod}.", hint)
    try:
        async with asyncio.timeout(_STALL_TIMEOUT):
            code = await session.wait()
            lines = (await stderr).decode(errors="replace").splitlines()[-10:]
    except NoSuchCommand as error:
        raise no_tar from error
    except TimeoutError as error:
        message = f"{failure}: tar did not end within {_STALL_TIMEOUT:g} s."
        raise TimedOut(message, "Check the pod, then try again.") from error
    if code == _COMMAND_NOT_FOUND:
        raise no_tar
    if code:
        raise OarsError(f"{failure}: tar failed with exit code {code}.", "See its output below.", tuple(lines))


class _SessionFile(io.RawIOBase):
    """A file interface to an ExecSession, for tarfile, which runs in a thread."""

    def __init__(self, session: ExecSession, loop: asyncio.AbstractEventLoop) -> None:
        self._session = session
        self._loop = loop

    def write(self, data: Buffer, /) -> int:
        content = bytes(data)
        self._run(self._session.write(content))
        return len(content)

    def read(self, size: int = -1, /) -> bytes:
        return self._run(self._session.stdout.read(size))

    def _run(self, work: Coroutine[None, None, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_STALL_TIMEOUT)
        except TimeoutError as error:
            message = f"Copying stopped: the pod neither sent nor accepted data for {_STALL_TIMEOUT:g} s."
            raise TimedOut(message, "Check the network and the pod, then try again.") from error


def _pack(session: ExecSession, loop: asyncio.AbstractEventLoop, local: Path, name: str) -> None:
    with tarfile.open(fileobj=_SessionFile(session, loop), mode="w|", bufsize=_BLOCK_SIZE) as archive:
        archive.add(local.resolve(), arcname=name)  # the file, if the user named a link


def _unpack(session: ExecSession, loop: asyncio.AbstractEventLoop, name: str, target: Path) -> None:
    with tarfile.open(fileobj=_SessionFile(session, loop), mode="r|", bufsize=_BLOCK_SIZE) as archive:
        extract(archive, name, target)
