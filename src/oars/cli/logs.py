"""`oars logs`: what members wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import NotFound, OarsError
from oars.base.words import suggest
from oars.cli import names, running, show
from oars.cli.fail import say
from oars.cli.options import name_argument, where_options
from oars.cli.show import output_option

if TYPE_CHECKING:
    from oars.client.home import Home
    from oars.client.homes import Where

LOOK_SECONDS = 1.0  # between looks for members that are new

Write = Callable[[str, str], None]


@dataclass(frozen=True)
class Wanted:
    """Of whom, and how much."""

    member: str | None
    follow: bool
    tail: int | None
    previous: bool


@click.command()
@name_argument
@click.argument("member", required=False, shell_complete=names.members)
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come, until the cluster is gone.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each member.")
@click.option("-p", "--previous", is_flag=True, help="Kubernetes: of the container before the last restart.")
@where_options
@output_option
def logs(name: str, where: Where, output: str, **wanted: Any) -> None:
    """Show the log of one MEMBER, or of all with the member's name before each line."""
    running.run(_logs(name, where, Wanted(**wanted), output))


async def _logs(name: str, where: Where, wanted: Wanted, output: str) -> None:
    from oars.cli import finding

    async with finding.home_of(name, where) as home:
        known = await _members(home, name, wanted.member)
        if output == "name":
            show.emit(output, known, known, lambda _: "")
            return
        write = _writer(output, prefix=wanted.member is None)
        if wanted.follow:
            await _follow(home, name, wanted, write)
        else:
            await _print(home, name, known, wanted, write)


async def _members(home: Home, name: str, member: str | None) -> Sequence[str]:
    known = await home.members(name)
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


async def _print(home: Home, name: str, members: Sequence[str], wanted: Wanted, write: Write) -> None:
    """One that has nothing to tell (a container that waits, no previous one) is no reason to hide the others."""
    for member in members:
        try:
            async for line in home.lines(name, member, tail=wanted.tail, previous=wanted.previous):
                write(member, line)
        except OarsError as error:
            if wanted.member is not None:
                raise
            say(f"{member}: {error.message}")


async def _follow(home: Home, name: str, wanted: Wanted, write: Write) -> None:
    """All at once; members that come later are followed too."""
    followed: dict[str, asyncio.Task[None]] = {}
    try:
        while (there := await _still_there(home, name)) is not None:
            for each in [wanted.member] if wanted.member else there:
                if each not in followed:
                    followed[each] = asyncio.create_task(_pour(home, name, each, wanted.tail, write))
            if not followed:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            done, _ = await asyncio.wait(followed.values(), timeout=LOOK_SECONDS)
            for task in done:
                task.result()  # such as a reader that went away
            if len(done) == len(followed):
                await asyncio.sleep(LOOK_SECONDS)
    finally:
        for task in followed.values():
            task.cancel()
        await asyncio.gather(*followed.values(), return_exceptions=True)


async def _still_there(home: Home, name: str) -> Sequence[str] | None:
    """Its members; None: the cluster is gone."""
    try:
        found = await home.members(name)
    except NotFound:
        return None
    return found if found or name in await home.names() else None


async def _pour(home: Home, name: str, member: str, tail: int | None, write: Write) -> None:
    async for line in home.lines(name, member, follow=True, tail=tail):
        write(member, line)
