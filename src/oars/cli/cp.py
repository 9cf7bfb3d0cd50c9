"""`oars cp`: files into a member of a cluster on Kubernetes, and out of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oars.base.errors import UsageError
from oars.cli import signals
from oars.cli.options import container_option, quiet_option, where_options
from oars.cli.progress import Progress

if TYPE_CHECKING:
    from oars.client.backends import Where

_FAR = re.compile(r"(?P<name>[a-z][-a-z0-9]*):(?:(?P<member>[a-z][-a-z0-9]*):)?(?P<path>.+)")
HERE = "Its files are files of this machine: use `cp`."


@dataclass(frozen=True)
class Far:
    """A path in a member."""

    name: str
    member: str
    path: str


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@container_option
@where_options
@quiet_option
def cp(source: str, target: str, container: str | None, where: Where, quiet: bool) -> None:
    """Copy a file or directory to a member of a cluster on Kubernetes, or from it. One end is NAME[:MEMBER]:PATH.

    \b
    oars cp train.py demo:/tmp/train.py           into the head
    oars cp demo:worker-5d9-x2x:/tmp/out ./out    out of a worker
    """
    ends = far(source), far(target)
    if (ends[0] is None) == (ends[1] is None):
        hint = "Write it like `oars cp data.csv demo:/tmp/data.csv`; a local name with a colon as ./a:b."
        raise UsageError("One end must be NAME:PATH of a cluster, and the other a path of this machine.", hint)
    with Progress(quiet=quiet) as progress:
        progress(f"copying {source} to {target}")
        signals.run(_copy(ends, source, target, container, where))


def far(word: str) -> Far | None:
    """None: it is a path of this machine."""
    found = _FAR.fullmatch(word)
    return Far(found["name"], found["member"] or "head", found["path"]) if found else None


async def _copy(
    ends: tuple[Far | None, Far | None], source: str, target: str, container: str | None, where: Where
) -> None:
    from oars.cli import in_cluster, lookup
    from oars.kube.streams import copy_from, copy_to

    there = ends[0] or ends[1]
    assert there is not None
    async with lookup.home_of(there.name, where) as home:
        kube = lookup.only_kubernetes(home, there.name, HERE)
        spot = await in_cluster.spot_of(kube, there.name, there.member, container)
        if ends[0] is None:
            await copy_to(kube.client, spot.namespace, spot.pod, Path(source), there.path, spot.container)
        else:
            await copy_from(kube.client, spot.namespace, spot.pod, there.path, Path(target), spot.container)
