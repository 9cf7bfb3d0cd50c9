"""The user's part of the toy engine."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

from toy_library import Client

from oars.engines.base import Access


def connect(access: Access) -> Client:
    return Client(access.env["TOY_ADDRESS"])


def disconnect(client: Client) -> None:
    client.closed = True


def executor(access: Access) -> Executor:
    return ThreadPoolExecutor(2)
