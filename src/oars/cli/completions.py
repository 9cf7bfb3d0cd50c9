"""Shell completion of cluster, member, engine and place names, of files and programs. Fast: reads only directories."""

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


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        found = sorted(path.parent.name for path in (_clusters_directory().parent / "jobs").glob("*/job.json"))
    except OSError:
        return []
    return [name for name in found if name.startswith(incomplete)]


def members(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Members of the cluster whose name precedes."""
    logs = _clusters_directory() / str(ctx.params.get("name")) / "logs"
    return [path.stem for path in sorted(logs.glob("*.log")) if path.stem.startswith(incomplete)]


def engines(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from oars import engines as registry

    return [name for name in registry.names() if name.startswith(incomplete)]


def places(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in ("local", "kubernetes") if name.startswith(incomplete)]


def specs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Files that may contain a cluster."""
    return _files(incomplete, ".yaml", ".yml", ".json")


def script(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Python files for the script, any file for its arguments."""
    return _files(incomplete, *([] if ctx.params.get(param.name or "") else [".py"]))


def command(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Programs for the first word, any file for the others. The cluster's Python is always there."""
    if {*(ctx.params.get(param.name or "") or ())} - {"--"} or "/" in incomplete:
        return _files(incomplete)
    found = {"python"}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        try:
            found.update(each.name for each in os.scandir(folder) if each.name.startswith(incomplete))
        except OSError:
            continue
    return sorted(name for name in found if name.startswith(incomplete))


def _files(incomplete: str, *endings: str) -> list[str]:
    """Files with one of these endings, or any, and directories, from which one can go on."""
    folder, _, start = incomplete.rpartition("/")
    prefix = f"{folder}/" if "/" in incomplete else ""
    try:
        entries = sorted(os.scandir(os.path.expanduser(prefix) or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    chosen = [e for e in entries if e.name.startswith(start) and (start or not e.name.startswith("."))]
    directories = [f"{prefix}{e.name}/" for e in chosen if e.is_dir()]
    files = [f"{prefix}{e.name}" for e in chosen if e.is_file() and (not endings or e.name.endswith(endings))]
    return [*files, *directories]


def _clusters_directory() -> Path:
    from oars.base.settings import Settings

    return Settings.from_environ(os.environ).state_dir / "clusters"
