"""Why local clusters ended by themselves: one small file each, kept for a day beside the directories of the others."""

from __future__ import annotations

import json
import time
from pathlib import Path

from oars.base import codec
from oars.base.log import get_logger, pairs
from oars.places.process.ledger import write_json
from oars.plan.lifetime import KEEP_SECONDS
from oars.spec.status import Gone

log = get_logger(__name__)


def write_gone(state_dir: Path, mark: str, gone: Gone) -> None:
    """`mark`: of the cluster. A repetition replaces the file. A full disk does not keep the cluster from ending."""
    directory = state_dir / "gone"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        _remove_old(directory)
        write_json(directory / f"{gone.name}-{mark[:8]}.json", codec.dump(gone))
    except OSError as error:
        log.warning(pairs("reason not stored", cluster=gone.name, error=error))


def read_gone(state_dir: Path) -> list[Gone]:
    """Clusters that ended within the last day, the latest last."""
    found, since = [], time.time() - KEEP_SECONDS
    for path in (state_dir / "gone").glob("*.json"):
        try:
            gone = codec.load(Gone, json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            log.warning(pairs("stored reason ignored", file=path.name, error=error))
            continue
        found += [gone] if gone.ended >= since else []
    return sorted(found, key=lambda gone: gone.ended)


def _remove_old(directory: Path) -> None:
    for path in directory.glob("*.json"):
        if path.stat().st_mtime < time.time() - KEEP_SECONDS:
            path.unlink(missing_ok=True)
