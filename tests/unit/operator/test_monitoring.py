"""The operator's HTTP ports with requests that are none."""

from __future__ import annotations

import asyncio
import logging

import pytest

from oars.operator.monitoring import MonitoringServer


@pytest.mark.parametrize("junk", [b"", b"x", b"\r\n", b"GET\r\n", b"\xff\xfe \xff\r\n", b"A" * 200_000])
def test_junk_is_answered_by_closing_the_connection(junk: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server = MonitoringServer(lambda: "metrics", lambda: True)
        listening = await asyncio.start_server(server._serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with listening, asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(junk)
            writer.write_eof()
            try:
                assert await reader.read() == b""
            except ConnectionError:
                assert len(junk) > 1000  # closed before all of it was read
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.0 200 OK")
            writer.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert not caplog.records
