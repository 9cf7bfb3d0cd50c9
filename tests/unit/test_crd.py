"""The CRD: it says what the models say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oars.operator import crd
from oars.spec import resources
from oars.spec.cluster import API_VERSION, KIND, ClusterSpec, WorkerGroup, check_namespace
from oars.spec.status import GroupStatus, Phase, Status

SPEC = crd.spec_schema()


def schemas(schema: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field's schema and its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


def test_group_kind_and_names() -> None:
    made = crd.compute_cluster()
    version = made["spec"]["versions"][0]
    assert f"{made['spec']['group']}/{version['name']}" == API_VERSION
    assert made["spec"]["names"]["kind"] == KIND
    assert made["metadata"]["name"] == f"{made['spec']['names']['plural']}.{made['spec']['group']}"


def test_it_is_small_and_plain_json() -> None:
    assert len(json.dumps(crd.compute_cluster())) < 20_000


def test_every_field_of_the_models_is_there() -> None:
    aliases = {field.alias or name for name, field in ClusterSpec.model_fields.items()}
    assert set(SPEC["properties"]) == aliases
    group = SPEC["properties"]["workers"]["items"]["properties"]
    assert set(group) == {field.alias or name for name, field in WorkerGroup.model_fields.items()}
    assert SPEC["required"] == ["engine"]


@pytest.mark.parametrize("schema", [SPEC, crd.status_schema()])
def test_it_is_structural(schema: dict[str, Any]) -> None:
    free = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")
    for path, each in schemas(schema):
        assert "type" in each or any(each.get(key) for key in free), path


def test_every_field_is_explained() -> None:
    for path, each in schemas(SPEC):
        assert path.endswith("[]") or each.get("description"), path


def test_defaults_are_those_of_the_models() -> None:
    """An object with all defaults filled in by Kubernetes describes the cluster that the file alone does."""
    filled = {name: each["default"] for name, each in SPEC["properties"].items() if "default" in each}
    filled["head"] = {name: s["default"] for name, s in properties("head").items() if "default" in s}
    filled["drain"] = {name: s["default"] for name, s in properties("drain").items() if "default" in s}
    assert filled["head"] == {"cpu": 1, "burst": False}
    written = ClusterSpec.model_validate({"engine": "dask", **filled})
    assert written == ClusterSpec(engine="dask", place="kubernetes")


@pytest.mark.parametrize("block", ["dask", "ray", "mars", "expose", "namespace"])
def test_defaults_and_enums_of_blocks(block: str) -> None:
    model = getattr(ClusterSpec(engine="dask"), block)
    for name, schema in properties(block).items():
        found = model.model_dump(by_alias=True)[name]
        assert schema.get("default", found) == found
        assert found in schema.get("enum", [found])


def test_fields_that_must_not_change_mean_the_models_default() -> None:
    spec = ClusterSpec(engine="dask")
    for path, default, _ in crd.FIXED:
        block, _, name = path.partition(".")
        if name:
            assert (getattr(getattr(spec, block), name) or default) == default, path
            assert not isinstance(default, str) or properties(block)[name].get("default", "") == default


def test_a_rule_about_a_field_escapes_the_words_of_cel() -> None:
    rules = " ".join(each["rule"] for each in SPEC["x-kubernetes-validations"])
    assert "self.__namespace__.name" in rules
    assert "self.namespace" not in rules


@pytest.mark.parametrize("name", ["1a", "a" * 63, "a" * 64, "-a", "a-", "A"])
def test_namespaces_are_those_of_the_model(name: str) -> None:
    schema = properties("namespace")["name"]
    taken = len(name) <= schema["maxLength"] and bool(re.search(schema["pattern"], name))
    try:
        check_namespace(name)
    except ValueError:
        assert not taken
    else:
        assert taken


def test_bounds_are_those_of_the_models() -> None:
    assert SPEC["properties"]["replicas"]["minimum"] == 0
    assert properties("workers", "items")["gpu"]["maximum"] == 1024


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (resources.cpu, ["1", "0.5", "500m", ".5", "2.5"], ["", "many", "1Gi", "m", "-1", "1 2"]),
        (resources.memory, ["1Gi", "512Mi", "2g", "1.5GiB", "2000000", "4 GB"], ["", "much", "1Xi", "Gi", "-1Gi"]),
        (resources.duration, ["90", "30s", "1h30m", "1.5h", "500ms", "0"], ["", "soon", "1y", "-1s", "1h30"]),
    ],
)
def test_patterns_accept_what_the_models_accept(
    read: Callable[[object], object], good: list[str], bad: list[str]
) -> None:
    pattern = crd.QUANTITIES[read]["pattern"]
    for text in good:
        read(text)
        assert re.search(pattern, text), text
    for text in bad:
        assert not re.search(pattern, text), text
        with pytest.raises(ValueError, match=r"."):
            read(text)


def test_a_status_fits() -> None:
    status = crd.status_schema()["properties"]
    told = Status("demo", "dask", "kubernetes", Phase.READY, groups=(GroupStatus("default", 3, 3),)).to_dict()
    assert set(told) - {"name", "namespace", "engine", "place", "members"} <= set(status)
    assert set(told["groups"][0]) == set(status["groups"]["items"]["properties"])
    assert set(told["endpoints"]) == set(status["endpoints"]["properties"])
    assert all(phase in status["phase"]["description"] for phase in Phase)


def test_scale_reads_and_writes_fields_that_exist() -> None:
    version = crd.compute_cluster()["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]["properties"]
    for path in version["subresources"]["scale"].values():
        _, part, name = path.split(".")
        assert name in root[part]["properties"]


def properties(block: str, inside: str = "") -> dict[str, Any]:
    schema = SPEC["properties"][block]
    found: dict[str, Any] = (schema[inside] if inside else schema)["properties"]
    return found
