"""Machines that cannot run the lab: tests that need it fail with the reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab.cluster import Lab
from lab.errors import LabError
from lab.kube import Kube

from lab import settings

ROOT = Path(__file__).parents[2]
PROBE = """
def test_on_kubernetes(kube_api):
    assert kube_api.api.get("/version")

def test_that_breaks_things(lab):
    pass
"""
PODS = """
def test_of_pods(kube):
    kube.image("base")
"""


def changed(folder: Path, **changes: str) -> dict[str, str]:
    """Return an environment with a separate lab and without another cluster."""
    env = {key: value for key, value in os.environ.items() if key != "OARS_TEST_KUBECONFIG"}
    return env | {"PYTHONPATH": str(ROOT), "OARS_LAB_DIR": str(folder / "lab"), **changes}


def pytest_in(folder: Path, probe: str = PROBE, **changes: str) -> str:
    """Run pytest in a changed environment and return its output."""
    (folder / "test_probe.py").write_text(probe)
    env = changed(folder, **changes)
    words = [sys.executable, "-m", "pytest", "-p", "lab.fixtures", "-rA", "-p", "no:cacheprovider", "test_probe.py"]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False).stdout


def build_in(folder: Path, **changes: str) -> tuple[int, str]:
    """Run `make lab-build` in a changed environment; return its exit code and error output."""
    env = changed(folder, **changes)
    words = [sys.executable, "-m", "lab", "build"]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def no_go(folder: Path) -> dict[str, str]:
    """Return the environment of a machine without Go and with an empty cache."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "XDG_CACHE_HOME": str(folder / "cache")}


def test_tests_fail_with_the_reason_without_go(tmp_path: Path) -> None:
    said = pytest_in(tmp_path, **no_go(tmp_path))
    assert "2 errors" in said
    assert "install Go 1.24 or later" in said


def test_build_fails_with_the_reason_without_go(tmp_path: Path) -> None:
    code, said = build_in(tmp_path, **no_go(tmp_path))
    assert code == 1
    assert said == "lab: The lab builds Kubernetes from source: install Go 1.24 or later.\n"


def test_nothing_is_built_for_an_external_cluster(tmp_path: Path) -> None:
    code, said = build_in(tmp_path, OARS_TEST_KUBECONFIG="theirs", **no_go(tmp_path))
    assert code == 0
    assert said == "lab: nothing to build: OARS_TEST_KUBECONFIG selects another cluster\n"


def test_up_without_root_fails_with_a_reason() -> None:
    words = ["unshare", "--user", sys.executable, "-m", "lab", "up"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "lab: The lab creates namespaces and mounts: run it as root.\n"


def test_tests_can_use_an_external_cluster(kube_api: Kube, tmp_path: Path) -> None:
    programs = Path(kube_api.cluster.program).parent
    path = {"PATH": f"{programs}:/usr/bin:/bin", "OARS_TEST_KUBECONFIG": str(kube_api.kubeconfig)}
    said = pytest_in(tmp_path, PROBE + PODS, **path)
    assert "1 passed, 2 skipped" in said
    assert "This test needs the lab's images" in said
    assert not (tmp_path / "lab").exists()


def test_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    lab = Lab(settings.load(str(tmp_path)))
    with pytest.raises(LabError, match="not the lab's"):
        lab.claim()
    lab.down()
    lab.reset()
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("folder", ["/run/lab", "/var/log/lab", f"/tmp/{'x' * 80}"])
def test_unsuitable_directory_is_rejected(folder: str) -> None:
    with pytest.raises(LabError, match="choose"):
        settings.load(folder)
