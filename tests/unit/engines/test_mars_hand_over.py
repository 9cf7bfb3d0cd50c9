"""A Mars worker that gets SIGTERM asks the supervisor to drain it. The supervisor is a small web server."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oars.engines.mars import launch

WORKER = "10.0.0.1:7105"


@contextmanager
def supervisor(*outcomes: str) -> Iterator[tuple[str, list[Any]]]:
    """Its address, and the requests that it got. It gives these outcomes in turn; an empty one is not an answer."""
    requests: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            outcome = outcomes[len(requests)]
            requests.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({WORKER: {"outcome": outcome}}).encode() if outcome else b"oops")

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("OARS_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # is for other addresses
    monkeypatch.setattr(launch, "HAND_OVER_PAUSE", 0.01)


def hand_over(monkeypatch: pytest.MonkeyPatch, *outcomes: str) -> list[Any]:
    with supervisor(*outcomes) as (address, requests):
        monkeypatch.setenv("OARS_MARS_ADDRESS", address)
        launch.hand_over(WORKER)
    return requests


def test_request_is_repeated_until_the_worker_is_drained(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = hand_over(monkeypatch, "refused", "", "refused", "moved")
    assert len(requests) == 4
    (path, authorization, body) = requests[0]
    assert (path, authorization) == ("/api/oars/drain", "Bearer secret")
    assert body["workers"] == [WORKER] and body["force"] is False


def test_supervisor_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(hand_over(monkeypatch, "refused", *[""] * launch.MAX_SILENT)) == 1 + launch.MAX_SILENT
    monkeypatch.setenv("OARS_MARS_ADDRESS", "http://127.0.0.1:1")
    launch.hand_over(WORKER)
