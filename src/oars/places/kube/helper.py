"""Runs beside the head, in its image and with its environment: standard library only. Two duties:

- It answers those who look after the cluster: POST /ask {"script": text, "request": {…}} has the script (an engine's
  head_helper.py) answer the request, {"ok": …} or {"error": "…"}. Whoever asks must know the cluster's token.
- Where no operator looks after the cluster it watches a Lease that the cluster's owner renews. When the owner has
  been silent for too long it deletes the object on which all others hang, and so itself.
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

ACCOUNT = "/var/run/secrets/oars"  # token and ca.crt of the API server, if we may speak to it
TOKEN_FILE = "/etc/oars/secrets/control"
MAX_BODY = 4 * 2**20
LOOK_SECONDS = 5.0
PATIENCE = 120.0  # until the Lease says another
ORPHAN_SECONDS = "oars.dev/orphaned"  # annotation of the Lease; not of this pod, which would go if it changed


class Scripts:
    """Running scripts. As many of each as there are questions at a time: a long one must not keep others waiting."""

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
    """One request a connection."""

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
            question = json.loads(self.rfile.read(length))
            self.answer(200, SCRIPTS.ask(question["script"], question["request"]))

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
        """Nothing: every look would be a line."""


class Owner:
    """How long the owner has been silent. Time is measured here, from one change of the Lease to the next: no two
    clocks are compared."""

    def __init__(self, now: float) -> None:
        self.renewed = ""
        self.heard = now

    def silence(self, status: int, lease: Any, now: float) -> float:
        """Seconds, after another look. Only time in which we can see counts: while the API server is away nobody can
        renew. An owner who is there makes a deleted Lease anew, so one that stays away is silence too."""
        renewed = str(lease.get("spec", {}).get("renewTime", ""))
        if status == 200 and renewed != self.renewed:
            self.renewed, self.heard = renewed, now
        elif status not in (200, 404):
            self.heard = now
        return now - self.heard


def patience_said(lease: Any, before: float) -> float:
    """Seconds for which an owner may be silent, as the Lease has it now. 0: for ever."""
    try:
        return float((lease.get("metadata", {}).get("annotations") or {})[ORPHAN_SECONDS])
    except (KeyError, ValueError):
        return before


class OnceLogger:
    """Says what is wrong once, not at every look."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def say(self, sentence: str) -> None:
        if sentence not in self.said:
            self.said.add(sentence)
            sys.stderr.write(f"{sentence}\n")
            sys.stderr.flush()  # older Pythons keep it

    def all_is_well(self) -> None:
        self.said.clear()


def watch_owner(namespace: str, name: str, patience: float = PATIENCE) -> None:
    owner, voice = Owner(time.monotonic()), OnceLogger()
    while True:
        time.sleep(min(LOOK_SECONDS, patience / 4 or LOOK_SECONDS))  # the one thing to await is that nothing happens
        status, lease = call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
        patience = patience_said(lease, patience)
        silence = owner.silence(status, lease, time.monotonic())
        if status == 200 and silence == 0:
            voice.all_is_well()
        elif status == 403:
            voice.say(f"{lacks('get', f'lease {name}', lease)} Until then nobody notices if the owner is gone.")
        elif status == 404 and patience:
            voice.say(f"The Lease {name} is gone: without its owner the cluster is removed in {patience:.0f} s.")
        if patience and silence > patience:
            voice.say(f"The owner has been silent for {patience:.0f} s: removing the cluster.")
            remove(namespace, name, voice)


def remove(namespace: str, name: str, voice: OnceLogger) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
    status, answer = call("DELETE", path, {"propagationPolicy": "Background"})
    if status == 403:
        voice.say(f"{lacks('delete', f'configmap {name}', answer)} Until then the cluster stays: use `oars down`.")


def lacks(verb: str, what: str, answer: Any) -> str:
    return f"This pod's service account needs the right to {verb} the {what} ({answer.get('message', 'forbidden')})."


def call(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """(status, answer) of the API server; status 0 if it does not answer."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    try:
        with open(f"{ACCOUNT}/token") as file:
            headers = {"Authorization": f"Bearer {file.read().strip()}", "Content-Type": "application/json"}
        context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
        connection = http.client.HTTPSConnection(host, port, timeout=10, context=context)
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.stderr.write(f"{method} {path}: {error}\n")
        return 0, {}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # as process 1 we would not be ended by it
    lease = os.environ.get("OARS_LEASE")
    if lease:
        threading.Thread(target=watch_owner, args=lease.split("/"), daemon=True).start()
    server = http.server.ThreadingHTTPServer(("", int(os.environ["OARS_HELPER_PORT"])), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
