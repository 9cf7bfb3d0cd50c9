"""The operator's own small web pages: /metrics, /healthz, /readyz."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

SECONDS = 5.0


class Pages:
    """Two ports, so that the one for metrics can be closed to others."""

    def __init__(self, metrics: Callable[[], str], is_ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._is_ready = is_ready
        self._servers: list[asyncio.Server] = []

    async def start(self, metrics_port: int, health_port: int) -> None:
        for port in dict.fromkeys((metrics_port, health_port)):
            if port:
                self._servers.append(await asyncio.start_server(self._serve, "0.0.0.0", port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(SECONDS):
                request = await reader.readuntil(b"\r\n")
                status, body = self._answer(request.split()[1].decode())
                head = f"HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}"
                writer.write(f"{head}\r\n\r\n{body}".encode())
                await writer.drain()
        writer.close()

    def _answer(self, path: str) -> tuple[str, str]:
        if path == "/metrics":
            return "200 OK", self._metrics()
        if path == "/healthz" or (path == "/readyz" and self._is_ready()):
            return "200 OK", "ok\n"
        return ("503 Service Unavailable", "not yet\n") if path == "/readyz" else ("404 Not Found", "")

    async def close(self) -> None:
        for server in self._servers:
            server.close()
