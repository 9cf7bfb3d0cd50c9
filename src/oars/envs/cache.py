"""The cached environments on disk: whether one is whole, who works on it, and how it goes away.

envs/KEY/           the environment
envs/KEY/oars.json  the marker: written last, so what lacks it is half built; its mtime is the last use
envs/KEY.lock       held (flock) by whoever builds or removes it, and by the uv they started
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oars.base.errors import Denied, EnvironmentFailed
from oars.envs import scan
from oars.model import Needs

MARKER = "oars.json"
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class EnvInfo:
    """A cached environment, as `oars env ls` shows it."""

    key: str
    engine: str
    version: str
    packages: tuple[str, ...]
    python: str
    size: int
    created: float
    last_used: float
    path: Path


@contextmanager
def guarded(directory: Path) -> Iterator[None]:
    """File errors in the cache, in plain words."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise no_space(directory) from error
        raise Denied(
            f"The cache directory {directory} cannot be written: {error.strerror or error}.",
            "Make it writable, or name another with OARS_CACHE_DIR.",
        ) from error


def no_space(directory: Path, details: tuple[str, ...] = ()) -> EnvironmentFailed:
    return EnvironmentFailed(
        f"No space is left on the disk of {directory}.",
        "Free some (`oars env ls`, `oars env rm`), or name another directory with OARS_CACHE_DIR.",
        details,
    )


def python_of(env: Path) -> Path:
    return env / "bin" / "python"


def site_of(env: Path, python: str) -> str:
    """site-packages of an environment whose Python has that version ('3.11')."""
    variables = {"base": str(env), "platbase": str(env), "py_version_short": python}
    return sysconfig.get_path("purelib", "venv", vars=variables)


def mark(env: Path, engine: str, needs: Needs, packages: tuple[str, ...], python: str) -> EnvInfo | str:
    """Declare an environment whole; or a sentence that says what it lacks."""
    site = site_of(env, python)
    version = scan.version_in(site, needs.distribution)
    modules = scan.modules_in(site, needs.modules)
    missing = [module for module, origin in modules.items() if origin is None]
    if version is None or missing:
        return f"{needs.distribution} was installed without {', '.join(missing) or 'its version'}"
    data = {
        "engine": engine,
        "version": version,
        "packages": list(packages),
        "python": python,
        "created": time.time(),
        "size": sum(_sizes(env)),
        "modules": sorted(os.path.relpath(str(origin), env) for origin in modules.values()),
        "distributions": _distributions(site),
    }
    marker = env / MARKER
    fresh = marker.with_suffix(".new")
    fresh.write_text(json.dumps(data))
    fresh.replace(marker)
    return _info(env, data)


def look(env: Path) -> EnvInfo | None:
    """The environment, if it is whole: marker, working Python link, the engine's files, every distribution."""
    try:
        data = json.loads((env / MARKER).read_text())
        whole = os.access(python_of(env), os.X_OK)
        whole &= all((env / module).exists() for module in data["modules"])
        whole &= set(data["distributions"]) <= set(_distributions(site_of(env, data["python"])))
        return _info(env, data) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def touch(env: Path) -> None:
    with suppress(OSError):  # a shared cache may be read-only; then nobody asks when it was used
        os.utime(env / MARKER)


def lock(path: Path) -> int | None:
    """The lock's file descriptor, or None while another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # its last holder took the file away meanwhile: it locks nobody out any more


def unlock(descriptor: int, path: Path) -> None:
    path.unlink(missing_ok=True)
    os.close(descriptor)


def erase(env: Path) -> None:
    """The marker goes first: what a kill leaves behind is half built, never half there."""
    (env / MARKER).unlink(missing_ok=True)
    shutil.rmtree(env, ignore_errors=True)


def sweep(envs: Path) -> None:
    """Take away what a killed process left half built. Those under work are locked, and left alone."""
    unfinished = {path.name for path in envs.iterdir() if path.is_dir() and not (path / MARKER).exists()}
    for key in unfinished | {path.stem for path in envs.glob("*.lock")}:
        path = envs / f"{key}.lock"
        descriptor = lock(path)
        if descriptor is not None:
            if not (envs / key / MARKER).exists():
                erase(envs / key)
            unlock(descriptor, path)


def _info(env: Path, data: dict[str, Any]) -> EnvInfo:
    return EnvInfo(
        key=env.name,
        engine=data["engine"],
        version=data["version"],
        packages=tuple(data["packages"]),
        python=data["python"],
        size=data["size"],
        created=data["created"],
        last_used=(env / MARKER).stat().st_mtime,
        path=env,
    )


def _distributions(site: str) -> list[str]:
    """Those that are installed completely: an installer writes RECORD last."""
    with os.scandir(site) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(".dist-info")]
    return sorted(name for name in names if os.path.exists(os.path.join(site, name, "RECORD")))


def _sizes(env: Path) -> Iterator[int]:
    for directory, _, files in os.walk(env):
        yield from (os.lstat(os.path.join(directory, name)).st_size for name in files)
