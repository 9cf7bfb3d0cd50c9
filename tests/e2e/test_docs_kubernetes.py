"""Every shell line and Python block of the documentation that needs Kubernetes, with its result. tests/pages.py says
how."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.images import catalogue
from lab.kube import Kube
from lab.node import ctr

from oars import engines
from oars.spec.load import build
from tests.e2e.images import OARS, ROOT, builder
from tests.marsjob import small_document
from tests.pages import Reader, Session, blocks, files

pytestmark = [pytest.mark.timeout(900)]

# The lab's node has two cores: a head and three workers of the default sizes fit on it (AS_THEY_ARE), no larger cluster
# and no two of them.
SMALL = (
    "--cpu 0.2 --memory 1Gi --set workers[0].burst=true --set head.cpu=0.2 --set head.memory=2Gi --set head.burst=true"
)
WRAPPER = """#!/bin/sh
case "$1 $*" in
    up\\ *--engine*|run\\ *--engine*|render\\ *--engine*) exec {oars} "$@" {small} ;;
    image\\ *) TMPDIR="$PWD" exec {oars} "$@" --builder "env PYTHONPATH={root} {builder}" ;;
    *) exec {oars} "$@" ;;
esac
"""
IMAGE_MARS = "example.org/team/mars:1"
IMAGE_1, IMAGE_2 = "example.org/team/dask:1", "example.org/team/dask:2"
SIZE = "cpu: 0.2, burst: true, memory: 1Gi"


def cluster_file(name: str, image: str = IMAGE_1, workers: int = 3) -> str:
    return (
        f"apiVersion: oars.dev/v1alpha1\nkind: ComputeCluster\nmetadata: {{name: {name}}}\n"
        f"spec: {{engine: dask, image: {image!r}, replicas: {workers}, head: {{{SIZE}}}, workers: [{{{SIZE}}}]}}\n"
    )


def pod(group: str, namespace: str, cluster: str) -> str:
    """A shell expression for the name of one pod of a group that is not being deleted."""
    selector = f"-l oars.dev/cluster={cluster},oars.dev/group={group} --field-selector=status.phase=Running"
    return f"$(kubectl -n {namespace} get pods {selector} -o name | head -1 | cut -d/ -f2)"


DIRECT = "oars up demo --engine dask --workers 1 -n team --mode direct -q"
OUTCOME = f"oars exec demo -n team --member {pod('default', 'team', 'demo')} -- sh -c 'echo 1 > out'"
WORKER = {"demo-worker-5d9c-x2x": pod("default", "team", "demo")}
BESIDE = {"oars operator install": "oars operator install --replicas 0"}  # the tests' own operator runs outside
RAY_PODS = {
    "ray-worker-5c49b7cc57-c6xs8": pod("default", "ray", "ray"),
    "ray-head-5455bb66c9-6bxvz": pod("head", "ray", "ray"),
    "ray-head-5455bb66c9-7l6xj": pod("head", "ray", "ray"),
    "logs ray-test-job-kw5gn-5g7tv": "logs --tail -1 -l job-name",
    "ray-test-job-kw5gn": "$(kubectl -n ray get jobs -o name | cut -d/ -f2)",
}
FOUR = "sed -i '/name: ray-worker/,$ s/replicas: 3/replicas: 4/' ray-cluster.yaml"
KUBERNETES, RAY, LINE = "docs/how-to/kubernetes.md", "docs/how-to/ray-by-kubectl.md", "docs/reference/cli.md"
MARS, PYTHON = "docs/migrate/marsjob.md", "docs/reference/python.md"

AS_THEY_ARE = (LINE, PYTHON)
# page → its sections, read in this order in one directory
SESSIONS: dict[str, tuple[Session, ...]] = {
    "README.md": (
        Session("README.md", ("Kubernetes",), files={"cluster.yaml": cluster_file("third")}, edits=BESIDE),
    ),
    KUBERNETES: (
        Session(KUBERNETES, ("Run clusters on Kubernetes",)),
        Session(KUBERNETES, ("Rendered",), before=("oars down demo",)),
        Session(KUBERNETES, ("Direct",), before=(
            "kubectl delete -f demo.yaml --cascade=foreground", "kubectl -n team delete secret demo-oars",
        )),
        Session(
            KUBERNETES, ("Operator",), files={"cluster.yaml": cluster_file("demo")},
            edits={**BESIDE, "kubectl ": "kubectl -n team "},
        ),
        Session(
            KUBERNETES, ("Commands that work in every mode",), edits=WORKER,
            before=("kubectl -n team delete hpa demo", "oars down demo -n team", DIRECT),
        ),
        Session(
            KUBERNETES, ("Change a running cluster",), files={"cluster.yaml": cluster_file("demo", IMAGE_2)},
            before=("oars down demo -n team", "oars up demo --engine dask --workers 3 -n team -q --image " + IMAGE_1),
        ),
    ),
    RAY: (
        Session(RAY, ("Build an image", "Create a namespace", "Start the cluster")),
        Session(RAY, ("Change the number of workers",), before=(FOUR,)),
        Session(RAY, (
            "Delete pods", "Run a program in the head pod", "Use a remote shell or IPython",
            "Run a program as a Job", "Clean up",
        ), edits=RAY_PODS),
    ),
    LINE: (
        Session(LINE, ("The command line",), only="--place kubernetes"),
        Session(LINE, (
            "`oars exec NAME -- COMMAND...`", "`oars cp SOURCE TARGET`",
        ), before=(DIRECT, OUTCOME), edits={**WORKER, "oars cp": "oars cp -n team"}),
    ),
    PYTHON: (Session(PYTHON, ("Cluster",), only="reference-python-3"),),
    MARS: (
        Session(MARS, ("From KubeDL's MarsJob",), edits=BESIDE, files={
            "mars-test-demo.yaml": json.dumps(small_document(IMAGE_MARS)),
        }),
    ),
    "docs/how-to/monitoring.md": (Session("docs/how-to/monitoring.md"),),
    "docs/decisions/0005-operating-modes.md": (
        Session("docs/decisions/0005-operating-modes.md", files={"cluster.yaml": cluster_file("third")}),
    ),
    "docs/decisions/0006-one-home-for-the-number-of-workers.md": (
        Session("docs/decisions/0006-one-home-for-the-number-of-workers.md", files={
            "cluster.yaml": blocks("docs/decisions/0006-one-home-for-the-number-of-workers.md", "yaml")[0],
        }),
    ),
}  # fmt: skip


@pytest.fixture
def images(kube: Kube) -> None:
    """The lab's images under the names that the pages and the engines use."""
    lab = kube.cluster.lab
    assert lab is not None
    dask, ray, mars = catalogue.provide(lab, ["dask", "ray", "mars-pymars"])
    default = {name: engines.get(name).shape(build({"engine": name}).spec).image for name in ("dask", "ray")}
    wanted = {
        default["dask"]: dask,
        f"docker.io/{default['ray']}": ray,
        IMAGE_1: dask,
        IMAGE_2: dask,
        IMAGE_MARS: mars,
        "registry.example.org/dask:1": dask,
    }
    for name, image in wanted.items():
        ctr(lab.dir, "images", "tag", "--force", image, name)


