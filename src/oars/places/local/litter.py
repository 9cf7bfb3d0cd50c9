"""What members left outside their directories (Process.litter): links, shared memory."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Iterable
from pathlib import Path

from oars.places.ledger import read_ledger
from oars.places.local.store import ClusterDir
from oars.plan.fill import fill


def clear_away(litter: Iterable[str], tag: str) -> None:
    """All that the patterns mean, of processes with this tag; these are gone."""
    for pattern in litter:
        for path in glob.glob(fill(pattern, {"tag": tag})):
            _remove(Path(path))


def clear_away_all(directory: ClusterDir) -> None:
    """Of a whole cluster whose processes are gone and that nobody looks after."""
    tag = directory.read_intent().tag("*")
    for entry in read_ledger(directory.ledger_file).entries.values():
        clear_away(entry.litter, tag)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
