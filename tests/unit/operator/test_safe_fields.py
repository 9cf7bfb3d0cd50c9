"""The list of fields that every author of a ComputeCluster may set, and the operator's check of the admission policy.
tests/api/test_authors.py compares the list with the policy on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from oars.operator.safe_fields import DEPLOYMENTS, INGRESSES, SERVICES, restricted_fields
from tests.overlays import harmful, harmless, of_pod


def spec(block: str, overlay: dict[str, Any]) -> dict[str, Any]:
    return {"head": {"pod": overlay}} if block == "head" else {"workers": [{"name": "a"}, {"pod": overlay}]}


CASES = [(block, *case) for block in ("head", "worker") for case in harmful(block).items()]


@pytest.mark.parametrize(("block", "path", "overlay"), CASES, ids=[f"{block}-{path}" for block, path, _ in CASES])
def test_field_that_needs_the_right_to_create_pods_is_named(block: str, path: str, overlay: dict[str, Any]) -> None:
    where = "head.pod" if block == "head" else "workers[].pod"
    assert restricted_fields(spec(block, overlay)) == {DEPLOYMENTS: [f"{where}.{path}"]}


@pytest.mark.parametrize("block", ["head", "worker"])
def test_safe_overlays_need_no_right(block: str) -> None:
    for overlay in harmless(block):
        assert restricted_fields(spec(block, overlay)) == {}


def test_labels_and_annotations_need_the_right_to_create_what_has_them() -> None:
    found = restricted_fields({"labels": {"app": "shop"}, "annotations": {"a": "b"}})
    assert found == {DEPLOYMENTS: ["labels.app", "annotations.a"], SERVICES: ["annotations.a"]}


@pytest.mark.parametrize(
    ("expose", "found"),
    [
        ({}, {}),
        ({"type": "ClusterIP", "annotations": {}, "host": None}, {}),
        ({"clients": {"team": "a"}}, {}),
        ({"metrics": {"team": "a"}}, {SERVICES: ["expose.metrics"]}),
        ({"type": "NodePort"}, {SERVICES: ["expose.type"]}),
        ({"type": "LoadBalancer"}, {SERVICES: ["expose.type"]}),
        ({"annotations": {"a": "b"}}, {SERVICES: ["expose.annotations.a"]}),
        ({"host": "a.example.org"}, {INGRESSES: ["expose.host"]}),
        ({"tlsSecret": "wildcard"}, {INGRESSES: ["expose.tlsSecret"]}),
        ({"host": "a", "annotations": {"b": "c"}}, {SERVICES: ["expose.annotations.b"], INGRESSES: ["expose.host"]}),
    ],
)
def test_exposure_needs_the_right_to_create_services_or_ingresses(expose: dict[str, Any], found: object) -> None:
    assert restricted_fields({"expose": expose}) == found


def test_repeated_field_is_named_once() -> None:
    volumes = of_pod(volumes=[{"name": name, "hostPath": {"path": "/"}} for name in "ab"])
    found = restricted_fields({"workers": [{"pod": volumes}, {"pod": volumes}]})
    assert found == {DEPLOYMENTS: ["workers[].pod.spec.volumes[].hostPath"]}


def test_image_and_environment_need_no_right() -> None:
    assert restricted_fields({"image": "x:1", "env": {"A": "1"}, "head": {"env": {"LD_PRELOAD": "x"}}}) == {}
