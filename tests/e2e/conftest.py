"""Real pods: the lab with its node, and an operator that runs beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from lab.errors import Timeout
from lab.kube import Cluster, Kube
from lab.wait import until

from lab import kube as kubes
from tests.e2e.contract import ours

OARS = str(Path(sys.executable).with_name("oars"))
SYSTEM = "oars-system"


@pytest.fixture(scope="class")
def home(cluster_with_node: Cluster) -> Iterator[Kube]:
    """A namespace for all tests of a class; afterwards no object of Oars may be left in it."""
    with kubes.fresh_namespace(cluster_with_node, has_node=True) as kube:
        yield kube
        with suppress(Timeout):  # Kubernetes collects what hangs on a cluster a moment after its pods are gone
            until("nothing is left", lambda: not ours(kube))
        assert not ours(kube), "left behind"


@pytest.fixture(scope="session")
def operator(cluster_with_node: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`oars operator run` against the lab, for all namespaces; yields its log."""
    env = {**os.environ, "KUBECONFIG": str(cluster_with_node.kubeconfig)}
    install = [OARS, "operator", "install", "--replicas", "0", "--adopt", "marsjob", "--timeout", "60s", "-q"]
    subprocess.run(install, env=env, check=True, timeout=90)
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    run = [OARS, "operator", "run", "--metrics-port", "0", "--health-port", "0", "--trust-authors"]
    run += ["--adopt", "marsjob"]
    with log.open("w") as stream:
        process = subprocess.Popen(run, env=env, stdout=stream, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 90
        while "became leader" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)  # another process's log: there is nothing to await
        yield log
    finally:  # a failed start must not leave it running: it would keep the Lease
        process.terminate()
        process.wait(60)
    subprocess.run([OARS, "operator", "uninstall", "--force", "-q"], env=env, check=True, timeout=120)
