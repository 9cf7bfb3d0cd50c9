"""A reverse proxy that obeys one Ingress, as ingress-nginx does: there is no Ingress controller in the lab.

It forwards requests for the rules' hosts and paths. With the annotation `use-regex` a path is a regular expression, and
`rewrite-target` is the path that the Service gets, with the groups of that expression. Everything else is a 404."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Object = dict[str, Any]
Address = tuple[str, int]
PREFIX = "nginx.ingress.kubernetes.io/"
SECONDS = 60
HOP_BY_HOP = ("connection", "transfer-encoding", "keep-alive", "content-length")


@dataclass(frozen=True)
class Rules:
    """An Ingress. find: the address of a Service and its port."""

    ingress: Object
    find: Callable[[str, int], Address]

    def target(self, host: str, path: str) -> tuple[Address, str] | None:
        """Where a request goes, and the path that it has there."""
        annotations = self.ingress["metadata"].get("annotations") or {}
        is_regex = annotations.get(f"{PREFIX}use-regex") == "true"
        rewrite = annotations.get(f"{PREFIX}rewrite-target", "")
        for rule in self.ingress["spec"]["rules"]:
            for each in rule["http"]["paths"] if rule["host"] == host else ():
                pattern = each["path"] if is_regex else re.escape(each["path"])
                if match := re.match(pattern, path, re.IGNORECASE):
                    service = each["backend"]["service"]
                    changed = re.sub(r"\$(\d)", r"\\g<\1>", rewrite)
                    changed = match.expand(changed)
                    return self.find(service["name"], service["port"]["number"]), changed or path
        return None


@contextmanager
def proxy(rules: Rules) -> Iterator[Callable[..., tuple[int, Mapping[str, str], bytes]]]:
    """Serve on loopback. Yields `get(url, **headers)`, as a browser that resolves every host to the proxy: status,
    headers and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host, parts = self.headers.get("Host", ""), urlsplit(self.path)
            target = rules.target(host, parts.path)
            if target is None:
                self.send_error(404)
                return
            address, path = target
            upstream = http.client.HTTPConnection(*address, timeout=SECONDS)
            try:
                upstream.request("GET", f"{path}?{parts.query}" if parts.query else path, headers=dict(self.headers))
                reply = upstream.getresponse()
                body = reply.read()
            finally:
                upstream.close()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def get(url: str, **headers: str) -> tuple[int, Mapping[str, str], bytes]:
        parts = urlsplit(url)
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=SECONDS)
        try:
            connection.request("GET", path, headers={"Host": parts.netloc, **headers})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()

    try:
        yield get
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
