"""Exec, port-forward and copy with real pods, through a real API server, kubelet and containerd."""

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
from oars.kube import port_forward
from oars.kube.client import Client
from oars.kube.config import load
from oars.kube.copy import copy_from, copy_to
from oars.kube.errors import ApiError
from oars.kube.exec import NoSuchCommand, execute, run
from oars.kube.kinds import POD, Object
from oars.kube.port_forward import Forwarder, PortClosed, open_port

MEGABYTE = 1 << 20
ECHO, LATE, SINK = 7000, 7001, 7003
# Echoes on port ECHO. A connection to port LATE + 1 makes it also echo on port LATE two seconds later. Port SINK writes
# the hash of the received data to a file at EOF.
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


def run_body(work: Coroutine[Any, Any, None], seconds: float = 400) -> None:
    """Run the body of a test with a time limit."""
    asyncio.run(asyncio.wait_for(work, seconds))


def test_run_command(kube: Kube) -> None:
    start_pod(kube, container(kube), {"name": "other", "image": kube.image("dask"), "command": ["sleep", "1000"]})

    async def body() -> None:
        async with client(kube) as api:
            pod = (api, kube.namespace, "p")
            done = await run(*pod, ["sh", "-c", "echo out; echo err >&2; exit 7"], container="main")
            assert (done.code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
            content = os.urandom(5 * MEGABYTE)
            done = await run(*pod, ["cat"], input=content, container="other")
            assert (done.code, hashlib.sha256(done.stdout).digest()) == (0, hashlib.sha256(content).digest())
            done = await run(*pod, ["true"], input=b"unread", container="main")
            assert done.code == 0, "a command may ignore its input"
            with pytest.raises(TimedOut):
                await run(*pod, ["sleep", "60"], timeout=1, container="main")
            with pytest.raises(NoSuchCommand, match="'frobnicate' not found in pod p"):
                await run(*pod, ["frobnicate"], container="main")
            with pytest.raises(ApiError, match="not valid for pod"):
                await run(*pod, ["true"], container="none")
            with pytest.raises(ApiError) as missing_pod:
                await run(api, kube.namespace, "q", ["true"])
            assert missing_pod.value.reason == "NotFound"
            assert [line async for line in api.logs("p", container="main")] == ["serving"]

    run_body(body())


def test_terminal_and_interactive_input(kube: Kube) -> None:
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api:
            async with await execute(api, kube.namespace, "p", ["sh"], stdin=True, tty=True) as session:
                await session.resize(97, 31)
                # The resize message is not ordered with the input.
                await session.write(b'until [ "$(stty size)" = "31 97" ]; do sleep 0.1; done; echo re""sized; exit 4\n')
                # The terminal echoes the input. Only the output contains the word without quotes.
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

    run_body(body())


def block(number: int) -> bytes:
    """Return a megabyte that is unique for this number."""
    seed = hashlib.sha256(str(number).encode()).digest()
    return (seed * (MEGABYTE // len(seed)))[: MEGABYTE - 8] + number.to_bytes(8, "big")


async def check_echo(port: int, megabytes: int, first: int = 0) -> None:
    """Send data and receive it at the same time; compare both."""
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
            assert data, f"the connection closed {left} bytes early"
            received.update(data)
            left -= len(data)

    try:
        await asyncio.gather(send(), receive())
    finally:
        writer.close()
    assert sent.digest() == received.digest()


@asynccontextmanager
async def forwarded(api: Client, kube: Kube, port: int = ECHO) -> AsyncIterator[int]:
    """Forward a local port to a ready pod."""

    async def choose() -> tuple[str, str, int]:
        ready = [pod for pod in (await api.list(POD, kube.namespace)).items if is_ready(pod)]
        if not ready:
            raise NotFound("No pod is ready.")
        return kube.namespace, ready[0]["metadata"]["name"], port

    forward = Forwarder(api, choose)
    try:
        yield await forward.start()
    finally:
        await forward.close()


def test_forward_200_megabytes_in_both_directions(kube: Kube) -> None:
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api, forwarded(api, kube) as port:
            await check_echo(port, 200)
            await asyncio.gather(*[check_echo(port, 10, first=10 * number) for number in range(8)])

    run_body(body())


def test_data_sent_before_close_arrives(kube: Kube) -> None:
    """A client that writes and closes gets no other confirmation."""
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
            written = b""
            while not written:
                written = (await run(api, kube.namespace, "p", ["sh", "-c", "cat /tmp/sum || sleep 0.2"])).stdout
            assert written.decode() == sent.hexdigest()

    run_body(body())


def test_open_port(kube: Kube) -> None:
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api:
            connection = await open_port(api, kube.namespace, "p", ECHO)
            await connection.send(b"hello")
            assert await connection.reader.readexactly(5) == b"hello"
            await asyncio.wait_for(connection.close(), 60)
            connection = await open_port(api, kube.namespace, "p", LATE)
            with pytest.raises(PortClosed):
                await connection.reader.read()
            with pytest.raises(ApiError, match="not found"):
                await open_port(api, kube.namespace, "q", ECHO)

    run_body(body())


def test_forward_waits_for_a_port_that_opens_late(kube: Kube) -> None:
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api, forwarded(api, kube, LATE) as port:
            await open_port(api, kube.namespace, "p", LATE + 1)
            await check_echo(port, 1)

    run_body(body())


def test_forward_follows_a_replaced_pod(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_forward, "CONNECT_TIMEOUT", 120)
    start_deployment(kube)

    async def body() -> None:
        async with client(kube) as api, forwarded(api, kube) as port:
            await check_echo(port, 1)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            for pod in (await api.list(POD, kube.namespace, labels="app=d")).items:
                await api.delete(POD, pod["metadata"]["name"], kube.namespace, grace=0)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 120)
            writer.close()
            started = time.monotonic()
            await check_echo(port, 1)
            assert time.monotonic() - started < 120

    run_body(body())


@asynccontextmanager
async def in_thread(context: AbstractContextManager[None]) -> AsyncIterator[None]:
    """Enter and exit a context manager in a thread, because an outage blocks for seconds."""
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def test_forward_survives_an_api_server_restart(
    kube: Kube, outage: Callable[[str], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_forward, "CONNECT_TIMEOUT", 120)
    start_pod(kube, container(kube))

    async def body() -> None:
        async with client(kube) as api, forwarded(api, kube) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            waiting = []
            async with in_thread(outage("kube-apiserver")):
                with pytest.raises(ConnectionResetError):
                    await asyncio.wait_for(reader.readexactly(1), 60)
                waiting.append(asyncio.create_task(check_echo(port, 1)))
                await asyncio.sleep(0.5)
            await asyncio.wait_for(waiting[0], 120)
            writer.close()

    run_body(body())


def tree(root: Path) -> dict[str, tuple[str, bytes | str]]:
    """Return every path below `root` with its mode and content."""
    found: dict[str, tuple[str, bytes | str]] = {}
    for path in sorted(root.rglob("*")):
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else "directory"
        found[str(path.relative_to(root))] = (stat.filemode(path.lstat().st_mode), content)
    return found


def make_tree(root: Path) -> Path:
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


def test_copy_to_and_from_a_container(kube: Kube, tmp_path: Path) -> None:
    start_pod(kube, container(kube))
    source = make_tree(tmp_path / "source")

    async def body() -> None:
        async with client(kube) as api:
            pod = (api, kube.namespace, "p")
            await copy_to(*pod, source, "/tmp/copy")
            assert (await run(*pod, ["/tmp/copy/run.sh"])).stdout == b"ran\n"
            await copy_from(*pod, "/tmp/copy", tmp_path / "back", "main")
            assert tree(tmp_path / "back") == tree(source)
            await copy_to(*pod, source / "run.sh", "/tmp/", "main")
            await copy_to(*pod, source / "run.sh", "/tmp/renamed")
            assert (await run(*pod, ["cmp", "/tmp/run.sh", "/tmp/renamed"])).code == 0
            (tmp_path / "into").mkdir()
            await copy_from(*pod, "/tmp/renamed", tmp_path / "into")
            assert (tmp_path / "into/renamed").read_text() == "#!/bin/sh\necho ran\n"
            assert (tmp_path / "into/renamed").stat().st_mode & 0o777 == 0o755
            with pytest.raises(OarsError, match="tar failed with exit code") as missing:
                await copy_from(*pod, "/tmp/none", tmp_path / "none")
            assert any("No such file" in line for line in missing.value.details)
            with pytest.raises(OarsError, match="tar failed with exit code"):
                await asyncio.wait_for(copy_to(*pod, source, "/none/such"), 60)
            with pytest.raises(NotFound):
                await copy_to(*pod, tmp_path / "nothing", "/tmp")

    run_body(body())


def test_copied_links_cannot_point_outside_the_target(kube: Kube, tmp_path: Path) -> None:
    start_pod(kube, container(kube))
    script = (
        "mkdir -p /tmp/evil && cd /tmp/evil && ln -s /etc/passwd absolute && ln -s ../../x outside && echo ok > good"
    )

    async def body() -> None:
        async with client(kube) as api:
            await run(api, kube.namespace, "p", ["sh", "-c", script])
            await copy_from(api, kube.namespace, "p", "/tmp/evil", tmp_path / "copy")
            assert tree(tmp_path / "copy").keys() == {"good"}

    run_body(body())


def test_copy_without_tar_is_explained(kube: Kube, tmp_path: Path) -> None:
    start = ["sh", "-c", 'rm -f /bin/tar /usr/bin/tar; exec python3 -c "$0"', PROGRAM]
    start_pod(kube, container(kube, start, securityContext={"runAsUser": 0}))
    (tmp_path / "a").write_text("a")

    async def body() -> None:
        async with client(kube) as api:
            with pytest.raises(NoSuchCommand, match="'tar' not found in pod p"):
                await copy_to(api, kube.namespace, "p", tmp_path / "a", "/tmp/a")
            with pytest.raises(NoSuchCommand, match="'tar' not found in pod p"):
                await copy_from(api, kube.namespace, "p", "/tmp", tmp_path / "b")

    run_body(body())
