"""Reads and follows the log files of members."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

LAST_BYTES = 64 * 1024
# Such as "2026-03-01 12:00:00,123 - …" of Dask and Mars; Ray writes it in brackets.
_TIME = re.compile(r"\W*(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
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


async def lines(
    path: Path, *, follow: bool = False, tail: int | None = None, since: float | None = None
) -> AsyncIterator[str]:
    """Yield all lines, or the last `tail`, or those `since` a time; with `follow` also new ones, until the file is
    removed."""
    position = 0
    if since is not None:
        text = _read_from(path, 0) or b""
        position = len(text)
        written = os.path.getmtime(path) if text else 0.0  # noqa: ASYNC240 (local files are fast)
        found = later_lines(text.decode(errors="replace").splitlines(), since, written)
        for line in found if tail is None else found[max(0, len(found) - tail) :]:
            yield line
    elif tail is not None:
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


def later_lines(found: list[str], since: float, written: float) -> list[str]:
    """The lines from the first one on that begins with a time not before `since`. Without any time: all if the file was
    written since."""
    times = [(index, at) for index, line in enumerate(found) if (at := _time_of(line)) is not None]
    if not times:
        return found if written >= since else []
    return next((found[index:] for index, at in times if at >= since), [])


def _time_of(line: str) -> float | None:
    """Of a line of an engine's log, in this machine's time zone."""
    match = _TIME.match(line)
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2]}").timestamp() if match else None
    except ValueError:  # such as month 13: it is no time
        return None


def _read_from(path: Path, position: int) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            stream.seek(position)
            return stream.read()
    except FileNotFoundError:
        return None
