"""The user's part of Mars, without Mars."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from oars.base.errors import ClusterLost, EngineMissing
from oars.engines.base import Access
from oars.engines.mars import session
from oars.engines.mars.session import Web

ACCESS = Access("demo", "mars", "http://127.0.0.1:1", "", {})
WEB = Web("http://127.0.0.1:1", "known")


@pytest.mark.parametrize(
    "reply",
    [{}, {"nodes": {}}, {"nodes": {"a": {"env": None}}}, {"nodes": {"a": {"env": {"mars_version": "1"}}}}, None],
)
def test_supervisor_that_does_not_list_itself_yet_is_not_up(reply: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor tries again."""
    monkeypatch.setattr(Web, "request", lambda *_: json.dumps(reply).encode())
    with pytest.raises(ClusterLost, match="did not open a session"):
        session._check_versions(ACCESS, WEB)


class Supervisor(BaseHTTPRequestHandler):
    """Requires the token "known"."""

    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == "Bearer known"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(b'{"sessions": [{"session_id": "mine"}]}' if allowed else b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Supervisor)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_requests_have_the_token(address: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("known\n")
    web = Web(address, session._read_token(Access("demo", "mars", address, "", {"OARS_TOKEN_FILE": str(file)})))
    assert session._is_known(web, "mine") and not session._is_known(web, "another")
    assert web.rewrite(SimpleNamespace(headers={"a": "b"})).headers == {"a": "b", "Authorization": "Bearer known"}
    assert "known" not in repr(web)


@pytest.mark.parametrize("token", ["", "another"])
def test_client_without_the_token_gets_an_error_that_names_it(address: str, token: str) -> None:
    access = Access("demo", "mars", address, "", {})
    with pytest.raises(ClusterLost) as raised:
        session._check_versions(access, Web(address, token))
    assert f"Mars at {address} requires the cluster's token" in raised.value.message
    assert "oars exec" in raised.value.hint
    assert not session._is_known(Web(address, token), "mine")


def test_python_without_mars_gets_the_commands_that_have_it() -> None:
    with pytest.raises(EngineMissing, match="This Python cannot import xorbits") as raised:
        session.connect(ACCESS)
    assert "`oars run SCRIPT --engine mars`" in raised.value.hint
    assert "`oars exec demo -- python SCRIPT`" in raised.value.hint
