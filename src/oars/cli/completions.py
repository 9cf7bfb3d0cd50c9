"""Shell completion of cluster, member, engine and place names. Fast: reads only the state directory."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem


def clusters(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from oars.base.settings import Settings

    directory = Settings.from_environ(os.environ).state_dir / "clusters"
    try:
        found = sorted(path.parent.name for path in directory.glob("*/cluster.json"))
    except OSError:
        return []
    given = ctx.params.get(param.name or "") or ()
    return [CompletionItem(name) for name in found if name.startswith(incomplete) and name not in given]


def members(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Members of the cluster whose name precedes."""
    from oars.base.settings import Settings

    logs = Settings.from_environ(os.environ).state_dir / "clusters" / str(ctx.params.get("name")) / "logs"
    return [CompletionItem(path.stem) for path in sorted(logs.glob("*.log")) if path.stem.startswith(incomplete)]


def engines(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from oars import engines as registry

    return [CompletionItem(name) for name in registry.names() if name.startswith(incomplete)]


def places(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in ("local", "kubernetes") if name.startswith(incomplete)]
