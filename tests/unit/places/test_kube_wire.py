"""The addresses of members that the engine gets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import pytest

from oars.base.errors import EngineUnreachable
from oars.kube.client import Client
from oars.model import HEAD, Member, MemberId, MemberState, Role
from oars.places.kube import names
from oars.places.kube.wire import KubeWire, Reach
from tests.unit.places.clusters import cluster


def member(name: str, group: str, address: str = "10.0.0.1") -> Member:
    role = Role.HEAD if group == "head" else Role.WORKER
    return Member(MemberId(name), role, group, MemberState.RUNNING, address=address)


def addresses(*members: Member, workers: int | None = 1) -> dict[MemberId, dict[str, str]]:
    return {name: dict(ports) for name, ports in wire(*members, workers=workers).addresses.items()}


def wire(*members: Member, workers: int | None = 1) -> KubeWire:
    desired = cluster("mars", workers=workers or [])
    return KubeWire(
        desired, members, "demo-head-1", Reach(cast(Client, None), "lab"), {"control": b"known", "token": b"secret"}
    )


def test_the_head_and_workers_have_the_ports_of_their_groups() -> None:
    found = addresses(member(HEAD, "head"), member("a", "default", "10.0.0.2"))
    assert found[HEAD]["web"] == "10.0.0.1:7104"
    assert found[MemberId("a")]["worker"] == "10.0.0.2:7105"


@pytest.mark.parametrize("group", ["default@0123456789", "removed", "removed@0123456789"])
def test_worker_of_an_older_or_removed_group_has_an_address(group: str) -> None:
    assert addresses(member("a", group))[MemberId("a")]["worker"] == "10.0.0.1:7105"


def test_member_without_an_address_is_not_listed() -> None:
    assert addresses(member("a", "default", "")) == {}


def test_workers_that_are_being_deleted_are_current_but_have_no_address() -> None:
    """Mars must not take a worker for dead while it hands over its data, nor must it be drained again."""
    pods = Reach(cast(Client, None), "lab")
    found = KubeWire(cluster("mars"), (member("a", "default"),), "demo-head-1", pods, {}, {MemberId("b"): "uid-b"})
    assert found.incarnations == {"a": "", "b": "uid-b"} and list(found.addresses) == ["a"]


# the way to a head


class Opened:
    """A connection that was made, and is not used."""

    def close(self) -> None:
        pass


def dialling(monkeypatch: pytest.MonkeyPatch, error: OSError | None = None) -> list[str]:
    """What is dialled from now on."""
    dialled: list[str] = []

    async def dial(host: str, port: int) -> tuple[None, Opened]:
        dialled.append(f"{host}:{port}")
        if error is not None:
            raise error
        return None, Opened()

    monkeypatch.setattr("oars.places.kube.wire.asyncio.open_connection", dial)
    return dialled


def answering(monkeypatch: pytest.MonkeyPatch, answer: bytes | Exception | None) -> None:
    """Every request from now on. None: never."""

    async def request(*_: object) -> bytes:
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.sleep(60)
        return answer or b""

    monkeypatch.setattr("oars.places.kube.wire.request", request)


def test_unreachable_address_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the head could be dialled; then a policy came to hold, and nobody answers there any more."""
    dialled = dialling(monkeypatch)
    answering(monkeypatch, TimeoutError())
    way = wire(member(HEAD, "head"))
    for _ in range(2):
        with pytest.raises(EngineUnreachable, match="port 7104 of the head: no answer in time"):
            asyncio.run(way.http("web", "/"))
    assert dialled == ["10.0.0.1:7104"] * 2


