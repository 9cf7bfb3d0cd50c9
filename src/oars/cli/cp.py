"""`oars cp`: copy files to and from a member of a cluster on Kubernetes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oars.base.errors import UsageError
from oars.cli import signals
from oars.cli.options import container_option, location_options, quiet_option
from oars.cli.progress import Progress

if TYPE_CHECKING:
    from oars.service import Service

_REMOTE = re.compile(r"(?P<name>[a-z][-a-z0-9]*):(?:(?P<member>[a-z][-a-z0-9]*):)?(?P<path>.+)")


@dataclass(frozen=True)
class RemotePath:
    name: str
    member: str
    path: str


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@container_option
@location_options
@quiet_option
def cp(source: str, target: str, container: str | None, service: Service, quiet: bool) -> None:
    """Copy a file or directory to or from a member of a cluster on Kubernetes. One of the paths is NAME[:MEMBER]:PATH.

    \b
    oars cp train.py demo:/tmp/train.py           to the head
    oars cp demo:worker-5d9-x2x:/tmp/out ./out    from a worker
    """
    remote_source, remote_target = parse_remote(source), parse_remote(target)
    if remote_source and not remote_target:
        there = remote_source
        copying = service.copy_from(there.name, there.path, Path(target), member=there.member, container=container)
    elif remote_target and not remote_source:
        there = remote_target
        copying = service.copy_to(there.name, Path(source), there.path, member=there.member, container=container)
    else:
        hint = "Example: `oars cp data.csv demo:/tmp/data.csv`. Write a local name with a colon as ./a:b."
        raise UsageError("One path must be NAME:PATH of a cluster, and the other one local.", hint)
    with Progress(quiet=quiet) as progress:
        progress(f"copying {source} to {target}")
        signals.run(copying)


def parse_remote(path: str) -> RemotePath | None:
    """None: the path is local."""
    found = _REMOTE.fullmatch(path)
    return RemotePath(found["name"], found["member"] or "head", found["path"]) if found else None
