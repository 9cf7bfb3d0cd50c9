"""Shell completion of cluster, member, engine and place names. Fast: reads only the state directory."""

from __future__ import annotations

import os
from pathlib import Path

import click


def clusters(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        found = sorted(path.parent.name for path in _clusters_directory().glob("*/cluster.json"))
    except OSError:
        return []
    given = ctx.params.get(param.name or "") or ()
    return [name for name in found if name.startswith(incomplete) and name not in given]


def members(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Members of the cluster whose name precedes."""
    logs = _clusters_directory() / str(ctx.params.get("name")) / "logs"
    return [path.stem for path in sorted(logs.glob("*.log")) if path.stem.startswith(incomplete)]


def engines(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from oars import engines as registry

    return [name for name in registry.names() if name.startswith(incomplete)]


def places(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in ("local", "kubernetes") if name.startswith(incomplete)]


def _clusters_directory() -> Path:
    from oars.base.settings import Settings

    return Settings.from_environ(os.environ).state_dir / "clusters"
