"""Image layers: the Debian base, one environment per engine, and Oars itself for the operator.

Each is built in a chroot, independent of what is installed on the machine.
"""

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab import cache
from lab.run import run

FOLDER = Path(__file__).parent
CHECKOUT = FOLDER.parent.parent
UV = "uv==0.9.5"
# There is no wheel for this Python version: compiled from source.
COMPILED = {"mars-pymars"}

Say = Callable[[str], None]


def of(store: Path, name: str, say: Say) -> list[Path]:
    """Return the layer tars of an image, lowest first."""
    base = system(store, "base", say)
    if name == "base":
        return [base / "layer.tar"]
    stack = [base / "layer.tar", _engine(store, name, base, say) / "layer.tar"]
    return [*stack, _oars(store, base, say) / "layer.tar"] if name == "operator" else stack


def system(store: Path, name: str, say: Say) -> Path:
    """Build a Debian root file system: `base`, `builder` with compilers, or `python` and `compiler`, stand-ins for
    Python's images."""
    packages = _packages("base") + (_packages(name) if name != "base" else [])
    script = FOLDER / "base.sh"

    def make(folder: Path) -> None:
        started = _announce(say, f"{name} image", 90)
        run(["sh", script, folder / "root", ",".join(packages)], 1800)
        tar(folder / "root", folder / "layer.tar")
        say(f"built the {name} image in {time.monotonic() - started:.0f} s")

    key = cache.digest([" ".join(packages).encode(), script.read_bytes()])
    return cache.kept(store, f"system-{name}", key, make)


def _engine(store: Path, name: str, base: Path, say: Say) -> Path:
    """Build the layer with an engine's environment."""
    requirements = (FOLDER / f"{name}.txt").read_bytes()
    scripts = [FOLDER / script for script in ("engine.sh", "chroot.sh", "wheel.sh")]

    def make(folder: Path) -> None:
        started = _announce(say, f"{name} image", 400 if name in COMPILED else 90)
        share = share_folder(store, folder, requirements)
        if name in COMPILED:
            in_chroot(system(store, "builder", say), folder / "scratch", share, "wheel.sh")
        in_chroot(base, folder / "changes", share, "engine.sh")
        tar(folder / "changes", folder / "layer.tar")
        for leftover in ("changes", "scratch", "share"):
            shutil.rmtree(folder / leftover, ignore_errors=True)
        say(f"built the {name} image in {time.monotonic() - started:.0f} s")

    key = cache.digest([base.name.encode(), requirements, *(script.read_bytes() for script in scripts)])
    return cache.kept(store, f"engine-{name}", key, make)


def _oars(store: Path, base: Path, say: Say) -> Path:
    """Build the layer with Oars from this checkout; it changes with every edit."""
    script = FOLDER / "oars.sh"
    sources = [path for path in sorted((CHECKOUT / "src").rglob("*")) if _is_source(path)]

    def make(folder: Path) -> None:
        say("building Oars for the operator's image")
        share = share_folder(store, folder, b"")
        run([share / "bin/uv", "build", "--quiet", "--wheel", "--out-dir", share / "wheels", CHECKOUT], 300)
        in_chroot(base, folder / "changes", share, script.name)
        tar(folder / "changes", folder / "layer.tar")
        for leftover in ("changes", "share"):
            shutil.rmtree(folder / leftover, ignore_errors=True)

    contents = [part for path in sources for part in (str(path.relative_to(CHECKOUT)).encode(), path.read_bytes())]
    recipe = [base.name.encode(), script.read_bytes(), (CHECKOUT / "pyproject.toml").read_bytes()]
    return cache.kept(store, "oars", cache.digest([*recipe, *contents]), make)


def _is_source(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def share_folder(store: Path, folder: Path, requirements: bytes) -> Path:
    """Prepare the folder that scripts see as /mnt/share: uv, the requirements, wheels."""
    share = folder / "share"
    for part in ("bin", "wheels"):
        (share / part).mkdir(parents=True)
    shutil.copy(_uv(store), share / "bin/uv")
    (share / "requirements.txt").write_bytes(requirements)
    return share


def _uv(store: Path) -> Path:
    """Return uv from the package index: a single program that runs in any chroot."""

    def make(folder: Path) -> None:
        run([sys.executable, "-m", "venv", folder / "venv"], 120)
        run([folder / "venv/bin/python", "-m", "pip", "install", "--quiet", UV], 300)
        shutil.copy(folder / "venv/bin/uv", folder / "uv")
        shutil.rmtree(folder / "venv")

    return cache.kept(store, "uv", cache.digest([UV.encode()]), make) / "uv"


def in_chroot(system: Path, changes: Path, share: Path, script: str | Path) -> None:
    """Run a script, one of this folder or another, on top of a root file system, and keep what it changes."""
    chroot = ["unshare", "--mount", "--propagation", "private", "sh", FOLDER / "chroot.sh"]
    run([*chroot, system / "root", changes, share, FOLDER / script], 3600)


def tar(root: Path, target: Path) -> None:
    """Write a layer."""
    # Sorted, so that the same content gives the same layer.
    options = [
        "--sort=name",
        "--numeric-owner",
        "--one-file-system",
        "--exclude=./dev/*",
        "--exclude=./proc/*",
        "--exclude=./mnt",
    ]
    run(["tar", "-C", root, *options, "-cf", target, "."], 900)


def _packages(name: str) -> list[str]:
    lines = (FOLDER / f"{name}.packages").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _announce(say: Say, what: str, seconds: int) -> float:
    say(f"building the {what} (only once): about {seconds} s")
    return time.monotonic()
