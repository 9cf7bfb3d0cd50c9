"""What machines of one cluster tell each other, and who is refused. Real TLS connections on this machine."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from oars.base import codec
from oars.base.errors import Denied, UsageError
from oars.client.hosts import host_name
from oars.model import HEAD, Ensure, Member, MemberId, MemberState, MemberView, Remove, Role
from oars.places.hosts import messages
from oars.places.hosts.head import MAX_STRANGERS, HeadLink, JoinedHost
from oars.places.hosts.messages import HeadAddress, HeadState, HostReport, JoinToken, parse_token
from oars.places.hosts.worker import WorkerLink, fetch
from oars.places.local.store import ClusterDir, ClusterRecord, Store
from oars.places.process.link import Link
from oars.places.process.machine import Machine
from oars.secure.secrets import cluster_secrets, new_token
from tests.unit.local_clusters import record
from tests.unit.places.test_process_place import CountingMachine
from tests.unit.plan.clusters import desired

WORKER = Member(MemberId("one-0"), Role.WORKER, "one", MemberState.RUNNING, "3", tail=("a", "b"))


def test_token_survives_a_file() -> None:
    token = JoinToken(new_token(), "f" * 64)
    assert parse_token(f" {token}\n") == token
    assert token.secret not in repr(token)


@pytest.mark.parametrize(
    "text", ["", "abc", f"{'0' * 64}", f"{'0' * 64}.", f"{'g' * 64}.{'0' * 64}", f"{'0' * 65}.{'0' * 63}"]
)
def test_malformed_join_token_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a join token"):
        parse_token(text)


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "host:x", "host:0", "host:65536"])
def test_address_needs_host_and_port(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        messages.split(text)


def test_address_is_split() -> None:
    assert messages.split("10.0.0.1:8700") == ("10.0.0.1", 8700)
    assert messages.split("[::1]:8700") == ("::1", 8700)


def test_messages_survive_json() -> None:
    report = HostReport((WORKER,), {WORKER.id: {"http": "10.0.0.2:1"}}, {WORKER.id: "ab:1"}, "digest")
    state = HeadState(
        cluster="demo",
        spec={"engine": "toy"},
        head=HeadAddress("ab:1", MemberState.RUNNING, "10.0.0.1", {"client": 1}),
        is_up=True,
        views={WORKER.id: MemberView(True, "10.0.0.2:1")},
        secrets={"token": "x"},
    )
    assert codec.load(HostReport, codec.dump(report)) == report
    assert codec.load(HeadState, codec.dump(state)) == state
    assert HEAD not in state.views


def served(tmp_path: Path, fingerprint: str | None) -> bytes:
    """What a server receives from a machine whose token has this fingerprint; None: the right one."""
    files = cluster_secrets("demo", ("tls",))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    received: list[bytes] = []

    async def body() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.read(100))
            writer.close()

        context = messages.server_context(tmp_path / "cert.pem", tmp_path / "key.pem")
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            token = JoinToken("0" * 64, fingerprint or messages.fingerprint(files["cert.pem"]))
            reader, writer = await messages.connect(address, token)
            await messages.send(writer, messages.Hello(token.secret, "one"))
            await reader.read()
            writer.close()
        finally:
            server.close()

    asyncio.run(body())
    return b"".join(received)


def test_secret_is_sent_to_the_head_of_the_token(tmp_path: Path) -> None:
    assert b"0" * 64 in served(tmp_path, None)


def test_secret_is_not_sent_to_another_head(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="not the one that made this join token"):
        served(tmp_path, "1" * 64)


@pytest.mark.parametrize(
    ("text", "name"),
    [("Node_1.example.org", "node-1"), ("head", "host-head"), ("default", "host-default"), ("..", "host-one")],
)
def test_name_of_a_machine_is_a_name_of_members(text: str, name: str) -> None:
    assert host_name(text) == name


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def linked(tmp_path: Path, role: Role) -> tuple[ClusterDir, ClusterRecord]:
    found = record("one", link=Link(role, "127.0.0.1:1", "127.0.0.1"))
    return Store(tmp_path).create(found, {}), found


def test_members_are_reported_to_the_head_when_they_are_recorded(tmp_path: Path) -> None:
    async def body() -> None:
        link = WorkerLink(*linked(tmp_path, Role.WORKER), lambda: None)
        link.state = HeadState(head=HeadAddress("ab:1", MemberState.RUNNING, "127.0.0.1", {"client": 1}))
        woken = asyncio.Event()
        place = link.make_place(cast(Machine, CountingMachine()), woken.set)
        group = desired(1).shape.workers[0]
        await place.ensure(desired(1), Ensure(group, (WORKER.id,)))
        await asyncio.wait_for(woken.wait(), 5)
        observed = await place.observe(desired(1))
        assert link.report == HostReport(), "observe only reads"
        await place.record(desired(1), observed.state)
        assert [(member.id, member.state) for member in link.report.members] == [(WORKER.id, MemberState.RUNNING)]

    asyncio.run(body())


def test_head_waits_for_other_machines_to_remove_their_workers(tmp_path: Path) -> None:
    async def body() -> None:
        link = HeadLink(*linked(tmp_path, Role.HEAD), lambda: None)
        link.hosts["one"] = JoinedHost("instance", HostReport((WORKER,)))
        woken = asyncio.Event()
        place = link.make_place(cast(Machine, CountingMachine()), woken.set)
        await place.ensure(desired(1), Ensure(desired(1).shape.head, (HEAD,)))
        await asyncio.wait_for(woken.wait(), 5)
        observed = await place.observe(desired(1))
        assert [member.id for member in observed.members] == [HEAD, WORKER.id]
        assert link._state(HostReport()).head is None, "observe only reads"
        await place.record(desired(1), observed.state)
        assert link._state(HostReport()).head is not None
        (cause,) = await place.remove(desired(1), Remove((HEAD, WORKER.id), "the head was lost"))
        assert cause.members == (WORKER.id,) and "other hosts to remove their workers one-0" in cause.message
        assert [member.id for member in (await place.observe(desired(1))).members] == [WORKER.id]

    asyncio.run(body())


@pytest.mark.parametrize("token", ["", "é" * 64, "0" * 64])
def test_machine_with_another_token_is_refused(tmp_path: Path, token: str) -> None:
    directory, found = linked(tmp_path, Role.HEAD)
    directory.secrets.mkdir(exist_ok=True)
    (directory.secrets / "join.token").write_text(str(JoinToken("1" * 64, "2" * 64)))
    link = HeadLink(directory, found, lambda: None)
    assert "join token" in link._problem(messages.Hello(token, "one"))
    assert link._problem(messages.Hello("1" * 64, "one")) == ""


@pytest.mark.parametrize("text", ["", "{", '{"head": 3}'])
def test_damaged_copy_of_the_heads_state_is_ignored(tmp_path: Path, text: str) -> None:
    """The keeper starts, and the head sends it again."""
    directory, found = linked(tmp_path, Role.WORKER)
    (directory.path / "head.json").write_text(text)
    link = WorkerLink(directory, found, lambda: None)
    assert link.state is None
    link._apply(HeadState(cluster="demo"))
    assert WorkerLink(directory, found, lambda: None).state == HeadState(cluster="demo")


@pytest.fixture
def head(tmp_path: Path) -> tuple[HeadLink, str, JoinToken, list[None]]:
    """A link that is not open yet, its address, its token, and the passes that it has caused."""
    directory, found = linked(tmp_path, Role.HEAD)
    files = cluster_secrets("one", ("tls",))
    token = JoinToken("1" * 64, messages.fingerprint(files["cert.pem"]))
    contents = {"join.cert.pem": files["cert.pem"], "join.key.pem": files["key.pem"], "join.token": str(token).encode()}
    for name, data in contents.items():
        (directory.secrets / name).write_bytes(data)
    wakes: list[None] = []
    address = f"127.0.0.1:{free_port()}"
    link = HeadLink(directory, replace(found, link=Link(Role.HEAD, address, "127.0.0.1")), lambda: wakes.append(None))
    return link, address, token, wakes


Head = tuple[HeadLink, str, JoinToken, list[None]]


def test_connections_without_the_token_are_few_and_keep_nobody_out(head: Head) -> None:
    link, address, token, wakes = head

    async def body() -> None:
        await link.open()
        plain = [await asyncio.open_connection(*messages.split(address)) for _ in range(4)]  # without a handshake
        idle = [await messages.connect(address, token) for _ in range(MAX_STRANGERS)]
        closed = await asyncio.gather(*(reader.read() for reader, _ in plain), return_exceptions=True)
        assert all(each == b"" or isinstance(each, OSError) for each in closed), "the oldest were closed"
        assert len(link._strangers) == MAX_STRANGERS
        assert (await fetch(address, str(token))).cluster == "one"
        reader, writer = await join(head)
        assert not wakes, "only machines that have joined cause passes"
        await messages.send(writer, HostReport())
        await messages.receive(reader, HeadState)
        assert list(link.hosts) == ["two"] and wakes
        for _, each in (*plain, *idle, (reader, writer)):
            each.close()
        await link.close()

    asyncio.run(asyncio.wait_for(body(), 60))


async def join(head: Head) -> messages.Streams:
    _, address, token, _ = head
    reader, writer = await messages.connect(address, token)
    await messages.send(writer, messages.Hello(token.secret, "two", "instance"))
    await messages.receive(reader, HeadState)
    return reader, writer


def test_end_of_an_old_connection_does_not_lose_a_machine_that_is_back(head: Head) -> None:
    link, *_ = head

    async def body() -> None:
        await link.open()
        (_, old), (reader, writer) = await join(head), await join(head)
        await messages.send(writer, HostReport((WORKER,)))
        await messages.receive(reader, HeadState)
        old.close()
        await asyncio.wait(link._tasks, return_when=asyncio.FIRST_COMPLETED)
        assert link.hosts["two"].lost_since is None
        writer.close()
        await asyncio.gather(*link._tasks)
        assert link.hosts["two"].lost_since is not None
        await link.close()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_head_that_stops_tells_the_machines_that_have_joined(head: Head) -> None:
    """Otherwise they keep workers for it, as if it could not be reached."""
    link, *_ = head

    async def body() -> None:
        await link.open()
        link.publish(HeadAddress("ab:1", MemberState.RUNNING, "127.0.0.1", {"client": 1}))
        reader, writer = await join(head)
        await messages.send(writer, HostReport((WORKER,)))
        assert (await messages.receive(reader, HeadState)).head is not None
        closing = asyncio.create_task(link.close())
        await messages.send(writer, HostReport((WORKER,)))
        assert (await messages.receive(reader, HeadState)).head is None
        await closing
        assert await reader.read() == b""
        writer.close()

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.mark.parametrize("name", ["../../outside", "..", "a/b"])
def test_secret_outside_of_its_directory_is_no_message(name: str) -> None:
    message = {**cast(dict[str, object], codec.dump(HeadState())), "secrets": {name: "x"}}
    with pytest.raises(ValueError, match="not the name of a secret"):
        codec.load(HeadState, message)
