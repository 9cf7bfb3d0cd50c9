"""A user who has exactly the Role that `oars rbac` prints, and real pods: a cluster's whole life."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from lab.kube import Kube
from lab.wait import until

from oars.client import tunnels
from oars.client.sync import Cluster
from oars.testing.driver import run_driver
from tests.api.stage import Stage
from tests.api.test_rbac_modes import account, kubeconfig_of, may
from tests.contract.test_engines import TestDask as Dask
from tests.e2e.contract import ours
from tests.e2e.test_cli_kube import OARS, SMALL, Line

pytestmark = pytest.mark.timeout(600)


def as_ann(kube: Kube, mode: str, path: Path) -> Kube:
    """The same namespace, as seen by somebody with the rights of a mode."""
    stage = Stage(kube)
    account(stage, "ann")
    words = [OARS, "rbac", "--mode", mode, "-n", kube.namespace, "--service-account", f"{kube.namespace}:ann"]
    role = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    kube.kubectl("apply", "-f", "-", text=role)
    until("she has her rights", lambda: may(stage, "ann", "list", "pods"))
    assert not may(stage, "ann", "create", "pods") and not may(stage, "ann", "list", "secrets")
    return replace(kube, cluster=replace(kube.cluster, kubeconfig=kubeconfig_of(stage, "ann", path)))


@pytest.mark.parametrize("mode", ["direct", "operator"])
def test_life_cycle_with_the_printed_role(
    mode: str, kube: Kube, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two modes one is said; that there is an operator she finds out by herself."""
    if mode == "operator":
        request.getfixturevalue("operator")
    ann = as_ann(kube, "direct" if mode == "direct" else "user", tmp_path / "config")
    oars = Line(ann, tmp_path / "state-of-ann")
    said = ("--mode", "direct") if mode == "direct" else ()
    oars("up", "demo", "--engine", "dask", "--image", kube.image("dask"), "--workers", "1", *SMALL, *oars.at, *said)
    assert oars.status("demo")["mode"] == mode

    monkeypatch.setattr(tunnels, "endpoints", lambda *_: [])  # nothing is reachable directly
    demo = Cluster.attach("demo", namespace=kube.namespace, kubeconfig=str(ann.kubeconfig))
    try:
        assert "127.0.0.1" in demo.address
        assert "result 45" in run_driver(demo, Dask.work)
    finally:
        demo.close()

    assert "Scheduler at:" in oars("logs", "demo", "head", *oars.at).stdout
    file = tmp_path / "file"
    file.write_text("there and back")
    oars("cp", str(file), "demo:/tmp/file", *oars.at, "-q")
    assert oars("exec", "demo", *oars.at, "--", "cat", "/tmp/file").stdout == "there and back"
    oars("cp", "demo:/tmp/file", str(tmp_path / "back"), *oars.at, "-q")
    assert (tmp_path / "back").read_text() == "there and back"
    assert "Workers:   2/2 ready" in oars("scale", "demo", "2", *oars.at).stdout
    assert "Workers:   1/1 ready" in oars("scale", "demo", "1", *oars.at).stdout
    assert "Nothing is wrong" in oars("why", "demo", *oars.at).stdout
    assert oars("down", "demo", *oars.at).stdout == "demo is stopped.\n"
    until("nothing is left", lambda: not ours(kube), 60)
