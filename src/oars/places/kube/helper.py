"""The helper: runs in a sidecar of the head, with the head's image and environment. Standard library only.

- It serves the control loop: POST /ask {"script": text, "request": {…}, "seconds": s} passes the request to the script
  (an engine's head_helper.py) and returns its reply, {"ok": …} or {"error": "…"}. The caller must send the cluster's
  token. If the caller disconnects or the time is up, the script is ended.
- In direct mode it watches the Lease that the cluster's owner renews, and asks the head how long the cluster has been
  without work and without a client. If the owner does not renew the Lease in time, or the cluster's lifetime is over,
  the helper deletes the root object, and so the whole cluster including itself.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import http.server
import io
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from typing import Any

ACCOUNT = "/var/run/secrets/oars"  # token and ca.crt for the API server, if the helper watches a Lease
TOKEN_FILE = "/etc/oars/secrets/control"
MAX_BODY = 4 * 2**20
MAX_UNTRUSTED = 32  # connections that have not shown the token
REQUEST_SECONDS = 10.0  # for a request to arrive
MAX_SCRIPTS = 4  # one that has imported Ray takes 90 MB
GRACE_SECONDS = 5.0  # for a script to undo what it began
POLL_SECONDS = 5.0  # between two reads of the Lease
ORPHAN_TIMEOUT = 120.0  # seconds; used until an annotation of the Lease has been read
# Annotation of the Lease: the orphan timeout in seconds. On the pod, a change of it would replace the head.
ORPHANED_ANNOTATION = "oars.dev/orphaned"
# The same for the lifetime: {"created": seconds, "rules": [{"reason", "figure", "seconds", "message"}]}. A figure is
# age, idle or no_client.
LIFETIME_ANNOTATION = "oars.dev/lifetime"
GONE = "oars-gone"  # ConfigMap with the reasons for which clusters ended
INQUIRY_SECONDS = 30.0  # a script imports Ray first, which takes long with little processor time


class Failed(Exception):
    """A request got no reply."""


class Script:
    """A running script. It is loaded from memory: the head's container can write to every volume that they share."""

    LOADER = """import sys
sys.path[:] = [path for path in sys.path if path]  # without the working directory
with open(int(sys.argv.pop()), encoding="utf-8") as file:
    source = file.read()
exec(compile(source, "head_helper.py", "exec"))
"""

    def __init__(self, source: str) -> None:
        descriptor = os.memfd_create("head_helper.py")
        try:
            with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
                file.write(source)
            os.lseek(descriptor, 0, os.SEEK_SET)
            argv = [sys.executable, "-c", self.LOADER, str(descriptor)]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, bufsize=0, pass_fds=(descriptor,))
        finally:
            os.close(descriptor)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdin.fileno(), False)

    @property
    def is_usable(self) -> bool:
        """It runs and has written nothing since its last reply."""
        return self.process.poll() is None and not select.select([self.stdout], [], [], 0)[0]

    def ask(self, request: bytes, caller: socket.socket, seconds: float) -> bytes:
        """The reply, one line. Raises Failed if there is none, or if the caller disconnects."""
        deadline, reply = time.monotonic() + seconds, b""
        while not reply.endswith(b"\n"):
            wait = deadline - time.monotonic()
            if wait <= 0:
                raise Failed(f"no answer within {seconds:.0f} s")
            readers: list[Any] = [self.stdout, caller]
            readable, writable, _ = select.select(readers, [self.stdin] if request else [], [], wait)
            if caller in readable:  # it has sent its request, so this is the end
                raise Failed("the caller is gone")
            if self.stdout in readable:
                data = os.read(self.stdout.fileno(), 65536)
                if not data:
                    raise Failed("the helper's script ended")
                reply += data
            elif writable:
                try:
                    request = request[os.write(self.stdin.fileno(), request) :]
                except BrokenPipeError:
                    raise Failed("the helper's script ended") from None
        return reply

    def end(self) -> None:
        """Close its stdin, so that it can undo what it has begun, and kill it if that takes too long."""
        self.stdin.close()
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stdout.close()


