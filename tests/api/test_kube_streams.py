"""Commands, ports and files of real pods, through a real API server, kubelet and containerd."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from lab.kube import Kube, is_ready

from oars.base.errors import NotFound, OarsError, TimedOut
from oars.kube import forwarder
from oars.kube.client import Client
from oars.kube.config import load
from oars.kube.errors import ApiError
from oars.kube.kinds import POD, Object
from oars.kube.streams import (
    Forwarder,
    NoSuchCommand,
    PortClosed,
    copy_from,
    copy_to,
    execute,
    open_port,
    run,
)

MEGABYTE = 1 << 20
ECHO, LATE, SINK = 7000, 7001, 7003
# Echoes on one port at once, and on another two seconds after it was asked to on a third. A fourth writes down the hash
# of what it got when that has ended.
PROGRAM = f"""
import asyncio, hashlib, pathlib
async def echo(reader, writer):
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
async def later(reader, writer):
    writer.close()
    await asyncio.sleep(2)
    await asyncio.start_server(echo, "0.0.0.0", {LATE})
async def sink(reader, writer):
    content = hashlib.sha256()
    while data := await reader.read(1 << 16):
        content.update(data)
        await asyncio.sleep(0.001)
    pathlib.Path("/tmp/sum").write_text(content.hexdigest())
    writer.close()
async def main():
    await asyncio.start_server(sink, "0.0.0.0", {SINK})
    await asyncio.start_server(echo, "0.0.0.0", {ECHO})
    await asyncio.start_server(later, "0.0.0.0", {LATE + 1})
    print("serving", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""

pytestmark = pytest.mark.timeout(600)


def container(kube: Kube, command: list[str] | None = None, **more: Any) -> Object:
    probe = {"tcpSocket": {"port": ECHO}, "periodSeconds": 1}
    start = command or ["python3", "-c", PROGRAM]
    return {"name": "main", "image": kube.image("dask"), "command": start, "readinessProbe": probe, **more}


def pod_spec(*containers: Object) -> Object:
    return {"terminationGracePeriodSeconds": 0, "containers": list(containers)}


def start_pod(kube: Kube, *containers: Object) -> None:
    meta = {"name": "p", "labels": {"app": "p"}}
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec(*containers)})
    kube.await_ready("app=p", 1)


def start_deployment(kube: Kube) -> None:
    labels = {"app": "d"}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(container(kube))}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    kube.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec})
    kube.await_ready("app=d", 1)


def client(kube: Kube) -> Client:
    return Client(load({}, kubeconfig=kube.kubeconfig, namespace=kube.namespace))


def go(work: Coroutine[Any, Any, None], seconds: float = 400) -> None:
    """Run one test's work, never for ever."""
    asyncio.run(asyncio.wait_for(work, seconds))


