"""The toy engine's own library, as images of it have it: it does not know Oars."""

from __future__ import annotations

import json
import pickle
import urllib.request
from typing import Any


class Client:
    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = False

    def workers(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.address}/workers", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def put(self, worker: str, item: str) -> None:
        body = json.dumps({"worker": worker, "item": item}).encode()
        urllib.request.urlopen(f"{self.address}/put", body, timeout=60).close()

    def clear(self) -> None:
        """Release all items."""
        urllib.request.urlopen(f"{self.address}/clear", b"{}", timeout=60).close()

    def run(self, function: Any, *arguments: Any) -> bytes:
        """Call a function that returns bytes on a worker; empty if the worker died."""
        body = pickle.dumps((function, arguments))
        with urllib.request.urlopen(f"{self.address}/run", body, timeout=600) as answer:
            reply: bytes = answer.read()
        return reply
