"""The small parts of the lab, alone."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from lab.errors import Timeout
from lab.images import archive, catalogue, layers
from lab.wait import until

from lab import cache, network, process


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
        thread.join(10)
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
        assert ours.wait(10) == -signal.SIGTERM
    assert not known.alive


def test_a_zombie_is_not_alive() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    known = process.of(child)
    until("it has ended", lambda: not known.alive, 5)
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
