"""The processes of the toy engine."""

from __future__ import annotations

import json
import os
import pickle
import queue
import select
import socket
import socketserver
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

workers: dict[str, dict[str, Any]] = {}
lock = threading.Lock()


class Task:
    """A pickled function and its arguments; the reply is empty if the worker died."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.reply = b""
        self.done = threading.Event()


tasks: queue.Queue[Task] = queue.Queue()


class Register(socketserver.StreamRequestHandler):
    """A worker is listed as long as its connection is open. It runs one task at a time."""

    def handle(self) -> None:
        hello = json.loads(self.rfile.readline())
        me = {"address": f"{self.client_address[0]}:{self.client_address[1]}", "items": [], "drained": False, **hello}
        with lock:
            workers[hello["name"]] = me
        try:
            while self._serve(me):
                pass
        except OSError:
            sys.stderr.write("connection reset\n")
        with lock:
            if workers.get(hello["name"]) is me:
                del workers[hello["name"]]

    def _serve(self, me: dict[str, Any]) -> bool:
        """Run the next task. False: the worker is gone."""
        if select.select([self.connection], [], [], 0.02)[0]:
            return False
        try:
            task = tasks.get(timeout=0 if me["drained"] else 0.05)
        except queue.Empty:
            return True
        try:
            send(self.connection, task.body)
            task.reply = receive(self.connection)
        finally:
            task.done.set()
        return True


def send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(struct.pack(">Q", len(data)) + data)


def receive(connection: socket.socket) -> bytes:
    """Raises OSError at the end of the connection."""

    def read(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = connection.recv(min(size - len(data), 1 << 20))
            if not part:
                raise ConnectionResetError
            data += part
        return bytes(data)

    (size,) = struct.unpack(">Q", read(8))
    return read(size)


class Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        with lock:
            shown = {name: w for name, w in workers.items() if not w["drained"]}
            self._answer(shown if self.path == "/workers" else {"workers": len(shown)})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/run":
            task = Task(data)
            tasks.put(task)
            task.done.wait()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(task.reply)
            return
        body = json.loads(data)
        with lock:
            if self.path == "/put":
                workers[body["worker"]]["items"].append(body["item"])
                self._answer({})
            elif self.path == "/clear":
                for worker in workers.values():
                    worker["items"] = []
                self._answer({})
            else:
                self._answer({name: drain(name, body["members"], body["force"]) for name in body["members"]})

    def _answer(self, data: object) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def log_message(self, format: str, *args: Any) -> None:
        sys.stderr.write(format % args + "\n")


def drain(name: str, leaving: list[str], force: bool) -> dict[str, str]:
    """Move its items to a worker that stays; pinned items cannot be moved."""
    worker = workers.get(name)
    if worker is None:
        return {"outcome": "finished"}
    if not force and "pinned" in worker["items"]:
        return {"outcome": "refused", "reason": "a pinned item"}
    others = [w for n, w in workers.items() if n not in leaving and not w["drained"]]
    if worker["items"] and not others and not force:
        return {"outcome": "refused", "reason": "another worker to take its items"}
    outcome = "moved" if worker["items"] and others else "finished"
    if others:
        others[0]["items"] += worker["items"]
    worker["items"], worker["drained"] = [], True
    return {"outcome": outcome}


class Server(ThreadingHTTPServer):
    daemon_threads = True


class Registry(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def head() -> None:
    _, _, host, client, http = sys.argv
    print("toy head starts", flush=True)
    registry = Registry((host, int(client)), Register)
    threading.Thread(target=registry.serve_forever, daemon=True).start()
    Server((host, int(http)), Api).serve_forever()


def worker() -> None:
    _, _, host, port, name, incarnation = sys.argv
    print(f"toy worker {name} starts", flush=True)
    if os.environ.get("TOY_CRASH") and name.endswith(os.environ["TOY_CRASH"]):
        raise ModuleNotFoundError("No module named 'missing_thing'")
    if os.environ.get("TOY_GIVE_UP") and name.endswith(os.environ["TOY_GIVE_UP"]):
        sys.exit(f"toy: worker {name} gave up")
    with open(f"/tmp/oars-toy-{os.environ['OARS_TAG']}", "w") as litter:
        litter.write("left outside")
    time.sleep(float(os.environ.get("TOY_WAIT", "0")))
    connection = connect(host, int(port))
    hello = {"name": name, "incarnation": incarnation, "pid": os.getpid()}
    connection.sendall(json.dumps(hello).encode() + b"\n")
    try:
        while True:
            function, arguments = pickle.loads(receive(connection))
            send(connection, function(*arguments))
    except OSError:
        print("toy head is gone", flush=True)


def connect(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((host, port), timeout=None)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
