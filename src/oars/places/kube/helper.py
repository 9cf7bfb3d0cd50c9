"""The helper: runs in a sidecar of the head, with the head's image and environment. Standard library only.

- It serves the control loop: POST /ask {"script": text, "request": {…}} passes the request to the script (an engine's
  head_helper.py) and returns its reply, {"ok": …} or {"error": "…"}. The caller must send the cluster's token.
- In direct mode it watches the Lease that the cluster's owner renews. If the owner does not renew it in time, the
  helper deletes the root object, and so the whole cluster including itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

ACCOUNT = "/var/run/secrets/oars"  # token and ca.crt for the API server, if the helper watches a Lease
TOKEN_FILE = "/etc/oars/secrets/control"
MAX_BODY = 4 * 2**20
POLL_SECONDS = 5.0  # between two reads of the Lease
ORPHAN_TIMEOUT = 120.0  # seconds; used until an annotation of the Lease has been read
# Annotation of the Lease: the orphan timeout in seconds. On the pod, a change of it would replace the head.
ORPHANED_ANNOTATION = "oars.dev/orphaned"


class Scripts:
    """Pool of running scripts: one process per concurrent request, so that a long request does not delay others."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: dict[str, list[subprocess.Popen[str]]] = {}

    def ask(self, script: str, request: Any) -> Any:
        key, running = hashlib.sha256(script.encode()).hexdigest(), None
        with self.lock:
            idle = self.idle.setdefault(key, [])
            while idle and (running is None or running.poll() is not None):
                running = idle.pop()
        if running is None or running.poll() is not None:
            running = self.start(key, script)
        try:
            assert running.stdin is not None and running.stdout is not None
            running.stdin.write(json.dumps(request) + "\n")
            running.stdin.flush()
            line = running.stdout.readline()
        except OSError:
            line = ""
        if not line:
            running.kill()
            running.wait()
            return {"error": "the helper's script ended"}
        with self.lock:
            idle.append(running)
        return json.loads(line)

    def start(self, key: str, script: str) -> subprocess.Popen[str]:
        path = os.path.join(tempfile.gettempdir(), f"oars-{key[:16]}.py")
        if not os.path.exists(path):
            draft = f"{path}.{threading.get_ident()}"
            with open(draft, "w") as file:
                file.write(script)
            os.replace(draft, path)
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, path], stdin=pipe, stdout=pipe, text=True)


SCRIPTS = Scripts()


class Handler(http.server.BaseHTTPRequestHandler):
    """Handles one request per connection."""

    timeout = 30

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/ask" or length > MAX_BODY:
            self.answer(404, {})
        elif not self.knows_token():
            self.answer(401, {"error": "wrong token"})
        else:
            body = json.loads(self.rfile.read(length))
            self.answer(200, SCRIPTS.ask(body["script"], body["request"]))

    def knows_token(self) -> bool:
        with open(TOKEN_FILE) as file:
            expected = f"Bearer {file.read().strip()}"
        return hmac.compare_digest(expected, self.headers.get("Authorization", ""))

    def answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the control loop sends requests all the time."""


class OwnerWatch:
    """Deletes the cluster when its owner has not renewed the Lease for `timeout` seconds (0: never). Only the local
    clock is used, from one observed change of the Lease to the next, so clock skew does not matter."""

    def __init__(self, namespace: str, name: str, timeout: float = ORPHAN_TIMEOUT) -> None:
        self.namespace = namespace
        self.name = name
        self.timeout = timeout
        self.renew_time = ""
        self.changed_at = time.monotonic()
        self.logged: set[str] = set()

    def run(self) -> None:
        while True:
            time.sleep(min(POLL_SECONDS, self.timeout / 4 or POLL_SECONDS))
            self.poll()

    def poll(self) -> None:
        """Read the Lease once. Time while the API server is unreachable does not count, for the owner cannot renew
        then. A missing Lease counts: a live owner would recreate it."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{self.name}"
        status, lease = call("GET", path)
        with contextlib.suppress(KeyError, ValueError):  # else the last timeout stays
            self.timeout = float((lease.get("metadata", {}).get("annotations") or {})[ORPHANED_ANNOTATION])
        now, renew_time = time.monotonic(), str(lease.get("spec", {}).get("renewTime", ""))
        if status == 200 and renew_time != self.renew_time:
            self.renew_time, self.changed_at = renew_time, now
            self.logged.clear()
        elif status not in (200, 404):
            self.changed_at = now
        if status == 403:
            self.log_refusal("get", f"lease {self.name}", lease, "nobody notices if the owner is gone.")
        elif status == 404 and self.timeout:
            message = f"The Lease {self.name} is gone: without its owner the cluster is removed in"
            self.log(f"{message} {self.timeout:.0f} s.")
        if self.timeout and now - self.changed_at > self.timeout:
            self.log(f"The owner has been silent for {self.timeout:.0f} s: removing the cluster.")
            path = f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"
            status, answer = call("DELETE", path, {"propagationPolicy": "Background"})
            if status == 403:
                self.log_refusal("delete", f"configmap {self.name}", answer, "the cluster stays: use `oars down`.")

    def log_refusal(self, verb: str, what: str, answer: Any, effect: str) -> None:
        reason = answer.get("message", "forbidden")
        self.log(f"This pod's service account needs the right to {verb} the {what} ({reason}). Until then {effect}")

    def log(self, message: str) -> None:
        """Log each problem once, not in every poll, until the owner renews the Lease."""
        if message not in self.logged:
            self.logged.add(message)
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()  # older Pythons buffer stderr


def call(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and body of the API server's response; status 0 if there is none."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    try:
        with open(f"{ACCOUNT}/token") as file:
            headers = {"Authorization": f"Bearer {file.read().strip()}", "Content-Type": "application/json"}
        context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
        connection = http.client.HTTPSConnection(host, port, timeout=10, context=context)
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.stderr.write(f"{method} {path}: {error}\n")
        return 0, {}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the kernel ignores SIGTERM for process 1 without a handler
    lease = os.environ.get("OARS_LEASE")
    if lease:
        namespace, name = lease.split("/")
        threading.Thread(target=OwnerWatch(namespace, name).run, daemon=True).start()
    server = http.server.ThreadingHTTPServer(("", int(os.environ["OARS_HELPER_PORT"])), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
