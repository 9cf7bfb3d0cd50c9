"""Build real environments with a one-file package; failures while building."""

from __future__ import annotations

import contextlib
import os
import shlex
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
from oars.compat.mars import install
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
    """A fake uv that creates an incomplete environment, writes its pid, and then hangs."""
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
        assert time.monotonic() < until, "timed out waiting for a condition"
        time.sleep(0.02)


def alive(pid_file: Path) -> bool:
    """Wait until the pid is in the file: an empty file exists a moment earlier."""
    try:
        pid = pid_file.read_text().strip()
        state = Path(f"/proc/{pid}/stat").read_text() if pid else ""
    except OSError:
        return False
    return bool(state) and state.rpartition(")")[2].split()[0] != "Z"


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "envs").iterdir())


def test_environment_is_built_once(
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


def test_environment_has_the_supported_version_although_this_python_has_another(prepare: Prepare) -> None:
    pinned = Needs("iniconfig", ("iniconfig",), ("iniconfig==2.0.0",))
    assert version("iniconfig") != "2.0.0"
    env = prepare(pinned)
    assert env.version == "2.0.0" and env.key


def test_packages_can_pin_another_version_of_the_engine(prepare: Prepare, said: list[str]) -> None:
    env = prepare(Needs("natsort", ("natsort",), ("natsort==8.4.0",)), "natsort==8.3.1")
    assert env.version == "8.3.1" and said[0].startswith("warning: `packages` selects natsort 8.3.1 instead of 8.4.0")


def test_environment_with_packages_has_the_engine_of_the_running_python(prepare: Prepare) -> None:
    env = prepare(Needs("iniconfig", ("iniconfig",), ("iniconfig>=1",)), "natsort")
    assert env.version == version("iniconfig") and env.key
    info = cache.look(env.python.parents[1])
    assert info is not None and info.packages == ("natsort",)


def test_package_without_build_isolation_is_built_after_its_dependencies(prepare: Prepare, tmp_path: Path) -> None:
    source = tmp_path / "tiny"
    source.mkdir()
    (source / "tiny.py").write_text("")
    (source / "setup.py").write_text(
        "import natsort\nfrom setuptools import setup\nsetup(name='tiny', py_modules=['tiny'])\n"
    )
    tools, tiny = ("setuptools<80", "wheel", "natsort"), f"tiny @ {source.as_uri()}"
    with pytest.raises(EnvironmentFailed, match="could not be built"):
        prepare(Needs("tiny", ("tiny",), (tiny,)))
    assert prepare(Needs("tiny", ("tiny",), (tiny,), build_requirements=tools)).version == "0.0.0"


def test_package_beside_one_without_build_isolation_has_its_own_build_tools(prepare: Prepare, tmp_path: Path) -> None:
    tiny, other = tmp_path / "tiny", tmp_path / "other"
    for folder in (tiny, other):
        folder.mkdir()
        (folder / f"{folder.name}.py").write_text(f'"""{folder.name}"""\n')
    (tiny / "setup.py").write_text("from setuptools import setup\nsetup(name='tiny', py_modules=['tiny'])\n")
    (other / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["flit_core"]\nbuild-backend = "flit_core.buildapi"\n'
        '[project]\nname = "other"\nversion = "1"\ndescription = "other"\n'
    )
    needs = Needs("tiny", ("tiny",), (f"tiny @ {tiny.as_uri()}",), build_requirements=("setuptools<80", "wheel"))
    env = prepare(needs, str(other))
    subprocess.run([env.python, "-c", "import tiny, other"], timeout=30, check=True)


@pytest.mark.timeout(900)  # pymars is compiled, unless uv has its wheel
def test_command_of_the_hint_makes_a_python_with_pymars_and_oars(tmp_path: Path) -> None:
    oars, *words = shlex.split(install.pymars_command())
    built = subprocess.run(
        [Path(sys.executable).with_name(oars), *words, "--timeout", "14m"],
        env={**os.environ, "OARS_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    source = "import mars.tensor; from oars.compat.mars.cluster import find_distribution as find; print(find(None))"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    used = subprocess.run(
        [built.stdout.strip(), "-c", source], env=env, cwd="/", stdout=subprocess.PIPE, text=True, check=True
    )
    assert used.stdout == "pymars\n"


def test_damaged_environment_is_rebuilt(prepare: Prepare) -> None:
    env = prepare()
    assert not env.cached, "the running Python must not be damaged: the package must be one that it lacks"
    next(env.python.parents[1].rglob("natsort/__init__.py")).unlink()
    assert not prepare().cached
    subprocess.run([env.python, "-c", "import natsort"], timeout=30, check=True)


def test_concurrent_processes_build_once(tmp_path: Path) -> None:
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
        (("natsort==8.3.1", "natsort==8.2.0"), "cannot be installed together"),
        (("bad name!!",), "'bad name!!' is not a package requirement"),
    ],
)
def test_unsatisfiable_packages_are_reported(
    prepare: Prepare, tmp_path: Path, packages: tuple[str, ...], words: str
) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        prepare(NATSORT, *packages)
    assert words in caught.value.message and caught.value.hint and caught.value.details
    assert left(tmp_path) == []


