"""The archive of a job's working directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from oars.base.errors import NotFound, UsageError
from oars.client.archive import list_files, pack, unpack


def write(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("ignore", "ignored"),
    [
        ("*.log", ["a.log", "src/b.log"]),
        ("/a.log", ["a.log"]),
        ("data/", ["data/x.csv", "data/deep/y.csv", "src/data/z.csv"]),
        ("/data", ["data/x.csv", "data/deep/y.csv"]),
        ("data/*.csv", ["data/x.csv"]),
        ("data/**/y.csv", ["data/deep/y.csv"]),
        ("**/z.csv", ["src/data/z.csv"]),
        ("*.csv\n!x.csv", ["data/deep/y.csv", "src/data/z.csv"]),
        ("?.log", ["a.log", "src/b.log"]),
        ("[ab].log", ["a.log", "src/b.log"]),
        ("[!a].log", ["src/b.log"]),
        ("# comment\n\n  \n\\#hash", ["#hash"]),
        ("src/*\n!src/b.log", ["src/main.py", "src/data/z.csv"]),
    ],
)
@pytest.mark.parametrize("file", [".gitignore", ".oarsignore"])
def test_ignore_files_mean_what_git_says(tmp_path: Path, file: str, ignore: str, ignored: list[str]) -> None:
    names = ["a.log", "main.py", "src/b.log", "src/main.py", "data/x.csv", "data/deep/y.csv", "src/data/z.csv", "#hash"]
    write(tmp_path, *names)
    (tmp_path / file).write_text(ignore)
    found = set(list_files(tmp_path)) - {".gitignore"}
    assert found == set(names) - set(ignored)
    if file == ".gitignore":
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
        command = ["git", "-C", str(tmp_path), "ls-files", "-o", "--exclude-standard"]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
        assert found == set(filter(None, told)) - {".gitignore"}


def test_nested_ignore_file_applies_below_its_directory(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "sub/a.txt", "sub/b.txt")
    (tmp_path / "sub/.gitignore").write_text("/a.txt")
    assert set(list_files(tmp_path)) == {"a.txt", "sub/.gitignore", "sub/b.txt"}


def test_git_caches_and_virtual_environments_stay_here(tmp_path: Path) -> None:
    write(tmp_path, "a.py", ".git/config", "__pycache__/a.pyc", "venv/pyvenv.cfg", "venv/bin/python")
    assert list(list_files(tmp_path)) == ["a.py"]


def test_equal_files_make_an_equal_archive(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, "a.py", "sub/b.py")
    os.utime(tmp_path / "one/a.py", (1, 1))
    first, second = pack(tmp_path / "one"), pack(tmp_path / "two")
    assert first.hash == second.hash
    write(tmp_path / "two", "a.py", text="y")
    assert pack(tmp_path / "two").hash != first.hash


def test_unpacked_files_are_the_same(tmp_path: Path) -> None:
    write(tmp_path / "one", "a.py", "sub/b.sh")
    (tmp_path / "one/sub/b.sh").chmod(0o755)
    (tmp_path / "one/link").symlink_to("a.py")
    archive = pack(tmp_path / "one")
    unpack(archive.data, tmp_path / "two")
    assert (tmp_path / "two/a.py").read_text() == "x"
    assert os.access(tmp_path / "two/sub/b.sh", os.X_OK)
    assert os.readlink(tmp_path / "two/link") == "a.py"
    assert (archive.files, archive.size) == (3, 2 + len("a.py"))


def test_too_many_bytes_name_the_three_biggest_entries(tmp_path: Path) -> None:
    for number, name in enumerate(("small.bin", "data/one.bin", "model.bin", "data/two.bin", "other.bin")):
        write(tmp_path, name, text="x" * 1000 * (number + 1))
    with pytest.raises(UsageError) as error:
        pack(tmp_path, limit=5000)
    assert "data/ (5.9Ki), other.bin (4.9Ki), model.bin (2.9Ki)" in error.value.message
    assert ".oarsignore" in error.value.hint


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        pack(tmp_path / "missing")
