"""The helper's server over real HTTP, with real scripts: who is answered, and what becomes of a request whose caller is
gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from oars.base.errors import EngineUnreachable
from oars.kube.client import Client
from oars.model import HEAD, Member, MemberState, Role
from oars.places.http import request
from oars.places.kube import helper, names
from oars.places.kube.render.values import CONTROL_TOKEN
from oars.places.kube.wire import KubeWire, Reach
from oars.places.local.process import start_of
from oars.places.process.machine import HELPER_GRACE
from oars.places.process.wire import MAX_HELPERS
from tests.unit.places.clusters import cluster

TOKEN = "a-secret"
GRACE_SECONDS = helper.GRACE_SECONDS
PID = """
import json, os, sys
for line in sys.stdin:
    print(json.dumps({"ok": [os.getpid(), json.loads(line)]}), flush=True)
"""
# Like Ray's client if the GCS hangs: it does not read stdin meanwhile.
HANGS = """
import json, os, sys, time
for line in sys.stdin:
    file = json.loads(line)["file"]
    open(f"{file}-{os.getpid()}", "x").close()
    while not os.path.exists(f"{file}-go"):
        time.sleep(0.01)
    print(json.dumps({"ok": os.getpid()}), flush=True)
"""
# Like Dask's script: it undoes a drain at the end of stdin.
UNDOES = """
import json, os, sys
file = json.loads(sys.stdin.readline())["file"]
open(f"{file}-{os.getpid()}", "x").close()
sys.stdin.read()
open(f"{file}-undone", "x").close()
"""
DIES = "import sys; sys.stdin.readline(); sys.exit(3)"
TALKS = """
import json, os, sys
for line in sys.stdin:
    print(json.dumps({"ok": os.getpid()}) + "\\nand a warning", flush=True)
