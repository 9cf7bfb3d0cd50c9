"""Files into a container and out of it: tar at both ends, a stream between."""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from oars.base.errors import NotFound, OarsError
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.execs import ExecSession, NoSuchCommand, execute, run

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_BLOCK = 1 << 18
# Kubernetes hangs when a command ends with much of its input unread (kubectl's `exec -i` does, too): read the rest.
_TAKE = 'tar -xpof - -C "$1" || { code=$?; cat > /dev/null; exit $code; }'
_NOT_FOUND = 127  # a shell's word for a program that is not there
_STALL = 120.0  # seconds without a byte moving

T = TypeVar("T")

_log = get_logger(__name__)


async def copy_to(client: Client, namespace: str, pod: str, local: Path, remote: str, container: str = "") -> None:
    """Copy a file or directory to `remote`; into it, if that is a directory. Modes are kept, owners are not."""
    own_name = await asyncio.to_thread(_name_of, local)
    if await _is_directory(client, (namespace, pod, container), remote):
        remote = posixpath.join(remote, own_name)
    folder, name = _split(remote)
    command = ["sh", "-c", _TAKE, "tar", folder]
    async with await execute(client, namespace, pod, command, container=container, stdin=True) as session:
        said = asyncio.create_task(_drained(session))
        try:
            await asyncio.to_thread(_pack, session, asyncio.get_running_loop(), local, name)
            await session.close_stdin()
        except ConnectionError:
            pass  # tar has ended early, and its exit code tells more
        await _check(session, said, pod, f"{local} could not be copied to {remote}")


async def copy_from(client: Client, namespace: str, pod: str, remote: str, local: Path, container: str = "") -> None:
    """Copy a file or directory out; into `local`, if that is a directory. Modes are kept, owners are not."""
    folder, name = _split(remote.rstrip("/") or "/")
    target = await asyncio.to_thread(_target, local, name)
    command = ["tar", "-cf", "-", "-C", folder, name]
    async with await execute(client, namespace, pod, command, container=container) as session:
        complaints = asyncio.create_task(session.stderr.read())
        try:
            await asyncio.to_thread(_unpack, session, asyncio.get_running_loop(), name, target)
            await session.stdout.read()  # what tar adds to fill a block
        except tarfile.ReadError as error:
            await _check(session, complaints, pod, f"{remote} could not be copied")
            raise OarsError(f"{remote} could not be copied: {error}.", "Try again.") from error
        await _check(session, complaints, pod, f"{remote} could not be copied")


def _name_of(local: Path) -> str:
    if not local.exists():
        raise NotFound(f"There is no {local}.", "Check the path.")
    return local.resolve().name


def _target(local: Path, name: str) -> Path:
    return local / name if local.is_dir() else local.absolute()


def _split(remote: str) -> tuple[str, str]:
    folder, name = posixpath.split(remote)
    return folder or ".", name or "."


async def _is_directory(client: Client, where: tuple[str, str, str], remote: str) -> bool:
    if remote.endswith("/"):
        return True
    namespace, pod, container = where
    try:
        return (await run(client, namespace, pod, ["test", "-d", remote], container=container)).code == 0
    except NoSuchCommand:
        return False  # an image without `test`: taken as it is written


async def _drained(session: ExecSession) -> bytes:
    """Complaints; tar prints nothing else when it unpacks."""
    return (await asyncio.gather(session.stdout.read(), session.stderr.read()))[1]


async def _check(session: ExecSession, complaints: asyncio.Task[bytes], pod: str, what: str) -> None:
    try:
        async with asyncio.timeout(_STALL):
            code = await session.wait()
            said = (await complaints).decode(errors="replace").splitlines()[-10:]
    except NoSuchCommand as error:
        raise _no_tar(pod) from error
    if code == _NOT_FOUND:
        raise _no_tar(pod)
    if code:
        raise OarsError(f"{what}: tar ended with code {code}.", "See its words below.", tuple(said))


def _no_tar(pod: str) -> NoSuchCommand:
    hint = "Copying needs sh and tar in the container: use an image that has them, or mount the files."
    return NoSuchCommand(f"There is no tar in pod {pod}.", hint)


class _Bridge(io.RawIOBase):
    """The session as a file for tarfile, which runs in a thread."""

    def __init__(self, session: ExecSession, loop: asyncio.AbstractEventLoop) -> None:
        self._session = session
        self._loop = loop

    def write(self, data: Buffer, /) -> int:
        content = bytes(data)
        self._await(self._session.write(content))
        return len(content)

    def read(self, size: int = -1, /) -> bytes:
        return self._await(self._session.stdout.read(size))

    def _await(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_STALL)


def _pack(session: ExecSession, loop: asyncio.AbstractEventLoop, local: Path, name: str) -> None:
    bridge = _Bridge(session, loop)
    with tarfile.open(fileobj=bridge, mode="w|", bufsize=_BLOCK) as archive:
        archive.add(local, arcname=name)


def _unpack(session: ExecSession, loop: asyncio.AbstractEventLoop, name: str, target: Path) -> None:
    bridge = _Bridge(session, loop)
    with tarfile.open(fileobj=bridge, mode="r|", bufsize=_BLOCK) as archive:
        for member in archive:
            _extract(archive, member, name, target)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, target: Path) -> None:
    """Extract below the target, and nowhere else: the container is not trusted."""
    inside = posixpath.relpath(member.name, name)
    renamed = member.replace(name=target.name if inside == "." else posixpath.join(target.name, inside), deep=False)
    try:
        safe = tarfile.data_filter(renamed, str(target.parent))
    except tarfile.FilterError as error:
        _log.warning(pairs("not copied", path=member.name, why=str(error)))
        return
    archive.extract(safe.replace(mode=member.mode & 0o777, deep=False), target.parent, filter="fully_trusted")
