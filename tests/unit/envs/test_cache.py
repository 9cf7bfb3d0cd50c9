"""Environments on disk: completeness and locks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.undeletable import undeletable

from oars.base.errors import Denied, EnvironmentFailed, NotFound, OarsError, UsageError
from oars.envs import Environments, cache
from oars.envs.build import _Recipe
from oars.model import Needs

NEEDS = Needs("toy", ("toy",), ("toy==1",))
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def make(envs: Path, key: str = "toy-1", *, marked: bool = True) -> Path:
    """An environment as uv makes it, without uv."""
    env = envs / key
    site = Path(cache.site_of(env, PYTHON))
    (site / "toy").mkdir(parents=True)
    (site / "toy" / "__init__.py").write_text("")
    (site / "toy-1.0.dist-info").mkdir()
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: Toy\nVersion: 1.0\n")
    (site / "toy-1.0.dist-info" / "RECORD").write_text("")
    (env / "bin").mkdir()
    (env / "bin" / "python").symlink_to(sys.executable)
    if marked:
        assert isinstance(cache.mark(env, "toy", NEEDS, ("six",), PYTHON), cache.EnvInfo)
    return env


def test_complete_environment_is_found(tmp_path: Path) -> None:
    env = make(tmp_path)
    info = cache.look(env)
    assert info is not None
    assert (info.key, info.engine, info.version, info.packages, info.python) == (
        "toy-1",
        "toy",
        "1.0",
        ("six",),
        PYTHON,
    )
    assert info.size > 0 and info.created <= info.last_used + 1 and info.path == env


def site(env: Path) -> Path:
    return Path(cache.site_of(env, PYTHON))


def lose_interpreter(env: Path) -> None:
    cache.python_of(env).unlink()
    cache.python_of(env).symlink_to("/no/such/python")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no marker": lambda env: (env / cache.MARKER).unlink(),
    "marker cut short": lambda env: (env / cache.MARKER).write_text('{"engine": '),
    "marker of another kind": lambda env: (env / cache.MARKER).write_text("[]"),
    "no python": lambda env: cache.python_of(env).unlink(),
    "python's target gone": lose_interpreter,
    "module file gone": lambda env: (site(env) / "toy" / "__init__.py").unlink(),
    "dist-info gone": lambda env: (site(env) / "toy-1.0.dist-info").rename(env / "elsewhere"),
    "half installed": lambda env: (site(env) / "toy-1.0.dist-info" / "RECORD").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_environment_is_not_used(tmp_path: Path, damage: str) -> None:
    env = make(tmp_path)
    DAMAGES[damage](env)
    assert cache.look(env) is None


def test_environment_without_the_engine_is_not_marked(tmp_path: Path) -> None:
    env = make(tmp_path, marked=False)
    lacking = cache.mark(env, "toy", Needs("toy", ("toy", "toy.more"), ()), (), PYTHON)
    assert lacking == "toy was installed without toy.more"
    assert not (env / cache.MARKER).exists()


def test_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    first = cache.lock(path)
    assert first is not None and cache.lock(path) is None
    cache.unlock(first, path)
    assert not path.exists()
    again = cache.lock(path)
    assert again is not None
    cache.unlock(again, path)


def test_deleted_lock_file_excludes_nobody(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    stale = cache.lock(path)
    assert stale is not None
    path.unlink()
    fresh = cache.lock(path)
    assert fresh is not None
    os.close(stale)
    cache.unlock(fresh, path)


def test_sweep_removes_incomplete_environments_only(tmp_path: Path) -> None:
    whole, half, busy = make(tmp_path, "a-1"), make(tmp_path, "b-1", marked=False), make(tmp_path, "c-1", marked=False)
    (tmp_path / "d-1.lock").touch()
    held = cache.lock(tmp_path / "c-1.lock")
    assert held is not None
    cache.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-1", "c-1", "c-1.lock"]
    assert whole.is_dir() and busy.is_dir() and not half.exists()
    cache.unlock(held, tmp_path / "c-1.lock")


def test_list_and_remove(tmp_path: Path) -> None:
    environments = Environments(tmp_path)
    assert environments.list() == ()
    for key in ("toy-1", "toy-2"):
        make(tmp_path / "envs", key)
    assert [info.key for info in environments.list()] == ["toy-1", "toy-2"]
    assert [info.key for info in environments.remove("toy-1")] == ["toy-1"]
    assert [info.key for info in environments.remove("toy")] == ["toy-2"]
    assert list((tmp_path / "envs").iterdir()) == []


def test_missing_or_locked_environment_cannot_be_removed(tmp_path: Path) -> None:
    environments = Environments(tmp_path)
    make(tmp_path / "envs")
    held = cache.lock(tmp_path / "envs" / "toy-1.lock")
    assert held is not None
    with pytest.raises(OarsError, match="being built"):
        environments.remove("toy")
    cache.unlock(held, tmp_path / "envs" / "toy-1.lock")
    with pytest.raises(NotFound):
        environments.remove("ray")
    with pytest.raises(UsageError):
        environments.remove("")
    assert len(environments.list()) == 1


def test_running_python_is_used_if_it_has_the_engine(tmp_path: Path) -> None:
    messages: list[str] = []
    env = Environments(tmp_path / "none").prepare("t", Needs("pytest", ("pytest",), ()), [], messages.append)
    assert (str(env.python), env.version, env.key, env.cached) == (sys.executable, pytest.__version__, "", True)
    assert messages == [] and not (tmp_path / "none").exists()


def test_other_version_in_the_running_python_is_reported(tmp_path: Path) -> None:
    """The cluster gets an environment with the supported version; here it cannot be built."""
    messages: list[str] = []
    wanted = Needs("pytest", ("pytest",), ("pytest==1.0",))
    with pytest.raises(EnvironmentFailed):
        Environments(tmp_path, "/bin/false").prepare("toy", wanted, [], messages.append)
    assert messages[0] == f"this Python has pytest {pytest.__version__} instead of 1.0: toy gets its own environment"


def test_package_that_overrides_a_pin_is_reported(tmp_path: Path) -> None:
    messages: list[str] = []
    wanted = Needs("pytest", ("pytest",), (f"pytest=={pytest.__version__}",))
    with pytest.raises(EnvironmentFailed):
        Environments(tmp_path, "/bin/false").prepare("toy", wanted, ["pytest==7.0"], messages.append)
    assert messages[0].startswith(f"warning: `packages` selects pytest 7.0 instead of {pytest.__version__}")


def test_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Denied, match="cannot be written"):
        Environments(tmp_path / "file").prepare("toy", NEEDS, [], lambda line: None)


def test_key_depends_on_the_content_only() -> None:
    base = _Recipe("toy", NEEDS, ("a",), "3.11", "/usr/bin/python3")
    same = _Recipe("toy", NEEDS, ("a",), "3.11", "/elsewhere/python3")
    others = [
        _Recipe("toy", Needs("toy", ("toy",), ("toy==2",)), ("a",), "3.11", ""),
        _Recipe("toy", NEEDS, ("b",), "3.11", ""),
        _Recipe("toy", NEEDS, ("a",), "3.12", ""),
    ]
    assert base.key == same.key and base.key.startswith("toy-")
    assert len({base.key, *(other.key for other in others)}) == 4


def test_marker_is_json(tmp_path: Path) -> None:
    assert json.loads((make(tmp_path) / cache.MARKER).read_text())["distributions"] == ["toy-1.0.dist-info"]


def test_file_that_cannot_be_removed_does_not_block_the_name(tmp_path: Path) -> None:
    """uv refuses to create an environment in a directory that is not empty."""
    env = make(tmp_path)
    with undeletable(env / "busy"):
        cache.erase(env)
        assert not env.exists() and cache.look(env) is None
        cache.sweep(tmp_path)
        assert make(tmp_path).exists()
    cache.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["toy-1"]