class Scripts:
    """Pool of running scripts: one process per concurrent request, so that a long request does not delay others. Their
    number is limited, because each has imported the engine."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0  # running scripts, also those that are being ended
        self.idle: list[tuple[str, Script]] = []

    def ask(self, source: str, request: Any, caller: socket.socket, seconds: float) -> Any:
        script = None
        try:
            script = self.take(source)
            reply = json.loads(script.ask(json.dumps(request).encode() + b"\n", caller, seconds))
        except (Failed, OSError, ValueError) as error:  # ValueError: its reply is not JSON
            if script is not None:
                self.drop(script)
            return {"error": str(error)}
        with self.lock:
            self.idle.append((source, script))
        return reply

    def take(self, source: str) -> Script:
        """An idle script with this source, or a new one, if necessary in place of an idle one with another source.
        Raises Failed if too many run."""
        useless = []
        with self.lock:
            found = [each for each in self.idle if each[0] == source and each[1].is_usable]
            if found:
                self.idle.remove(found[-1])
                return found[-1][1]
            useless = [each for each in self.idle if each[0] == source or self.count >= MAX_SCRIPTS]
            self.idle = [each for each in self.idle if each not in useless]
        for _, script in useless:
            self.drop(script)
        with self.lock:
            if self.count >= MAX_SCRIPTS:
                raise Failed(f"the helper is busy with {self.count} requests")
            self.count += 1
        try:
            return Script(source)
        except BaseException:
            with self.lock:
                self.count -= 1
            raise

    def drop(self, script: Script) -> None:
        try:
            script.end()
        finally:
            with self.lock:
                self.count -= 1


SCRIPTS = Scripts()


class RequestReader(io.RawIOBase):
    """Reads a request from a socket until a deadline, however slowly it arrives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + REQUEST_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.connection.settimeout(max(0.001, self.deadline - time.monotonic()))
        return self.connection.recv_into(buffer)


