"""Changes of local clusters, without a keeper."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from oars.base.settings import Settings
from oars.client import local
from oars.client.local import LocalBackend, LocalHandle
from oars.spec.cluster import ClusterSpec
from tests.unit.local_clusters import record, store

GROUPS = {"engine": "toy", "workers": [{"name": "x", "replicas": 1}, {"name": "y", "replicas": 1}]}


def test_concurrent_scales_of_two_groups_are_both_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ClusterSpec.model_validate(GROUPS)
    directory = store().create(record("demo", spec.model_dump(mode="json", by_alias=True)), {})
    handle = LocalBackend(Settings.from_environ(os.environ), os.environ).cluster("demo")
    monkeypatch.setattr(LocalHandle, "_wake_keeper", lambda self: None)
    monkeypatch.setattr(local, "check_fits", lambda spec, memory: time.sleep(0.2))  # so that they overlap
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda change: handle._scale(change[0], change[1], False), [(3, "x"), (5, "y")]))
    groups = directory.read().intent.spec["workers"]
    assert {group["name"]: group["replicas"] for group in groups} == {"x": 3, "y": 5}
