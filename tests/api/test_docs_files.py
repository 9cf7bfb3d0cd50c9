"""Every ComputeCluster of the documentation and the examples can be applied with kubectl, and a second time it is
unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from tests.api.stage import Stage
from tests.pages import ROOT, pages

from oars.spec.cluster import API_VERSION, KIND

_YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def specs(path: Path) -> list[dict[str, Any]]:
    """A block may show a part of a spec; it gets an engine if it has none."""
    texts = [path.read_text()] if path.suffix == ".yaml" else _YAML.findall(path.read_text())
    found = [yaml.safe_load(text) for text in texts]
    return [{"engine": "dask", **each["spec"]} for each in found if each.get("kind", KIND) == KIND and "spec" in each]


def test_files_of_the_documentation_suit_kubectl(stage: Stage) -> None:
    paths = [*(ROOT / page for page in pages()), *sorted((ROOT / "examples").rglob("*.yaml"))]
    shown = [(path, spec) for path in paths for spec in specs(path)]
    assert len(shown) >= 8
    for number, (path, spec) in enumerate(shown):
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": f"demo-{number}"}, "spec": spec}
        text = json.dumps(body)
        assert "created" in stage.kube.kubectl("apply", "-f", "-", text=text), path
        assert stage.kube.kubectl("apply", "-f", "-", text=text).strip().endswith("unchanged"), path
        stage.delete(f"demo-{number}")
