"""Other writers of the replicas of a worker Deployment are noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oars.model import Cause
from oars.places.kube import names
from oars.places.kube.replicas import REMARK_SECONDS, OtherWriters, mark
from tests.unit.places.clusters import cluster


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def deployment(replicas: int, ours: int | None, group: str = "default") -> dict[str, Any]:
    annotations = {} if ours is None else mark(ours)
    name = names.workers("demo", group)
    return {
        "metadata": {"name": name, "labels": {names.GROUP: group}, "annotations": annotations},
        "spec": {"replicas": replicas},
    }


def remarks(
    writers: OtherWriters, *deployments: dict[str, Any], mode: str = "direct", **spec: Any
) -> tuple[Cause, ...]:
    return writers.remarks(replace(cluster(**spec), mode=mode), deployments)


def test_only_a_number_that_oars_did_not_write_is_reported() -> None:
    """An older Oars did not note what it wrote."""
    writers = OtherWriters(Clock())
    assert remarks(writers, deployment(5, 5), deployment(3, None, "big")) == ()
    (found,) = remarks(writers, deployment(4, 5))
    assert found.reason == "ReplicasOverwritten" and "demo-worker to 4" in found.message
    assert found.hint == "Use `oars scale demo 4 -n lab` instead."


def test_hint_names_the_group_and_the_resource_for_autoscalers() -> None:
    groups = [{"name": "default", "replicas": 1}, {"name": "big", "replicas": 1}]
    (found,) = remarks(OtherWriters(Clock()), deployment(4, 1, "big"), workers=groups, mode="operator")
    assert found.hint == (
        "Use `oars scale demo 4 --group big -n lab` instead, and an autoscaler on computecluster/demo."
    )


def test_write_is_reported_for_a_while_after_it_was_reverted() -> None:
    clock = Clock()
    writers = OtherWriters(clock)
    assert len(remarks(writers, deployment(4, 5))) == 1
    clock.now += REMARK_SECONDS - 1
    assert len(remarks(writers, deployment(5, 5))) == 1
    clock.now += 2
    assert remarks(writers, deployment(5, 5)) == ()
