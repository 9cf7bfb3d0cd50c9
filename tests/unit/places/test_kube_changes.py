"""The effects of a new spec on a running cluster."""

from __future__ import annotations

from typing import Any

import pytest

from oars.operator import crd
from oars.places.kube.render.changes import IMMUTABLE, Version, compare
from oars.plan.changes import Change, Effect
from tests.unit.places.clusters import cluster, spec_of


def version(**spec: Any) -> Version:
    return Version(spec_of(**{"image": "i:1", **spec}), cluster(**{"image": "i:1", **spec}))


def between(before: dict[str, Any], after: dict[str, Any]) -> tuple[Change, ...]:
    return compare(version(**before), version(**after))


def effects(before: dict[str, Any], after: dict[str, Any]) -> list[Effect]:
    return [change.effect for change in between(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, []),
        ({"workers": 1}, {"workers": 3}, [Effect.ADDED]),
        ({"workers": 3}, {"workers": 1}, [Effect.DRAINED]),
        ({"workers": 1}, {"workers": 0}, [Effect.DRAINED]),
        ({}, {"image": "i:2"}, [Effect.HEAD, Effect.ROLLED]),
        ({}, {"env": {"A": "1"}}, [Effect.HEAD, Effect.ROLLED]),
        ({"engine": "mars"}, {"engine": "mars", "mars": {"config": {"a": 1}}}, [Effect.HEAD, Effect.ROLLED]),
        ({}, {"head": {"cpu": 2}}, [Effect.HEAD]),
        ({}, {"workers": [{"cpu": 2}]}, [Effect.ROLLED]),
        ({}, {"workers": [{"env": {"A": "1"}, "replicas": 2}]}, [Effect.ROLLED, Effect.ADDED]),
        ({}, {"workers": [{}, {"name": "gpu", "gpu": 1}]}, [Effect.ADDED]),
        ({"workers": [{}, {"name": "b"}]}, {"workers": [{}]}, [Effect.DRAINED]),
        ({}, {"expose": {"annotations": {"a": "b"}}}, [Effect.IN_PLACE]),
        ({}, {"expose": {"host": "h.example"}}, [Effect.IN_PLACE] * 2),
        ({}, {"drain": {"timeout": "30s"}}, [Effect.IN_PLACE]),
        ({}, {"lifetime": {"orphaned": "10m"}, "minReady": 1}, [Effect.IN_PLACE]),
        ({"engine": "dask"}, {"engine": "ray"}, [Effect.REFUSED]),
        ({}, {"dask": {"protocol": "tcp"}}, [Effect.REFUSED]),
    ],
)
def test_change_has_these_effects(before: dict[str, Any], after: dict[str, Any], expected: list[Effect]) -> None:
    assert effects(before, after) == expected


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_more_workers_replace_no_pods(engine: str) -> None:
    assert effects({"engine": engine, "workers": 0}, {"engine": engine, "workers": 300}) == [Effect.ADDED]


def test_change_names_the_fields_that_differ() -> None:
    head, workers = between({}, {"image": "i:2"})
    assert head.lines == ("spec.containers[head].image: i:1 → i:2",)
    assert "lost" in head.message
    assert workers.message == "The workers of 'default' are replaced with the head, and their data is lost."
    [rolled] = between({}, {"workers": [{"cpu": 2}]})
    assert rolled.message == "The workers of 'default' are replaced; each hands over its data first."
    [fewer] = between({"workers": 3}, {"workers": 1})
    assert fewer.message == "The group 'default' shrinks from 3 to 1: 2 workers hand over their data and are removed."


def test_changed_file_is_one_line() -> None:
    before, after = ({"engine": "mars", "mars": {"config": {"a": number}}} for number in (1, 2))
    for change in between(before, after):
        [line] = change.lines
        assert line.startswith("files.") and " → " in line


def test_workers_hand_over_no_data_if_the_head_is_replaced() -> None:
    before = {"workers": [{"replicas": 3}, {"name": "b"}, {"name": "c", "replicas": 2}]}
    after = {"workers": [{"replicas": 1, "cpu": 2}, {"name": "c"}], "head": {"cpu": 2}}
    assert [change.message for change in between(before, after)] == [
        "The head is replaced: running work and all data of the cluster are lost.",
        "The workers of 'default' are replaced with the head, and their data is lost.",
        "The group 'b' is removed: 1 worker is removed with the head.",
        "The group 'default' shrinks from 3 to 1: 2 workers are removed with the head.",
        "The group 'c' shrinks from 2 to 1: 1 worker is removed with the head.",
    ]


def test_crd_has_a_default_for_each_immutable_field() -> None:
    assert list(crd.IMMUTABLE_DEFAULTS) == list(IMMUTABLE)


def test_naming_the_current_namespace_is_no_change() -> None:
    before, after = version(), version(namespace={"name": "lab"})
    assert compare(before, after) == ()
    assert compare(before, version(namespace={"name": "other"}))[0].effect is Effect.REFUSED
