"""Private files."""

from __future__ import annotations

import os
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


def test_failure_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "token").mkdir()
    with pytest.raises(IsADirectoryError):
        write_private(tmp_path / "token", b"x")
    assert os.listdir(tmp_path) == ["token"]
