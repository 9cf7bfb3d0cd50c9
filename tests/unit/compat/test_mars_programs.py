"""mars-scheduler, mars-web and mars-worker: options, addresses, and the web service's requests."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oars.base.errors import UsageError
from oars.compat.mars import programs
from oars.compat.mars.web import WebProxy, is_for, with_token
from oars.service.hosts import HostService, Joining, WorkerSize


@pytest.mark.parametrize(
    "words",
    [
        ["-a", "10.0.0.2", "-p", "7005"],
        ["-H", "10.0.0.2", "-p", "7005"],
        ["--host", "10.0.0.2", "--port", "7005"],
        ["-e", "10.0.0.2:7005"],
    ],
)
def test_address_is_given_as_in_any_version(words: list[str]) -> None:
    options = programs._parser("mars-worker", "worker").parse_args(words)
    assert programs._endpoint(options, 0, "") == ("10.0.0.2", 7005)


def test_endpoint_excludes_host() -> None:
    options = programs._parser("mars-worker", "worker").parse_args(["-e", "10.0.0.2:7005", "-H", "10.0.0.3"])
    with pytest.raises(SystemExit, match="either -e HOST:PORT"):
        programs._endpoint(options, 0)


@pytest.mark.parametrize("program", [programs.scheduler, programs.web, programs.worker])
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["-p", "70050"], "'70050' is not a port"),
        (["-p=-5"], "'-5' is not a port"),
        (["-p", "x"], "'x' is not a port"),
        (["-e", "10.0.0.2:70050"], "'70050' is not a port"),
        (["-e", "7005"], "'7005' is not HOST:PORT"),
    ],
)
def test_wrong_port_ends_the_program_at_once(
    program: Callable[..., int], words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduler = [] if program is programs.scheduler else ["-s", "127.0.0.1:7103"]
    with pytest.raises(SystemExit) as ended:
        program([*scheduler, *words])
    assert ended.value.code == 2 and problem in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["--n-cpu", "many"], ["--n-cpu", "0"], ["--mem-bytes", "x"], ["--mem-bytes", "1"], ["--phy-mem", "110%"]],
)
def test_wrong_size_ends_the_worker_before_it_waits(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        programs.worker(["-s", "127.0.0.1:7103", *words])
    assert ended.value.code == 2 and repr(words[1]) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1073741824", 2**30), ("1g", 2**30), ("1G", 2**30), ("1gb", 2**30), ("1.5g", 3 * 2**29), ("512m", 2**29),
        ("2t", 2**41), ("50%", 4 * 2**30), ("12.5%", 2**30), ("100 %", 8 * 2**30),
    ],
)  # fmt: skip
def test_memory_is_written_as_in_mars(text: str, expected: int) -> None:
    """As by `calc_size_by_str` of Mars 0.6: units are powers of 1024, and a percentage is of the machine's memory."""
    assert programs.memory(text, 8 * 2**30) == expected


@pytest.mark.parametrize("name", ["--mem-bytes", "--phy-mem"])
@pytest.mark.parametrize(("text", "expected"), [("1g", str(2**30)), ("25%", str(2**31)), ("auto", None)])
def test_worker_gets_its_size(
    name: str, text: str, expected: str | None, own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Joining] = []

    async def record(self: HostService, joining: Joining, *_: object) -> None:
        found.append(joining)

    monkeypatch.setattr(HostService, "run_worker", record)
    monkeypatch.setattr(programs, "usable_memory", lambda environ: 2**33)
    words = ["-a", "127.0.0.1", "-p", "7005", "-s", "127.0.0.1:7103", name, text, "--n-cpu", "auto"]
    assert programs.worker(words) == 0
    assert found[0].size == WorkerSize(1, None, expected)


