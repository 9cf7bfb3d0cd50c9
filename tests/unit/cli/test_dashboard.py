"""`oars dashboard`: the URL, and what a browser is started with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import webbrowser
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


@pytest.mark.parametrize("forwarded", [True, False])
@pytest.mark.parametrize("browse", [True, False])
def test_url_is_printed_and_another_one_opened(
    browse: bool, forwarded: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_browser(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_browser)

    async def shown() -> None:
        with contextlib.suppress(TimeoutError):  # a forwarded dashboard is shown until a signal
            async with asyncio.timeout(0.1):
                found = Dashboard("http://h/lasting", "http://h/once", forwarded)
                await access._open_dashboard("demo", OneDashboard(found), None, browse=browse)

    asyncio.run(shown())
    output = capsys.readouterr()
    assert output.out == "http://h/lasting\n"
    assert opened == (["http://h/once"] if browse else [])
    assert output.err.splitlines() == (["Press Ctrl-C to stop forwarding."] if forwarded else [])
