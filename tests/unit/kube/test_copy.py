"""Copying out of a container that is hostile: its tar stream must never write outside the target."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.unit.kube.server import client_of

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.copy import copy_from
from oars.kube.exec import NoSuchCommand

SUCCESS = {"status": "Success"}


@asynccontextmanager
async def pod(output: bytes | None, status: Mapping[str, str]) -> AsyncIterator[Client]:
    """A pod in which a command writes `output` to stdout, or really runs if that is None, and ends with `status`."""

    async def serve(request: web.Request) -> web.StreamResponse:
        stream = output
        if stream is None:
            command = request.query.getall("command")
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            stream, _ = await process.communicate()
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        for start in range(0, len(stream), 50_000):
            await socket.send_bytes(b"\x01" + stream[start : start + 50_000])
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()
        return socket

    async with client_of(serve) as client:
        yield client


def copy(stream: bytes | None, local: Path, remote: str = "/data/out", status: Mapping[str, str] = SUCCESS) -> None:
    """Copy `remote` from a pod whose tar writes `stream`."""

    async def body() -> None:
        async with pod(stream, status) as client:
            await asyncio.wait_for(copy_from(client, "n", "p", remote, local), 60)

    asyncio.run(body())


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, link, mode, 1_700_000_000
    return info


def directory(name: str, mode: int = 0o755) -> tarfile.TarInfo:
    return entry(name, tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str) -> tarfile.TarInfo:
    return entry(name, tarfile.SYMTYPE, target)


def hard_link(name: str, source: str) -> tarfile.TarInfo:
    return entry(name, tarfile.LNKTYPE, source)


def archive(*members: tarfile.TarInfo) -> bytes:
    """Return a tar stream. The content of each file is `evil`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as made:
        for member in members:
            member.size = 4 if member.isreg() else 0
            made.addfile(member, io.BytesIO(b"evil") if member.isreg() else None)
    return stream.getvalue()


def tree(root: Path) -> dict[str, str]:
    """Return the type or content of everything below `root`."""
    found = {}
    for path in sorted(root.rglob("*")):
        text = f"-> {os.readlink(path)}" if path.is_symlink() else "/" if path.is_dir() else path.read_text()
        found[str(path.relative_to(root))] = text
    return found


