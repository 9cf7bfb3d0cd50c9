"""Environments built for real, with a package of one file; and what happens when building goes wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from oars.base.errors import EnvironmentFailed, Interrupted, OarsError, TimedOut
from oars.envs import Environments, PythonEnv, cache, program
from oars.model import Needs

pytestmark = pytest.mark.live

NATSORT = Needs("natsort", ("natsort",), ("natsort==8.4.0",))
LIMIT = 60.0
Prepare = Callable[..., PythonEnv]


CHILD = """
import sys
from pathlib import Path
from oars.envs import Environments
from oars.model import Needs
environments = Environments(Path(sys.argv[1]), *sys.argv[2:])
env = environments.prepare("toy", Needs("natsort", ("natsort",), ("natsort==8.4.0",)), [], print, 60.0)
print(f"cached={env.cached}")
"""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def prepare(tmp_path: Path, said: list[str]) -> Prepare:
    def call(needs: Needs = NATSORT, *packages: str, uv: str | None = None, timeout: float = LIMIT) -> PythonEnv:
        return Environments(tmp_path, uv).prepare("toy", needs, packages, said.append, timeout)

    return call


@pytest.fixture
def slow_uv(tmp_path: Path) -> Iterator[Path]:
    """A uv that makes half an environment, leaves its process id, and then takes for ever."""
    script = tmp_path / "slow-uv"
    script.write_text(
        f"""#!/bin/sh
