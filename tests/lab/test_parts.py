"""Unit tests of the lab's modules."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.cluster import Lab
from lab.errors import LabError, Timeout, Unavailable
from lab.images import archive, catalogue, layers
from lab.wait import until

from lab import apt, cache, files, harm, needs, network, process, settings


def test_wait_times_out() -> None:
    with pytest.raises(Timeout, match="waiting until it rains"):
        until("it rains", lambda: False, 0.05, 0.01)


def test_concurrent_callers_build_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "thing").touch()

    threads = [threading.Thread(target=cache.kept, args=(tmp_path, "thing", "key", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 1
    assert (tmp_path / "thing/key/thing").exists()


def test_incomplete_build_is_repeated(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.kept(tmp_path, "thing", "key", fail)
    kept = cache.kept(tmp_path, "thing", "key", lambda folder: (folder / "whole").touch())
    assert [path.name for path in kept.iterdir()] == ["whole"]


def test_signal_is_not_sent_to_a_process_with_a_reused_pid(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as ours:
        known = process.of(ours.pid)
        stranger = process.Process(ours.pid, "another-boot:1")
        stranger.signal(signal.SIGKILL)
        assert ours.poll() is None, "the pid is the same but the start time differs: it must not be killed"
        known.save(tmp_path / "pid")
        loaded = process.saved(tmp_path / "pid")
        assert loaded == known
        known.signal(signal.SIGTERM)
        assert ours.wait(60) == -signal.SIGTERM
    assert not known.alive


def test_process_that_ignores_sigterm_is_killed() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as ours:
        assert ours.stdout
        ours.stdout.readline()
        process.of(ours.pid).stop(0.2)
        assert ours.wait(60) == -signal.SIGKILL


def test_parent_is_older_than_its_child() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        known, we = process.of(child.pid), process.of(os.getpid())
        assert we.older_than(known) and not known.older_than(we)
        known.kill()


def test_file_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "network.json"

    def power_cut(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Path, "rename", power_cut)
        files.write_whole(target, "text")
    assert not target.exists()
    files.write_whole(target, "text")
    assert target.read_text() == "text"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo go version go1.24.0 linux/amd64", ""),
        ("echo go version go1.26.8 linux/amd64", ""),
        ("echo go version go2.0 linux/amd64", ""),
        ("echo go version devel +abc linux/amd64", ""),
        ("echo go version go1.19.8 linux/amd64", "install Go 1.24 or later; 1.19 is installed."),
        ("echo no such toolchain >&2; exit 1", "install Go 1.24 or later; the installed one does not work: go version"),
    ],
)
def test_go_version_is_checked(script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "go").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (found,) = [need for need in needs.needs(built=False) if need.name == "Go"]
    assert found.met == (not words)
    assert words in found.remedy


def test_lab_is_unavailable_if_packages_cannot_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho E: no network >&2; exit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(needs, "PROGRAMS", {"unheard-of": "package-of-it"})
    with pytest.raises(Unavailable, match=r"Debian packages package-of-it.*failed.*E: no network"):
        needs.install(True, lambda _: None)


@pytest.mark.parametrize(("seconds", "installed"), [(60, True), (0, False)])
def test_installation_waits_for_another_apt_get(
    seconds: float, installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the package lists, for which apt-get has no timeout, is held twice."""
    (tmp_path / "apt-get").write_text(
        f"""#!/bin/sh
        echo "$*" >> {tmp_path}/calls
        case "$*" in *update*)
            if [ $(grep -c update {tmp_path}/calls) -le 2 ]; then
                echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)" >&2; exit 100
            fi
        esac
        """
    )
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if installed:
        apt.install(["hello"], seconds)
    else:
        with pytest.raises(LabError, match="Could not get lock"):
            apt.install(["hello"], seconds)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[-1] for call in calls] == (["update"] * 3 + ["hello"] if installed else ["update"])


@pytest.fixture
def process_in_own_network() -> Iterator[int]:
    with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as child:
        ours = os.readlink("/proc/self/ns/net")
        until("it has its own network namespace", lambda: os.readlink(f"/proc/{child.pid}/ns/net") != ours)
        yield child.pid
        child.kill()


def test_reading_cgroups_is_repeated_if_they_change(
    process_in_own_network: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pod7").mkdir()
    (tmp_path / "pod7/cgroup.procs").write_text(f"{os.getpid()}\n{process_in_own_network}\n")
    failures: list[OSError] = []

    def found(_: str) -> list[Path]:
        if failures:
            raise failures.pop()
        return [tmp_path]

    monkeypatch.setattr("lab.cgroups.found", found)
    lab = Lab(settings.load(str(tmp_path / "lab")))
    failures += [FileNotFoundError(), OSError()]
    assert harm.process_of(lab, "7") == process_in_own_network
    with pytest.raises(LabError, match="Pod 8 has no process"):
        harm.process_of(lab, "8")
    failures += [FileNotFoundError()] * 3
    with pytest.raises(LabError, match="changed during each of three attempts"):
        harm.process_of(lab, "7")


def test_zombie_is_not_alive() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    known = process.of(child)
    until("it has exited", lambda: not known.alive, 60)
    os.waitpid(child, 0)


def test_address_range_is_stable_and_differs_between_labs() -> None:
    first = network.choose("first")
    assert first == network.choose("first"), "the same lab has the same range"
    assert len({network.choose(f"lab-{number}").number for number in range(20)}) > 10


def test_digest_depends_on_each_part() -> None:
    assert cache.digest([b"a", b"bc"]) == cache.digest([b"a", b"bc"])
    assert cache.digest([b"a", b"bc"]) != cache.digest([b"ab", b"c"])


def test_every_image_has_a_package_list() -> None:
    for name in catalogue.IMAGES:
        assert (layers.FOLDER / (f"{name}.packages" if name == "base" else f"{name}.txt")).exists()


def test_image_archives_are_reproducible(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"content")
    for name in ("a", "b"):
        archive.write(tmp_path / name, "oars.lab/x:1", [layer], archive.Runtime())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