def test_missing_network_is_reported(prepare: Prepare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "UV_INDEX_URL": "http://127.0.0.1:9/simple",
        "UV_HTTP_RETRIES": "0",
        "UV_NO_CACHE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EnvironmentFailed, match="package index cannot be reached"):
        prepare()
    assert left(tmp_path) == []


def test_missing_engine_module_is_reported(prepare: Prepare, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="installed without no_such_module"):
        prepare(Needs("natsort", ("no_such_module",), ("natsort==8.4.0",)))
    assert left(tmp_path) == []


def test_missing_python_version_is_reported(prepare: Prepare) -> None:
    with pytest.raises(EnvironmentFailed, match="needs Python <3"):
        prepare(Needs("natsort", ("natsort",), ("natsort",), python="<3"))


def test_other_python_on_the_machine_is_found(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 99, 0, "final", 0))
    running = f"=={sys.version.split('.')[0]}.{sys.version.split('.')[1]}.*"
    env = prepare(Needs("natsort", ("natsort",), ("natsort==8.4.0",), python=running))
    assert env.version == "8.4.0"
    monkeypatch.setattr(program, "run", None)  # the second time uv is not asked
    assert prepare(Needs("natsort", ("natsort",), ("natsort==8.4.0",), python=running)).cached


def test_build_times_out(
    prepare: Prepare, slow_uv: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "QUIET_SECONDS", 0.3)
    with pytest.raises(TimedOut, match=r"Timed out after \d+ s building the toy environment: it was still resolving"):
        prepare(uv=str(slow_uv), timeout=10.0)
    assert not alive(tmp_path / "pid") and left(tmp_path) == []
    assert any("downloading all of it" in line for line in said)
    assert any("still resolving" in line for line in said)


def test_waiting_for_another_build_times_out(prepare: Prepare, tmp_path: Path, said: list[str]) -> None:
    env = prepare()
    cache.erase(env.python.parents[1])
    path = tmp_path / "envs" / f"{env.key}.lock"
    held = cache.lock(path)
    assert held is not None
    with pytest.raises(TimedOut, match="waiting for another Oars process"):
        prepare(timeout=5.0)
    cache.unlock(held, path)
    assert any(line.startswith("waiting for another Oars process that builds the toy") for line in said)


def test_build_can_be_cancelled_from_another_thread(slow_uv: Path, tmp_path: Path) -> None:
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
def test_interrupted_build_leaves_nothing_behind(
    prepare: Prepare, slow_uv: Path, tmp_path: Path, number: signal.Signals
) -> None:
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
