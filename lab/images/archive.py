"""Write images as docker-archive tars, which containerd can import."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Runtime:
    """Default settings of the image's containers."""

    command: Sequence[str] = ("bash",)
    user: str = ""
    env: Sequence[str] = ()
    folder: str = "/"
    labels: dict[str, str] = field(default_factory=dict)


def write(target: Path, reference: str, layers: Sequence[Path], runtime: Runtime) -> None:
    """Write the image `reference` made of these layer tars, lowest first."""
    names = [f"sha256:{_digest(layer)}" for layer in layers]
    config = json.dumps(_config(names, runtime)).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    files = [f"{name.removeprefix('sha256:')}.tar" for name in names]
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": files}]
    with tarfile.open(target, "w") as tar:
        _add(tar, config_name, config)
        for file, layer in dict(zip(files, layers, strict=True)).items():
            tar.add(layer, file)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _config(layers: Sequence[str], runtime: Runtime) -> dict[str, Any]:
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Cmd": list(runtime.command),
            "User": runtime.user,
            "Env": list(runtime.env),
            "WorkingDir": runtime.folder,
            "Labels": runtime.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": list(layers)},
    }


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