OUT = directory("out")
GOOD = entry("out/good")
# `$` is the directory that contains everything: the target and the files of the victim.
ATTACKS: dict[str, list[tarfile.TarInfo]] = {
    "absolute path": [OUT, entry("$/victim")],
    "sibling of the target": [OUT, entry("victim")],
    "parent": [OUT, entry("out/../victim")],
    "many parents": [OUT, entry("out/../../../../../../../../../../$/victim")],
    "parent as a directory": [OUT, directory("out/..", 0o777)],
    "parent hidden in the middle": [OUT, directory("out/a"), entry("out/a/../../../home/victim")],
    "absolute link, then a file through it": [OUT, symlink("out/a", "$"), entry("out/a/victim")],
    "relative link, then a file through it": [OUT, symlink("out/a", ".."), entry("out/a/victim")],
    "link to a file, then its content": [OUT, symlink("out/a", "../victim"), entry("out/a")],
    "link to an absolute file, then its content": [OUT, symlink("out/a", "$/victim"), entry("out/a")],
    "target is a link to a file": [symlink("out", "victim"), entry("out")],
    "target is a link to a directory": [symlink("out", "."), entry("out/victim")],
    "target is a link to the parent": [symlink("out", "../home"), entry("out/victim")],
    "chain of links": [
        OUT, directory("out/a"), symlink("out/a/b", "."), symlink("out/c", "a/b/../.."), entry("out/c/victim"),
    ],
    "long chain of links": [
        OUT, directory("out/" + "d" * 200), *[symlink(f"out/{n}", "d" * 200 + "/.." * (n + 1)) for n in range(9)],
        entry("out/3/victim"), entry("out/1/victim"),
    ],
    "directory replaced by a link": [OUT, directory("out/a"), symlink("out/a", ".."), entry("out/a/victim")],
    "link replaced by a directory": [OUT, symlink("out/a", ".."), directory("out/a", 0o777), entry("out/a/victim")],
    "hard link to an outside file, then its content": [OUT, hard_link("out/a", "victim"), entry("out/a")],
    "hard link to an absolute file, then its content": [OUT, hard_link("out/a", "$/victim"), entry("out/a")],
    "hard link through a link": [OUT, symlink("out/a", ".."), hard_link("out/b", "out/a/victim"), entry("out/b")],
    "hard link to a link": [OUT, symlink("out/a", "../victim"), hard_link("out/b", "out/a"), entry("out/b")],
    "hard link to the parent": [OUT, hard_link("out/b", "out/../victim"), entry("out/b")],
    "character device": [OUT, entry("out/device", tarfile.CHRTYPE)],
    "block device": [OUT, entry("out/device", tarfile.BLKTYPE)],
    "named pipe": [OUT, entry("out/pipe", tarfile.FIFOTYPE)],
    "name with a NUL": [OUT, entry("out/a\0b")],
    "name that is too long": [OUT, entry("out/" + "a" * 5000)],
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("into", ["directory", "new path"])
def test_hostile_archive_writes_only_below_the_target(tmp_path: Path, attack: str, into: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    victim = home / "victim"
    victim.write_text("untouched")
    before, modes = tree(tmp_path), (home.stat().st_mode, victim.stat().st_mode)
    members = []
    for member in [*ATTACKS[attack], GOOD]:
        name, link = (text.replace("$", str(home)) for text in (member.name, member.linkname))
        members.append(entry(name, member.type, link, member.mode))
    target = home if into == "directory" else home / "out"
    if attack.startswith("target is a link"):
        with pytest.raises(OarsError, match="out is a link to"):
            copy(archive(*members), target)
        assert tree(tmp_path) == before
        return
    copy(archive(*members), target)
    after = tree(tmp_path)
    assert {name: text for name, text in after.items() if not name.startswith("home/out")} == before
    assert (home.stat().st_mode, victim.stat().st_mode) == modes
    assert victim.stat().st_nlink == 1
    out = (home / "out").resolve(strict=True)
    for path in out.rglob("*"):
        assert path.resolve().is_relative_to(out), f"{path} points outside the target"
        assert stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
    assert after["home/out/good"] == "evil"


def test_existing_link_in_the_target_is_replaced_and_never_followed(tmp_path: Path) -> None:
    """The link may come from an earlier copy."""
    (tmp_path / "victim").write_text("untouched")
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/good").symlink_to(tmp_path / "victim")
    (tmp_path / "out/sub").symlink_to(tmp_path / "outside")
    copy(archive(OUT, GOOD, entry("out/sub/file")), tmp_path)
    assert tree(tmp_path / "outside") == {} and (tmp_path / "victim").read_text() == "untouched"
    assert not (tmp_path / "out/good").is_symlink() and (tmp_path / "out/good").read_text() == "evil"


def test_target_that_is_a_link_to_a_file_keeps_the_link(tmp_path: Path) -> None:
    """The user named it, so it is not part of the attack."""
    (tmp_path / "link").symlink_to(tmp_path / "file")
    copy(archive(entry("out")), tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "evil"


def test_special_file_as_target_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OarsError, match="a special file of that name exists"):
        copy(archive(entry("out")), tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_directory_is_not_copied_onto_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(OarsError, match=r"Cannot copy out to .*file: Not a directory"):
        copy(archive(OUT, GOOD), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"


def test_local_failure_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OarsError, match="Cannot write to") as failed:
        copy(archive(OUT, GOOD), tmp_path / "file/out")
    assert failed.value.hint


def test_invalid_archive_is_an_error(tmp_path: Path) -> None:
    whole = archive(OUT, entry("out/a"), GOOD)
    for stream in (b"", b"no archive" * 200, whole[:1200]):
        with pytest.raises(OarsError, match="invalid archive"):
            copy(stream, tmp_path)
    missing = {"status": "Failure", "message": 'exec: "tar": executable file not found in $PATH'}
    with pytest.raises(NoSuchCommand, match="'tar' not found in pod p"):
        copy(b"", tmp_path, status=missing)


def test_modes_times_and_links_are_kept(tmp_path: Path) -> None:
    members = [
        directory("out", 0o755), directory("out/sub", 0o555), entry("out/sub/run.sh", mode=0o755),
        symlink("out/link", "sub/run.sh"), symlink("out/sub/up", "../good"),
        hard_link("out/hard", "out/sub/run.sh"), GOOD,
    ]  # fmt: skip
    for _ in range(2):  # the second copy replaces the files of the first one
        copy(archive(*members), tmp_path)
        os.chmod(tmp_path / "out/sub", 0o755)
    out = tmp_path / "out"
    expected = {"good": "evil", "hard": "evil", "link": "-> sub/run.sh", "sub": "/"}
    assert tree(out) == {**expected, "sub/run.sh": "evil", "sub/up": "-> ../good"}
    assert (out / "sub/run.sh").stat().st_mode & 0o7777 == 0o755
    assert (out / "good").stat().st_mtime == 1_700_000_000
    assert (out / "hard").samefile(out / "sub/run.sh")


def test_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    copy(archive(directory(".", 0o777), entry("./a")), tmp_path, "/data/.")
    assert tmp_path.stat().st_mode & 0o777 == 0o700 and (tmp_path / "a").read_text() == "evil"


@pytest.mark.parametrize(
    ("remote", "expected"),
    [("/out", ["out", "out/-a", "out/sub", "out/sub/b"]), ("/out/-a", ["-a"]), ("/out/sub/", ["sub", "sub/b"]),
     ("/out/.", ["-a", "sub", "sub/b"]), ("/out/sub/..", ["-a", "sub", "sub/b"])],
)  # fmt: skip
def test_archives_of_a_real_tar_are_extracted(tmp_path: Path, remote: str, expected: list[str]) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "out/sub").mkdir(parents=True)
    target.mkdir()
    (source / "out/-a").write_text("a")
    (source / "out/sub/b").write_text("b")
    copy(None, target, str(source) + remote)
    assert sorted(tree(target)) == expected
