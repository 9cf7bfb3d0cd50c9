"""Every field of every kind has a row in the tables, and what the converters do agrees with it.

complete/KIND.yaml has all fields of a kind. `POD: {…}` stands for the template of pod.yaml with these fields in its
main container; all metadata is that of metadata.yaml with the kind's own annotations.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from oars import convert
from oars.convert import tables
from oars.convert.fields import Fate, Source, pattern_of
from oars.spec.problems import path
from oars.spec.text import Document, Loc

FOLDER = Path(__file__).parent / "complete"
# Kinds that need others in their file.
COMPANIONS: Mapping[str, tuple[str, ...]] = {
    "DaskWorkerGroup": ("DaskCluster",),
    "DaskAutoscaler": ("DaskCluster",),
    "Service": ("Deployment",),
}
WORDS = re.compile(r"containers\[0\]\.(args|command)|runtimeEnvYAML")  # texts that the converters parse
PARSED = re.compile(r"args\.|runtimeEnvYAML\.")
STARTED = [rule.text for rule in tables.RAY_CLUSTER_SPEC.rows if rule.field.endswith(".command")]


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def expanded(value: Any) -> Any:
    if isinstance(value, list):
        return [expanded(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "POD" in value:
        pod = load("pod")
        pod["spec"]["containers"][0] |= value["POD"]
        return {**{key: expanded(each) for key, each in value.items() if key != "POD"}, **pod}
    return {key: expanded(each) for key, each in value.items()}


def manifest(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = expanded(load(kind))
    metadata = load("metadata")
    metadata["annotations"] |= found["metadata"].get("annotations", {})
    found["metadata"] = metadata
    if kind == "DaskCluster":
        found["metadata"]["name"] = "c"
    return found


def leaves(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not entries:
        yield loc, value
    for key, inner in entries:
        yield from leaves(inner, (*loc, key))


def reports(kind: str) -> list[str]:
    """The paths that are reported for the complete manifest of a kind."""
    kinds = (kind, *COMPANIONS.get(kind, ()))
    found = convert.convert([Document("x", manifest(each)) for each in kinds])
    return [each.path for each in found.unmet if each.document.split()[0] == kind]


KINDS = [each.kind for each in tables.TABLES]


@pytest.mark.parametrize("kind", KINDS)
def test_fate_of_every_field_is_that_of_its_row(kind: str) -> None:
    data = manifest(kind)
    table = tables.table(data["apiVersion"], kind)
    assert table is not None
    source = Source(kind, table.rules)
    reported = reports(kind)
    wrong = []
    for loc, value in leaves(data):
        rule = source.rule(pattern_of(loc))
        is_reported = any(path(loc[:size]) in reported for size in range(1, len(loc) + 1))
        if rule is None:
            wrong.append(f"{path(loc)} has no row")
        elif WORDS.search(path(loc)) and rule.text not in STARTED:  # some words are honoured: see below
            continue
        elif is_reported != (rule.fate is Fate.UNMET and value not in rule.defaults):
            wrong.append(f"{path(loc)} is {'' if is_reported else 'not '}reported, but {rule.fate.value}: {rule.text}")
    assert not wrong, "\n".join(wrong)


def test_every_row_is_of_a_field_that_exists() -> None:
    used: set[str] = set()
    for kind in KINDS:
        data = manifest(kind)
        found = {pattern_of(loc[:size]) for loc, _ in leaves(data) for size in range(1, len(loc) + 1)}
        used |= {f"{kind}:{name}" for name in found}
    own = [f"{each.kind}:{rule.field}" for each in tables.TABLES for rule in each.rows if "*" not in rule.field]
    assert not [name for name in own if name not in used and not PARSED.search(name)]
    for part in tables.PARTS:
        fields = [rule.field for rule in part.rows if "*" not in rule.field]
        patterns = {name.partition(":")[2] for name in used}
        ends = [name for name in fields if not any(each == name or each.endswith(f".{name}") for each in patterns)]
        assert not [name for name in ends if not PARSED.search(name)], part.kind


def test_options_of_programs_have_rows() -> None:
    reported = {kind: [each.partition("containers[0].")[2] for each in reports(kind)] for kind in KINDS}
    assert {"args.idle-timeout", "args.port"} <= set(reported["DaskCluster"])
    assert {"args.port", "args.foo"} <= set(reported["Deployment"])
    assert not [each for each in reported["DaskWorkerGroup"] if each.startswith("args")]


def test_unmet_row_without_its_field_reports_nothing() -> None:
    for kind in KINDS:
        data = copy.deepcopy(manifest(kind))
        data["metadata"] = {"name": data["metadata"]["name"]}
        documents = [Document("x", each) for each in (data, *(manifest(name) for name in COMPANIONS.get(kind, ())))]
        found = [each.path for each in convert.convert(documents).unmet if each.document.split()[0] == kind]
        assert not [each for each in found if each.startswith("metadata")]