@pytest.fixture
def reader(page: str, kube: Kube, images: None, operator: Path, tmp_path: Path) -> Iterator[Reader]:
    """With kubectl and a namespace `team`; the namespace of the context is the test's own."""
    programs, folder = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    folder.mkdir()
    (programs / "kubectl").symlink_to(kube.cluster.program)
    small = "" if page in AS_THEY_ARE else SMALL
    (programs / "oars").write_text(WRAPPER.format(oars=OARS, small=small, root=ROOT, builder=builder(kube)))
    (programs / "oars").chmod(0o755)
    config = tmp_path / "kubeconfig"
    config.write_bytes(kube.kubeconfig.read_bytes())
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "HOME": str(tmp_path), "PATH": path, "BROWSER": "true", "KUBECONFIG": str(config)}
    made = Reader(folder, env)
    made.run(f"kubectl config set-context --current --namespace {kube.namespace}")
    made.run("kubectl create namespace team")
    try:
        yield made
    finally:
        made.run("kubectl delete namespace team ray --ignore-not-found")


@pytest.mark.parametrize("page", SESSIONS)
def test_shell_lines_do_what_the_page_shows(page: str, reader: Reader) -> None:
    for session in SESSIONS[page]:
        reader.read(session)


def test_files_of_the_pages_are_found() -> None:
    assert set(files(RAY)) == {"example.py", "ray-job.yaml"}
