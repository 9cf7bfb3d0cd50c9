"""What kube-score and checkov find in the manifests of the operator. Findings that stay have a reason in
src/oars/operator/install.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.run import run

from lab import build, cache, settings
from oars.operator import manifests
from oars.operator.manifests import InstallOptions

CHECKOV = "3.2.500"
# Annotated in install.yaml; the first one is the missing CPU limit.
KUBE_SCORE_ACCEPTED = {
    "container-resources",
    "container-image-pull-policy",
    "pod-networkpolicy",
    "deployment-has-host-podantiaffinity",
}
CHECKOV_ACCEPTED = {"CKV_K8S_11", "CKV_K8S_15", "CKV_K8S_38", "CKV_K8S_43"}
# Where the programs are built or downloaded first, that takes a minute.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "operator.yaml"
    path.write_text(yaml.safe_dump_all(json.loads(json.dumps(manifests.install(InstallOptions())))))
    return path


def score(file: Path, *options: str) -> set[str]:
    """The checks of kube-score that fail."""
    program = build.tool(settings.load().cache, "kube-score", print)
    words = [str(program), "score", str(file), "-o", "json", "--kubernetes-version", "v1.34", *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    objects = json.loads(done.stdout)
    assert any("oars-operator" in each["object_name"] for each in objects)
    checks = [check for each in objects for check in each["checks"]]
    return {check["check"]["id"] for check in checks if not check["skipped"] and check["grade"] < 10}


def test_kube_score_finds_nothing(file: Path) -> None:
    assert score(file) == set()


def test_kube_score_would_find_what_is_annotated_and_no_more(file: Path) -> None:
    assert score(file, "--disable-ignore-checks-annotations") == KUBE_SCORE_ACCEPTED
    # With the annotation it checks no other limit either.
    without_cpu = score(file, "--disable-ignore-checks-annotations", "--ignore-container-cpu-limit")
    assert without_cpu == KUBE_SCORE_ACCEPTED - {"container-resources"}


def test_checkov_finds_nothing_else(file: Path) -> None:
    program = checkov()
    words = [str(program), "-f", str(file), "--framework", "kubernetes", "-o", "json", "--skip-download"]
    env = {**os.environ, "HOME": str(file.parent)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=env)
    found = json.loads(done.stdout)
    failed = [
        f"{each['check_id']} {each['check_name']}: {each['resource']}" for each in found["results"]["failed_checks"]
    ]
    assert failed == []
    assert found["summary"]["passed"] > 100
    skipped: dict[str, Any] = {each["check_id"]: each["check_result"] for each in found["results"]["skipped_checks"]}
    assert set(skipped) == CHECKOV_ACCEPTED
    assert all(each["suppress_comment"] for each in skipped.values())


def checkov() -> Path:
    """Installed once, in an environment of its own in the lab's cache."""

    def make(folder: Path) -> None:
        uv = [sys.executable, "-m", "uv"]
        run([*uv, "venv", "-q", "--relocatable", "--python", sys.executable, folder / "env"], 60)
        python = folder / "env/bin/python"
        run([*uv, "pip", "install", "-q", "--python", python, f"checkov=={CHECKOV}"], 600)

    key = cache.digest([CHECKOV.encode(), sys.version.encode()])
    return cache.kept(settings.load().cache, "checkov", key, make) / "env/bin/checkov"
