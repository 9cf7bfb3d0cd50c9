"""The fault proxy between a real API server and kubectl or a plain client."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from lab.api import Api, ApiError, connect
from lab.errors import LabError
from lab.faultproxy import FaultProxy, running
from lab.faults import Answer, Delay, DieOnChange, Drop, EndWatch, Rule, Script, Stale, die_after
from lab.kube import Kube
from lab.run import run
from lab.wait import until

Start = Callable[..., FaultProxy]
SOON = 25  # seconds; the client itself gives up after 30 without a word


def client(proxy: FaultProxy) -> Api:
    return connect(json.loads(proxy.kubeconfig.read_text()))


def config_map(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}}


def names(kube: Kube) -> set[str]:
    found = {item["metadata"]["name"] for item in kube.api.get(kube.path("configmaps"))["items"]}
    return found - {"kube-root-ca.crt"}


def test_proxy_without_rules_only_records(kube_api: Kube, fault_proxy: Start) -> None:
    proxy = fault_proxy()
    words = [kube_api.cluster.program, "--kubeconfig", proxy.kubeconfig, "-n", kube_api.namespace]
    run([*words, "create", "configmap", "a", "--from-literal=k=v"])
    assert names(kube_api) == {"a"}
    (write,) = proxy.writes
    assert (write.request.verb, write.request.resource, write.request.name) == ("create", "configmaps", "a")
    assert write.request.agent.startswith("kubectl/v1.34")
    assert proxy.count(verb="create", resource="configmaps", namespace=kube_api.namespace) == 1


@pytest.mark.parametrize("status", [409, 410, 429, 500])
def test_request_gets_the_chosen_status(kube_api: Kube, fault_proxy: Start, status: int) -> None:
    proxy = fault_proxy([Rule(Answer(status), verb="create", resource="configmaps", times=1)])
    with pytest.raises(ApiError) as refusal:
        client(proxy).create(kube_api.path("configmaps"), config_map("a"))
    assert refusal.value.status == status
    client(proxy).create(kube_api.path("configmaps"), config_map("a"))
    assert names(kube_api) == {"a"}


@pytest.mark.parametrize("applied", [False, True])
def test_dropped_write_is_applied_or_not(kube_api: Kube, fault_proxy: Start, applied: bool) -> None:
    proxy = fault_proxy([Rule(Drop(applied), verb="create")])
    with pytest.raises(ApiError):
        client(proxy).create(kube_api.path("configmaps"), config_map("a"))
    assert names(kube_api) == ({"a"} if applied else set())


def test_delayed_request(kube_api: Kube, fault_proxy: Start) -> None:
    proxy = fault_proxy([Rule(Delay(0.5), verb="list")])
    started = time.monotonic()
    client(proxy).get(kube_api.path("configmaps"))
    assert time.monotonic() - started >= 0.5


def test_stale_read(kube_api: Kube, fault_proxy: Start) -> None:
    proxy = fault_proxy([Rule(Stale(), verb="get", skip=1, times=1)])
    path = f"{kube_api.path('configmaps')}/a"
    kube_api.api.create(kube_api.path("configmaps"), config_map("a"))
    before = client(proxy).get(path)
    kube_api.api.patch(path, {"data": {"a": "2"}})
    assert client(proxy).get(path) == before
    assert client(proxy).get(path)["data"] == {"a": "2"}


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("write", [1, 2, 3])
def test_client_can_die_at_every_write(kube_api: Kube, fault_proxy: Start, write: int, applied: bool) -> None:
    """A client that makes three writes dies at each of them and completes them after a restart."""
    proxy = fault_proxy([die_after(write, applied)])
    mortal = client(proxy)
    with pytest.raises(ApiError):
        for name in ("a", "b", "c"):
            mortal.create(kube_api.path("configmaps"), config_map(name))
    with pytest.raises(ApiError):
        mortal.get(kube_api.path("configmaps"))
    assert len(names(kube_api)) == (write if applied else write - 1)
    assert len(proxy.writes) == write
    proxy.revive()
    mortal.get(kube_api.path("configmaps"))


def test_client_dies_after_each_change_and_not_after_other_writes(kube_api: Kube, fault_proxy: Start) -> None:
    proxy = fault_proxy([Rule(DieOnChange(), verb="write")])
    mortal, path = client(proxy), f"{kube_api.path('configmaps')}/a"

    def dies(act: Callable[[], object]) -> bool:
        try:
            act()
        except ApiError:
            assert proxy.dead
        is_dead = proxy.dead
        proxy.revive()
        return is_dead

    assert dies(lambda: mortal.create(kube_api.path("configmaps"), config_map("a")))
    assert dies(lambda: mortal.patch(path, {"data": {"a": "2"}}))
    assert not dies(lambda: mortal.patch(path, {"data": {"a": "2"}}))
    assert kube_api.api.get(path)["data"] == {"a": "2"}
    assert dies(lambda: mortal.delete(path))
    assert names(kube_api) == set()
    assert [request.verb for request in proxy.deaths] == ["create", "patch", "delete"]


class SlowServer(ThreadingHTTPServer):
    """Stands in for the API server: records writes and answers them on command."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SlowHandler)
        self.written: list[str] = []
        self.may_answer = threading.Event()


