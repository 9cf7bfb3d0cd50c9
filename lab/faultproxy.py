"""A proxy between a client and the API server that injects faults and records every request.

    script = Script([Rule(Answer(409), verb="update", times=1)], seed=7)
    with running(FaultProxy(api, script)) as proxy:
        ...                        # the client talks to proxy.address
        proxy.count(verb="create", resource="pods")

It serves HTTP/1.1 on loopback and opens one connection to the API server per request.
"""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lab import api, wire
from lab.faults import Answer, Delay, Die, DieOnChange, Drop, EndWatch, Fault, Request, Script, Stale, parse

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Certificate = tuple[Path, Path]


class Cut(Exception):
    """Close the client's connection without a response."""


@dataclass(frozen=True)
class Record:
    """A request and the fault that was injected."""

    number: int
    request: Request
    fault: Fault


@dataclass
class FaultProxy:
    """Proxy for one client. The script may be replaced at any time."""

    upstream: api.Api
    script: Script = field(default_factory=Script)
    certificate: Certificate | None = None
    on_death: Callable[[], None] = lambda: None
    records: list[Record] = field(default_factory=list)
    dead: bool = False
    deaths: list[Request] = field(default_factory=list)  # the last request of each life
    address: str = ""
    kubeconfig: Path = Path()
    _answers: dict[str, bytes] = field(default_factory=dict)
    _clients: set[asyncio.StreamWriter] = field(default_factory=set)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def count(self, **wanted: str) -> int:
        """Count the requests with these fields, such as verb="create"."""
        return sum(wanted.items() <= asdict(record.request).items() for record in self.records)

    @property
    def writes(self) -> list[Record]:
        """The requests that modify the cluster, in order."""
        return [record for record in self.records if record.request.writes]

    def revive(self) -> None:
        """Accept connections again: the client was restarted."""
        self.dead = False

    def write_kubeconfig(self, config: Mapping[str, Any], path: Path) -> None:
        """Write a copy of the kubeconfig that uses the proxy."""
        cluster = config["clusters"][0]
        changed = {**cluster, "cluster": {**cluster["cluster"], "server": self.address}}
        path.write_text(json.dumps({**config, "clusters": [changed]}))
        self.kubeconfig = path

    async def serve(self) -> asyncio.Server:
        """Listen on a free port of the loopback interface."""
        self._loop = asyncio.get_running_loop()
        trust = None
        if self.certificate:
            trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            trust.load_cert_chain(*map(str, self.certificate))
        server = await asyncio.start_server(self._client, "127.0.0.1", 0, ssl=trust)
        port = server.sockets[0].getsockname()[1]
        self.address = f"{'https' if trust else 'http'}://127.0.0.1:{port}"
        return server

    def hang_up(self) -> None:
        """Close all client connections. Thread-safe."""
        for writer in list(self._clients):
            self._loop.call_soon_threadsafe(writer.transport.abort)

    # -- one client's connection ---------------------------------------------------------

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            while not self.dead and (head := await wire.read_head(reader)):
                body = await wire.read_body(reader, head, open_ended=False)
                if self.dead:  # it died on another connection in the meantime
                    break
                await self._exchange(head, body, (reader, writer))
        except (Cut, ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
            pass  # in each case the connection is closed
        finally:
            self._clients.discard(writer)
            writer.transport.abort()

    async def _exchange(self, head: wire.Head, body: bytes, client: Streams) -> None:
        target = _target(head)
        request = parse(head.line.split(" ")[0], target, head.get("user-agent"), body)
        fault = self.script.decide(request)
        self.records.append(Record(len(self.records) + 1, request, fault))
        match fault:
            case Answer(status):
                await _send(client, wire.failure(status))
            case Stale() if request.verb in ("get", "list") and target in self._answers:
                await _send(client, self._answers[target])
            case Drop(applied) | Die(applied):
                await self._end(request, fault, applied, (head, body))
            case DieOnChange():
                await self._die_on_change(request, (head, body), client)
            case _:
                if isinstance(fault, Delay):
                    await asyncio.sleep(fault.seconds)
                await self._forward(request, fault, (head, body), client)

    async def _end(self, request: Request, fault: Fault, applied: bool, message: tuple[wire.Head, bytes]) -> None:
        if isinstance(fault, Die):
            # Before the last write: nothing else that the client sends may pass.
            self.dead = True
        if applied:
            reader, writer = await self._ask(*message, last=True)
            with suppress(asyncio.IncompleteReadError):
                await wire.read_head(reader)
            writer.close()
        if isinstance(fault, Die):
            self._die(request)
        raise Cut

    def _die(self, request: Request) -> None:
        self.dead = True
        self.deaths.append(request)
        self.hang_up()
        self.on_death()

    async def _die_on_change(self, request: Request, message: tuple[wire.Head, bytes], client: Streams) -> None:
        """One write at a time: no second change may pass."""
        head = message[0]
        async with self._writing:
            path = urlsplit(_target(head)).path.removesuffix(f"/{request.subresource}" if request.subresource else "")
            before = await self._version(wire.Head(f"GET {path} HTTP/1.1", head.without("content-type")))
            answer, version = await self._answer(*message)
            is_done = answer.split(b" ", 2)[1].startswith(b"2")
            if is_done and (request.verb in ("create", "delete", "deletecollection") or version != before):
                self._die(request)
                raise Cut
        await _send(client, answer)

    async def _version(self, head: wire.Head) -> str:
        return (await self._answer(head, b""))[1]

    async def _answer(self, head: wire.Head, body: bytes) -> tuple[bytes, str]:
        """The API server's response, and the resource version of the object in it."""
        try:
            reader, writer = await self._ask(head, body)
        except OSError as gone:
            raise Cut from gone
        try:
            found = await wire.read_head(reader)
            if found is None:
                raise Cut
            answer = await _whole(found, reader)
        finally:
            writer.transport.abort()
        metadata = json.loads(answer.partition(b"\r\n\r\n")[2] or b"{}").get("metadata") or {}
        return answer, str(metadata.get("resourceVersion", ""))

    # -- the API server's side -----------------------------------------------------------

    async def _forward(self, request: Request, fault: Fault, message: tuple[wire.Head, bytes], client: Streams) -> None:
        try:
            reader, writer = await self._ask(*message)
        except OSError as gone:
            raise Cut from gone
        try:
            head = await wire.read_head(reader)
            if head is None:
                raise Cut
            if head.line.split()[1] == "101":
                await _splice(head, client, (reader, writer))
            elif request.streams and head.get("transfer-encoding").lower() == "chunked":
                await _stream(head, reader, client, fault)
            else:
                answer = await _whole(head, reader)
                if request.verb in ("get", "list"):
                    self._answers[_target(message[0])] = answer
                await _send(client, answer)
        finally:
            writer.transport.abort()

    async def _ask(self, head: wire.Head, body: bytes, last: bool = False) -> Streams:
        """Send a request to the API server. If the client is dead, only its `last` write is sent."""
        url = urlsplit(self.upstream.server)
        port = url.port or (443 if url.scheme == "https" else 80)
        trust = self.upstream.trust if url.scheme == "https" else None
        reader, writer = await asyncio.open_connection(url.hostname, port, ssl=trust, limit=1 << 24)
        headers = [
            ("Host", url.netloc),
            *head.without("host", "accept-encoding", "transfer-encoding", "content-length"),
        ]
        if body or not head.line.startswith("GET "):
            headers.append(("Content-Length", str(len(body))))
        if self.upstream.token and not head.get("authorization"):
            headers.append(("Authorization", f"Bearer {self.upstream.token}"))
        if self.dead and not last:
            writer.transport.abort()
            raise Cut
        writer.write(wire.Head(head.line, tuple(headers)).encode() + body)
        await writer.drain()
        return reader, writer


def _target(head: wire.Head) -> str:
    return head.line.split(" ")[1]


async def _whole(head: wire.Head, reader: asyncio.StreamReader) -> bytes:
    """Read a response that is not a stream."""
    content = await wire.read_body(reader, head, open_ended=True)
    return wire.response(head.line, head.without("transfer-encoding", "content-length", "connection"), content)


async def _send(client: Streams, content: bytes) -> None:
    client[1].write(content)
    await client[1].drain()


async def _stream(head: wire.Head, reader: asyncio.StreamReader, client: Streams, fault: Fault) -> None:
    """Forward a stream until it ends or the fault ends it."""
    left = fault.events if isinstance(fault, EndWatch) else None
    await _send(client, head.encode())
    if left == 0:
        await _end_stream(client, fault)
    rest = b""
    async for part in wire.chunks(reader):
        if left is None:
            await _send(client, wire.chunk(part))
            continue
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            await _send(client, wire.chunk(line + b"\n"))
            left -= 1
            if not left:
                await _end_stream(client, fault)
    await _send(client, b"0\r\n\r\n")


async def _end_stream(client: Streams, fault: Fault) -> None:
    """End a watch in one of three ways; a silent watch stays open until the client closes it."""
    assert isinstance(fault, EndWatch)
    if fault.how == "silent":
        await client[0].read()
    if fault.how == "expired":
        await _send(client, wire.chunk(wire.expired_event()) + b"0\r\n\r\n")
    raise Cut


async def _splice(head: wire.Head, client: Streams, server: Streams) -> None:
    """Forward bytes both ways after an upgrade (exec, port-forward)."""
    await _send(client, head.encode())
    ways = [asyncio.create_task(_copy(client[0], server[1])), asyncio.create_task(_copy(server[0], client[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
    raise Cut


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while content := await source.read(1 << 16):
            target.write(content)
            await target.drain()


# -- for synchronous tests ---------------------------------------------------------------


@contextmanager
def running(proxy: FaultProxy) -> Iterator[FaultProxy]:
    """Run the proxy in a thread until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(proxy.serve(), loop).result(60)
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_stop(proxy, server), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


async def _stop(proxy: FaultProxy, server: asyncio.Server) -> None:
    server.close()
    proxy.hang_up()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
