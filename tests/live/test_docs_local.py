"""Every shell line of the documentation that needs no Kubernetes, with its result. tests/pages.py says how."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.pages import Reader, Session

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
    Session("README.md", ("Command line",)),
    Session("docs/quickstart.md", edits={"18235": PID}),
    Session("docs/decisions/0001-four-files-per-engine.md", files={
        "inner.py": Path("examples/mars-inner/main.py").read_text(),
    }),
    Session("docs/decisions/0002-directory-as-api-server.md"),
    Session("docs/how-to/groups-and-resources.md", ("Use different groups of workers",)),
    Session("docs/how-to/groups-and-resources.md", ("Set one field on the command line",)),
    Session("docs/how-to/jobs.md"),
    Session("docs/how-to/keep-a-cluster.md", ("Keep a cluster",)),
    Session("docs/how-to/keep-a-cluster.md", (
        "Connect from the shell", "Change the number of workers", "Inspect it", "Stop it",
    ), before=(UP,)),
    Session("docs/how-to/keep-a-cluster.md", ("Let it end by itself",)),
    Session("docs/how-to/memory-and-spill.md"),
    Session("docs/how-to/other-manifests.md"),
    Session("docs/how-to/packages.md", own_cache=True),
    Session("docs/how-to/run-a-script.md", files={"cluster.yaml": ONE_GROUP}),
    Session("docs/how-to/scale-safely.md", before=(UP,)),
    Session("docs/how-to/several-machines.md", edits={
        "10.0.0.1": "127.0.0.1", "--token-file join.token": "--token-file $OARS_STATE_DIR/join/dask/join.token",
    }),
    Session("docs/how-to/when-something-goes-wrong.md", before=(FIVE, *DEAD_WORKER)),
    Session("docs/reference/cli.md", ("The command line",), only="^(?!.*--place kubernetes)"),
    Session("docs/reference/cli.md", ("`oars run SCRIPT [ARGS]...`", "`oars completion bash|zsh|fish`")),
    Session("docs/reference/status.md", before=(UP,)),
)  # fmt: skip


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: "-".join([session.page, *session.sections[:1]]))
def test_shell_lines_do_what_the_page_shows(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "home/.config/fish/completions").mkdir(parents=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "HOME": str(tmp_path / "home"), "PATH": path, "BROWSER": "true"}
    env.pop("KUBECONFIG", None)
    if session.own_cache:
        env["OARS_CACHE_DIR"] = str(tmp_path / "cache")
    reader = Reader(folder, env)
    try:
        reader.read(session)
    finally:
        reader.run("oars down --all -q")
