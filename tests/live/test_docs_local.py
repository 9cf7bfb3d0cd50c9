"""Every shell line and Python block of the documentation that needs no Kubernetes, with its result. tests/pages.py says
how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oars import engines
from oars.base.settings import Settings
from oars.envs.build import Environments
from oars.spec.load import build
from tests.pages import ROOT, Reader, Session

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

UP = "oars up demo --engine dask --workers 3 -q"
PID = """$(oars status demo -o json | python -c 'import json, sys
print(next(each["pid"] for each in json.load(sys.stdin)["members"] if each["id"] == "worker-0"))')"""
FIVE = "oars up demo --engine dask --workers 5 -q"
DEAD_WORKER = (f"kill -9 {PID}", "until oars why demo | grep Replaced; do :; done")
ONE_GROUP = """
apiVersion: oars.dev/v1alpha1
kind: ComputeCluster
spec: {engine: dask, replicas: 2}
"""

SESSIONS = (
    Session("README.md", ("Oars",), edits={"18235": PID}),
    Session("README.md", ("Python",)),
    Session("README.md", ("Command line",)),
    Session("docs/quickstart.md", edits={"18235": PID}),
    Session("docs/decisions/0001-four-files-per-engine.md", files={
        "inner.py": Path("examples/mars-inner/main.py").read_text(),
    }),
    Session("docs/decisions/0002-directory-as-api-server.md"),
    Session("docs/decisions/0003-fork-server.md"),
    Session("docs/engines/dask.md"),
    Session("docs/engines/mars.md", ("Mars",), edits={"python engines": "$MARS_PYTHON engines"}),
    Session("docs/engines/ray.md"),
    Session("docs/how-to/add-an-engine.md"),
    Session("docs/how-to/groups-and-resources.md", ("Use different groups of workers",)),
    Session("docs/how-to/groups-and-resources.md", ("Set one field on the command line",)),
    Session("docs/how-to/jobs.md"),
    Session("docs/how-to/keep-a-cluster.md", ("Keep a cluster",)),
    Session("docs/how-to/keep-a-cluster.md", (
        "Connect from Python", "Connect from the shell", "Change the number of workers", "Inspect it", "Stop it",
    ), before=(UP,)),
    Session("docs/how-to/keep-a-cluster.md", ("Let it end by itself",)),
    Session("docs/how-to/memory-and-spill.md"),
    Session("docs/how-to/other-manifests.md"),
    Session("docs/how-to/packages.md", own_cache=True),
    Session("docs/how-to/run-a-script.md", files={"cluster.yaml": ONE_GROUP}, edits={
        "python how-to-run-a-script-1.py": "oars run how-to-run-a-script-1.py --engine dask --workers 1",
    }),
    Session("docs/how-to/scale-safely.md", before=(UP,)),
    Session("docs/how-to/several-machines.md", edits={
        "10.0.0.1": "127.0.0.1", "--token-file join.token": "--token-file $OARS_STATE_DIR/join/dask/join.token",
    }),
    Session("docs/how-to/when-something-goes-wrong.md", before=(FIVE, *DEAD_WORKER)),
    Session("docs/reference/cli.md", ("The command line",), only="^(?!.*--place kubernetes)"),
    Session("docs/reference/cli.md", ("`oars run SCRIPT [ARGS]...`", "`oars completion bash|zsh|fish`")),
    Session("docs/reference/python.md", only="^(?!python reference-python-3.py)"),
    Session("docs/reference/status.md", before=(UP,)),
)  # fmt: skip


def mars_python(folder: Path) -> Path:
    """A Python with Mars and Oars, as after `pip install 'oars[mars]'`: with the packages of the engine's environment
    and, after them, those of the running Python."""
    environments = Environments(Settings.from_environ(os.environ).cache_dir)
    needs = engines.get("mars").needs(build({"engine": "mars"}).spec)
    python = environments.prepare("mars", needs, (), lambda _: None).python
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    parts = [
        subprocess.check_output([python, "-c", ask], text=True).strip(),
        str(ROOT / "src"),
        *filter(None, sys.path),
    ]
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    site = subprocess.check_output([folder / "bin/python", "-c", ask], text=True).strip()
    (Path(site) / "parts.pth").write_text("\n".join(parts))
    return folder / "bin/python"


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: "-".join([session.page, *session.sections[:1]]))
def test_shell_lines_do_what_the_page_shows(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "home/.config/fish/completions").mkdir(parents=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "HOME": str(tmp_path / "home"), "PATH": path, "BROWSER": "true"}
    env.pop("KUBECONFIG", None)
    if "$MARS_PYTHON" in str(session.edits):
        env["MARS_PYTHON"] = str(mars_python(tmp_path / "venv"))
    if session.own_cache:
        env["OARS_CACHE_DIR"] = str(tmp_path / "cache")
    reader = Reader(folder, env)
    try:
        reader.read(session)
    finally:
        reader.run("oars down --all -q")
