"""Real pods: the lab with its node, and an operator that runs beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.kube import Cluster, Kube

from lab import kube as kubes

OARS = str(Path(sys.executable).with_name("oars"))
SYSTEM = "oars-system"


@pytest.fixture(scope="class")
def home(cluster_with_node: Cluster) -> Iterator[Kube]:
    """A namespace for all tests of a class; afterwards nothing of ours may be left in it."""
    with kubes.fresh_namespace(cluster_with_node, has_node=True) as kube:
        yield kube
        left = kube.kubectl(
            "get", "pods,deployments,services,configmaps,secrets,leases,pdb,networkpolicies,serviceaccounts,roles,"
            "rolebindings", "-l", "app.kubernetes.io/managed-by=oars", "-o", "name",
        )  # fmt: skip
        assert not left.split(), f"left behind: {left}"


@pytest.fixture(scope="session")
def operator(cluster_with_node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`oars operator run` against the lab, for all namespaces; yields its log."""
    env = {**os.environ, "KUBECONFIG": str(cluster_with_node.kubeconfig)}
    install = [OARS, "operator", "install", "--replicas", "0", "--timeout", "60s", "-q"]
    subprocess.run(install, env=env, check=True, timeout=90)
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    run = [OARS, "operator", "run", "--metrics-port", "0", "--health-port", "0"]
    with log.open("w") as stream:
        process = subprocess.Popen(run, env=env, stdout=stream, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 30
    while "leading" not in log.read_text():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)  # another process's log: there is nothing to await
    yield log
    process.terminate()
    process.wait(20)
    subprocess.run([OARS, "operator", "uninstall", "--force", "-q"], env=env, check=True, timeout=120)
