"""Clients whose versions differ from the cluster's, with every engine."""

from __future__ import annotations

from typing import Any

import pytest

from oars import Cluster
from oars.spec.load import build
from oars.testing.driver import run_driver

pytestmark = [pytest.mark.live, pytest.mark.timeout(500)]

PROGRAM = """
import oars
from oars.base.errors import VersionMismatch
from oars.engines import sessions

def connect():
    try:
        oars.connect()
    except VersionMismatch as error:
        print("told:", error.message, error.hint)
    else:
        print("connected")

if __name__ == "__main__":
    PRETEND
    connect()
"""
OLDER_PYTHON = "sessions.platform.python_version = lambda: '3.9.1'"
OLDER_RAY = "from ray._private import utils; utils.compute_version_info = lambda: ('1.2.3', '3.9.1')"
PYMARS = {"engine": "mars", "mars": {"distribution": "pymars"}}
ENGINES = [
    pytest.param({"engine": "dask"}, OLDER_PYTHON, "Python 3.9.1 here, Python 3.", id="dask"),
    pytest.param(
        {"engine": "ray", "ray": {"dashboard": False}}, OLDER_RAY, "Ray 1.2.3, Python 3.9.1 here, Ray 2.", id="ray"
    ),
    pytest.param({"engine": "mars"}, OLDER_PYTHON, "Python 3.9.1 here, xorbits ", id="xorbits"),
    pytest.param(PYMARS, OLDER_PYTHON, "Python 3.9.1 here, pymars ", id="pymars"),
]


@pytest.mark.parametrize(("engine", "pretend", "told"), ENGINES)
def test_connect_reports_a_version_mismatch(engine: dict[str, Any], pretend: str, told: str) -> None:
    spec = build({**engine, "workers": [{"replicas": 1, "memory": "512Mi"}]}).spec
    with Cluster(spec, timeout="120s") as cluster:
        line = next(line for line in run_driver(cluster, PROGRAM.replace("PRETEND", pretend)) if "told:" in line)
        assert told in line and f"oars shell {cluster.name}" in line
        assert "connected" in run_driver(cluster, PROGRAM.replace("PRETEND", "pass"))