def test_address_is_dialled_again_after_the_callers_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled = dialling(monkeypatch)
    answering(monkeypatch, None)
    way = wire(member(HEAD, "head"))
    for _ in range(2):
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(way.ask("", {}), 0.01))
    assert len(dialled) == 2


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "no answer in time"),
        (TimeoutError(110, "Connection timed out"), "Connection timed out"),
        (ConnectionResetError(), "ConnectionResetError"),
        (EOFError("the answer broke off after 3 of 9 bytes"), "the answer broke off after 3 of 9 bytes"),
    ],
)
def test_failure_is_described(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    dialling(monkeypatch)
    answering(monkeypatch, error)
    with pytest.raises(EngineUnreachable, match=f"{words}$"):
        asyncio.run(wire(member(HEAD, "head")).http("web", "/"))


@pytest.mark.parametrize("answer", [b'{"ok": [1, 2', b"", b"\xff", b"[1]", b"{}"])
def test_unreadable_reply_is_an_error(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    dialling(monkeypatch)
    answering(monkeypatch, answer)
    with pytest.raises(EngineUnreachable, match=f"port {names.HELPER_PORT} of the head: its answer cannot be read"):
        asyncio.run(wire(member(HEAD, "head")).ask("", {}))


def test_helper_reply_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    dialling(monkeypatch)
    answering(monkeypatch, b'{"ok": [1]}')
    assert asyncio.run(wire(member(HEAD, "head")).ask("", {})) == [1]
    answering(monkeypatch, b'{"error": "no such raylet"}')
    with pytest.raises(EngineUnreachable, match="no such raylet"):
        asyncio.run(wire(member(HEAD, "head")).ask("", {}))


def test_each_port_gets_its_own_token(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, Mapping[str, str]]] = []

    async def request(address: str, path: str, method: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        sent.append((address, headers))
        return b'{"ok": 1}'

    dialling(monkeypatch)
    monkeypatch.setattr("oars.places.kube.wire.request", request)
    way = wire(member(HEAD, "head"))
    asyncio.run(way.http("web", "/"))
    asyncio.run(way.http("supervisor", "/"))
    asyncio.run(way.ask("", {}))
    assert sent == [
        ("10.0.0.1:7104", {"Authorization": "Bearer secret"}),
        ("10.0.0.1:7103", {}),
        (f"10.0.0.1:{names.HELPER_PORT}", {"Authorization": "Bearer known"}),
    ]


HERE = "127.0.0.1"


def reaching(*, forward: bool = True) -> Reach:
    return Reach(cast(Client, None), "lab", forward=forward)


@contextmanager
def silent_port() -> Iterator[socket.socket]:
    """One that refuses until somebody listens."""
    with socket.socket() as found:
        found.bind((HERE, 0))
        yield found


def number(found: socket.socket) -> int:
    return int(found.getsockname()[1])


def is_open(address: str) -> bool:
    """Somebody listens there."""
    host, _, port = address.partition(":")
    with socket.socket() as other:
        try:
            other.bind((host, int(port)))
        except OSError:
            return True
    return False


def test_refused_connection_is_replaced_by_a_port_forward_until_the_port_listens() -> None:
    """A firewall may refuse as well as a head that does not listen yet."""

    async def story() -> None:
        reach = reaching()
        with silent_port() as port:
            direct = f"{HERE}:{number(port)}"
            first, second = [await reach.address("a", HERE, number(port)) for _ in range(2)]
            assert first == second != direct and is_open(first)
            port.listen()
            assert await reach.address("a", HERE, number(port)) == direct
        await reach.close()
        assert not is_open(first)

    asyncio.run(story())


def test_inside_the_cluster_addresses_are_used_without_a_test_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled = dialling(monkeypatch, ConnectionRefusedError())
    assert asyncio.run(reaching(forward=False).address("a", HERE, 1)) == f"{HERE}:1"
    assert dialled == []


def test_unreachable_address_is_dialled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        reach = reaching()
        for _ in range(2):
            await reach.address("a", "10.0.0.1", 7104)
        await reach.close()

    dialled = dialling(monkeypatch, OSError(113, "No route to host"))
    asyncio.run(story())
    assert len(dialled) == 1


def test_each_port_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NetworkPolicy may admit us to the engine's ports and not to the helper's."""

    async def dial(host: str, port: int) -> tuple[None, Opened]:
        if port == names.HELPER_PORT:
            raise TimeoutError
        return None, Opened()

    async def story() -> None:
        reach = reaching()
        for _ in range(2):
            assert await reach.address("a", "10.0.0.1", 8787) == "10.0.0.1:8787"
            assert (await reach.address("a", "10.0.0.1", names.HELPER_PORT)).startswith(HERE)
        await reach.close()

    monkeypatch.setattr("oars.places.kube.wire.asyncio.open_connection", dial)
    asyncio.run(story())


def test_forwards_to_a_head_that_was_replaced_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    dialling(monkeypatch, OSError(113, "No route to host"))

    async def both(reach: Reach, pod: str) -> list[str]:
        return await asyncio.gather(*(reach.address(pod, "10.0.0.1", port) for port in (7103, 7104)))

    async def story() -> None:
        reach = reaching()
        old, new = await both(reach, "a"), await both(reach, "b")
        assert [*map(is_open, old + new)] == [False, False, True, True]
        late = await both(reach, "a")
        assert [*map(is_open, late + new)] == [True] * 4, "a late question takes nothing from the new head"
        assert await both(reach, "b") == new
        assert [*map(is_open, late + new)] == [False, False, True, True]
        await reach.close()
        assert not any(map(is_open, new))

    asyncio.run(story())
