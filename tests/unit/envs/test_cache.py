"""Environments on disk: whole or not, locked or not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oars.base.errors import Denied, NotFound, OarsError, UsageError
from oars.envs import Environments, cache
from oars.envs.build import _Order
from oars.model import Needs

NEEDS = Needs("toy", ("toy",), ("toy==1",))
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def make(envs: Path, key: str = "toy-1", *, marked: bool = True) -> Path:
    """What uv would leave, without uv."""
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


def test_a_whole_one_is_seen_with_its_facts(tmp_path: Path) -> None:
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
def test_damage_is_seen(tmp_path: Path, damage: str) -> None:
    env = make(tmp_path)
    DAMAGES[damage](env)
    assert cache.look(env) is None


def test_one_without_the_engine_is_not_marked(tmp_path: Path) -> None:
    env = make(tmp_path, marked=False)
    lacking = cache.mark(env, "toy", Needs("toy", ("toy", "toy.more"), ()), (), PYTHON)
    assert lacking == "toy was installed without toy.more"
    assert not (env / cache.MARKER).exists()


def test_a_lock_is_had_by_one(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    first = cache.lock(path)
    assert first is not None and cache.lock(path) is None
    cache.unlock(first, path)
    assert not path.exists()
    again = cache.lock(path)
    assert again is not None
    cache.unlock(again, path)


def test_a_lock_file_that_was_taken_away_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    stale = cache.lock(path)
    assert stale is not None
    path.unlink()
    fresh = cache.lock(path)
    assert fresh is not None
    os.close(stale)
    cache.unlock(fresh, path)


def test_sweeping_takes_half_built_ones_and_leaves_the_rest(tmp_path: Path) -> None:
    whole, half, busy = make(tmp_path, "a-1"), make(tmp_path, "b-1", marked=False), make(tmp_path, "c-1", marked=False)
    (tmp_path / "d-1.lock").touch()
    held = cache.lock(tmp_path / "c-1.lock")
    assert held is not None
    cache.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-1", "c-1", "c-1.lock"]
    assert whole.is_dir() and busy.is_dir() and not half.exists()
    cache.unlock(held, tmp_path / "c-1.lock")


def test_listing_and_removing(tmp_path: Path) -> None:
    environments = Environments(tmp_path)
    assert environments.list() == ()
    for key in ("toy-1", "toy-2"):
        make(tmp_path / "envs", key)
    assert [info.key for info in environments.list()] == ["toy-1", "toy-2"]
    assert [info.key for info in environments.remove("toy-1")] == ["toy-1"]
    assert [info.key for info in environments.remove("toy")] == ["toy-2"]
    assert list((tmp_path / "envs").iterdir()) == []


def test_removing_what_is_not_there_or_in_work(tmp_path: Path) -> None:
    environments = Environments(tmp_path)
    make(tmp_path / "envs")
    held = cache.lock(tmp_path / "envs" / "toy-1.lock")
    assert held is not None
    with pytest.raises(OarsError, match="being built right now"):
        environments.remove("toy")
    cache.unlock(held, tmp_path / "envs" / "toy-1.lock")
    with pytest.raises(NotFound):
        environments.remove("ray")
    with pytest.raises(UsageError):
        environments.remove("")
    assert len(environments.list()) == 1


def test_the_running_python_is_used_without_a_trace(tmp_path: Path) -> None:
    said: list[str] = []
    env = Environments(tmp_path / "none").prepare("t", Needs("pytest", ("pytest",), ()), [], said.append)
    assert (str(env.python), env.version, env.key, env.cached) == (sys.executable, pytest.__version__, "", True)
    assert said == [] and not (tmp_path / "none").exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Denied, match="cannot be written"):
        Environments(tmp_path / "file").prepare("toy", NEEDS, [], lambda line: None)


def test_a_key_depends_on_what_matters_alone() -> None:
    base = _Order("toy", NEEDS, ("a",), "3.11", "/usr/bin/python3")
    same = _Order("toy", NEEDS, ("a",), "3.11", "/elsewhere/python3")
    others = [
        _Order("toy", Needs("toy", ("toy",), ("toy==2",)), ("a",), "3.11", ""),
        _Order("toy", NEEDS, ("b",), "3.11", ""),
        _Order("toy", NEEDS, ("a",), "3.12", ""),
    ]
    assert base.key == same.key and base.key.startswith("toy-")
    assert len({base.key, *(other.key for other in others)}) == 4


def test_markers_are_json(tmp_path: Path) -> None:
    assert json.loads((make(tmp_path) / cache.MARKER).read_text())["distributions"] == ["toy-1.0.dist-info"]