"""
NEVER_READS = "import time; time.sleep(60)"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setattr(helper, "TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setattr(helper, "GRACE_SECONDS", 0.5)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a running server."""
    scripts = helper.Scripts()
    monkeypatch.setattr(helper, "SCRIPTS", scripts)
    server = helper.Server(0, "127.0.0.1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for _, script in scripts.idle:
            script.end()


def body(script: str, content: Any, seconds: float = 30.0) -> bytes:
    return json.dumps({"script": script, "request": content, "seconds": seconds}).encode()


def post(port: int, data: bytes, token: str | None = TOKEN) -> Any:
    """Any JSON reply of status 200. Raises EngineUnreachable for another status."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def send() -> bytes:
        async with asyncio.timeout(30):
            return await request(f"127.0.0.1:{port}", "/ask", "POST", data, headers)

    return json.loads(asyncio.run(send()))


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out waiting for a condition"
        time.sleep(0.01)


def started(file: Path) -> list[int]:
    """Pids of the scripts that work on a request."""
    return [int(path.name.rpartition("-")[2]) for path in file.parent.glob(f"{file.name}-[0-9]*")]


def connect(port: int, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.sendall(data)
    return connection


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


def raw(data: bytes) -> bytes:
    return b"POST /ask HTTP/1.0\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s" % (
        TOKEN.encode(), len(data), data,
    )  # fmt: skip


class TestWhoIsAnswered:
    @pytest.mark.parametrize("token", [None, "", "another", f"{TOKEN}x", "\u00e4"])
    def test_request_without_the_token_is_refused(self, port: int, token: str | None) -> None:
        with pytest.raises(EngineUnreachable, match="status 401"):
            post(port, body(PID, {}), token)
        assert helper.SCRIPTS.count == 0

    def test_nothing_is_read_before_the_token(self, port: int) -> None:
        connection = connect(port, b"POST /ask HTTP/1.0\r\nContent-Length: 4000000\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.0 401")
        connection.close()

    @pytest.mark.parametrize(
        "data",
        [
            b"", b"{", b"[]", b"{}", b'{"script": "", "request": {}, "seconds": null}', b"x" * (helper.MAX_BODY + 1),
        ],
    )  # fmt: skip
    def test_other_bodies_are_refused(self, port: int, data: bytes) -> None:
        try:
            with pytest.raises(EngineUnreachable, match="status 400"):
                post(port, data)
        except ConnectionError:  # the server does not read what is too large
            assert len(data) > helper.MAX_BODY
        assert helper.SCRIPTS.count == 0

    def test_other_paths_are_not_found(self, port: int) -> None:
        for path, status in (("/health", b"200"), ("/ask", b"404"), ("/", b"404")):
            with connect(port, f"GET {path} HTTP/1.0\r\n\r\n".encode()) as connection:
                assert connection.recv(100).split()[1] == status

    @pytest.mark.parametrize("start", [b"", b"POST /ask HT", b"POST /ask HTTP/1.0\r\nA: b\r\n", raw(b"x" * 999)[:-500]])
    def test_slow_client_is_disconnected(self, port: int, monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
        """It sends a little all the time, so that no single read takes long."""
        monkeypatch.setattr(helper, "REQUEST_SECONDS", 0.5)
        before = threading.active_count()
        with connect(port, start) as connection:
            connection.settimeout(0.05)
            begin = time.monotonic()
            with pytest.raises(OSError, match=r"reset|pipe"):
                while time.monotonic() < begin + 20:
                    connection.sendall(b"x")
                    time.sleep(0.02)
            assert time.monotonic() - begin < 10
        until(lambda: threading.active_count() <= before)

    def test_idle_connections_are_few_and_keep_nobody_out(self, port: int) -> None:
        before = threading.active_count()
        idle = [connect(port) for _ in range(200)]
        try:
            until(lambda: threading.active_count() <= before + helper.MAX_UNTRUSTED)
            assert post(port, body(PID, 1))["ok"][1] == 1
            assert all(map(is_closed, idle[: -helper.MAX_UNTRUSTED]))
        finally:
            for connection in idle:
                connection.close()
        until(lambda: threading.active_count() <= before)

    def test_trusted_connection_is_not_closed_for_others(self, port: int, tmp_path: Path) -> None:
        file = tmp_path / "work"
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(post, port, body(HANGS, {"file": str(file)}))
            until(lambda: started(file))
            idle = [connect(port) for _ in range(2 * helper.MAX_UNTRUSTED)]
            assert all(map(is_closed, idle[: helper.MAX_UNTRUSTED]))
            (tmp_path / "work-go").touch()
            assert reply.result() == {"ok": started(file)[0]}
        for connection in idle:
            connection.close()


class TestScripts:
    def test_idle_script_serves_the_next_request(self, port: int) -> None:
        first, second = post(port, body(PID, "a")), post(port, body(PID, "b"))
        assert first["ok"][0] == second["ok"][0] and (first["ok"][1], second["ok"][1]) == ("a", "b")
        assert helper.SCRIPTS.count == 1

    def test_large_request_arrives(self, port: int) -> None:
        assert post(port, body(PID, "x" * 2**20))["ok"][1] == "x" * 2**20

    def test_no_file_is_written_and_none_is_imported(
        self, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The head's container can write to the temporary directory, and possibly to the working directory."""
        shared = tmp_path / "shared"
        shared.mkdir()
        (shared / "json.py").write_text("raise SystemExit('planted')")
        monkeypatch.setenv("TMPDIR", str(shared))
        monkeypatch.chdir(shared)
        assert post(port, body(PID, 1))["ok"][1] == 1
        assert [path.name for path in shared.iterdir()] == ["json.py"]

    @pytest.mark.parametrize("script", [DIES, "raise SystemExit", "1/0", "("])
    def test_script_that_dies_is_reported_and_started_again(self, port: int, script: str) -> None:
        for _ in range(2 * helper.MAX_SCRIPTS):
            assert post(port, body(script, {})) == {"error": "the helper's script ended"}
        assert helper.SCRIPTS.count == 0

    def test_idle_script_that_died_is_replaced(self, port: int) -> None:
        pid = post(port, body(PID, 1))["ok"][0]
        os.kill(pid, signal.SIGKILL)
        until(lambda: start_of(pid) is None)
        assert post(port, body(PID, 2))["ok"][1] == 2
        assert helper.SCRIPTS.count == 1

    def test_what_a_script_writes_between_requests_is_no_reply(self, port: int) -> None:
        first = post(port, body(TALKS, {}))
        second = post(port, body(TALKS, {}))
        assert "ok" not in first or first["ok"] != second.get("ok")

    def test_ten_at_once(self, port: int, tmp_path: Path) -> None:
        """As many as may run do; the others hear at once that they may not, and the control loop asks again."""
        file = tmp_path / "work"
        with ThreadPoolExecutor(10) as pool:
            replies = [pool.submit(post, port, body(HANGS, {"file": str(file)})) for _ in range(10)]
            until(lambda: sum(reply.done() for reply in replies) == 10 - helper.MAX_SCRIPTS)
            busy = [reply.result() for reply in replies if reply.done()]
            assert {reply["error"] for reply in busy} == {"the helper is busy with 4 requests"}
            until(lambda: len(started(file)) == helper.MAX_SCRIPTS)
            (tmp_path / "work-go").touch()
            done = [reply.result() for reply in replies]
        assert sorted(reply["ok"] for reply in done if "ok" in reply) == sorted(started(file))
        assert helper.SCRIPTS.count == helper.MAX_SCRIPTS

    def test_idle_scripts_of_another_version_make_room(self, port: int, tmp_path: Path) -> None:
        file = tmp_path / "work"
        (tmp_path / "work-go").touch()
        sources = [f"{PID}# {number}" for number in range(2 * helper.MAX_SCRIPTS)]
        pids = [post(port, body(source, 1))["ok"][0] for source in sources]
        assert helper.SCRIPTS.count <= helper.MAX_SCRIPTS
        assert post(port, body(HANGS, {"file": str(file)})) == {"ok": started(file)[0]}
        assert len([pid for pid in pids if start_of(pid)]) < helper.MAX_SCRIPTS


class TestCallers:
    def test_script_is_killed_when_the_caller_is_gone(self, port: int, tmp_path: Path) -> None:
        file = tmp_path / "work"
        with connect(port, raw(body(HANGS, {"file": str(file)}))):
            until(lambda: started(file))
        (pid,) = started(file)
        until(lambda: start_of(pid) is None)
        until(lambda: helper.SCRIPTS.count == 0)

    def test_script_may_undo_what_it_began(self, port: int, tmp_path: Path) -> None:
        file = tmp_path / "work"
        with connect(port, raw(body(UNDOES, {"file": str(file)}))):
            until(lambda: started(file))
        until((tmp_path / "work-undone").exists)
        until(lambda: helper.SCRIPTS.count == 0)

    @pytest.mark.parametrize("script", [HANGS, NEVER_READS])
    def test_script_is_killed_when_time_is_up(self, port: int, tmp_path: Path, script: str) -> None:
        """Also if the caller's connection stays, as a port-forward may keep it."""
        large = "x" * 2**20 if script is NEVER_READS else ""
        assert post(port, body(script, {"file": str(tmp_path / "work"), "large": large}, 0.3)) == {
            "error": "no answer within 0 s"
        }
        assert helper.SCRIPTS.count == 0

    def test_given_up_requests_do_not_pile_up(self, port: int, tmp_path: Path) -> None:
        """Looks that time out, one after the other."""
        file = tmp_path / "work"
        for _ in range(2 * helper.MAX_SCRIPTS):
            with connect(port, raw(body(HANGS, {"file": str(file)}))) as connection:
                connection.settimeout(0.1)
                with suppress(TimeoutError):  # or the server replies that too many are under way
                    connection.recv(1)
            assert helper.SCRIPTS.count <= helper.MAX_SCRIPTS
        until(lambda: helper.SCRIPTS.count == 0 and not any(map(start_of, started(file))))
        assert post(port, body(PID, 1))["ok"][1] == 1

    def test_control_loop_hands_its_deadline_down(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(names, "HELPER_PORT", port)
        head = Member(HEAD, Role.HEAD, "head", MemberState.RUNNING, address="127.0.0.1")
        reach = Reach(cast(Client, None), "lab", forward=False)
        wire = KubeWire(cluster(), (head,), "demo-head", reach, {CONTROL_TOKEN: TOKEN.encode()})
        assert asyncio.run(wire.ask(PID, {"op": "x"}))[1] == {"op": "x"}
        slow = "import sys, json, time\nfor line in sys.stdin: time.sleep(60)"
        with pytest.raises(EngineUnreachable, match="no answer"):
            asyncio.run(wire.ask(slow, {}, seconds=0.3))
        until(lambda: helper.SCRIPTS.count == 1)


def test_both_places_have_the_same_limits() -> None:
    assert MAX_HELPERS == helper.MAX_SCRIPTS
    assert HELPER_GRACE == GRACE_SECONDS


def test_helper_runs_as_a_program(tmp_path: Path) -> None:
    """In an environment without Oars, and it ends at once at SIGTERM, as a pod's first process must."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    env = {"OARS_HELPER_PORT": str(number), "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-I", str(helper.__file__)], env=env, cwd=tmp_path) as process:
        try:

            def answers() -> bool:
                try:
                    with connect(number, b"GET /health HTTP/1.0\r\n\r\n") as connection:
                        return connection.recv(100).startswith(b"HTTP/1.0 200")
                except ConnectionRefusedError:
                    return False

            until(answers)
            process.terminate()
            assert process.wait(10) == 0
        finally:
            process.kill()