case "$1" in
venv) for env; do :; done; mkdir -p "$env/bin" ;;
pip) echo "Downloading all of it (1.0GiB)"; echo $$ > {tmp_path}/pid; exec sleep 120 ;;
esac
"""
    )
    script.chmod(0o700)
    yield script
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def alive(pid_file: Path) -> bool:
    """Not before its number is written: the file is there a moment earlier, and /proc itself has a `stat`."""
    try:
        pid = pid_file.read_text().strip()
        state = Path(f"/proc/{pid}/stat").read_text() if pid else ""
    except OSError:
        return False
    return bool(state) and state.rpartition(")")[2].split()[0] != "Z"


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "envs").iterdir())


def test_built_once_then_used(
    prepare: Prepare, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = prepare()
    assert (env.version, env.cached) == ("8.4.0", False)
    show = [str(env.python), "-c", "import natsort; print(natsort.__version__)"]
    out = subprocess.run(show, capture_output=True, text=True, timeout=30, check=True)
    assert out.stdout == "8.4.0\n"
    assert any("resolved 1 package" in line for line in said) and said[-1].startswith("the toy environment: ready")
    monkeypatch.setattr(program, "run", None)  # the second time uv is not asked
    assert prepare() == PythonEnv(env.python, env.version, env.key, cached=True)
    assert left(tmp_path) == [env.key]
    assert list(env.python.parents[1].rglob("__pycache__/natsort*.pyc"))


def test_the_engine_of_the_running_python_keeps_its_version(prepare: Prepare) -> None:
    here = Needs("iniconfig", ("iniconfig",), ("iniconfig==2.0.0",))
    assert version("iniconfig") != "2.0.0"
    env = prepare(here, "natsort")
    assert env.version == version("iniconfig") and env.key
    info = cache.look(env.python.parents[1])
    assert info is not None and info.packages == ("natsort",)


def test_built_without_isolation_after_what_it_needs(prepare: Prepare, tmp_path: Path) -> None:
    source = tmp_path / "tiny"
    source.mkdir()
    (source / "tiny.py").write_text("")
    (source / "setup.py").write_text(
        "import natsort\nfrom setuptools import setup\nsetup(name='tiny', py_modules=['tiny'])\n"
    )
    tools = ("setuptools<80", "wheel", "natsort")
    with pytest.raises(EnvironmentFailed, match="could not be built"):
        prepare(Needs("tiny", ("tiny",), (str(source),)))
    assert prepare(Needs("tiny", ("tiny",), (str(source),), build_requirements=tools)).version == "0.0.0"


def test_a_damaged_one_is_built_again(prepare: Prepare) -> None:
    env = prepare()
    assert not env.cached, "the running Python must not be damaged: the package must be one that it lacks"
    next(env.python.parents[1].rglob("natsort/__init__.py")).unlink()
    assert not prepare().cached
    subprocess.run([env.python, "-c", "import natsort"], timeout=30, check=True)


def test_several_processes_build_it_once(tmp_path: Path) -> None:
    builders = [
        subprocess.Popen([sys.executable, "-c", CHILD, tmp_path], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    last_lines = [builder.communicate(timeout=LIMIT)[0].splitlines()[-1] for builder in builders]
    assert sorted(last_lines) == ["cached=False", "cached=True", "cached=True"]
    assert len(left(tmp_path)) == 1


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        (("oars-no-such-package-xyz",), "there is no package 'oars-no-such-package-xyz'"),
        (("colorama==99.0",), "no colorama==99.0"),
        (("natsort==8.3.1",), "cannot be installed together"),
        (("bad name!!",), "'bad name!!' is not a package requirement"),
    ],
)
def test_packages_that_cannot_be(prepare: Prepare, tmp_path: Path, packages: tuple[str, ...], words: str) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        prepare(NATSORT, *packages)
    assert words in caught.value.message and caught.value.hint and caught.value.details
    assert left(tmp_path) == []


def test_no_network(prepare: Prepare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "UV_INDEX_URL": "http://127.0.0.1:9/simple",
        "UV_HTTP_RETRIES": "0",
        "UV_NO_CACHE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentFailed, match="package index cannot be reached"):
        prepare()
    assert left(tmp_path) == []


def test_an_engine_that_does_not_bring_its_modules(prepare: Prepare, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="installed without no_such_module"):
        prepare(Needs("natsort", ("no_such_module",), ("natsort==8.4.0",)))
    assert left(tmp_path) == []


def test_no_python_that_fits(prepare: Prepare) -> None:
    with pytest.raises(EnvironmentFailed, match="needs Python <3"):
        prepare(Needs("natsort", ("natsort",), ("natsort",), python="<3"))


def test_another_python_on_the_machine_is_found(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 99, 0, "final", 0))
    running = f"=={sys.version.split('.')[0]}.{sys.version.split('.')[1]}"
    env = prepare(Needs("natsort", ("natsort",), ("natsort==8.4.0",), python=running))
    assert env.version == "8.4.0"
    monkeypatch.setattr(program, "run", None)  # the second time uv is not asked
    assert prepare(Needs("natsort", ("natsort",), ("natsort==8.4.0",), python=running)).cached


def test_a_deadline(
    prepare: Prepare, slow_uv: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "QUIET", 0.3)
    with pytest.raises(TimedOut, match=r"not ready after \d+ s; it was still resolving"):
        prepare(uv=str(slow_uv), timeout=10.0)
    assert not alive(tmp_path / "pid") and left(tmp_path) == []
    assert any("downloading all of it" in line for line in said)
    assert any("still resolving" in line for line in said)


def test_waiting_for_another_has_a_deadline(prepare: Prepare, tmp_path: Path, said: list[str]) -> None:
    env = prepare()
    cache.erase(env.python.parents[1])
    path = tmp_path / "envs" / f"{env.key}.lock"
    held = cache.lock(path)
    assert held is not None
    with pytest.raises(TimedOut, match="waiting for another oars process"):
        prepare(timeout=5.0)
    cache.unlock(held, path)
    assert any(line.startswith("waiting for another oars process that builds the toy") for line in said)


def test_called_off_from_another_thread(slow_uv: Path, tmp_path: Path) -> None:
    environments = Environments(tmp_path, str(slow_uv))
    caught: list[OarsError] = []

    def build() -> None:
        try:
            environments.prepare("toy", NATSORT, [], lambda line: None, LIMIT)
        except OarsError as error:
            caught.append(error)

    thread = threading.Thread(target=build)
    thread.start()
    wait_for(lambda: alive(tmp_path / "pid"))
    environments.cancel()
    thread.join(60)
    assert [type(error) for error in caught] == [Interrupted]
    assert not alive(tmp_path / "pid") and left(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_or_killed(prepare: Prepare, slow_uv: Path, tmp_path: Path, number: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, tmp_path, slow_uv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: alive(tmp_path / "pid"))
        child.send_signal(number)
        child.wait(60)
    finally:
        child.kill()
        child.wait(60)
    wait_for(lambda: not alive(tmp_path / "pid"))
    if number == signal.SIGINT:
        assert left(tmp_path) == []
    env = prepare()
    assert not env.cached and left(tmp_path) == [env.key]
