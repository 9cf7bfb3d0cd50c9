"""Reads and follows the log files of members."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

LAST_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.2  # poll interval: there is no portable way to wait for a file to grow


def last_lines(path: Path, count: int) -> tuple[str, ...]:
    """The last lines of a file; none if there is no file."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - LAST_BYTES))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ()
    return tuple(text.splitlines()[-count:]) if count else ()


async def lines(path: Path, *, follow: bool = False, tail: int | None = None) -> AsyncIterator[str]:
    """Yield all lines, or the last `tail`; with `follow` also new ones, until the file is removed."""
    position = 0
    if tail is not None:
        position = path.stat().st_size if path.exists() else 0  # noqa: ASYNC240 (local files are fast)
        for line in last_lines(path, tail):
            yield line
    rest = ""
    while (data := _read_from(path, position)) is not None:
        position += len(data)
        *complete, rest = (rest + data.decode(errors="replace")).split("\n")
        for line in complete:
            yield line
        if not follow:
            break
        await asyncio.sleep(FOLLOW_SECONDS)
    if rest:
        yield rest


def _read_from(path: Path, position: int) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            stream.seek(position)
            return stream.read()
    except FileNotFoundError:
        return None
