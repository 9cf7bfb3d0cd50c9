"""Validation of ClusterSpec."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from oars.spec.cluster import ClusterSpec, WorkerGroup, check_name, check_namespace


def test_default_is_a_local_cluster_with_one_worker() -> None:
    spec = ClusterSpec(engine="dask")
    assert (spec.place, [(group.name, group.replicas) for group in spec.workers]) == ("local", [("default", 1)])


def test_number_of_workers_is_one_group() -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "workers": 3})
    assert [(group.name, group.replicas) for group in spec.workers] == [("default", 3)]


@pytest.mark.parametrize("workers", [{}, {"workers": 3}, {"workers": [{}]}, {"workers": [{"replicas": 3}]}])
def test_replicas_sets_the_first_group(workers: dict[str, Any]) -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "replicas": 3, **workers})
    assert spec == ClusterSpec.model_validate({"engine": "dask", "workers": 3})


def test_replicas_sets_group_objects() -> None:
    spec = ClusterSpec(engine="dask", workers=(WorkerGroup(cpu=2), WorkerGroup(name="b")), replicas=3)
    assert [(group.replicas, group.cpu) for group in spec.workers] == [(3, 2), (1, None)]


def test_replicas_is_ignored_without_groups() -> None:
    assert ClusterSpec.model_validate({"engine": "dask", "replicas": 3, "workers": []}).workers == ()


def test_names_are_camel_case_in_files_and_snake_case_in_python() -> None:
    from_file = ClusterSpec.model_validate({"engine": "ray", "minReady": 1})
    from_python = ClusterSpec.model_validate({"engine": "ray", "min_ready": 1})
    assert from_file == from_python


def test_block_with_the_engine_name_becomes_engine_options() -> None:
    spec = ClusterSpec.model_validate({"engine": "toy", "toy": {"crash": "1"}})
    assert spec.engine_options == {"crash": "1"}
    assert spec.model_dump(exclude_defaults=True) == {"engine": "toy", "toy": {"crash": "1"}}
    for by_alias in (True, False):
        assert ClusterSpec.model_validate(spec.model_dump(by_alias=by_alias)) == spec


def test_with_replicas_changes_only_one_group() -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "workers": [{"name": "a"}, {"name": "b", "gpu": 1}]})
    changed = spec.with_group("b", replicas=7)
    assert [(group.name, group.replicas, group.gpu) for group in changed.workers] == [("a", 1, 0), ("b", 7, 1)]
    assert spec.workers[1].replicas == 1


def test_group_by_name_or_first() -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "workers": [{"name": "a"}, {"name": "b"}]})
    assert [spec.group(name) for name in (None, "b", "c")] == [spec.workers[0], spec.workers[1], None]
    assert ClusterSpec.model_validate({"engine": "dask", "workers": []}).group(None) is None


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "1a", "a" * 54, "a.b", "ä", "a\n"])
def test_invalid_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="valid name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "a-1", "a" * 53])
def test_valid_name_is_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["a", "1a", "2024", "a" * 63])
def test_valid_namespace_is_accepted(name: str) -> None:
    assert ClusterSpec.model_validate({"engine": "dask", "namespace": {"name": name}}).namespace.name == name


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 64, "a.b", "a\n"])
def test_invalid_namespace_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="valid namespace; use at most 63"):
        check_namespace(name)


@pytest.mark.parametrize(
    ("block", "given", "found"),
    [
        ({"name": "a", "create": True}, "b", "a"),
        ({"create": True}, "b", "b"),
        ({"create": True}, None, "demo"),
        ({}, "b", "b"),
        ({}, None, None),
    ],
)
def test_namespace_of_cluster(block: dict[str, Any], given: str | None, found: str | None) -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "namespace": block})
    assert spec.namespace_for("demo", given) == found


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"engine": "dask", "workers": -1},
        {"engine": "dask", "workers": 10_001},
        {"engine": "dask", "workers": [{"name": "head"}]},
        {"engine": "dask", "workers": [{"name": "a"}, {"name": "a"}]},
        {"engine": "dask", "workers": [{"resources": {"x y": 1}}]},
        {"engine": "dask", "environment": {"packages": ["--index-url=x"]}},
        {"engine": "dask", "surprise": 1},
    ],
)
def test_invalid_spec_is_rejected(data: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ClusterSpec.model_validate(data)
