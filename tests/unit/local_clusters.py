"""Records of local clusters, without processes, for tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oars.base.settings import Settings
from oars.places.intent import Intent
from oars.places.local.host import this_host
from oars.places.local.store import ClusterRecord, Store
from tests.unit.plan.clusters import desired


def store() -> Store:
    return Store(Settings.from_environ(os.environ).state_dir)


EARLIER = replace(this_host(), boot="an earlier boot")
OTHER = replace(this_host(), boot="another boot", machine="another machine", name="login-2")


def record(name: str, spec: Mapping[str, Any] | None = None, **changes: Any) -> ClusterRecord:
    facts: dict[str, Any] = {"python": "/x/python", "mark": "m", "created": 0.0, "host": this_host()}
    return ClusterRecord(name=name, intent=Intent(spec or {"engine": "toy"}), spec_desired=desired(), **facts | changes)
