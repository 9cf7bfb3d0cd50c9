"""The user's half of the toy engine."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from oars.engines.base import Access


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


def connect(access: Access) -> Client:
    return Client(access.env["TOY_ADDRESS"])


def disconnect(client: Client) -> None:
    client.closed = True


def executor(access: Access) -> Executor:
    return ThreadPoolExecutor(2)
