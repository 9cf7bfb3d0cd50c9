"""A machine behind a transport other than fork: an agent on a host, reached by TCP. What the loop reads (who runs, how
one ended, free ports) is a mirror of what the agent announced; what changes something is a request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oars.base.errors import StartFailed
from oars.model import Limit, Process
from oars.places.local.process import CLUSTER, TAG
from oars.places.local.store import ClusterDir, ClusterRecord, tag
from oars.places.process.ledger import Entry
from oars.places.process.machine import UNKNOWN_EXIT, Exit, Streams
from oars.plan.fill import fill, fill_mapping

AGENT = Path(__file__).with_name("agent.py")
SECONDS = 30.0


class AgentMachine:
    """See oars.places.process.machine.Machine."""

    host = "127.0.0.1"
    limits: tuple[Limit, ...] = ()
    fixed_ports: Mapping[str, int] = {}

    def __init__(self, root: Path, record: ClusterRecord, wake: Callable[[], None]) -> None:
        self._root = root
        self._record = record
        self._wake = wake
        self._running: dict[str, tuple[int, int]] = {}
        self._exits: dict[str, Exit] = {}
        self._tails: dict[str, tuple[str, ...]] = {}
        self._ports: list[int] = []
        self._writer: asyncio.StreamWriter
        self._reading: asyncio.Task[None]
        self._last = 0  # request
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @classmethod
    async def connect(cls, directory: ClusterDir, record: ClusterRecord, wake: Callable[[], None]) -> AgentMachine:
        machine = cls(directory.path / "host", record, wake)
        if not machine._root.exists():
            machine._root.mkdir()
            words = (
                "-c",
                '"$0" - "$1" < "$2" &',
                record.python,
                str(machine._root),
                str(AGENT),
            )  # as ssh would start it
            await (await asyncio.create_subprocess_exec("sh", *words)).wait()
        reader, machine._writer = await machine._open()
        hello = json.loads(await reader.readline())
        machine._running = {label: tuple(start) for label, start in hello["starts"].items()}
        machine._ports = hello["ports"]
        for message in hello["exits"]:
            machine._hear(message)
        machine._reading = asyncio.create_task(machine._read(reader))
        return machine

    async def _open(self) -> Streams:
        async with asyncio.timeout(SECONDS):
            while True:
                with contextlib.suppress(OSError, ValueError):  # it has not written its port yet
                    return await asyncio.open_connection("127.0.0.1", int((self._root / "port").read_text()))
                await asyncio.sleep(0.02)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._replies.pop(message["id"]).set_result(message)
            return
        label, code = message["exited"], message["code"]
        reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self._exits[label] = Exit(reason, code)
        self._tails[label.rpartition(":")[0]] = tuple(message["tail"])
        self._running.pop(label, None)
        self._wake()

    async def _ask(self, **request: Any) -> dict[str, Any]:
        self._last = number = self._last + 1
        self._replies[number] = reply = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({"id": number, **request}).encode() + b"\n")
        async with asyncio.timeout(SECONDS):
            await reply
        found: dict[str, Any] = reply.result()
        return found

    # what is known

    def free_ports(self, count: int, claimed: Collection[int]) -> list[int]:
        free = [port for port in self._ports if port not in claimed]
        if len(free) < count:
            raise StartFailed(f"The agent offered too few ports: {count} are needed.")
        return free[:count]

    def can_bind(self, ports: Collection[int]) -> bool:
        return True  # if another program took one, the start fails and says so

    def values(self, entry: Entry, process: Process) -> Mapping[str, str]:
        scratch = self._root / entry.id
        return {"dir": str(scratch), **{f"file.{name}": str(scratch / name) for name in process.files}}

    def secret(self, name: str) -> str:
        return ""

    def is_running(self, entry: Entry) -> bool:
        return self._running.get(_label(entry)) == (entry.pid, entry.start)

    def exit_of(self, entry: Entry) -> Exit | None:
        return self._exits.get(_label(entry), UNKNOWN_EXIT)

    def memory_kills(self, entry: Entry) -> int:
        return 0  # the agent limits nothing

    def tail(self, member: str, count: int) -> tuple[str, ...]:
        return self._tails.get(member, ())[-count:]

    # what is done

    async def start(self, entry: Entry, process: Process, values: Mapping[str, str]) -> Entry:
        reply = await self._ask(
            op="start", label=_label(entry), entry=process.entry, argv=[fill(word, values) for word in process.argv],
            env=self._environment(entry, process, values), dir=values["dir"], files=fill_mapping(process.files, values),
        )  # fmt: skip
        if "error" in reply:
            raise StartFailed(reply["error"])
        pid, start = reply["start"]
        if _label(entry) not in self._exits:
            self._running[_label(entry)] = (pid, start)
        return replace(entry, pid=pid, start=start)

    def _environment(self, entry: Entry, process: Process, values: Mapping[str, str]) -> dict[str, str]:
        marks = {TAG: tag(self._record.mark, entry.incarnation), CLUSTER: str(self._root)}
        return {"PYTHONPATH": ":".join(self._record.import_path), **fill_mapping(process.env, values), **marks}

    async def stop(self, entry: Entry, grace: float) -> None:
        scratch = str(self._root / entry.id)
        await self._stop(entry, grace, [*entry.litter, scratch])

    async def _stop(self, entry: Entry, grace: float, litter: Sequence[str]) -> None:
        values = {"tag": tag(self._record.mark, entry.incarnation)}
        patterns = [fill(pattern, values) for pattern in litter]
        await self._ask(op="stop", label=_label(entry), grace=grace, signal=entry.signal, litter=patterns)

    async def sweep(self, entries: Sequence[Entry]) -> None:
        await asyncio.gather(*(self._stop(entry, 0.0, entry.litter) for entry in entries))

    async def sweep_unknown(self, known: Sequence[Entry]) -> None:
        await self._ask(op="sweep", known=[_label(entry) for entry in known])

    async def start_helper(self, script: str, head: Entry, process: Process, values: Mapping[str, str]) -> Streams:
        reader, writer = await self._open()
        await reader.readline()  # the hello of every connection
        request = {"op": "helper", "script": script, "env": self._environment(head, process, values)}
        writer.write(json.dumps(request).encode() + b"\n")
        return reader, writer

    async def close(self) -> None:
        self._reading.cancel()
        self._writer.close()


def _label(entry: Entry) -> str:
    """Names one start of a member."""
    return f"{entry.id}:{entry.incarnation}"
