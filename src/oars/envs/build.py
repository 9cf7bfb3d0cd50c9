"""Environments: one per engine, package set and Python, built once and then shared by all clusters."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from oars.base.errors import EnvironmentFailed, NotFound, OarsError, UsageError
from oars.envs import cache, program, scan
from oars.envs.cache import EnvInfo
from oars.envs.explain import explain
from oars.envs.program import Watch
from oars.model import Needs

DEFAULT_TIMEOUT = 1800.0
_FORMAT = 1  # part of the key; increase it when environments must be rebuilt


@dataclass(frozen=True)
class PythonEnv:
    """A Python that has the engine. `key` is empty for the running one."""

    python: Path
    version: str
    key: str
    cached: bool


@dataclass(frozen=True)
class _Recipe:
    """All that distinguishes one environment from another."""

    engine: str
    needs: Needs
    packages: tuple[str, ...]
    python: str = ""  # '3.11'
    interpreter: str = ""

    @property
    def key(self) -> str:
        content = [_FORMAT, astuple(self.needs), self.packages, self.python, sysconfig.get_platform()]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
        return f"{re.sub('[^a-z0-9]+', '-', self.engine.lower())}-{digest}"


class Environments:
    """The cached environments in a directory. Safe for concurrent processes."""

    def __init__(self, cache_dir: Path, uv: str | None = None) -> None:
        self._envs = cache_dir / "envs"
        self._given_uv = uv
        self._cancelled = threading.Event()

    def prepare(
        self,
        engine: str,
        needs: Needs,
        packages: Sequence[str],
        progress: Callable[[str], None],
        timeout: float = DEFAULT_TIMEOUT,
    ) -> PythonEnv:
        """A Python with the engine and the packages: the running one, a cached one, or one that is built now.

        The running one is used if it has the versions of the engine that Oars supports. `packages` may pin others."""
        here = scan.installed(needs) if sys.executable else None
        other = scan.differences(needs) if here is not None else ()
        if here is not None and not other and not packages:
            return PythonEnv(Path(sys.executable), here, "", cached=True)
        watch = Watch(f"the {engine} environment", time.monotonic() + timeout, progress, self._cancelled)
        if other:
            progress(f"this Python has {_join(other)}: {engine} gets its own environment")
        elif here is not None:
            needs = replace(needs, requirements=scan.pinned(needs))
        needs, chosen = scan.overridden(needs, packages)
        if chosen:
            progress(f"warning: `packages` selects {_join(chosen)}; Oars was not tested with that version")
        stripped = [package.strip() for package in packages]
        # Paths become absolute: uv runs in another directory.
        named = {str(Path(each).absolute()) if each.startswith((".", "/")) else each for each in stripped}
        recipe = _Recipe(engine, needs, tuple(sorted(named)))
        built = (self._use(replace(recipe, python=python)) for python in _minors(needs.python))
        found = next((env for env in built if env), None)
        if found:
            return found
        recipe = self._with_interpreter(recipe, watch)
        with cache.guarded(self._envs):
            self._envs.mkdir(mode=0o700, parents=True, exist_ok=True)
            cache.sweep(self._envs)
        with self._locked(recipe.key, watch) as lock:
            return self._use(recipe) or self._build(recipe, lock, watch)

    def list(self) -> tuple[EnvInfo, ...]:
        """Complete environments, by key."""
        names = sorted(os.listdir(self._envs)) if self._envs.is_dir() else []
        found = (cache.look(self._envs / name) for name in names)
        return tuple(info for info in found if info)

    def remove(self, name: str) -> tuple[EnvInfo, ...]:
        """Remove environments whose key starts with the name, or whose engine it is. Returns them."""
        if not name:
            raise UsageError("No environment given.", "Pass a key or an engine; `oars env ls` lists them.")
        chosen = [info for info in self.list() if info.key.startswith(name) or info.engine == name]
        if not chosen:
            raise NotFound(f"There is no environment {name!r}.", "`oars env ls` lists all.")
        for info in chosen:
            path = self._lock_path(info.key)
            with cache.guarded(self._envs):
                descriptor = cache.lock(path)
                if descriptor is None:
                    raise OarsError(f"The environment {info.key} is being built.", "Wait until that is done.")
                try:
                    cache.erase(info.path)
                finally:
                    cache.unlock(descriptor, path)
        return tuple(chosen)

    def cancel(self) -> None:
        """Cancel every running prepare() in other threads; they raise Interrupted."""
        self._cancelled.set()

    def _with_interpreter(self, recipe: _Recipe, watch: Watch) -> _Recipe:
        """Choose the Python to build with: the running one if allowed, else the newest that uv finds."""
        condition = recipe.needs.python
        if _running_fits(condition):
            return replace(recipe, python=_minors(condition)[0], interpreter=sys.executable)
        argv = [self._uv(), "python", "list", "--only-installed", "--no-python-downloads", "--output-format", "json"]
        try:
            with open(os.devnull) as nothing:
                lines = program.run(argv, Path("/"), nothing.fileno(), watch, "looking for another Python")
        except program.Failed as failure:
            raise explain(watch.title, failure.lines, self._envs) from None
        # Warnings about broken interpreters may come before the list.
        text = "\n" + "\n".join(lines)
        listed = json.JSONDecoder().raw_decode(text, text.index("\n[") + 1)[0] if "\n[" in text else []
        found = []
        for entry in listed:
            version = tuple(int(number) for number in re.findall(r"\d+", entry["version"])[:3])
            if entry["implementation"] == "cpython" and scan.python_allowed(condition, version):
                found.append((version, entry["path"]))
        if not found:
            running = ".".join(map(str, sys.version_info[:3]))
            raise EnvironmentFailed(
                f"{watch.title} needs Python {condition}; this is {running}, and uv found no other.",
                "Install one, for example with `uv python install 3.11`, or run Oars with it.",
            )
        version, path = max(found)
        return replace(recipe, python=f"{version[0]}.{version[1]}", interpreter=path)

    def _use(self, recipe: _Recipe) -> PythonEnv | None:
        info = cache.look(self._envs / recipe.key)
        if info is None:
            return None
        cache.touch(info.path)
        return PythonEnv(cache.python_of(info.path), info.version, info.key, cached=True)

    def _lock_path(self, key: str) -> Path:
        return self._envs / f"{key}.lock"

    @contextmanager
    def _locked(self, key: str, watch: Watch) -> Iterator[int]:
        """Hold the lock of that environment; report progress while another process has it."""
        reported = time.monotonic() - program.QUIET_SECONDS + 0.5  # do not report a lock that is held for a moment
        while True:
            with cache.guarded(self._envs):
                descriptor = cache.lock(self._lock_path(key))
            if descriptor is not None:
                break
            watch.check("waiting for another Oars process that builds it")
            if time.monotonic() - reported > program.QUIET_SECONDS:
                watch.progress(f"waiting for another Oars process that builds {watch.what}, {watch.elapsed():.0f} s")
                reported = time.monotonic()
            time.sleep(0.1)
        try:
            yield descriptor
        finally:
            cache.unlock(descriptor, self._lock_path(key))

    def _build(self, recipe: _Recipe, lock: int, watch: Watch) -> PythonEnv:
        env = self._envs / recipe.key
        cache.erase(env)  # damaged or incomplete
        try:
            self._install(recipe, env, lock, watch)
            with cache.guarded(self._envs):
                info = cache.mark(env, recipe.engine, recipe.needs, recipe.packages, recipe.python)
            if isinstance(info, str):
                raise EnvironmentFailed(f"{watch.title} cannot be used: {info}.", "Check `packages` for conflicts.")
        except program.Failed as failure:
            cache.erase(env)
            raise explain(watch.title, failure.lines, self._envs) from None
        except BaseException:  # Ctrl-C too: leave nothing incomplete
            cache.erase(env)
            raise
        watch.progress(f"{watch.what}: ready after {watch.elapsed():.0f} s")
        return PythonEnv(cache.python_of(env), info.version, info.key, cached=False)

    def _install(self, recipe: _Recipe, env: Path, lock: int, watch: Watch) -> None:
        uv, needs, variables = self._uv(), recipe.needs, dict[str, str]()
        watch.progress(f"{watch.what}: building with Python {recipe.python} (once; it is cached)")
        create = [uv, "venv", "--no-project", "--no-python-downloads", "--python", recipe.interpreter, str(env)]
        program.run(create, self._envs, lock, watch, "being created")
        install = [uv, "pip", "install", "--compile-bytecode", "--python", str(cache.python_of(env))]
        if needs.build_requirements:
            program.run([*install, "--", *needs.build_requirements], self._envs, lock, watch, "resolving build tools")
            install += ["--no-build-isolation-package", needs.distribution]
            # Setuptools compiles files one by one unless this setting says otherwise.
            settings = env / "build.cfg"
            settings.write_text(f"[build_ext]\nparallel = {os.cpu_count() or 1}\n")
            variables["DIST_EXTRA_CONFIG"] = str(settings)
        wanted = [*install, "--", *needs.requirements, *recipe.packages]
        program.run(wanted, self._envs, lock, watch, "resolving", variables)

    def _uv(self) -> str:
        uv = self._given_uv or program.find_uv()
        if not uv:
            raise EnvironmentFailed("Cannot build an environment: the program uv is missing.", "Run `pip install uv`.")
        return uv


def _running_fits(condition: str) -> bool:
    return bool(sys.executable) and scan.python_allowed(condition, sys.version_info[:3])


def _minors(condition: str) -> list[str]:
    """Python versions that an environment may have. Checking the cache for each is cheaper than running uv."""
    if _running_fits(condition):
        return [f"{sys.version_info[0]}.{sys.version_info[1]}"]
    return [f"3.{minor}" for minor in range(40, 6, -1) if scan.python_allowed(condition, (3, minor, 0))]


def supported_python(condition: str, wanted: str = "") -> str:
    """The version for an image, such as 3.11: the wanted one, or the first that an environment may have."""
    minor = re.fullmatch(r"3\.(\d+)", wanted) if wanted else None
    if wanted and (minor is None or not scan.python_allowed(condition, (3, int(minor[1]), 0))):
        raise UsageError(f"Python {wanted} does not fit: the engine needs {condition}.", "Use a version such as 3.11.")
    return wanted or _minors(condition)[0]


def _join(differences: Sequence[scan.Difference]) -> str:
    return ", ".join(map(str, differences))
