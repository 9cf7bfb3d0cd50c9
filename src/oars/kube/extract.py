"""Extract a tar stream from an untrusted container.

Nothing is written outside the target, whatever the archive contains. tarfile's own filters check paths before they
are opened, and follow links; Python releases before 3.11.13 have known ways around them. Here every directory is opened
relative to its parent without following links, so no member can be written through a link.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs

_BLOCK_SIZE = 1 << 18
# A link or a file is in the place of a directory, a source of a hard link is missing, a name is too long.
_BAD_PATH = (errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.ENAMETOOLONG)

_log = get_logger(__name__)

Parts = tuple[str, ...]


class _Refused(Exception):
    """A member that is not extracted."""


def extract(archive: tarfile.TarFile, root: str, target: Path) -> None:
    """Extract the member `root` of an archive, and what is below it, as `target`. Keeps modes and times, not owners.

    Skips members with unsafe paths, links that lead out of the target, and files that are neither regular files,
    directories nor links."""
    try:
        extraction = _Extraction(target)
        for member in archive:
            try:
                extraction.add(archive, member, root)
            except (_Refused, OSError) as error:
                if isinstance(error, OSError) and error.errno not in _BAD_PATH:
                    raise
                if PurePosixPath(member.name) == PurePosixPath(root):
                    raise _nothing_copied(member, target, error) from error
                _log.warning(pairs("skipped unsafe tar member", path=member.name, error=str(error)))
        extraction.finish()
    except OSError as error:
        message = f"Cannot write to {target}: {error.strerror}."
        raise OarsError(
            message, "Check its type, its permissions and the free space, or choose another target."
        ) from error


def _nothing_copied(member: tarfile.TarInfo, target: Path, error: Exception) -> OarsError:
    """The error if the path that the user named cannot be extracted."""
    if member.issym():
        return OarsError(f"{member.name} is a link to {member.linkname}.", "Copy the path that it leads to.")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return OarsError(f"Cannot copy {member.name} to {target}: {reason}.", "Choose another target.")


class _Extraction:
    def __init__(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        self._parent = target.parent
        self._target: Parts = (target.name,) if target.name else ()
        self._created: set[Parts] = set()
        self._directories: dict[Parts, tarfile.TarInfo] = {}

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
        parts = _parts_below(root, member.name)
        if member.isdir():
            with self._open_directory(parts):
                self._directories[parts] = member
            return
        if not parts and not member.isreg():
            raise _Refused("the target itself would be a link or a special file")
        with self._open_directory(parts[:-1], is_target=bool(parts)) as directory:
            name = parts[-1] if parts else self._target[-1]
            if member.isreg() and not member.issparse():  # our tar command never writes sparse files
                _write_file(archive, member, name, directory)
            elif member.issym():
                _check_link(member.linkname, len(parts) - 1)
                _remove_file(name, directory)
                os.symlink(member.linkname, name, dir_fd=directory)
            elif member.islnk():
                source = _parts_below(root, member.linkname)
                if not source or source == parts:
                    raise _Refused("it is a hard link to itself or to the target")
                with self._open_directory(source[:-1]) as other:
                    if not stat.S_ISREG(os.stat(source[-1], dir_fd=other, follow_symlinks=False).st_mode):
                        raise _Refused("it is a hard link to something that is not a regular file")
                    _remove_file(name, directory)
                    os.link(source[-1], name, src_dir_fd=other, dst_dir_fd=directory, follow_symlinks=False)
            else:
                raise _Refused("it is neither a regular file, a directory nor a link")

    def finish(self) -> None:
        """Set the modes and times of new directories. Only now, because a directory may be read-only."""
        for parts, member in sorted(self._directories.items(), key=lambda item: -len(item[0])):
            if parts in self._created:
                with self._open_directory(parts) as directory:
                    _set_attributes(directory, member)

    @contextmanager
    def _open_directory(self, parts: Parts, *, is_target: bool = True) -> Iterator[int]:
        """Open a directory below the target, or the target's parent, and create it if it does not exist."""
        opened = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for depth, part in enumerate((*self._target, *parts) if is_target else ()):
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=opened)
                    self._created.add(parts[: max(0, depth + 1 - len(self._target))])
                child = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened)
                os.close(opened)
                opened = child
            yield opened
        finally:
            os.close(opened)


def _parts_below(root: str, name: str) -> Parts:
    """Return the path of a member relative to the archive's root."""
    path, above = PurePosixPath(name), PurePosixPath(root).parts
    if path.is_absolute() or ".." in path.parts or "\0" in name or path.parts[: len(above)] != above:
        raise _Refused("its path is outside the copied directory")
    return path.parts[len(above) :]


def _check_link(target: str, depth: int) -> None:
    """Raise unless a link `depth` directories below the target leads to a path in the target.

    `..` is allowed only at the start: after the name of another link it would refer to that link's target."""
    path = PurePosixPath(target)
    ups = next((index for index, part in enumerate(path.parts) if part != ".."), len(path.parts))
    if path.is_absolute() or not target or "\0" in target or ups > depth or ".." in path.parts[ups:]:
        raise _Refused("it is a link that may lead out of the copied directory")


def _remove_file(name: str, directory: int) -> None:
    """Delete an existing file or link, so that nothing is written through it."""
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
        raise _Refused("a directory or a special file of that name exists")
    os.unlink(name, dir_fd=directory)


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, directory: int) -> None:
    _remove_file(name, directory)
    content = archive.extractfile(member)
    assert content is not None
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    with open(handle, "wb") as file:
        shutil.copyfileobj(content, file, _BLOCK_SIZE)
        file.flush()
        _set_attributes(handle, member)


def _set_attributes(handle: int, member: tarfile.TarInfo) -> None:
    os.fchmod(handle, member.mode & 0o777)
    with suppress(OSError, OverflowError, ValueError):  # a time that the file system cannot store
        os.utime(handle, (member.mtime, member.mtime))
