"""Cached environments on disk: completeness, locks and removal.

envs/KEY/           the environment
envs/KEY/oars.json  the marker: written last, so an environment without it is incomplete; its mtime is the last use
envs/KEY.lock       locked (flock) by the process that builds or removes it, and by its uv
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import shutil
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oars.base.errors import Denied, EnvironmentFailed
from oars.base.files import write_private
from oars.envs import scan
from oars.model import Needs

MARKER = "oars.json"
REMOVED = ".removed-"  # prefix of directories that are being removed
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
    """Turn file errors in the cache into OarsErrors."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise no_space(directory) from error
        raise Denied(
            f"The cache directory {directory} cannot be written: {error.strerror or error}.",
            "Make it writable, or set OARS_CACHE_DIR to another one.",
        ) from error


def no_space(directory: Path, details: tuple[str, ...] = ()) -> EnvironmentFailed:
    return EnvironmentFailed(
        f"No space is left on the disk of {directory}.",
        "Free some (`oars env ls`, `oars env rm`), or set OARS_CACHE_DIR to another directory.",
        details,
    )


def python_of(env: Path) -> Path:
    return env / "bin" / "python"


def site_of(env: Path, python: str) -> str:
    """site-packages of an environment whose Python has that version ('3.11')."""
    variables = {"base": str(env), "platbase": str(env), "py_version_short": python}
    return sysconfig.get_path("purelib", "venv", vars=variables)


def mark(env: Path, engine: str, needs: Needs, packages: tuple[str, ...], python: str) -> EnvInfo | str:
    """Mark an environment as complete, or return a clause that says what is missing."""
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
        "size": sum(
            os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(env) for name in names
        ),
        "modules": sorted(os.path.relpath(str(origin), env) for origin in modules.values()),
        "distributions": _distributions(site),
    }
    write_private(env / MARKER, json.dumps(data).encode())
    return _info(env, data)


def look(env: Path) -> EnvInfo | None:
    """The environment, if it is complete: marker, working Python link, the engine's files, every distribution."""
    try:
        data = json.loads((env / MARKER).read_text())
        is_complete = os.access(python_of(env), os.X_OK)
        is_complete &= all((env / module).exists() for module in data["modules"])
        is_complete &= set(data["distributions"]) <= set(_distributions(site_of(env, data["python"])))
        return _info(env, data) if is_complete else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def touch(env: Path) -> None:
    with suppress(OSError):  # a shared cache may be read-only
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
        os.close(descriptor)  # its last holder deleted the file meanwhile, so the lock excludes nobody


def unlock(descriptor: int, path: Path) -> None:
    path.unlink(missing_ok=True)
    os.close(descriptor)


def erase(env: Path) -> None:
    """Delete the marker first, so that an interrupted removal leaves an incomplete environment. Then rename it, so that
    files that cannot be removed, such as those in use on NFS, do not block the name; `sweep` tries them again."""
    (env / MARKER).unlink(missing_ok=True)
    removed = env
    if not env.name.startswith(REMOVED):
        removed = env.with_name(f"{REMOVED}{env.name}-{secrets.token_hex(4)}")
        with suppress(FileNotFoundError):
            env.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def sweep(envs: Path) -> None:
    """Remove incomplete environments that killed processes left. Locked ones are in use and stay."""
    unfinished = {path.name for path in envs.iterdir() if path.is_dir() and not (path / MARKER).exists()}
    for key in unfinished | {path.stem for path in envs.glob("*.lock")}:
        path = envs / f"{key}.lock"
        descriptor = lock(path)
        if descriptor is not None:
            if not (envs / key / MARKER).exists():
                erase(envs / key)
            unlock(descriptor, path)


def _info(env: Path, data: Mapping[str, Any]) -> EnvInfo:
    stored = {name: data[name] for name in ("engine", "version", "python", "size", "created")}
    last_used = (env / MARKER).stat().st_mtime
    return EnvInfo(key=env.name, packages=tuple(data["packages"]), last_used=last_used, path=env, **stored)


def _distributions(site: str) -> list[str]:
    """Complete distributions: an installer writes RECORD last."""
    with os.scandir(site) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(".dist-info")]
    return sorted(name for name in names if os.path.exists(os.path.join(site, name, "RECORD")))