class Handler(http.server.BaseHTTPRequestHandler):
    """Handles one request per connection."""

    server: Server

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(RequestReader(self.connection))

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        if self.path != "/ask":
            self.answer(404, {})
        elif not self.knows_token():
            self.answer(401, {"error": "wrong token"})
        else:
            self.server.trust(self.connection)
            try:
                body = self.read_body()
                source, request, seconds = str(body["script"]), body["request"], float(body["seconds"])
            except (ValueError, KeyError, TypeError) as error:
                self.answer(400, {"error": f"not a request: {type(error).__name__}: {error}"})
                return
            self.answer(200, SCRIPTS.ask(source, request, self.connection, seconds))

    def read_body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= MAX_BODY:
            raise ValueError(f"{length} bytes")
        return json.loads(self.rfile.read(length))

    def knows_token(self) -> bool:
        with open(TOKEN_FILE) as file:
            expected = f"Bearer {file.read().strip()}"
        return hmac.compare_digest(expected.encode(), self.headers.get("Authorization", "").encode())

    def answer(self, status: int, content: Any) -> None:
        self.connection.settimeout(REQUEST_SECONDS)
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the control loop sends requests all the time."""


class Server(http.server.ThreadingHTTPServer):
    """One thread per connection. Connections that have not shown the token are limited in number: the oldest are closed
    first, for those of the control loop show it at once."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, host: str = "") -> None:
        self.lock = threading.Lock()
        self.untrusted: list[Any] = []
        super().__init__((host, port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self.untrusted.append(request)
            surplus = self.untrusted[:-MAX_UNTRUSTED]
            del self.untrusted[:-MAX_UNTRUSTED]
            for each in surplus:  # under the lock: its thread cannot close it meanwhile
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # its thread reads the end
        super().process_request(request, client_address)

    def trust(self, request: Any) -> None:
        with self.lock, contextlib.suppress(ValueError):
            self.untrusted.remove(request)

    def shutdown_request(self, request: Any) -> None:
        self.trust(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the errors of this program, not connections that break."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Inquiry:
    """Asks the head how long it has had no work and no client: GET `path`, or a request to the engine's script."""

    def __init__(self, port: int, path: str = "", secret: str = "", script: str = "") -> None:
        self.host, self.port = os.environ.get("POD_IP") or "127.0.0.1", port
        self.path, self.secret, self.script = path, secret, script

    def ask(self) -> dict[str, Any]:
        """The figures; empty if the head does not answer."""
        reply = self.ask_script() if self.script else self.get()
        if not isinstance(reply, dict):
            return {}
        return {name: reply[name] for name in ("idle", "no_client") if isinstance(reply.get(name), (int, float))}

    def get(self) -> Any:
        headers = {}
        try:
            if self.secret:
                with open(f"{os.path.dirname(TOKEN_FILE)}/{self.secret}") as file:
                    headers["Authorization"] = f"Bearer {file.read().strip()}"
            connection = http.client.HTTPConnection(self.host, self.port, timeout=INQUIRY_SECONDS)
            connection.request("GET", self.path, headers=headers)
            return json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            return None

    def ask_script(self) -> Any:
        with open(self.script, encoding="utf-8") as file:
            source = file.read()
        caller, other = socket.socketpair()
        with caller, other:
            request = {"op": "look", "address": f"{self.host}:{self.port}"}
            return SCRIPTS.ask(source, request, caller, INQUIRY_SECONDS).get("ok")


class Watch:
    """Deletes the cluster when its owner has not renewed the Lease for `timeout` seconds (0: never), or when a rule of
    its lifetime is met. For the owner only the local clock is used, from one observed change of the Lease to the next,
    so clock skew does not matter."""

    def __init__(
        self, namespace: str, name: str, timeout: float = ORPHAN_TIMEOUT, inquiry: Inquiry | None = None
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.timeout = timeout
        self.inquiry = inquiry
        self.created = 0.0
        self.rules: list[dict[str, Any]] = []
        self.labels: dict[str, str] = {}
        self.uid = ""  # of the root
        self.is_replaced = False  # another cluster has the name: this pod is a leftover of the one before
        self.renew_time = ""
        self.changed_at = time.monotonic()
        self.logged: set[str] = set()

    def run(self) -> None:
        while not self.is_replaced:
            limits = [seconds for seconds in (self.timeout, *(rule["seconds"] for rule in self.rules)) if seconds]
            time.sleep(min([POLL_SECONDS, *(seconds / 4 for seconds in limits)]))
            try:
                self.poll()
            except Exception as error:  # noqa: BLE001 (nobody starts this thread again)
                self.log(f"Watching the cluster failed: {type(error).__name__}: {error}.")

    def poll(self) -> None:
        """Read the Lease once. Time while the API server is unreachable does not count, for the owner cannot renew
        then. A missing Lease counts: a live owner would recreate it."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases/{self.name}"
        status, lease = call("GET", path)
        self.read(lease.get("metadata", {}))
        if self.is_replaced:
            return
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
            self.remove("OwnerGone", f"its owner was silent for {self.timeout:.0f} s")
        elif rule := self.met_rule():
            self.remove(rule["reason"], rule["message"])

    def read(self, metadata: Any) -> None:
        """What the Lease says of the cluster. What it does not say stays as it was."""
        uid = next((owner["uid"] for owner in metadata.get("ownerReferences") or ()), self.uid)
        self.is_replaced = bool(self.uid) and uid != self.uid
        if self.is_replaced:
            self.log("Another cluster has this name now: this pod does not watch its lifetime.")
            return
        self.uid = uid
        annotations = metadata.get("annotations") or {}
        self.labels = metadata.get("labels") or self.labels
        with contextlib.suppress(KeyError, ValueError):
            self.timeout = float(annotations[ORPHANED_ANNOTATION])
        with contextlib.suppress(KeyError, ValueError, TypeError):
            lifetime = json.loads(annotations[LIFETIME_ANNOTATION])
            rules = [{**rule, "seconds": float(rule["seconds"])} for rule in lifetime["rules"]]
            self.created, self.rules = float(lifetime["created"]), rules

    def met_rule(self) -> dict[str, Any] | None:
        """The first rule of the lifetime that is met."""
        if not self.rules:
            return None
        figures = {"age": time.time() - self.created} if self.created else {}
        if self.inquiry is not None and any(rule["figure"] != "age" for rule in self.rules):
            figures |= self.inquiry.ask()
        return next((rule for rule in self.rules if figures.get(rule["figure"], 0.0) >= rule["seconds"]), None)

    def remove(self, reason: str, message: str) -> None:
        """Delete the root, then note why, before the rights of this pod are deleted with it."""
        self.log(f"Removing the cluster: {message}.")
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}"
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if self.uid:
            body["preconditions"] = {"uid": self.uid}
        status, answer = call("DELETE", path, body)
        if status == 409:
            self.is_replaced = True
        elif status == 403:
            self.log_refusal("delete", f"configmap {self.name}", answer, "the cluster stays: use `oars down`.")
        elif status:
            self.note(reason, message)

    def note(self, reason: str, message: str) -> None:
        """Store why the cluster ends, for `oars ls --gone`."""
        name = self.labels.get("app.kubernetes.io/instance", self.name)
        gone = {
            "name": name,
            "engine": self.labels.get("app.kubernetes.io/name", ""),
            "place": "kubernetes",
            "ended": time.time(),
            "reason": reason,
            "message": message,
            "mode": "direct",
        }
        data = {f"{name}.{self.uid}": json.dumps(gone)}
        call("PATCH", f"/api/v1/namespaces/{self.namespace}/configmaps/{GONE}", {"data": data})

    def log_refusal(self, verb: str, what: str, answer: Any, effect: str) -> None:
        reason = answer.get("message", "forbidden")
        self.log(f"This pod's service account needs the right to {verb} the {what} ({reason}). Until then {effect}")

    def log(self, message: str) -> None:
        """Log each problem once, not in every poll, until the owner renews the Lease."""
        if message not in self.logged:
            self.logged.add(message)
            with contextlib.suppress(OSError):  # a log that cannot be written is no reason to stop
                sys.stderr.write(f"{message}\n")
                sys.stderr.flush()  # older Pythons buffer stderr


def call(method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and body of the API server's response; status 0 if there is none."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    try:
        with open(f"{ACCOUNT}/token") as file:
            kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
            headers = {"Authorization": f"Bearer {file.read().strip()}", "Content-Type": kind}
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
        asked = json.loads(os.environ.get("OARS_INQUIRY", "{}"))
        timeout = 0.0 if os.environ.get("OARS_DETACHED") else ORPHAN_TIMEOUT
        watch = Watch(namespace, name, timeout, Inquiry(**asked) if asked else None)
        threading.Thread(target=watch.run, daemon=True).start()
    Server(int(os.environ["OARS_HELPER_PORT"])).serve_forever()


if __name__ == "__main__":
    main()
