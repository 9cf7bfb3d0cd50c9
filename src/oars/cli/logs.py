"""`oars logs`: what members wrote."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from oars.base.errors import NotFound, OarsError
from oars.base.text import suggest
from oars.cli import names, show, signals
from oars.cli.failures import say
from oars.cli.options import container_option, name_argument, where_options
from oars.cli.show import output_option
from oars.client.backend import Reading
from oars.kube.errors import is_passing

if TYPE_CHECKING:
    from oars.client.backend import Backend, Containers
    from oars.client.backends import Where

LOOK_SECONDS = 1.0  # between looks for members that are new
SAY_AGAIN = 60.0  # seconds; the same words so long after are about another time

Write = Callable[[str, str], None]


@dataclass(frozen=True)
class Wanted:
    """Of whom, and how much."""

    member: str | None
    follow: bool
    tail: int | None
    previous: bool
    container: str | None


@click.command()
@name_argument
@click.argument("member", required=False, shell_complete=names.members)
@click.option("-f", "--follow", is_flag=True, help="Go on as lines come, until the cluster is gone.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines of each member.")
@click.option("-p", "--previous", is_flag=True, help="Kubernetes: of the container before the last restart.")
@container_option
@where_options
@output_option
def logs(name: str, where: Where, output: str, **wanted: Any) -> None:
    """Show the log of one MEMBER, or of all with the member's name before each line."""
    signals.run(_logs(name, where, Wanted(**wanted), output))


async def _logs(name: str, where: Where, wanted: Wanted, output: str) -> None:
    from oars.cli import lookup

    async with lookup.home_of(name, where) as home:
        known = await _members(home, name, wanted)
        if output == "name":
            show.emit(output, known, known, lambda _: "")
            return
        write = _writer(output, prefix=wanted.member is None)
        if wanted.follow:
            await _follow(home, name, wanted, write)
        else:
            await _print(home, name, known, wanted, write)


async def _members(home: Backend, name: str, wanted: Wanted) -> Sequence[str]:
    """Those whose log is asked for, or what is wrong with the question."""
    listed = await home.containers(name)
    if wanted.member is not None and wanted.member not in listed:
        meant = suggest(wanted.member, listed)
        sentence = f"The cluster {name!r} has no member {wanted.member!r}.{meant}"
        raise NotFound(sentence, f"It has: {', '.join(listed)}.")
    if wanted.container is not None:
        from oars.cli import in_cluster, lookup

        lookup.only_kubernetes(home, name, "Its members have no containers: leave out --container.")
        asked = [listed[wanted.member]] if wanted.member else listed.values()
        in_cluster.check_container(wanted.container, [container for each in asked for container in each])
    return _matching(listed, wanted)


def _matching(listed: Containers, wanted: Wanted) -> list[str]:
    return [
        member for member, containers in listed.items()
        if wanted.member in (None, member) and (wanted.container is None or wanted.container in containers)
    ]  # fmt: skip


def _writer(output: str, *, prefix: bool) -> Write:
    """How one line of a member is printed."""
    if output == "json":
        return lambda member, line: show.write(json.dumps({"member": member, "line": line}, ensure_ascii=False))
    if output == "yaml":
        return lambda member, line: show.write(show.as_yaml([{"member": member, "line": line}]))
    if prefix:
        return lambda member, line: show.write(f"{click.style(f'[{member}]', fg='cyan')} {line}")
    return lambda member, line: show.write(line)


async def _print(home: Backend, name: str, members: Sequence[str], wanted: Wanted, write: Write) -> None:
    """One that has nothing to tell (a container that waits, no previous one) is no reason to hide the others."""
    how = Reading(tail=wanted.tail, previous=wanted.previous, container=wanted.container or "")
    for member in members:
        try:
            async for line in home.lines(name, member, how):
                write(member, line)
        except OarsError as error:
            if wanted.member is not None:
                raise
            say(f"{member}: {error.message}")


async def _follow(home: Backend, name: str, wanted: Wanted, write: Write) -> None:
    """All at once; members that come later are followed too, and one that comes back is again."""
    followed: dict[str, asyncio.Task[None]] = {}
    how = Reading(follow=True, tail=wanted.tail, container=wanted.container or "", told=LoopState())
    try:
        while (there := await _still_there(home, name, wanted)) is not None:
            for each in there:
                if each not in followed:
                    followed[each] = asyncio.create_task(_pour(home, name, each, how, write))
            await asyncio.sleep(LOOK_SECONDS)
            for each in [member for member, task in followed.items() if task.done()]:
                followed.pop(each).result()  # such as a reader that went away
    finally:
        for task in followed.values():
            task.cancel()
        await asyncio.gather(*followed.values(), return_exceptions=True)


async def _still_there(home: Backend, name: str, wanted: Wanted) -> Sequence[str] | None:
    """The members to follow, as far as is known now; None: the cluster is gone."""
    try:
        listed = await home.containers(name)
        if not listed and name not in await home.names():
            return None
    except NotFound:
        return None
    except OarsError as error:
        if not is_passing(error):
            raise
        return ()  # those that are followed wait for an answer themselves
    return _matching(listed, wanted)


async def _pour(home: Backend, name: str, member: str, how: Reading, write: Write) -> None:
    async for line in home.lines(name, member, how):
        write(member, line)


class LoopState:
    """On stderr. What several members meet at the same time is said once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[str, float] = {}

    def __call__(self, text: str) -> None:
        now = self._clock()
        if now - self._said.get(text, -SAY_AGAIN) >= SAY_AGAIN:
            say(text)
            self._said[text] = now
