"""`oars dashboard`: the URL, and the command that prints the secret."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from oars.cli import access
from oars.service import Dashboard, Location, Service


class OneDashboard(Service):
    def __init__(self, found: Dashboard) -> None:
        super().__init__(os.environ, Location("kubernetes", context="far"))
        self.found = found

    @asynccontextmanager
    async def forward_dashboard(self, name: str, port: int | None = None) -> AsyncIterator[Dashboard]:
        yield self.found


@pytest.mark.parametrize(
    ("found", "command"),
    [
        (Dashboard("http://h", "/etc/oars/secrets/token", True, "team"),
         "oars exec demo --context far -n team -- cat /etc/oars/secrets/token"),
        (Dashboard("http://h", "/state/token", False, ""), "cat /state/token"),
        (Dashboard("http://h", "", True, "team"), ""),
        (Dashboard("http://h", "", False, ""), ""),
    ],
)  # fmt: skip
def test_url_on_stdout_and_command_for_the_secret_on_stderr(
    found: Dashboard, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def shown() -> None:
        with contextlib.suppress(TimeoutError):  # a forwarded dashboard is shown until a signal
            async with asyncio.timeout(0.1):
                await access._open_dashboard("demo", OneDashboard(found), None, browse=False)

    asyncio.run(shown())
    output = capsys.readouterr()
    assert output.out == "http://h\n"
    expected = [f"The dashboard asks for the cluster's token, which this command prints: {command}"] if command else []
    expected += ["Press Ctrl-C to stop forwarding."] if found.forwarded else []
    assert output.err.splitlines() == expected
