"""The Ingress of a MarsJob, obeyed by a reverse proxy: which requests reach the page, and with which path."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from oars.operator import marsjob
from oars.places.kube.render import objects
from tests.ingress import Rules, proxy
from tests.marsjob import document


class Echo(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"{self.headers['Host']} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a web server that replies with the request."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_requests_below_the_path_reach_the_head_without_it(echo: int) -> None:
    job = document()
    job["metadata"] |= {"uid": "u", "generation": 1}
    ingress = objects.ingress(marsjob.desired(job))
    asked = []

    def find(service: str, port: int) -> tuple[str, int]:
        asked.append((service, port))
        return "127.0.0.1", echo

    page = "http://mars.domain.com/mars/default/mars-test-demo-webservice-0"
    with proxy(Rules(ingress, find)) as get:
        found = {path: get(f"{page}{path}")[2].decode() for path in ("", "/", "/static/bundle.js", "/api/session?x=1")}
        assert found == {
            "": "mars.domain.com /",
            "/": "mars.domain.com /",
            "/static/bundle.js": "mars.domain.com /static/bundle.js",
            "/api/session?x=1": "mars.domain.com /api/session?x=1",
        }
        refused = (f"{page}0/", page.replace("default", "other"), page.replace("mars.domain", "x.domain"))
        assert [get(each)[0] for each in refused] == [404] * 3
    assert set(asked) == {("mars-test-demo-head", 7104)}
