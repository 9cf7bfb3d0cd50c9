"""Requirements of the lab, and their installation."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lab import apt
from lab.errors import LabError, Unavailable
from lab.run import run

# program (on PATH, or an absolute path) -> Debian package that contains it
PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",  # the CNI plug-in portmap calls it
    "nft": "nftables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "mmdebstrap": "mmdebstrap",
    "python3 -m venv": "python3-venv",
}
VENV = "python3 -m venv"
GO = (1, 24)
MODULE = Path(__file__).parent / "go/kubernetes"


@dataclass(frozen=True)
class Need:
    """A requirement of the lab."""

    name: str
    met: bool
    remedy: str


def needs(built: bool) -> list[Need]:
    """Return all requirements. Go is required unless the programs are `built`."""
    go = "" if built else _go_remedy()
    return [
        Need("root", os.geteuid() == 0, "The lab creates namespaces and mounts: run it as root."),
        Need("Go", not go, go),
        Need("Debian packages", not _missing() or bool(shutil.which("apt-get")), _packages_remedy()),
    ]


def require(built: bool) -> None:
    """Raise Unavailable if a requirement is not met."""
    for need in needs(built):
        if not need.met:
            raise Unavailable(need.remedy)


def install(built: bool, say: Callable[[str], None]) -> None:
    """Install missing Debian packages."""
    require(built)
    packages = sorted({PROGRAMS[program] for program in _missing()})
    if not packages:
        return
    say(f"installing {' '.join(packages)}")
    try:
        apt.install(packages)
    except LabError as failure:
        raise Unavailable(
            f"Installing the Debian packages {' '.join(packages)}, which the lab needs, failed: {failure}"
        ) from None


def _go_remedy() -> str:
    """Return what to do about Go; empty if a suitable version is installed."""
    needed = f"The lab builds Kubernetes from source: install Go {GO[0]}.{GO[1]} or later"
    if not shutil.which("go"):
        return f"{needed}."
    try:
        # In the module's directory: Go may download the toolchain that go.mod asks for.
        said = run(["go", "version"], 300, folder=MODULE)
    except LabError as failure:
        return f"{needed}; the installed one does not work: {failure}"
    number = re.search(r"go(\d+)\.(\d+)", said)
    if number and (int(number[1]), int(number[2])) < GO:
        return f"{needed}; {number[1]}.{number[2]} is installed."
    return ""


def _missing() -> list[str]:
    programs = [program for program in PROGRAMS if program != VENV and not shutil.which(program)]
    # Debian packages the venv module separately.
    return programs if find_spec("ensurepip") else [*programs, VENV]


def _packages_remedy() -> str:
    packages = " ".join(sorted({PROGRAMS[program] for program in _missing()}))
    return f"Programs are missing, and apt-get is not available to install them: install {packages}."
