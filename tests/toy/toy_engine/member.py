"""The processes of the toy engine."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

workers: dict[str, dict[str, Any]] = {}
lock = threading.Lock()


class Register(socketserver.StreamRequestHandler):
    """A worker is listed as long as its connection is open."""

    def handle(self) -> None:
        hello = json.loads(self.rfile.readline())
        me = {"address": f"{self.client_address[0]}:{self.client_address[1]}", "items": [], "drained": False, **hello}
        with lock:
            workers[hello["name"]] = me
        try:
            self.rfile.read()
        except OSError:
            sys.stderr.write("connection reset\n")
        with lock:
            if workers.get(hello["name"]) is me:
                del workers[hello["name"]]


class Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        with lock:
            shown = {name: w for name, w in workers.items() if not w["drained"]}
            self._answer(shown if self.path == "/workers" else {"workers": len(shown)})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            if self.path == "/put":
                workers[body["worker"]]["items"].append(body["item"])
                self._answer({})
            else:
                self._answer({name: drain(name, body["members"], body["force"]) for name in body["members"]})

    def _answer(self, data: object) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def log_message(self, format: str, *args: Any) -> None:
        sys.stderr.write(format % args + "\n")


def drain(name: str, leaving: list[str], force: bool) -> str:
    """Move its items to a worker that stays; pinned items cannot be moved."""
    worker = workers.get(name)
    if worker is None:
        return ""
    if not force and "pinned" in worker["items"]:
        return "a pinned item"
    others = [w for n, w in workers.items() if n not in leaving and not w["drained"]]
    if worker["items"] and not others and not force:
        return "another worker to take its items"
    if others:
        others[0]["items"] += worker["items"]
    worker["items"], worker["drained"] = [], True
    return ""


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
    connection.recv(1)  # returns when the head is gone


def connect(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((host, port), timeout=None)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
