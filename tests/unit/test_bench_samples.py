"""bench.samples, which converts the samples of other projects."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import samples
from bench.samples import Result

from oars.service import foreign

MANIFESTS = Path(__file__).parent / "convert/manifests"
CLUSTER = (MANIFESTS / "dask-cluster.yaml").read_text()
GROUP = "apiVersion: kubernetes.dask.org/v1\nkind: DaskWorkerGroup\nmetadata: {name: a}\nspec: {cluster: b}\n"
PAGE = f"""
Text.

.. code-block:: yaml

{"".join(f"   {line}" for line in GROUP.splitlines(keepends=True))}
More text.

.. code-block:: yaml

   kind: Pod
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.rst").write_text(PAGE)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "values.yml").write_text("kindly: RayCluster\n")
    (tmp_path / "template.yaml").write_text("kind: RayCluster\nmetadata:\n  name: {{.Name}}\n")
    return tmp_path


def test_manifests_are_found_in_files_and_pages(folder: Path) -> None:
    assert list(samples.manifests(folder)) == [("cluster.yaml", CLUSTER), ("docs/page.rst#1", GROUP.rstrip())]


def test_converted_refused_and_crashed_manifests_differ(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted, refused = samples.results(folder)
    assert (converted.file, converted.outcome, converted.reason) == ("cluster.yaml", "converted", "")
    assert "DaskCluster" in converted.kinds and converted.unmet
    reason = "manifest:4:8: spec.cluster is 'b', which is not a DaskCluster of this file."
    assert refused == Result("docs/page.rst#1", ("DaskWorkerGroup",), "refused", reason=reason)

    def fail(content: str, source: str) -> None:
        raise KeyError(source)

    monkeypatch.setattr(foreign, "convert_text", fail)
    crashed = samples.result("x.yaml", CLUSTER)
    assert crashed.outcome == "crashed" and crashed.reason.endswith("KeyError: 'manifest'")


def test_every_manifest_of_the_golden_files_is_converted() -> None:
    found = samples.results(MANIFESTS)
    assert {each.outcome for each in found} == {"converted"}
    assert {kind for each in found for kind in each.kinds} >= {
        "MarsJob",
        "RayCluster",
        "RayJob",
        "DaskCluster",
        "DaskJob",
    }
