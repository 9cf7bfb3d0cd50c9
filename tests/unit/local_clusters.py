"""Records of local clusters, without processes, for tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from oars.base.settings import Settings
from oars.places.intent import Intent
from oars.places.local.process import boot_id
from oars.places.local.store import ClusterRecord, Store
from tests.unit.plan.clusters import desired


def store() -> Store:
    return Store(Settings.from_environ(os.environ).state_dir)


def record(name: str, spec: Mapping[str, Any] | None = None, **changes: Any) -> ClusterRecord:
    facts: dict[str, Any] = {"python": "/x/python", "mark": "m", "created": 0.0, "boot": boot_id()}
    return ClusterRecord(name=name, intent=Intent(spec or {"engine": "toy"}), spec_desired=desired(), **facts | changes)
