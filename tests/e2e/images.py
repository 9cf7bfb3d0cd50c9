"""Images that `oars image build` makes, with the lab's own tool as the builder. It builds the same image only once."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lab.images import archive, catalogue, layers
from lab.kube import Kube

ROOT = Path(__file__).parents[2]
OARS = str(Path(sys.executable).with_name("oars"))
RAY_WITH_IPYTHON = "registry.example.org/ray:1"  # the guide's


def builder(kube: Kube) -> str:
    assert kube.cluster.lab is not None
    return f"{sys.executable} -m lab --dir {kube.cluster.lab.dir} image"


def build_image(kube: Kube, tag: str, *options: str) -> str:
    """What `oars image build` prints."""
    words = [OARS, "image", "build", *options, "--builder", builder(kube), "-t", tag]
    # Not in /tmp, where live tests that run at the same time look for what they left behind.
    with tempfile.TemporaryDirectory(prefix="e2e-image-") as folder:
        env = {**os.environ, "TMPDIR": folder}
        return subprocess.run(words, cwd=ROOT, env=env, check=True, capture_output=True, text=True, timeout=1800).stdout


def with_programs(kube: Kube, tag: str, folder: Path, programs: Mapping[str, str]) -> str:
    """The lab's image of Dask with these programs in its environment, under this tag. Returns the tag."""
    lab = kube.cluster.lab
    assert lab is not None
    with tarfile.open(folder / "layer.tar", "w") as layer:
        for name, source in programs.items():
            entry = tarfile.TarInfo(f"opt/env/bin/{name}")
            entry.mode, entry.size = 0o755, len(source.encode())
            layer.addfile(entry, io.BytesIO(source.encode()))
    stack = [*layers.of(lab.settings.cache, "dask", lab.say), folder / "layer.tar"]
    archive.write(folder / "image.tar", tag, stack, catalogue._RUNTIME)
    catalogue.bring(lab, folder / "image.tar", tag)
    return tag
