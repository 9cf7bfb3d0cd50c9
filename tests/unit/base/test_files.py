"""Private files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from oars.base.files import write_private


@pytest.fixture(autouse=True)
def loose_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_private_file_is_in_private_directories(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "token"
    write_private(path, b"one")
    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b"), mode(path)] == [0o700, 0o700, 0o600]


def test_file_is_replaced_atomically_and_made_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"old")
    path.chmod(0o644)
    with path.open("rb") as reader:
        write_private(path, b"new")
        assert reader.read() == b"old"
    assert (path.read_bytes(), mode(path), os.listdir(tmp_path)) == (b"new", 0o600, ["token"])


def test_symbolic_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"safe")
    (tmp_path / "token").symlink_to(tmp_path / "victim")
    write_private(tmp_path / "token", b"secret")
    assert (tmp_path / "victim").read_bytes() == b"safe"


@pytest.mark.parametrize("durable", [True, False])
def test_durable_file_is_stored_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    """A power cut after the call leaves the new content, one during the call the old or the new."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        steps.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_private(tmp_path / "token", b"x", durable=durable)
    assert steps == (["file", "name", "directory"] if durable else ["name"])


def test_failure_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "token").mkdir()
    with pytest.raises(IsADirectoryError):
        write_private(tmp_path / "token", b"x")
    assert os.listdir(tmp_path) == ["token"]
