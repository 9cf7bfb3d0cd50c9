"""Makes a head's web server refuse requests without the cluster's token. A script in the engine's environment (stdlib
and tornado only), loaded before the web server starts: by launch.py of Mars, and by `dask scheduler --preload`.

Environment:

    OARS_TOKEN_FILE   the file with the token; a request must have the header "Authorization: Bearer TOKEN"
    OARS_WEB_BIND     the address that the server listens on
    OARS_WEB_AUTH     none: requests need no token. Everybody who reaches the server can use the cluster

The token is what protects the cluster. The checks of Host, Origin and Sec-Fetch-Site protect it also where something
adds the token for a browser: a page of another site can do nothing, not even after DNS rebinding.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tornado.web import Application, RequestHandler, stream_request_body

TOKEN_FILE, BIND, AUTH = "OARS_TOKEN_FILE", "OARS_WEB_BIND", "OARS_WEB_AUTH"
OPEN_PATHS = ("/health", "/api/oars/health")  # for probes, which cannot send a token; the replies contain nothing
TOKEN_NEEDED = (
    "This server requires the cluster's token; start programs with `oars run`, `oars exec` or `oars shell`, "
    "and open pages with `oars dashboard`"
)


class Refusal(NamedTuple):
    status: int
    reason: str


def check(path: str, headers: Mapping[str, str], token: str | None, bind: str) -> Refusal | None:
    """Why a request is refused; None: it is not. The names of headers are as in HTTPHeaders: case does not
    matter. token: None if none is needed."""
    if path in OPEN_PATHS:
        return None
    host, origin = headers.get("Host", "").lower(), headers.get("Origin")
    # A server on other addresses cannot know its names: Services, load balancers and Ingresses come and go.
    if is_loopback(bind) and not is_loopback(without_port(host)):
        return Refusal(403, "This server accepts requests to 127.0.0.1 or localhost only")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        return Refusal(403, "This server refuses requests of other origins")
    if headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
        return Refusal(403, "This server refuses requests of other sites")
    given = headers.get("Authorization", "").encode()
    if token is not None and not hmac.compare_digest(given, f"Bearer {token}".encode()):
        return Refusal(401, TOKEN_NEEDED)
    return None


def without_port(host: str) -> str:
    return re.sub(r":\d*$", "", host).strip("[]")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@stream_request_body
class Refused(RequestHandler):
    """Replies before the body arrives, and drops it."""

    def initialize(self, status: int, reason: str) -> None:
        self.refusal = Refusal(status, reason)

    def prepare(self) -> None:
        self.set_status(*self.refusal)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        if self.refusal.status == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        self.finish(f"{self.refusal.reason}.\n")

    def data_received(self, chunk: bytes) -> None:
        """Drop it."""


def install(token: str | None, bind: str) -> None:
    """Check the requests of all tornado applications in this process, before they find a handler: pages, static files
    and WebSockets alike."""
    if token == "":
        raise ValueError("the cluster's token is empty")
    original = Application.find_handler

    def find_handler(self: Application, request: Any, **kwargs: Any) -> Any:
        refusal = check(request.path, request.headers, token, bind)
        if refusal is not None:
            return self.get_handler_delegate(request, Refused, refusal._asdict())
        return original(self, request, **kwargs)

    Application.find_handler = find_handler  # type: ignore[method-assign]


if __name__ != "oars.engines.web_guard":  # not imported by the control plane or its tests
    with open(os.environ[TOKEN_FILE]) as file:
        install(None if os.environ.get(AUTH) == "none" else file.read().strip(), os.environ[BIND])