def test_commands(kube: Kube) -> None:
    start_pod(kube, container(kube), {"name": "other", "image": kube.image("dask"), "command": ["sleep", "1000"]})

    async def body() -> None:
        async with client(kube) as api:
            where = (api, kube.namespace, "p")
            done = await run(*where, ["sh", "-c", "echo out; echo err >&2; exit 7"], container="main")
            assert (done.code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
            content = os.urandom(5 * MEGABYTE)
            done = await run(*where, ["cat"], input=content, container="other")
            assert (done.code, hashlib.sha256(done.stdout).digest()) == (0, hashlib.sha256(content).digest())
            done = await run(*where, ["true"], input=b"unread", container="main")
            assert done.code == 0, "a command need not read its input"
            with pytest.raises(TimedOut):
                await run(*where, ["sleep", "60"], timeout=1, container="main")
            with pytest.raises(NoSuchCommand, match="'frobnicate' in pod p"):
                await run(*where, ["frobnicate"], container="main")
            with pytest.raises(ApiError, match="not valid for pod"):
                await run(*where, ["true"], container="none")
            with pytest.raises(ApiError) as gone:
                await run(api, kube.namespace, "q", ["true"])
            assert gone.value.reason == "NotFound"
            assert [line async for line in api.logs("p", container="main")] == ["serving"]

    go(body())


def test_a_terminal_and_a_conversation(kube: Kube) -> None:
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api:
            async with await execute(api, kube.namespace, "p", ["sh"], stdin=True, tty=True) as session:
                await session.resize(97, 31)
                # The new size arrives beside the input, not in order with it.
                await session.write(b'until [ "$(stty size)" = "31 97" ]; do sleep 0.1; done; echo re""sized; exit 4\n')
                # The keys come back too, a prompt may stand before the answer: only the answer has the whole word.
                assert b"resized\r\n" in await asyncio.wait_for(session.stdout.read(), 60)
                assert await session.wait() == 4
            async with await execute(api, kube.namespace, "p", ["cat"], stdin=True) as session:
                for word in (b"one\n", b"two\n"):
                    await session.write(word)
                    assert await session.stdout.readline() == word
                await session.close_stdin()
                assert await session.wait() == 0
            session = await execute(api, kube.namespace, "p", ["yes"])
            assert await session.stdout.readexactly(4) == b"y\ny\n"
            await asyncio.wait_for(session.close(), 60)

    go(body())


def block(number: int) -> bytes:
    """A megabyte that differs from all others."""
    seed = hashlib.sha256(str(number).encode()).digest()
    return (seed * (MEGABYTE // len(seed)))[: MEGABYTE - 8] + number.to_bytes(8, "big")


async def echoed(port: int, megabytes: int, first: int = 0) -> None:
    """Send so many megabytes and read them back, at the same time, and compare."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent, received = hashlib.sha256(), hashlib.sha256()

    async def send() -> None:
        for number in range(first, first + megabytes):
            sent.update(block(number))
            writer.write(block(number))
            await writer.drain()

    async def receive() -> None:
        left = megabytes * MEGABYTE
        while left:
            data = await reader.read(min(left, 1 << 17))
            assert data, f"ended {left} bytes early"
            received.update(data)
            left -= len(data)

    try:
        await asyncio.gather(send(), receive())
    finally:
        writer.close()
    assert sent.digest() == received.digest()


@asynccontextmanager
async def forwarded(api: Client, kube: Kube, port: int = ECHO) -> AsyncIterator[int]:
    """A local port that leads to whatever pod is Ready."""

    async def choose() -> tuple[str, str, int]:
        ready = [pod for pod in (await api.list(POD, kube.namespace)).items if is_ready(pod)]
        if not ready:
            raise NotFound("No pod is ready.")
        return kube.namespace, ready[0]["metadata"]["name"], port

    forwarder = Forwarder(api, choose)
    try:
        yield await forwarder.start()
    finally:
        await forwarder.close()


def test_200_megabytes_both_ways(kube: Kube) -> None:
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api, forwarded(api, kube) as port:
            await echoed(port, 200)
            await asyncio.gather(*[echoed(port, 10, first=10 * number) for number in range(8)])

    go(body())


def test_what_is_sent_before_the_end_arrives(kube: Kube) -> None:
    """A user who writes and closes at once has no other sign that all is well."""
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api, forwarded(api, kube, SINK) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            sent = hashlib.sha256()
            for number in range(20):
                sent.update(block(number))
                writer.write(block(number))
            writer.close()
            await writer.wait_closed()
            got = b""
            while not got:
                got = (await run(api, kube.namespace, "p", ["sh", "-c", "cat /tmp/sum || sleep 0.2"])).stdout
            assert got.decode() == sent.hexdigest()

    go(body())


def test_a_port_directly(kube: Kube) -> None:
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api:
            reader, writer = await open_port(api, kube.namespace, "p", ECHO)
            writer.write(b"hello")
            await writer.drain()
            assert await reader.readexactly(5) == b"hello"
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), 60)
            reader, writer = await open_port(api, kube.namespace, "p", LATE)
            with pytest.raises(PortClosed):
                await reader.read()
            with pytest.raises(ApiError, match="not found"):
                await open_port(api, kube.namespace, "q", ECHO)

    go(body())


def test_a_port_that_opens_late(kube: Kube) -> None:
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api, forwarded(api, kube, LATE) as port:
            await open_port(api, kube.namespace, "p", LATE + 1)
            await echoed(port, 1)

    go(body())


def test_the_pod_is_replaced(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "PATIENCE", 120)
    start_deployment(kube)

    async def body() -> None:
        async with client(kube) as api, forwarded(api, kube) as port:
            await echoed(port, 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            await api.delete_all(POD, kube.namespace, "app=d", grace=0)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 120)
            writer.close()
            started = time.monotonic()
            await echoed(port, 1)
            assert time.monotonic() - started < 120

    go(body())


@asynccontextmanager
async def away(harm: AbstractContextManager[None]) -> AsyncIterator[None]:
    """Something is broken. In a thread: killing and bringing back takes seconds in which we are not to stand still."""
    await asyncio.to_thread(harm.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(harm.__exit__, None, None, None)


def test_the_api_server_goes_and_comes(
    kube: Kube, outage: Callable[[str], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarder, "PATIENCE", 120)
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api, forwarded(api, kube) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            waiting = []
            async with away(outage("kube-apiserver")):
                with pytest.raises(ConnectionResetError):
                    await asyncio.wait_for(reader.readexactly(1), 60)
                waiting.append(asyncio.create_task(echoed(port, 1)))
                await asyncio.sleep(0.5)
            await asyncio.wait_for(waiting[0], 120)
            writer.close()

    go(body())


def tree(root: Path) -> dict[str, tuple[str, bytes | str]]:
    """Every path below, with its mode and its content."""
    found: dict[str, tuple[str, bytes | str]] = {}
    for path in sorted(root.rglob("*")):
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "folder"
        found[str(path.relative_to(root))] = (stat.filemode(path.lstat().st_mode), content)
    return found


def made_tree(root: Path) -> Path:
    (root / "empty").mkdir(parents=True)
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/er/big.bin").write_bytes(os.urandom(5 * MEGABYTE))
    (root / "ünïcode name.txt").write_text("ü")
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_text("s")
    (root / "secret").chmod(0o600)
    (root / "link").symlink_to("run.sh")
    return root


def test_files_there_and_back(kube: Kube, tmp_path: Path) -> None:
    start_pod(kube, container(kube))
    source = made_tree(tmp_path / "source")

    async def body() -> None:
        async with client(kube) as api:
            where = (api, kube.namespace, "p")
            await copy_to(*where, source, "/tmp/copy")
            assert (await run(*where, ["/tmp/copy/run.sh"])).stdout == b"ran\n"
            await copy_from(*where, "/tmp/copy", tmp_path / "back", "main")
            assert tree(tmp_path / "back") == tree(source)
            await copy_to(*where, source / "run.sh", "/tmp/", "main")
            await copy_to(*where, source / "run.sh", "/tmp/renamed")
            assert (await run(*where, ["cmp", "/tmp/run.sh", "/tmp/renamed"])).code == 0
            (tmp_path / "into").mkdir()
            await copy_from(*where, "/tmp/renamed", tmp_path / "into")
            assert (tmp_path / "into/renamed").read_text() == "#!/bin/sh\necho ran\n"
            assert (tmp_path / "into/renamed").stat().st_mode & 0o777 == 0o755
            with pytest.raises(OarsError, match="tar ended") as missing:
                await copy_from(*where, "/tmp/none", tmp_path / "none")
            assert any("No such file" in line for line in missing.value.details)
            with pytest.raises(OarsError, match="tar ended"):
                await asyncio.wait_for(copy_to(*where, source, "/none/such"), 60)
            with pytest.raises(NotFound):
                await copy_to(*where, tmp_path / "nothing", "/tmp")

    go(body())


def test_a_container_cannot_write_where_it_likes(kube: Kube, tmp_path: Path) -> None:
    start_pod(kube, container(kube))
    script = (
        "mkdir -p /tmp/evil && cd /tmp/evil && ln -s /etc/passwd absolute && ln -s ../../x outside && echo ok > good"
    )

    async def body() -> None:
        async with client(kube) as api:
            await run(api, kube.namespace, "p", ["sh", "-c", script])
            await copy_from(api, kube.namespace, "p", "/tmp/evil", tmp_path / "got")
            assert tree(tmp_path / "got").keys() == {"good"}

    go(body())


def test_no_tar(kube: Kube, tmp_path: Path) -> None:
    start = ["sh", "-c", 'rm -f /bin/tar /usr/bin/tar; exec python3 -c "$0"', PROGRAM]
    start_pod(kube, container(kube, start, securityContext={"runAsUser": 0}))
    (tmp_path / "a").write_text("a")

    async def body() -> None:
        async with client(kube) as api:
            with pytest.raises(NoSuchCommand, match="no tar in pod p"):
                await copy_to(api, kube.namespace, "p", tmp_path / "a", "/tmp/a")
            with pytest.raises(NoSuchCommand, match="no tar in pod p"):
                await copy_from(api, kube.namespace, "p", "/tmp", tmp_path / "b")

    go(body())
