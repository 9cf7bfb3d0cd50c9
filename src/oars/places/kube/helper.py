"""The helper: runs in a sidecar of the head, with the head's image and environment. Standard library only.

- It serves the control loop: POST /ask {"script": text, "request": {…}} passes the request to the script (an engine's
  head_helper.py) and returns its reply, {"ok": …} or {"error": "…"}. The caller must send the cluster's token.
- In direct mode it watches the Lease that the cluster's owner renews. If the owner does not renew it in time, the
  helper deletes the root object, and so the whole cluster including itself.
"""

from __future__ import annotations

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
        key = hashlib.sha256(script.encode()).hexdigest()
        running = self.take(key) or self.start(key, script)
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
            self.idle.setdefault(key, []).append(running)
        return json.loads(line)

    def take(self, key: str) -> subprocess.Popen[str] | None:
        with self.lock:
            idle = self.idle.get(key, [])
            while idle:
                found = idle.pop()
                if found.poll() is None:
                    return found
        return None

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


class Owner:
    """Measures how long the owner has not renewed the Lease. Only the local clock is used, from one observed change of
    the Lease to the next, so clock skew does not matter."""

    def __init__(self, now: float) -> None:
        self.renew_time = ""
        self.changed_at = now

    def silence(self, status: int, lease: Any, now: float) -> float:
        """Seconds since the last renewal, given another read of the Lease. Time while the API server is unreachable
        does not count, for the owner cannot renew then. A missing Lease counts: a live owner would recreate it."""
        renew_time = str(lease.get("spec", {}).get("renewTime", ""))
        if status == 200 and renew_time != self.renew_time:
            self.renew_time, self.changed_at = renew_time, now
        elif status not in (200, 404):
            self.changed_at = now
        return now - self.changed_at


def read_orphan_timeout(lease: Any, before: float) -> float:
    """The orphan timeout in seconds that the Lease states, or `before` if it states none. 0: no timeout."""
    try:
        return float((lease.get("metadata", {}).get("annotations") or {})[ORPHANED_ANNOTATION])
    except (KeyError, ValueError):
        return before


class OnceLogger:
    """Logs each problem once, not in every poll, until `reset`."""

    def __init__(self) -> None:
        self.logged: set[str] = set()

    def log(self, message: str) -> None:
        if message not in self.logged:
            self.logged.add(message)
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()  # older Pythons buffer stderr

    def reset(self) -> None:
        self.logged.clear()


def watch_owner(namespace: str, name: str, timeout: float = ORPHAN_TIMEOUT) -> None:
    """Delete the cluster when its owner has not renewed the Lease for `timeout` seconds."""
    owner, logger = Owner(time.monotonic()), OnceLogger()
    while True:
        time.sleep(min(POLL_SECONDS, timeout / 4 or POLL_SECONDS))
        status, lease = call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
        timeout = read_orphan_timeout(lease, timeout)
        silence = owner.silence(status, lease, time.monotonic())
        if status == 200 and silence == 0:
            logger.reset()
        elif status == 403:
            logger.log(
                f"{missing_right('get', f'lease {name}', lease)} Until then nobody notices if the owner is gone."
            )
        elif status == 404 and timeout:
            logger.log(f"The Lease {name} is gone: without its owner the cluster is removed in {timeout:.0f} s.")
        if timeout and silence > timeout:
            logger.log(f"The owner has been silent for {timeout:.0f} s: removing the cluster.")
            remove(namespace, name, logger)


def remove(namespace: str, name: str, logger: OnceLogger) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
    status, answer = call("DELETE", path, {"propagationPolicy": "Background"})
    if status == 403:
        logger.log(
            f"{missing_right('delete', f'configmap {name}', answer)} Until then the cluster stays: use `oars down`."
        )


def missing_right(verb: str, what: str, answer: Any) -> str:
    return f"This pod's service account needs the right to {verb} the {what} ({answer.get('message', 'forbidden')})."


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
        threading.Thread(target=watch_owner, args=lease.split("/"), daemon=True).start()
    server = http.server.ThreadingHTTPServer(("", int(os.environ["OARS_HELPER_PORT"])), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
