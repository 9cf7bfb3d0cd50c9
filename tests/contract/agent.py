"""Agent of a toy host: starts, watches and kills processes for its clients. Standard library only, because it is sent
to the host as text (`ssh host python3 - DIR < agent.py`). It speaks JSON lines: each request has an id and gets one
reply; exits are announced to every connection. It ends when nobody is connected and nothing runs."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import random
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

Message = dict[str, Any]
ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
HELPER_GRACE = 5.0
RUN = """
import importlib, sys
module, _, function = sys.argv[1].partition(":")
sys.argv = sys.argv[2:]
sys.exit(getattr(importlib.import_module(module), function)())
"""


def start_time(pid: int) -> int:
    """Clock ticks since boot: with the pid it names one process for ever."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def free_ports(count: int) -> list[int]:
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 10 * count):
        with socket.socket() as probe:
            if len(found) < count and probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
    return found


def make_directory(path: str, files: dict[str, str]) -> None:
    os.makedirs(path, exist_ok=True)
    for name, text in files.items():
        Path(path, name).write_text(text)


def last_lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-20:]


def remove(patterns: list[str]) -> None:
    for path in [path for pattern in patterns for path in glob.glob(pattern)]:
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


class Agent:
    def __init__(self) -> None:
        self.running: dict[str, asyncio.subprocess.Process] = {}  # by label, which names one start of a member
        self.starts: dict[str, tuple[int, int]] = {}  # pid and start time
        self.exits: dict[str, Message] = {}
        self.connections: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.idle = asyncio.Event()

    async def serve(self) -> None:
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        (ROOT / "port").write_text(str(server.sockets[0].getsockname()[1]))
        await self.idle.wait()
        server.close()
        (ROOT / "port").unlink()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        hello = {"starts": self.starts, "exits": list(self.exits.values()), "ports": free_ports(20)}
        send(writer, hello)
        try:
            while line := await reader.readline():
                request = json.loads(line)
                if request["op"] == "helper":
                    self.connections.discard(writer)
                    await self.help(request, reader, writer)
                    break
                self.background(self.answer(writer, request))
        finally:
            self.connections.discard(writer)
            writer.close()
            self.check_idle()

    def background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def check_idle(self) -> None:
        if not self.connections and not self.running:
            self.idle.set()

    async def answer(self, writer: asyncio.StreamWriter, request: Message) -> None:
        verbs = {"start": self.start, "stop": self.stop, "sweep": self.sweep}
        try:
            reply = await verbs[request["op"]](request)
        except OSError as error:
            reply = {"error": str(error)}
        send(writer, {"id": request["id"], **reply})

    async def start(self, request: Message) -> Message:
        label = request["label"]
        make_directory(request["dir"], request["files"])
        log = ROOT / f"{label}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", RUN, request["entry"], *request["argv"],
                env={**os.environ, **request["env"]}, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self.running[label], self.starts[label] = process, (process.pid, start_time(process.pid))
        self.background(self.watch(label, process, log))
        return {"start": self.starts[label]}

    async def watch(self, label: str, process: asyncio.subprocess.Process, log: Path) -> None:
        code = await process.wait()
        self.exits[label] = {"exited": label, "code": code, "tail": last_lines(log)}
        del self.running[label]
        for writer in self.connections:
            send(writer, self.exits[label])
        self.check_idle()

    async def stop(self, request: Message) -> Message:
        process = self.running.get(request["label"])
        if process is not None:
            if request["grace"] > 0 and self.is_itself(request["label"]):
                process.send_signal(signal.Signals[f"SIG{request['signal']}"])
                await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=request["grace"])
            if self.is_itself(request["label"]):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        remove(request["litter"])
        return {}

    def is_itself(self, label: str) -> bool:
        """It runs, and its pid has not been given to another process."""
        pid, start = self.starts[label]
        return label in self.running and Path(f"/proc/{pid}").exists() and start_time(pid) == start

    async def sweep(self, request: Message) -> Message:
        unknown = [label for label in self.running if label not in request["known"]]
        await asyncio.gather(*(self.stop({"label": label, "grace": 0, "litter": []}) for label in unknown))
        return {}

    async def help(self, request: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From now on the connection is the helper's stdin and stdout. When it is closed, the helper must end."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", request["script"], env={**os.environ, **request["env"]}, stdin=pipe, stdout=pipe
        )
        assert process.stdin is not None and process.stdout is not None
        replies = asyncio.create_task(pump(process.stdout, writer))
        await pump(reader, process.stdin)
        await asyncio.wait([replies], timeout=HELPER_GRACE)
        if process.returncode is None:
            process.kill()
        await asyncio.gather(process.wait(), replies, return_exceptions=True)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def send(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    asyncio.run(Agent().serve())
