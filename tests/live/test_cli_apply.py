"""`oars apply`, `diff` and `dashboard` with local clusters of the toy engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.test_cli import demo, oars, status

pytestmark = pytest.mark.live
__all__ = ["demo"]  # a fixture

FILE = """
apiVersion: oars.dev/v1alpha1
kind: ComputeCluster
metadata: {name: filed}
spec:
  engine: toy
  workers: [{name: a, replicas: 1}, {name: b, replicas: 1}]
"""


def test_apply_creates_and_changes_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    described = ("-f", str(path))
    assert "filed" in oars("diff", *described, code=1).stdout
    assert "filed is ready after" in oars("apply", *described).stderr
    try:
        assert oars("diff", *described).stdout == "filed matches the spec.\n"
        more = ("--set", "workers.b.replicas=3", "--workers", "0")
        told = oars("apply", *described, *more)
        assert "added: The group 'b' changes from 1 to 3 workers." in told.stderr
        assert "drained: The group 'a' changes from 1 to 0 workers." in told.stderr
        assert [(group["name"], group["ready"]) for group in status("filed")["groups"]] == [("a", 0), ("b", 3)]
        assert "only the numbers of workers" in oars("apply", *described, "--cpu", "0.5", code=2).stderr
    finally:
        oars("down", "filed", "-q")


def test_dashboard_prints_the_url(demo: str) -> None:
    assert oars("dashboard", demo, "--no-open").stdout == f"{status(demo)['endpoints']['dashboard']}\n"
