"""The small parts of the lab, alone."""

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

from lab import cache, files, harm, needs, network, process, settings


def test_a_wait_has_a_deadline() -> None:
    with pytest.raises(Timeout, match="rain: not so after"):
        until("rain", lambda: False, 0.05, 0.01)


def test_two_makers_at_once_make_it_once(tmp_path: Path) -> None:
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


def test_a_half_made_thing_is_made_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.kept(tmp_path, "thing", "key", fail)
    kept = cache.kept(tmp_path, "thing", "key", lambda folder: (folder / "whole").touch())
    assert [path.name for path in kept.iterdir()] == ["whole"]


def test_only_the_very_process_is_ended(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as ours:
        known = process.of(ours.pid)
        stranger = process.Process(ours.pid, "another-boot:1")
        stranger.signal(signal.SIGKILL)
        assert ours.poll() is None, "the pid fits but the birth does not: it must live"
        known.save(tmp_path / "pid")
        loaded = process.saved(tmp_path / "pid")
        assert loaded == known
        known.signal(signal.SIGTERM)
        assert ours.wait(60) == -signal.SIGTERM
    assert not known.alive


def test_what_does_not_stop_is_killed() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as ours:
        assert ours.stdout
        ours.stdout.readline()
        process.of(ours.pid).stop(0.2)
        assert ours.wait(60) == -signal.SIGKILL


def test_of_two_processes_one_is_older() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        known, we = process.of(child.pid), process.of(os.getpid())
        assert we.older_than(known) and not known.older_than(we)
        known.kill()


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("echo go version go1.19.8 linux/amd64", "install Go 1.24 or later; the one here is 1.19."),
        ("echo no such toolchain >&2; exit 1", "install Go 1.24 or later; the one here does not work: go version"),
    ],
)
def test_a_go_that_is_too_old_is_told_as_such(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "go").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (found,) = [need for need in needs.needs(built=False) if need.name == "Go"]
    assert found.met == (not words)
    assert words in found.remedy


def test_packages_that_cannot_be_installed_make_the_lab_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho E: no network >&2; exit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(needs, "PROGRAMS", {"unheard-of": "package-of-it"})
    with pytest.raises(Unavailable, match=r"needs package-of-it of Debian.*E: no network"):
        needs.install(True, lambda _: None)


@pytest.fixture
def in_a_network_of_its_own() -> Iterator[int]:
    with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as child:
        ours = os.readlink("/proc/self/ns/net")
        until("it is apart", lambda: os.readlink(f"/proc/{child.pid}/ns/net") != ours)
        yield child.pid
        child.kill()


def test_cgroups_that_go_while_one_looks_are_looked_for_again(
    in_a_network_of_its_own: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pod7").mkdir()
    (tmp_path / "pod7/cgroup.procs").write_text(f"{os.getpid()}\n{in_a_network_of_its_own}\n")
    failures: list[OSError] = []

    def found(_: str) -> list[Path]:
        if failures:
            raise failures.pop()
        return [tmp_path]

    monkeypatch.setattr("lab.cgroups.found", found)
    lab = Lab(settings.load(str(tmp_path / "lab")))
    failures += [FileNotFoundError(), OSError()]
    assert harm.process_of(lab, "7") == in_a_network_of_its_own
    with pytest.raises(LabError, match="Pod 8 has no process"):
        harm.process_of(lab, "8")
    failures += [FileNotFoundError()] * 3
    with pytest.raises(LabError, match="changed each time"):
        harm.process_of(lab, "7")


def test_a_zombie_is_not_alive() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    known = process.of(child)
    until("it has ended", lambda: not known.alive, 60)
    os.waitpid(child, 0)


def test_ranges_differ_and_avoid_what_is_taken() -> None:
    first = network.choose("first")
    assert first == network.choose("first"), "the same lab finds the same range again"
    assert len({network.choose(f"lab-{number}").number for number in range(20)}) > 10


def test_content_decides_the_name() -> None:
    assert cache.digest([b"a", b"bc"]) == cache.digest([b"a", b"bc"])
    assert cache.digest([b"a", b"bc"]) != cache.digest([b"ab", b"c"])


def test_every_image_has_a_recipe() -> None:
    for name in catalogue.IMAGES:
        assert (layers.FOLDER / (f"{name}.packages" if name == "base" else f"{name}.txt")).exists()


def test_an_image_is_the_same_twice(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"content")
    for name in ("a", "b"):
        archive.write(tmp_path / name, "oars.lab/x:1", [layer], archive.Runtime())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
