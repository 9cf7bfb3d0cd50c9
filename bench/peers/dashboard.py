"""A simulated Ray dashboard: KubeRay asks it for the state of a RayJob whose pods are simulated.

KubeRay's operator learns from the dashboard of each cluster how its job ends. Simulated pods have none, so the operator
gets this server as its HTTP proxy: it answers for every dashboard that every job has succeeded, at the first request.
Requests to Kubernetes use TLS and do not come here."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def simulated() -> Iterator[dict[str, str]]:
    """The environment with which a program reaches the dashboards."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Dashboard)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield {"HTTP_PROXY": f"http://127.0.0.1:{server.server_address[1]}"}
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Dashboard(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        now = int(time.time() * 1000)
        self._answer({"submission_id": name, "status": "SUCCEEDED", "start_time": now, "end_time": now})

    def do_POST(self) -> None:  # a RayJob is deleted, and its job is stopped
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer({"stopped": True})

    def _answer(self, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
