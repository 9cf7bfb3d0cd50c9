"""What `oars doctor` says of clusters: those that are ill, and what was left behind. It looks and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from oars.base.errors import OarsError
from oars.cli.machine import Finding
from oars.client.local_clusters import Kept
from oars.places.local.process import CLUSTER, MARK, all_pids, boot_id, environment_of
from oars.places.local.store import ClusterDir
from oars.spec.status import Phase

HALF_MADE_SECONDS = 60.0  # making a cluster's directory takes milliseconds
UNREADABLE = (OarsError, ValueError, KeyError, TypeError, OSError)


def examine(mine: Kept) -> Iterator[Finding]:
    names = mine.names()
    ill = [finding for name in names if (finding := _cluster(mine.store.cluster(name)))]
    yield from ill
    if not ill:
        yield Finding("ok", "clusters", f"{len(names)}, all looked after" if names else "none")
    yield from _half_made(mine)
    yield _orphans()


def _cluster(directory: ClusterDir) -> Finding | None:
    name, check = directory.name, f"cluster {directory.name}"
    try:
        intent, report = directory.read_intent(), directory.read_report()
    except UNREADABLE as error:
        return Finding("fail", check, f"Its record cannot be read: {error}.", f"Remove {directory.path}.")
    if intent.boot != boot_id():
        return Finding("warn", check, "It ended when the machine was restarted.", f"`oars down {name}` forgets it.")
    if not directory.has_keeper:
        hint = f"`oars status {name}` starts a new one that takes over."
        return Finding("warn", check, "Its keeper is gone; nobody replaces workers that die.", hint)
    if report is not None and report.status.phase in (Phase.FAILED, Phase.DEGRADED):
        return Finding("warn", check, f"It is {report.status.phase}.", f"`oars why {name}` says more.")
    return None


def _half_made(mine: Kept) -> Iterator[Finding]:
    for path in sorted(mine.store.root.glob("new-*")):
        if time.time() - path.stat().st_mtime > HALF_MADE_SECONDS:
            yield Finding("warn", "leftovers", f"{path} was never finished.", f"Remove it: `rm -r {path}`.")


def _orphans() -> Finding:
    """Processes with the mark of a cluster whose directory is gone. Clusters of other state directories have theirs."""
    found = [pid for pid in all_pids() if _orphaned(environment_of(pid))]
    if not found:
        return Finding("ok", "processes", "none without a cluster")
    pids = " ".join(str(pid) for pid in sorted(found)[:20])
    text = f"{len(found)} of clusters that are gone."
    return Finding("warn", "processes", text, f"Look at them with `ps {pids}`, then end them with `kill {pids}`.")


def _orphaned(environment: Mapping[str, str]) -> bool:
    home = environment.get(CLUSTER)
    return MARK in environment and home is not None and not ClusterDir(Path(home)).exists
