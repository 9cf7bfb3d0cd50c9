"""Requests to drain workers in the annotations of a ComputeCluster."""

from __future__ import annotations

from typing import Any

import pytest

from oars.model import DrainRequest
from oars.operator.resources import compute_cluster, with_requests


def resource(**annotations: str) -> dict[str, Any]:
    named = {f"oars.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    metadata = {"name": "demo", "namespace": "team", "generation": 3, "annotations": named}
    return {"metadata": metadata, "spec": {"engine": "dask"}}


@pytest.mark.parametrize(
    ("annotations", "drain", "everyone"),
    [
        ({}, {}, False),
        ({"drain": "pod-a, pod-b,"}, {"pod-a": DrainRequest(), "pod-b": DrainRequest()}, False),
        ({"drain": "pod-a", "drain_force": "pod-a"}, {"pod-a": DrainRequest(force=True)}, False),
        ({"drain_force": "pod-b"}, {"pod-b": DrainRequest(force=True)}, False),
        ({"drain": "*"}, {}, True),
        ({"drain": "pod-a,*"}, {"pod-a": DrainRequest()}, True),
        ({"drain_force": "*"}, {}, False),
    ],
)
def test_annotations_become_requests(annotations: dict[str, str], drain: dict[str, Any], everyone: bool) -> None:
    desired = compute_cluster(resource(**annotations))
    assert (desired.drain, desired.drain_all) == (drain, everyone)


def test_removed_annotation_ends_the_request() -> None:
    desired = with_requests(compute_cluster(resource(drain="pod-a,*")), resource())
    assert not desired.drain and not desired.drain_all
