"""The working directory of a job as one archive: content-addressed, without what .gitignore and .oarsignore exclude."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from oars.base.errors import NotFound, UsageError
from oars.spec.resources import show_memory

IGNORE_FILES = (".gitignore", ".oarsignore")
ALWAYS_IGNORED = (".git/", "__pycache__/", ".oarsignore")
LOCAL_LIMIT = 512 * 2**20  # bytes of files
BIGGEST = 3


@dataclass(frozen=True)
class Archive:
    """A gzipped tar archive. `hash` depends on names, modes and contents only."""

    data: bytes
    hash: str
    files: int
    size: int  # of the files
    biggest: str  # the biggest entries with their sizes


@dataclass(frozen=True)
class _Rule:
    """One line of an ignore file, which is in directory `base` ('' or 'a/b/')."""

    base: str
    pattern: re.Pattern[str]
    negated: bool
    only_directories: bool

    def matches(self, path: str, is_directory: bool) -> bool:
        if not path.startswith(self.base) or (self.only_directories and not is_directory):
            return False
        return bool(self.pattern.fullmatch(path[len(self.base) :]))


def pack(root: Path, limit: int = LOCAL_LIMIT) -> Archive:
    """The archive of a directory. Raises UsageError if its files are larger than `limit`."""
    root = root.absolute()
    if not root.is_dir():
        raise NotFound(f"There is no directory {str(root)!r}.", "Check --working-dir.")
    found = sorted(list_files(root))
    sizes = {name: os.lstat(root / name).st_size for name in found}
    total = sum(sizes.values())
    if total > limit:
        raise UsageError(
            f"The working directory {root} has {show_memory(total)} of files, but at most {show_memory(limit)} can be "
            f"sent. The biggest entries: {_biggest(sizes)}.",
            "List what the job does not need in .oarsignore, or choose another directory with --working-dir.",
        )
    buffer = io.BytesIO()
    # A fixed time, and no file name: equal files make an equal archive.
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="", compresslevel=6) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in found:
                _add(tar, root, name)
    data = buffer.getvalue()
    return Archive(data, f"sha256:{hashlib.sha256(data).hexdigest()}", len(found), total, _biggest(sizes))


def unpack(data: bytes, target: Path) -> None:
    """Extract an archive of `pack` into a directory, which is created."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        tar.extractall(target, filter="tar")


def list_files(root: Path) -> Iterator[str]:
    """Paths of files and links below a directory, relative to it, without what is ignored."""
    yield from _walk(root, "", [rule for line in ALWAYS_IGNORED if (rule := _parse(line, ""))])


def _walk(root: Path, base: str, rules: Sequence[_Rule]) -> Iterator[str]:
    own = list(rules)
    for name in IGNORE_FILES:
        try:
            lines = (root / base / name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        own += [rule for line in lines if (rule := _parse(line, base))]
    with os.scandir(root / base) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            path, is_directory = base + entry.name, entry.is_dir(follow_symlinks=False)
            if _is_ignored(path, is_directory, own):
                continue
            if is_directory:
                if not (root / path / "pyvenv.cfg").exists():  # a virtual environment, of no use elsewhere
                    yield from _walk(root, f"{path}/", own)
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                yield path


def _is_ignored(path: str, is_directory: bool, rules: Sequence[_Rule]) -> bool:
    """The last rule that matches decides."""
    return next((not rule.negated for rule in reversed(rules) if rule.matches(path, is_directory)), False)


def _parse(line: str, base: str) -> _Rule | None:
    """A rule as git understands it; None for comments and blank lines."""
    text = re.sub(r"(?<!\\)\s+$", "", line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:] if negated else text
    text = text[1:] if text.startswith(("\\#", "\\!")) else text
    only_directories = text.endswith("/")
    text = text.rstrip("/")
    is_anchored = "/" in text
    body = _regex(text.lstrip("/"))
    return _Rule(base, re.compile(body if is_anchored else f"(?:.*/)?{body}"), negated, only_directories)


def _regex(glob: str) -> str:
    parts: list[str] = []
    position = 0
    while position < len(glob):
        rest = glob[position:]
        if rest.startswith("**/"):
            parts.append("(?:.*/)?")
            position += 3
        elif rest.startswith("**"):
            parts.append(".*")
            position += 2
        elif rest[0] == "*":
            parts.append("[^/]*")
            position += 1
        elif rest[0] == "?":
            parts.append("[^/]")
            position += 1
        elif (found := re.match(r"\[([!^]?)([^\]]+)\]", rest)) is not None:
            parts.append(f"[{'^' if found[1] else ''}{re.escape(found[2]).replace(chr(92) + '-', '-')}]")
            position += found.end()
        else:
            escaped = rest[0] == "\\" and len(rest) > 1
            parts.append(re.escape(rest[1] if escaped else rest[0]))
            position += 2 if escaped else 1
    return "".join(parts)


def _add(tar: tarfile.TarFile, root: Path, name: str) -> None:
    info = tar.gettarinfo(root / name, name)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = 0
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    if info.isreg():
        with open(root / name, "rb") as file:
            tar.addfile(info, file)
    else:
        tar.addfile(info)


def _biggest(sizes: dict[str, int]) -> str:
    entries: dict[str, int] = {}
    for name, size in sizes.items():
        first, _, rest = name.partition("/")
        entry = f"{first}/" if rest else first
        entries[entry] = entries.get(entry, 0) + size
    chosen = sorted(entries.items(), key=lambda each: -each[1])[:BIGGEST]
    return ", ".join(f"{name} ({show_memory(size)})" for name, size in chosen)
