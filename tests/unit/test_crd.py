"""The CRD matches the models of the spec."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oars import engines
from oars.operator import crd
from oars.places.kube.state import status_codec
from oars.spec import resources
from oars.spec.cluster import API_VERSION, KIND, ClusterSpec, WorkerGroup, check_namespace
from oars.spec.job import MAX_ARCHIVE, MAX_LOG
from oars.spec.status import GroupStatus, Phase, Status

SPEC = crd.spec_schema()
STATUS = crd.compute_cluster()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]


def schemas(schema: dict[str, Any], path: str = "spec") -> Iterator[tuple[str, dict[str, Any]]]:
    """The path and schema of every field."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


def test_group_kind_and_names() -> None:
    definition = crd.compute_cluster()
    version = definition["spec"]["versions"][0]
    assert f"{definition['spec']['group']}/{version['name']}" == API_VERSION
    assert definition["spec"]["names"]["kind"] == KIND
    assert definition["metadata"]["name"] == f"{definition['spec']['names']['plural']}.{definition['spec']['group']}"


def test_definition_is_small() -> None:
    assert len(json.dumps(crd.compute_cluster(engines.BUILT_IN))) < 24_000


def test_schema_has_every_field_of_the_models() -> None:
    aliases = {field.alias or name for name, field in ClusterSpec.model_fields.items()}
    assert set(SPEC["properties"]) == (aliases - {"engineOptions"}) | {"dask", "ray", "mars", "toy"}
    group = SPEC["properties"]["workers"]["items"]["properties"]
    assert set(group) == {field.alias or name for name, field in WorkerGroup.model_fields.items()}
    assert SPEC["required"] == ["engine"]


@pytest.mark.parametrize("schema", [SPEC, STATUS])
def test_schema_is_structural(schema: dict[str, Any]) -> None:
    free = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")
    for path, each in schemas(schema):
        assert "type" in each or any(each.get(key) for key in free), path


def test_every_field_has_a_description() -> None:
    for path, each in schemas(SPEC):
        assert path.endswith("[]") or each.get("description"), path


def test_defaults_match_the_models() -> None:
    """Defaults that Kubernetes fills in do not change the spec."""
    filled = {name: each["default"] for name, each in SPEC["properties"].items() if "default" in each}
    filled["head"] = {name: s["default"] for name, s in properties("head").items() if "default" in s}
    filled["drain"] = {name: s["default"] for name, s in properties("drain").items() if "default" in s}
    assert filled["head"] == {"burst": False, "eviction": "block", "update": "Recreate"}
    written = ClusterSpec.model_validate({"engine": "dask", **filled})
    assert written == ClusterSpec(engine="dask", place="kubernetes")


def test_list_items_have_no_defaults() -> None:
    """kubectl compares whole lists: with a default inside, every apply would be a change."""
    assert [path for path, each in schemas(SPEC) if "[]" in path and "default" in each] == []


@pytest.mark.parametrize("block", ["dask", "ray", "mars", "toy", "expose", "namespace"])
def test_defaults_and_enums_of_blocks_match_the_models(block: str) -> None:
    engine_model = engines.option_model(block)
    model = engine_model() if engine_model else getattr(ClusterSpec(engine="dask"), block)
    for name, schema in properties(block).items():
        found = model.model_dump(by_alias=True)[name]
        assert schema.get("default", found) == found
        assert found in schema.get("enum", [found])


def test_immutable_fields_have_the_default_of_the_schema() -> None:
    found = {path: default for path, default, _ in crd.immutable_fields(crd.option_models())}
    assert found["dask.protocol"] == "tls" and found["toy.wireFormat"] == "json"
    for path, default in found.items():
        block, _, name = path.partition(".")
        if name:
            assert not default or properties(block)[name]["default"] == default, path


def test_rules_escape_reserved_words_of_cel() -> None:
    rules = " ".join(each["rule"] for each in SPEC["x-kubernetes-validations"])
    assert "self.__namespace__.name" in rules
    assert "self.namespace" not in rules


@pytest.mark.parametrize("name", ["1a", "a" * 63, "a" * 64, "-a", "a-", "A"])
def test_namespace_pattern_matches_the_model(name: str) -> None:
    schema = properties("namespace")["name"]
    is_valid = len(name) <= schema["maxLength"] and bool(re.search(schema["pattern"], name))
    try:
        check_namespace(name)
    except ValueError:
        assert not is_valid
    else:
        assert is_valid


def test_bounds_match_the_models() -> None:
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
def test_patterns_of_quantities_match_the_models(
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


@pytest.mark.parametrize("read", crd.QUANTITIES)
def test_quantities_are_short(read: Callable[[object], object]) -> None:
    longest = crd.QUANTITIES[read]["maxLength"]
    with pytest.raises(ValueError, match="characters"):
        read("1" * (longest + 1))


def test_bounds_of_a_job_match_its_model() -> None:
    fields = crd.job_schema()["properties"]
    assert fields["workingDir"]["properties"]["size"]["maximum"] == MAX_ARCHIVE
    keep = fields["logs"]["properties"]["keep"]
    assert (keep["maximum"], keep["minimum"]) == (MAX_LOG, 2**20)


def test_status_matches_the_schema() -> None:
    status = STATUS["properties"]
    groups = (GroupStatus("default", 3, 3, min=0, max=5),)
    data = Status("demo", "dask", "kubernetes", Phase.READY, groups=groups).to_dict()
    assert set(data) - {"name", "namespace", "engine", "place", "members", "host", "created"} <= set(status)
    assert {*data["groups"][0], "unready"} == set(status["groups"]["items"]["properties"])
    assert set(data["endpoints"]) == set(status["endpoints"]["properties"])
    assert all(phase in status["phase"]["description"] for phase in Phase if phase is not Phase.SUCCEEDED)


def test_limits_of_the_status_are_those_of_its_codec() -> None:
    properties = STATUS["properties"]
    causes, lines = properties["causes"], properties["causes"]["items"]["properties"]["lines"]
    limits = (status_codec.MAX_CAUSES, status_codec.MAX_LINES, status_codec.MAX_LINE_LENGTH)
    assert (causes["maxItems"], lines["maxItems"], lines["items"]["maxLength"]) == limits
    assert properties["groups"]["items"]["properties"]["unready"]["maxItems"] == status_codec.MAX_UNREADY


def test_scale_paths_exist_in_the_schema() -> None:
    version = crd.compute_cluster()["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]["properties"]
    for path in version["subresources"]["scale"].values():
        _, part, name = path.split(".")
        assert name in root[part]["properties"]


def properties(block: str, inside: str = "") -> dict[str, Any]:
    schema = SPEC["properties"][block]
    found: dict[str, Any] = (schema[inside] if inside else schema)["properties"]
    return found
