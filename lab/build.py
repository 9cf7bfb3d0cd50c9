"""The Go programs of the lab, built once from the module proxy."""

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
# Without these the server calls itself v0.0.0, and so do its clients.
_STAMP = " ".join(
    f"-X k8s.io/{package}.gitVersion={KUBERNETES} -X k8s.io/{package}.gitMajor=1 -X k8s.io/{package}.gitMinor=34"
    for package in ("component-base/version", "client-go/pkg/version")
)


@dataclass(frozen=True)
class Program:
    """One Go module of a folder. `seconds` is its cold build on two cores, for the estimate."""

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
        """The hash of everything that decides the result."""
        files = sorted(self.source.glob("*"))
        return cache.digest([*(file.read_bytes() for file in files), self.package.encode(), self.stamp.encode()])


# The slowest first: it decides when the whole is done.
PROGRAMS = (
    Program("kubernetes", 540, stamp=_STAMP),
    Program("etcd", 60),
    Program("coredns", 160),
    Program("kwok", 135, package="sigs.k8s.io/kwok/cmd/kwok"),
    Program("pause", 2),
)


def programs(store: Path, say: Callable[[str], None]) -> dict[str, Path]:
    """Every program the lab runs, by name, building what the cache lacks."""
    missing = [program for program in PROGRAMS if not (store / program.name / program.key).exists()]
    if missing:
        guess = sum(program.seconds for program in missing) * 2 / max(2, os.cpu_count() or 2) / 60
        say(f"building {', '.join(program.name for program in missing)}, once: about {guess:.0f} min on this machine")
    # Two at a time: one's downloads and linking leave a core free for the other.
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda program: built(store, program, say), PROGRAMS))
    found = {program.name: folder / program.name for program, folder in zip(PROGRAMS, folders, strict=True)}
    kubernetes = found["kubernetes"].parent
    return found | {name: kubernetes / name for name in KUBERNETES_NAMES}


def complete(store: Path) -> bool:
    """Whether everything is built, so that Go is not needed."""
    return all((store / program.name / program.key).exists() for program in PROGRAMS)


def built(store: Path, program: Program, say: Callable[[str], None]) -> Path:
    """The directory that holds the program, made if the cache lacks it."""

    def make(folder: Path) -> None:
        started = time.monotonic()
        _compile(program, folder / program.name, say)
        if program.name == "kubernetes":
            for name in KUBERNETES_NAMES:
                (folder / name).symlink_to("kubernetes")
        say(f"built {program.name} in {time.monotonic() - started:.0f} s")

    return cache.kept(store, program.name, program.key, make)


def _compile(program: Program, target: Path, say: Callable[[str], None]) -> None:
    # A checkout may be read-only or stamped by another tool: ask Go for neither.
    flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", f"-s -w {program.stamp}"]
    argv = ["nice", "-n", "10", "go", "build", *flags, "-o", str(target), program.package]
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
        raise LabError(f"{program.name} did not build: {errors.decode()[-2000:]}")
