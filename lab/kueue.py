"""Kueue's CRDs, from its Go module."""

import json
import os
import subprocess
from pathlib import Path

import yaml

from lab.api import Object
from lab.build import SOURCES
from lab.errors import LabError

SECONDS = 300.0
KINDS = ("workloads", "localqueues", "clusterqueues", "resourceflavors", "admissionchecks", "workloadpriorityclasses")


def definitions() -> list[Object]:
    """The CustomResourceDefinitions of the version in go/kueue/go.mod, without the conversion webhook: their versions
    have the same fields, as far as tests use them."""
    folder = _module() / "config" / "components" / "crd" / "bases"
    return [yaml.safe_load((folder / f"kueue.x-k8s.io_{kind}.yaml").read_text()) for kind in KINDS]


def _module() -> Path:
    """The directory of the module, which Go downloads once and checks against go.sum."""
    argv = ["go", "mod", "download", "-json", "sigs.k8s.io/kueue"]
    env = os.environ | {"GOFLAGS": "-mod=mod", "GOWORK": "off"}
    try:
        done = subprocess.run(
            argv, cwd=SOURCES / "kueue", env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except FileNotFoundError:
        raise LabError("Kueue's CRDs come from its Go module, and Go is not installed.") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"Kueue's Go module was not downloaded within {SECONDS:.0f} s.") from None
    found = json.loads(done.stdout) if done.stdout.strip().startswith("{") else {}
    if done.returncode or "Dir" not in found:
        raise LabError(f"Kueue's Go module could not be downloaded: {found.get('Error') or done.stderr}")
    return Path(found["Dir"])
