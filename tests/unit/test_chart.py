"""The files of the Helm chart. tests/api/test_install_chart.py renders and installs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from oars import engines
from oars.operator import manifests
from oars.operator.monitoring import Metrics
from oars.spec.load import build

CHART = Path(__file__).parents[2] / "deploy/helm/oars"


def test_chart_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(CHART / "generate.py"), "--check"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_chart_schema_has_all_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(path: str, rules: dict[str, Any], value: Any) -> None:
        while "$ref" in rules:
            rules = schema["definitions"][rules["$ref"].rpartition("/")[2]]
        if "properties" in rules:
            assert path == "" or set(rules["properties"]) >= set(value), path
            for name, below in rules["properties"].items():
                if name in value:
                    check(f"{path}.{name}", below, value[name])
        elif isinstance(value, dict):
            assert "object" in rules["type"], path

    assert set(schema["properties"]) - {"global"} == set(values)
    check("", schema, values)
    assert values["resources"] == manifests.RESOURCES


def test_chart_readme_has_all_values() -> None:
    text = (CHART / "README.md").read_text()

    def leaves(path: str, value: Any) -> Iterator[str]:
        if f"| `{path}` |" in text or not isinstance(value, dict):
            yield path
        else:
            for name, below in value.items():
                yield from leaves(f"{path}.{name}".lstrip("."), below)

    found = list(leaves("", yaml.safe_load((CHART / "values.yaml").read_text())))
    assert "resources.limits" in found
    assert [path for path in found if f"| `{path}` |" not in text] == []


def test_dashboard_shows_metrics_of_the_operator_that_exist() -> None:
    """tests/e2e/test_policies.py looks for those of the engines."""
    metrics = Metrics(lambda: 0, lambda: [])
    metrics.leading = True
    text = (CHART / "dashboards/oars.json").read_text()
    named = set(re.findall(r"\boars_\w+", text))
    exported = set(re.findall(r"^# TYPE (\w+)", metrics.text(), re.MULTILINE))
    assert "oars_group_wanted" in named
    assert {name.removesuffix("_bucket") for name in named} <= exported


def test_pod_monitor_reads_the_ports_with_metrics() -> None:
    text = (CHART / "templates/monitoring.yaml").read_text()
    shapes = [engines.get(name).shape(build({"engine": name}).spec) for name in engines.BUILT_IN]
    ports = {
        (port.name, port.default)
        for shape in shapes
        for group in (shape.head, *shape.workers)
        for port in group.process.ports
        if port.metrics
    }
    assert {(name, int(number)) for name, number in re.findall(r'\(list "(\w+)" (\d+)\)', text)} == ports
