"""Work that is three times larger than the memory of a pod finishes, because its results reach the spill volume."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.kube import Kube

from oars.client.sync import Cluster
from oars.spec.load import build
from oars.testing.driver import DriverProgram
from tests.e2e.contract import SMALL, TIMEOUT
from tests.live.test_spill import CACHE, ENGINES, MIB

pytestmark = [pytest.mark.timeout(600)]

IMAGES = {"dask": "dask", "ray": "ray", "xorbits": "mars-xorbits", "pymars": "mars-pymars"}
# What the engine's processes need, which no other pod shares with them, comes on top.
SIZES = {"dask": 400 * MIB, "ray": 1200 * MIB, "xorbits": 900 * MIB, "pymars": 900 * MIB}


@pytest.fixture
def node_directories() -> Iterator[list[Path]]:
    """Directories of the node, which is this machine. Pods do not run as root."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="oars-test-") as root:
        paths = [Path(root, "a"), Path(root, "b")]
        os.chmod(root, 0o755)
        for path in paths:
            path.mkdir()
            path.chmod(0o1777)
        yield paths


def start(kube: Kube, kind: str, spill: dict[str, Any]) -> Cluster:
    group = {"replicas": 1, "memory": SIZES[kind], "cache": CACHE, "spill": spill, **SMALL}
    spec = {
        **ENGINES[kind][0], "image": kube.image(IMAGES[kind]), "head": {**SMALL, "memory": "2Gi"}, "workers": [group]
    }  # fmt: skip
    return Cluster(
        build(spec).spec, name="demo", timeout=TIMEOUT, namespace=kube.namespace, kubeconfig=str(kube.kubeconfig),
        mode="direct",
    )  # fmt: skip


def finish(kube: Kube, kind: str, spill: dict[str, Any]) -> int:
    """Run the work. Returns the bytes in the pod's spill volumes when all results exist."""
    count = 3 * SIZES[kind] // (10 * MIB)
    with start(kube, kind, spill) as cluster, DriverProgram(cluster, ENGINES[kind][1], str(count)) as driver:
        (pod,) = kube.pods("oars.dev/group=default")
        name = pod["metadata"]["name"]
        driver.expect("made", 300)
        script = "du -sbc /var/oars/spill-* | tail -n 1"
        written = int(kube.kubectl("exec", name, "-c", "worker", "--", "sh", "-c", script).split()[0])
        assert driver.expect("sum ", 300) == f"sum {float(sum(range(count)))}"
        (pod,) = kube.pods("oars.dev/group=default")
        assert pod["metadata"]["name"] == name and pod["status"]["containerStatuses"][0]["restartCount"] == 0
    return written


def test_dask_spills_to_one_of_two_directories_of_the_node(kube: Kube, node_directories: list[Path]) -> None:
    written = finish(kube, "dask", {"paths": [str(path) for path in node_directories]})
    assert written > 2 * SIZES["dask"], f"only {written // MIB} MiB were spilled"
    assert all(len(list(path.iterdir())) == 1 for path in node_directories), "each pod has a directory of its own"


@pytest.mark.parametrize(
    "kind", ["xorbits", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("ray", "pymars"))]
)
def test_results_are_spilled_to_a_volume_of_the_pod(kube: Kube, kind: str) -> None:
    written = finish(kube, kind, {"size": "4Gi"})
    assert written > 2 * SIZES[kind], f"only {written // MIB} MiB were spilled"
