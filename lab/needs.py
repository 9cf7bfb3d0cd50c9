"""What this machine must have, and how to get it."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from lab.errors import Unavailable
from lab.run import run

# program -> the Debian package that brings it (looked for on PATH, or as given)
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


@dataclass(frozen=True)
class Need:
    """One thing the lab cannot do without."""

    name: str
    met: bool
    remedy: str


def needs(built: bool) -> list[Need]:
    """Everything, met or not, in the order to mend it. What is `built` already needs no Go."""
    return [
        Need("root", os.geteuid() == 0, "The lab makes namespaces and mounts: run it as root."),
        Need(
            "Go", built or bool(shutil.which("go")), "The lab builds Kubernetes from source: install Go 1.24 or later."
        ),
        Need("Debian packages", not _missing() or bool(shutil.which("apt-get")), _packages_remedy()),
    ]


def require(built: bool) -> None:
    """Raise Unavailable, in one sentence, if the lab cannot run here."""
    for need in needs(built):
        if not need.met:
            raise Unavailable(need.remedy)


def install(built: bool, say: Callable[[str], None]) -> None:
    """Install the Debian packages that are not there yet."""
    require(built)
    packages = sorted({PROGRAMS[program] for program in _missing()})
    if not packages:
        return
    say(f"installing {' '.join(packages)}")
    os.environ.setdefault("DEBIAN_FRONTEND", "noninteractive")
    get = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    run([*get, "update"], 600)
    run([*get, "install", "--no-install-recommends", "-y", *packages], 900)


def _missing() -> list[str]:
    programs = [program for program in PROGRAMS if program != VENV and not shutil.which(program)]
    # Debian ships Python without the part that makes environments.
    return programs if find_spec("ensurepip") else [*programs, VENV]


def _packages_remedy() -> str:
    packages = " ".join(sorted({PROGRAMS[program] for program in _missing()}))
    return f"This is not a Debian machine and something is missing: install {packages} in your own way."
