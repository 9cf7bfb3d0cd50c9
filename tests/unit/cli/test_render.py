"""`oars render`: manifests for kubectl, without secrets by default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from oars.cli import errors
from oars.cli.main import call

FILE = """
apiVersion: oars.dev/v1alpha1
kind: ComputeCluster
metadata: {name: demo}
spec:
  engine: dask
  workers: [{name: a, replicas: 2}, {name: b, replicas: 0}]
"""


def rendered(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """The documents, and stderr."""
    assert errors.guard(lambda: call(["render", *args])) == code
    shown = capsys.readouterr()
    return list(yaml.safe_load_all(shown.out)) if shown.out else [], shown.err


def kinds(objects: list[dict[str, Any]]) -> list[str]:
    return [obj["kind"] for obj in objects]


def test_secret_is_only_referenced_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    objects, expected = rendered(
        capsys, "--engine", "ray", "--workers", "3", "--image", "i:1", "--cpu", "0.5", "-n", "ns"
    )
    assert "Secret" not in kinds(objects)
    assert "need the Secret ray-oars" in expected
    assert "--secrets only" in expected
    assert {obj["metadata"]["namespace"] for obj in objects} == {"ns"}
    head, workers = [obj for obj in objects if obj["kind"] == "Deployment"]
    assert (head["metadata"]["name"], workers["metadata"]["name"]) == ("ray-head", "ray-worker")
    assert workers["spec"]["replicas"] == 3
    assert workers["spec"]["template"]["spec"]["containers"][0]["image"] == "i:1"
    assert len(head["spec"]["template"]["spec"]["containers"]) == 1  # no helper


def test_secret_is_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    only, expected = rendered(capsys, "x", "--engine", "dask", "--secrets", "only")
    assert (kinds(only), expected) == (["Secret"], "")
    assert only[0]["metadata"]["name"] == "x-oars"
    assert set(only[0]["data"]) == {"ca.pem", "cert.pem", "key.pem"}
    together, expected = rendered(capsys, "--engine", "dask", "--secrets", "inline", "--create-namespace", "-n", "ns")
    assert kinds(together)[:2] == ["Namespace", "Secret"]
    assert expected == ""
    assert rendered(capsys, "--engine", "mars", "--secrets", "only") == ([], "mars needs no Secret.\n")
    # Replacing the Secret of a running cluster would lock its members out.
    assert all(obj["immutable"] is True for obj in (*only, *together) if obj["kind"] == "Secret")


def test_objects_name_no_namespace_unless_one_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    objects, _ = rendered(capsys, "--engine", "mars")
    assert not any("namespace" in obj["metadata"] for obj in objects)
    team, _ = rendered(capsys, "mine", "--engine", "mars", "--set", "namespace.create=true", "-n", "team")
    assert {team[0]["metadata"]["name"], *(obj["metadata"]["namespace"] for obj in team[1:])} == {"team"}
    own, _ = rendered(capsys, "mine", "--engine", "mars", "--create-namespace")
    assert own[0]["metadata"]["name"] == "mine"
    assert {obj["metadata"]["namespace"] for obj in own[1:]} == {"mine"}


def test_manifests_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    objects, _ = rendered(capsys, "-f", str(path))
    found = {obj["metadata"]["name"]: obj["spec"]["replicas"] for obj in objects if obj["kind"] == "Deployment"}
    assert found == {"demo-head": 1, "demo-a": 2, "demo-b": 0}
    files = next(obj for obj in objects if obj["kind"] == "ConfigMap")
    assert files["data"]["head.oars_scheduler.py"].startswith('"""Adds GET')


def test_multi_line_strings_are_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.guard(lambda: call(["render", "--engine", "dask"])) == 0
    assert "head.oars_scheduler.py: |\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["B_", "--engine", "dask"], "'B_' is not a valid name"),
        (["--engine", "dask", "--set", "head.pod.foo=1"], "head.pod.foo: a PodTemplateSpec has only metadata and spec"),
        ([], "No engine is given."),
    ],
)
def test_invalid_spec_is_refused(args: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expected in rendered(capsys, *args, code=2)[1]


@pytest.mark.parametrize("command", [["render", "demo", "--engine", "mars"], ["rbac"], ["operator", "manifests"]])
def test_manifests_in_other_formats(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, str] = {}
    for output in ("yaml", "json", "name"):
        assert errors.guard(lambda output=output: call([*command, "-o", output])) == 0  # type: ignore[misc]
        found[output] = capsys.readouterr().out
    objects = list(yaml.safe_load_all(found["yaml"]))
    assert json.loads(found["json"]) == {"apiVersion": "v1", "kind": "List", "items": objects}
    assert found["name"].splitlines() == [f"{obj['kind'].lower()}/{obj['metadata']['name']}" for obj in objects]