class SlowHandler(BaseHTTPRequestHandler):
    server: SlowServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.written.append(json.loads(body)["metadata"]["name"])
        self.server.may_answer.wait(60)
        self.answer()

    def answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def slow_server() -> Iterator[SlowServer]:
    with SlowServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.may_answer.set()
        server.shutdown()


def write(name: str) -> bytes:
    body = json.dumps(config_map(name))
    return f"POST /api/v1/namespaces/n/configmaps HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def everything(connection: socket.socket) -> bytes:
    """Read until the other end closes the connection."""
    found = b""
    try:
        while part := connection.recv(4096):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize("delayed", [False, True])
def test_dead_client_cannot_write_on_another_connection(slow_server: SlowServer, delayed: bool) -> None:
    """The other connection is still open while the last write is being handled."""
    upstream = Api(f"http://127.0.0.1:{slow_server.server_port}", ssl.create_default_context())
    rules = [Rule(Delay(8), verb="create", name="late"), die_after(1)]  # time enough to die before it goes out
    with running(FaultProxy(upstream, Script(rules))) as proxy:
        port = int(proxy.address.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), 60) as one,
            socket.create_connection(("127.0.0.1", port), 60) as other,
        ):
            other.sendall(b"GET /version HTTP/1.1\r\n\r\n")
            assert other.recv(4096).startswith(b"HTTP/1.1 200")
            if delayed:
                other.sendall(write("late"))
                until("it waits", lambda: proxy.count(name="late") == 1, 60)
            one.sendall(write("last"))
            until("it is written", lambda: slow_server.written == ["last"], 60)
            assert proxy.dead
            if not delayed:
                other.sendall(write("later"))
            everything(other)
            slow_server.may_answer.set()
            assert everything(one) == b"", "it never hears of it"
    assert slow_server.written == ["last"]


class Watch:
    """A kubectl watch through the proxy, in the background."""

    def __init__(self, kube: Kube, proxy: FaultProxy) -> None:
        self.path = (
            f"{kube.path('configmaps')}?watch=true&timeoutSeconds=120&fieldSelector=metadata.name!=kube-root-ca.crt"
        )
        self.api = client(proxy)
        self.lines: list[str] = []
        self.error: str = ""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            self.lines = self.api.raw("GET", self.path)[1].splitlines()
        except ApiError as error:
            self.error = str(error)

    def ended(self, seconds: float) -> bool:
        self.thread.join(seconds)
        return not self.thread.is_alive()


def start_watch(kube: Kube, proxy: FaultProxy) -> Watch:
    for name in ("a", "b"):
        kube.api.create(kube.path("configmaps"), config_map(name))
    return Watch(kube, proxy)


def test_cut_watch(kube_api: Kube, fault_proxy: Start) -> None:
    watch = start_watch(kube_api, fault_proxy([Rule(EndWatch(events=2), verb="watch")]))
    assert watch.ended(SOON)
    assert "IncompleteRead" in watch.error or "closed" in watch.error


def test_expired_watch(kube_api: Kube, fault_proxy: Start) -> None:
    watch = start_watch(kube_api, fault_proxy([Rule(EndWatch(events=1, how="expired"), verb="watch")]))
    assert watch.ended(SOON)
    events = [json.loads(line) for line in watch.lines]
    assert [event["type"] for event in events] == ["ADDED", "ERROR"]
    assert events[1]["object"]["code"] == 410


def test_silent_watch(kube_api: Kube, fault_proxy: Start) -> None:
    proxy = fault_proxy([Rule(EndWatch(events=1, how="silent"), verb="watch")])
    watch = start_watch(kube_api, proxy)
    until("the watch is there", lambda: proxy.count(verb="watch") == 1)
    assert not watch.ended(1.5), "a silent watch does not end by itself"
    proxy.hang_up()
    assert watch.ended(SOON)


def test_script_can_be_replaced_while_the_proxy_runs(kube_api: Kube, fault_proxy: Start) -> None:
    proxy = fault_proxy([Rule(Answer(500))])
    with pytest.raises(LabError):
        client(proxy).get(kube_api.path("configmaps"))
    proxy.script = Script()
    assert client(proxy).get(kube_api.path("configmaps"))