@pytest.mark.parametrize("program", [programs.web, programs.worker])
def test_wrong_scheduler_ends_the_program_at_once(
    program: Callable[..., int], own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program(["-p", "7105", "-s", "host"]) == 2
    assert "'host' is not a scheduler's address" in capsys.readouterr().err


def test_default_distribution_is_that_of_the_names(capsys: pytest.CaptureFixture[str], own_state: Path) -> None:
    """Also in a Python without pymars, as `oars[mars]` makes it: the page's program imports mars."""
    assert programs.scheduler(["-a", "0.0.0.0"]) == 2
    assert "scheduler 0.0.0.0:7103: pymars." in capsys.readouterr().err
    assert programs.scheduler(["-a", "0.0.0.0", "--distribution", "xorbits"]) == 2
    assert "scheduler 0.0.0.0:7103: xorbits." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (programs.scheduler, ["--token-file", "join.token"]),
        (programs.web, ["-s", "127.0.0.1:7103", "--distribution", "xorbits"]),
        (programs.worker, ["-s", "127.0.0.1:7103", "--distribution", "xorbits"]),
    ],
)
def test_option_without_effect_is_refused(
    program: Callable[..., int], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The scheduler makes the token; the others have its distribution."""
    with pytest.raises(SystemExit) as ended:
        program([*words, "-a", "0.0.0.0"])
    assert ended.value.code == 2 and f"unrecognized arguments: {words[-2]}" in capsys.readouterr().err


@pytest.mark.parametrize("program", [programs.web, programs.worker])
def test_several_schedulers_are_refused_with_the_reason(
    program: Callable[..., int], own_state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program(["-p", "7105", "-s", "10.0.0.1:7103,10.0.0.2:7103"]) == 2
    said = capsys.readouterr().err
    assert "a cluster has exactly one, as in every Mars since 0.7" in said and "`-s 10.0.0.1:7103`" in said
    assert "join token" not in said


def test_default_address_is_this_machine() -> None:
    assert programs._endpoint(argparse.Namespace(endpoint="", host="", port=0), 7103) == ("127.0.0.1", 7103)


@pytest.mark.parametrize(
    ("scheduler", "join"),
    [("10.0.0.1:7103", "10.0.0.1:17103"), ("10.0.0.1:60000", "10.0.0.1:50000")],
)
def test_join_port_follows_from_the_scheduler(scheduler: str, join: str) -> None:
    assert programs.join_address(scheduler) == join


@pytest.mark.parametrize("scheduler", ["", "host", "host:", ":7103", "host:x", "host:70000"])
def test_scheduler_needs_host_and_port(scheduler: str) -> None:
    with pytest.raises(UsageError, match="is not a scheduler's address"):
        programs.join_address(scheduler)


def test_token_that_is_not_given_is_that_of_the_scheduler(
    own_state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler may start later, so a file that does not exist yet is no error, but it is named."""
    options = argparse.Namespace(token_file=None, schedulers="127.0.0.1:7103")
    hosts, shared = HostService(os.environ), own_state / "join" / "mars-7103" / "join.token"
    assert programs._token(hosts, options) == shared
    assert f"No join token is given, so {shared} is used" in capsys.readouterr().err
    monkeypatch.setenv("OARS_JOIN_TOKEN", "secret")
    assert programs._token(hosts, options) == "secret"
    options.token_file = "here"
    assert programs._token(hosts, options) == Path("here")


def test_token_that_cannot_be_read_is_one_sentence(own_state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-a", "127.0.0.1", "-p", "7005", "-s", "127.0.0.1:7103", "--token-file", str(own_state.parent)]
    assert programs.worker(words) == 2
    assert f"Cannot read the join token {own_state.parent}: Is a directory." in capsys.readouterr().err


def test_request_gets_the_token_once() -> None:
    header = b"GET /api/x HTTP/1.1\r\nHost: web\r\nconnection: keep-alive\r\nAuthorization: Bearer wrong\r\n\r\n"
    lines = with_token(header, "secret").split(b"\r\n")
    assert lines[:2] == [b"GET /api/x HTTP/1.1", b"Host: web"]
    assert sorted(lines[2:4]) == [b"Authorization: Bearer secret", b"Connection: close"]
    assert lines[4:] == [b"", b""]


def test_web_service_passes_on_requests_and_bodies() -> None:
    """To a real server; and it answers 503 while there is no scheduler."""

    async def body() -> list[bytes]:
        received: list[bytes] = []

        async def supervisor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            received.append(await reader.readexactly(4))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            writer.close()

        async def ask(host: bytes = b"127.0.0.1:7004") -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /x HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 4\r\n\r\nbody")
            reply = await reader.read()
            writer.close()
            return reply

        async def find() -> tuple[str, int, str]:
            if not is_up.is_set():
                raise ConnectionError("not yet")
            return "127.0.0.1", server.sockets[0].getsockname()[1], "secret"

        is_up = asyncio.Event()
        said: asyncio.Queue[str] = asyncio.Queue()
        server = await asyncio.start_server(supervisor, "127.0.0.1", 0)
        probe = await asyncio.start_server(supervisor, "127.0.0.1", 0)
        port = probe.sockets[0].getsockname()[1]
        probe.close()
        task = asyncio.create_task(WebProxy(find, said.put_nowait).serve("127.0.0.1", port))
        async with asyncio.timeout(30):
            assert await said.get() == "waiting for the scheduler: not yet"
            replies = [await ask()]
            is_up.set()
            assert "connected to the scheduler" in await said.get()
            assert (await ask(b"attacker.example:7004")).startswith(b"HTTP/1.1 403") and not received
            replies.append(await ask())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.close()
        assert b"Authorization: Bearer secret" in received[0] and received[1] == b"body"
        return replies

    unavailable, found = asyncio.run(body())
    assert unavailable.startswith(b"HTTP/1.1 503") and found.endswith(b"ok")


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("10.0.0.2:7004", True), ("[::1]:7004", True), ("[::1]", True), ("localhost", True), ("web-1:7004", True),
        ("WEB-1.example.org", True), ("", False), ("attacker.example:7004", False), ("web-1.attacker.example", False),
        ("10.0.0.2.attacker.example", False), ("10.0.0.2:7004\r\nHost: attacker.example", False),
        ("attacker.example\r localhost", False),
    ],
)  # fmt: skip
def test_requests_for_another_name_are_refused(host: str, accepted: bool) -> None:
    """A page of another site whose name leads here after DNS rebinding."""
    header = f"POST /api HTTP/1.1\r\nhost:  {host}\r\nOrigin: http://{host}\r\n\r\n".encode()
    assert is_for(header, {"web-1", "web-1.example.org"}) is accepted


def test_request_with_a_long_host_is_refused_at_once() -> None:
    """Everybody who reaches the address can send it: 64 KiB are the limit of a header."""
    header = b"GET / HTTP/1.1\r\nHost: a" + b" " * 20_000 + b"b\r\n\r\n"
    start = time.process_time()
    assert not is_for(header, ())
    assert time.process_time() - start < 0.5


def test_client_that_sends_no_host_is_no_browser() -> None:
    assert is_for(b"GET /api HTTP/1.0\r\n\r\n", ())
