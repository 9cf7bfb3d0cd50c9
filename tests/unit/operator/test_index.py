"""Which changes an operator acts on at once, and which can wait for others."""

from __future__ import annotations

from typing import Any

import pytest

from oars.kube.client import Client
from oars.kube.kinds import Object
from oars.kube.target import Target
from oars.operator.index import LATER, TOGETHER, Watches
from oars.places.kube import names

KEY = ("team", "demo")


def pod(**status: Any) -> Object:
    labels = {names.CLUSTER: "demo", names.ROLE: "worker", names.GROUP: "default"}
    metadata = {"name": "w", "namespace": "team", "uid": "1", "labels": labels, "creationTimestamp": ""}
    return {"metadata": metadata, "spec": {}, "status": status}


def deployment(generation: int, replicas: int) -> Object:
    metadata = {"name": "d", "namespace": "team", "generation": generation, "labels": {names.CLUSTER: "demo"}}
    return {"metadata": metadata, "spec": {}, "status": {"replicas": replicas}}


READY = pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
FAILED = pod(phase="Failed")
SCHEDULED = pod(conditions=[{"type": "PodScheduled", "status": "True"}])


@pytest.mark.parametrize(
    ("kind", "old", "new", "after"),
    [
        ("pods", None, pod(), LATER),
        ("pods", pod(), SCHEDULED, LATER),
        ("pods", SCHEDULED, READY, TOGETHER),
        ("pods", READY, FAILED, TOGETHER),
        ("pods", READY, None, TOGETHER),
        ("pods", FAILED, None, LATER),
        ("deployments", None, deployment(1, 0), LATER),
        ("deployments", deployment(1, 0), deployment(1, 3), LATER),
        ("deployments", deployment(1, 3), deployment(2, 3), TOGETHER),
        ("deployments", deployment(1, 3), None, TOGETHER),
    ],
)
def test_what_may_change_a_decision_comes_first(
    kind: str, old: Object | None, new: Object | None, after: float
) -> None:
    woken: list[tuple[tuple[str, str], float]] = []
    watches = Watches(Client(Target("https://localhost")), (), lambda key, after: woken.append((key, after)))
    watches.clusters[KEY] = {}
    changed = next(informer for informer in watches if informer._kind.plural == kind)._changed
    if old is not None:
        changed(KEY, None, old)
        woken.clear()
    changed(KEY, old, new)
    assert woken == [(KEY, after)]
