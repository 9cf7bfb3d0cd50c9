"""Machines that join a head by hand: the join token, and the wait for it."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from oars.base.errors import OarsError, UsageError
from oars.client.hosts import check_host
from oars.service.daemons import READY_FD
from oars.service.hosts import HostOptions, HostService, Joining, read_token
from oars.spec.load import build

ALL_ADDRESSES = ("0.0.0.0", "0", "::")


def test_token_is_given_or_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "join.token"
    file.write_text("secret")
    assert read_token("given") == "given"
    assert read_token(file) == "secret"


def test_token_file_that_does_not_exist_yet_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no join token .*/join\.token yet"):
        read_token(tmp_path / "join.token")


def test_token_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^Cannot read the join token .*: Is a directory\."):
        read_token(tmp_path)


def test_worker_waits_for_the_file_of_the_token(tmp_path: Path) -> None:
    """It reads the file when it appears: what is in it is no token, which ends the wait."""
    file, said = tmp_path / "join.token", list[str]()

    def progress(text: str) -> None:
        said.append(text)
        file.write_text("nonsense")

    async def body() -> None:
        options = HostOptions(progress=progress)
        async with asyncio.timeout(30):
            await HostService(os.environ).run_worker(Joining("127.0.0.1:1", file), options, lambda _: None)

    with pytest.raises(OarsError, match="This is not a join token"):
        asyncio.run(body())
    assert said == [f"waiting for the head at 127.0.0.1:1: there is no join token {file} yet"]


def test_worker_says_why_the_head_does_not_answer() -> None:
    said: list[str] = []

    def progress(text: str) -> None:
        said.append(text)
        raise TimeoutError

    async def body() -> None:
        joining = Joining("127.0.0.1:1", f"{'1' * 64}.{'2' * 64}")
        await HostService(os.environ).run_worker(joining, HostOptions(progress=progress), lambda _: None)

    with pytest.raises(TimeoutError):
        asyncio.run(body())
    assert said == ["waiting for the head at 127.0.0.1:1: Connection refused"]


def test_daemon_that_waits_for_its_head_reports_that_it_runs(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    hosts = HostService({**os.environ, READY_FD: str(writing)})

    async def body() -> None:
        joining = Joining("127.0.0.1:1", tmp_path / "join.token")
        work = asyncio.create_task(hosts.run_worker(joining, HostOptions(), lambda _: None))
        assert await asyncio.wait_for(asyncio.to_thread(os.read, reading, 10), 30) == b"\n"
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(body())
    assert os.read(reading, 10) == b""  # it closes its end
    os.close(reading)


@pytest.mark.parametrize("host", ALL_ADDRESSES)
def test_head_refuses_an_address_that_others_cannot_connect_to(host: str, own_state: Path) -> None:
    spec = build({"engine": "dask"}).spec
    head = HostService(os.environ).run_head("demo", spec, f"[{host}]:8700", HostOptions(), lambda _: None)
    with pytest.raises(UsageError, match=f"^Other machines cannot connect to {host}: ") as refused:
        asyncio.run(asyncio.wait_for(head, 30))
    assert refused.value.hint == "Give the address at which other machines reach this one."
    assert not (own_state / "join").exists()


@pytest.mark.parametrize(
    ("engine", "number", "port", "ports"),
    [("ray", 6379, "client", {}), ("dask", 8787, "dashboard", {}), ("dask", 8700, "client", {"client": 8700})],
)
def test_head_refuses_to_be_joined_at_a_port_of_its_engine(
    engine: str, number: int, port: str, ports: dict[str, int], own_state: Path
) -> None:
    options = HostOptions(ports)
    head = HostService(os.environ).run_head(
        "demo", build({"engine": engine}).spec, f"127.0.0.1:{number}", options, print
    )
    with pytest.raises(UsageError) as refused:
        asyncio.run(asyncio.wait_for(head, 30))
    assert refused.value.message == f"Workers cannot join at port {number}: it is the port {port!r} of {engine}."
    assert refused.value.hint.endswith(f" or another one for the engine: `--port {port}=20001`.")
    assert not (own_state / "join").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_head_refuses_a_join_port_that_is_in_use(host: str, own_state: Path) -> None:
    """At once. It would wait for the port for ever, and another head may answer there."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        number = other.getsockname()[1]
        options = HostOptions({}, are_ports_default=False)
        head = HostService(os.environ).run_head(
            "demo", build({"engine": "dask"}).spec, f"[{host}]:{number}", options, print
        )
        with pytest.raises(OarsError) as refused:
            asyncio.run(asyncio.wait_for(head, 30))
    message = f"Ports are in use, or {host} is not an address of this machine: {number} (join)."
    assert (refused.value.message, refused.value.hint) == (message, "Choose another port to join at.")
    assert not (own_state / "join").exists()


@pytest.mark.parametrize("host", ALL_ADDRESSES)
def test_worker_refuses_an_address_that_others_cannot_connect_to(host: str, tmp_path: Path) -> None:
    """At once, also while there is no head."""
    joining = Joining("127.0.0.1:1", tmp_path / "join.token", host=host)
    worker = HostService(os.environ).run_worker(joining, HostOptions(), lambda _: None)
    with pytest.raises(UsageError, match=f"^Other machines cannot connect to {host}: "):
        asyncio.run(asyncio.wait_for(worker, 10))


@pytest.mark.parametrize("host", ["", "10.0.0.1", "fe80::1", "head.example.org"])
def test_address_or_name_of_one_machine_is_accepted(host: str) -> None:
    check_host(host)
