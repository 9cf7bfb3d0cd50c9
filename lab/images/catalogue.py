"""The list of images, and their import into the node."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lab import cache, node
from lab.errors import LabError
from lab.images import archive, layers

if TYPE_CHECKING:
    from lab.cluster import Lab

# image -> tag: the version of its main package
IMAGES = {
    "base": "1",
    "dask": "2026.8.0",
    "ray": "2.60.0",
    "mars-xorbits": "0.8.2",
    "mars-pymars": "0.10.0",
    "operator": "dev",
}
# Number of cached versions of the operator's image, which changes with every edit. Another run may import an old one.
KEPT = 3

_PATH = "PATH=/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RUNTIME = archive.Runtime(user="1000:1000", env=(_PATH, "LANG=C.UTF-8"), folder="/home/oars")


def reference(name: str) -> str:
    """Return the image reference for a pod's spec. There is no such registry: nothing can be pulled."""
    if name not in IMAGES:
        raise LabError(f"There is no image {name!r}: choose from {', '.join(IMAGES)}.")
    return f"oars.lab/{name}:{IMAGES[name]}"


def provide(lab: "Lab", names: Iterable[str]) -> list[str]:
    """Build the images that are not cached, and import them if the lab's node is up."""
    wanted = {name: reference(name) for name in names}
    for name, ref in wanted.items():
        tar = _archive(lab, name, ref)
        if lab.component("containerd"):
            _bring(lab, tar, ref)
    return list(wanted.values())


def bring(lab: "Lab", tar: Path, ref: str) -> None:
    """Import an image that is not in the list, if the lab's node is up."""
    if lab.component("containerd"):
        node.ctr(lab.dir, "images", "import", tar, seconds=300)
    lab.say(f"imported {ref}" if lab.component("containerd") else f"the node is not up: {tar} is not imported")


def _archive(lab: "Lab", name: str, ref: str) -> Path:
    stack = layers.of(lab.settings.cache, name, lab.say)
    key = cache.digest([ref.encode(), repr(_RUNTIME).encode(), *(str(layer).encode() for layer in stack)])

    def make(folder: Path) -> None:
        archive.write(folder / "image.tar", ref, stack, _RUNTIME)

    found = cache.kept(lab.settings.cache, f"image-{name}", key, make)
    if name == "operator":
        _forget(found)
    return found / "image.tar"


def _forget(newest: Path) -> None:
    """Delete the oldest versions of an image, except KEPT and the one in use."""
    others = [path for path in newest.parent.iterdir() if path not in (newest, newest.parent / "draft")]
    for old in sorted(others, key=lambda path: path.stat().st_mtime)[: -(KEPT - 1)]:
        shutil.rmtree(old, ignore_errors=True)


def _bring(lab: "Lab", tar: Path, ref: str) -> None:
    """Import the image unless the same content has been imported before."""
    mark = lab.dir / "containerd" / f"imported-{tar.parent.parent.name}"
    if mark.exists() and mark.read_text() == tar.parent.name and ref in node.images(lab.dir):
        return
    lab.say(f"importing {ref}")
    node.ctr(lab.dir, "images", "import", tar, seconds=300)
    mark.write_text(tar.parent.name)
