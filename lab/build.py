"""Build the lab's Go programs once, from the module proxy, and cache them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab import cache
from lab.components import KUBERNETES_NAMES
from lab.errors import LabError

SOURCES = Path(__file__).parent / "go"
KUBERNETES = "v1.34.4"
# Without these linker flags the server and its clients report version v0.0.0.
_STAMP = " ".join(
    f"-X k8s.io/{package}.gitVersion={KUBERNETES} -X k8s.io/{package}.gitMajor=1 -X k8s.io/{package}.gitMinor=34"
    for package in ("component-base/version", "client-go/pkg/version")
)


@dataclass(frozen=True)
class Program:
    """A Go module and the package to build from it. `seconds`: duration without caches on two cores, for estimates."""

    name: str
    seconds: int
    package: str = "."
    stamp: str = ""
    folder: Path = SOURCES

    @property
    def source(self) -> Path:
        return self.folder / self.name

    @property
    def key(self) -> str:
        """Hash of everything that determines the binary."""
        files = sorted(self.source.glob("*"))
        return cache.digest([*(file.read_bytes() for file in files), self.package.encode(), self.stamp.encode()])


# The slowest first: it determines when all are done.
PROGRAMS = (
    Program("kubernetes", 540, stamp=_STAMP),
    Program("etcd", 60),
    Program("coredns", 160),
    Program("kwok", 135, package="sigs.k8s.io/kwok/cmd/kwok"),
    Program("pause", 2),
)

HELM = "v3.19.2"
_HELM_STAMP = " ".join(
    f"-X helm.sh/helm/v3/{variable}"
    for variable in (
        f"internal/version.version={HELM}",
        "pkg/chartutil.k8sVersionMajor=1",
        "pkg/chartutil.k8sVersionMinor=34",
        "pkg/lint/rules.k8sVersionMajor=1",
        "pkg/lint/rules.k8sVersionMinor=34",
    )
)
# Not part of the lab: for tests, which build what they use.
TOOLS = {
    "helm": Program("helm", 120, package="helm.sh/helm/v3/cmd/helm", stamp=_HELM_STAMP),
    "kueue": Program("kueue", 350, package="sigs.k8s.io/kueue/cmd/kueue"),
    "kube-score": Program("kube-score", 40, package="github.com/zegl/kube-score/cmd/kube-score"),
}


def tool(store: Path, name: str, say: Callable[[str], None]) -> Path:
    """Return the path of a program of TOOLS. Build it if it is not in the cache."""
    return built(store, TOOLS[name], say) / name


def programs(store: Path, say: Callable[[str], None]) -> dict[str, Path]:
    """Return the path of every program by name. Build those that are not in the cache."""
    missing = [program for program in PROGRAMS if not (store / program.name / program.key).exists()]
    if missing:
        guess = sum(program.seconds for program in missing) * 2 / max(2, os.cpu_count() or 2) / 60
        names = ", ".join(program.name for program in missing)
        say(f"building {names} (only once): about {guess:.0f} min on this machine")
    # Two at a time: downloading and linking use one core or none.
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda program: built(store, program, say), PROGRAMS))
    found = {program.name: folder / program.name for program, folder in zip(PROGRAMS, folders, strict=True)}
    kubernetes = found["kubernetes"].parent
    return found | {name: kubernetes / name for name in KUBERNETES_NAMES}


def complete(store: Path) -> bool:
    """True if all programs are in the cache, so that Go is not needed."""
    return all((store / program.name / program.key).exists() for program in PROGRAMS)


def built(store: Path, program: Program, say: Callable[[str], None]) -> Path:
    """Return the directory with the program. Build it if it is not in the cache."""

    def make(folder: Path) -> None:
        started = time.monotonic()
        _compile(program, folder / program.name, say)
        if program.name == "kubernetes":
            for name in KUBERNETES_NAMES:
                (folder / name).symlink_to("kubernetes")
        say(f"built {program.name} in {time.monotonic() - started:.0f} s")

    return cache.kept(store, program.name, program.key, make)


def _compile(program: Program, target: Path, say: Callable[[str], None]) -> None:
    # buildvcs, mod: the checkout may be read-only or belong to another version control tool.
    flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", f"-s -w {program.stamp}"]
    argv = ["go", "build", *flags, "-o", str(target), program.package]
    env = os.environ | {"CGO_ENABLED": "0"}
    started = time.monotonic()
    with subprocess.Popen(argv, cwd=program.source, env=env, stdout=sys.stderr, stderr=subprocess.PIPE) as build:
        while True:
            try:
                _, errors = build.communicate(timeout=30)
                break
            except subprocess.TimeoutExpired:
                say(f"… {program.name}: {time.monotonic() - started:.0f} s of about {program.seconds}")
    if build.returncode:
        raise LabError(f"Building {program.name} failed: {errors.decode()[-2000:]}")
