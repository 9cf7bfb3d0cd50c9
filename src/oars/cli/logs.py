"""`oars logs`: what members wrote."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import click

from oars.base.errors import NotFound
from oars.base.words import suggest
from oars.cli import names, running, show
from oars.cli.options import kept, name_argument
from oars.cli.show import output_option
from oars.places.local import logs as files

if TYPE_CHECKING:
    from oars.client.kept import Kept

LOOK_SECONDS = 1.0  # between looks for members that are new

Write = Callable[[str, str], None]


@click.command()
@name_argument
@click.argument("member", required=False, shell_complete=names.members)
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come, until the cluster is gone.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each member.")
@output_option
def logs(name: str, member: str | None, follow: bool, tail: int | None, output: str) -> None:
    """Show the log of one MEMBER, or of all with the member's name before each line."""
    mine = kept()
    known = _members(mine, name, member)
    if output == "name":
        show.emit(output, known, known, lambda _: "")
        return
    write = _writer(output, prefix=member is None)
    work = _follow(mine, name, member, tail, write) if follow else _print(mine, name, known, tail, write)
    running.run(work)


def _members(mine: Kept, name: str, member: str | None) -> Sequence[str]:
    known = mine.members(name)
    if member is None:
        return known
    if member not in known:
        meant = suggest(member, known)
        raise NotFound(f"The cluster {name!r} has no member {member!r}.{meant}", f"It has: {', '.join(known)}.")
    return [member]


def _writer(output: str, *, prefix: bool) -> Write:
    """How one line of a member is printed."""
    if output == "json":
        return lambda member, line: show.write(json.dumps({"member": member, "line": line}, ensure_ascii=False))
    if output == "yaml":
        return lambda member, line: show.write(show.as_yaml([{"member": member, "line": line}]))
    if prefix:
        return lambda member, line: show.write(f"{click.style(f'[{member}]', fg='cyan')} {line}")
    return lambda member, line: show.write(line)


async def _print(mine: Kept, name: str, members: Sequence[str], tail: int | None, write: Write) -> None:
    for member in members:
        async for line in _lines(mine, name, member, tail, follow=False):
            write(member, line)


async def _follow(mine: Kept, name: str, member: str | None, tail: int | None, write: Write) -> None:
    """All at once; members that come later are followed too."""
    followed: dict[str, asyncio.Task[None]] = {}
    try:
        while mine.store.cluster(name).exists:
            for each in [member] if member else mine.members(name):
                if each not in followed:
                    followed[each] = asyncio.create_task(_pour(mine, name, each, tail, write))
            done, _ = await asyncio.wait(followed.values(), timeout=LOOK_SECONDS)
            for task in done:
                task.result()  # such as a reader that went away
            if len(done) == len(followed):
                await asyncio.sleep(LOOK_SECONDS)
    finally:
        for task in followed.values():
            task.cancel()


async def _pour(mine: Kept, name: str, member: str, tail: int | None, write: Write) -> None:
    async for line in _lines(mine, name, member, tail, follow=True):
        write(member, line)


async def _lines(mine: Kept, name: str, member: str, tail: int | None, *, follow: bool) -> AsyncIterator[str]:
    path = mine.store.cluster(name).log_file(member)
    with contextlib.suppress(FileNotFoundError):  # removed between a look and the next
        async for line in files.lines(path, follow=follow, tail=tail):
            yield line
