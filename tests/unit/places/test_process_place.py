"""The process place when a start fails in unexpected ways."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from oars.model import HEAD, Ensure, MemberState, Process
from oars.places.process import place as module
from oars.places.process.ledger import Entry, read_ledger, write_ledger
from oars.places.process.machine import UNKNOWN_EXIT, Exit, Machine
from oars.places.process.place import ProcessPlace
from oars.places.report import Report
from tests.unit.plan.clusters import desired


class Files:
    def __init__(self, path: Path) -> None:
        self.ledger_file = path / "ledger.json"

    def write_report(self, report: Report) -> None:
        raise AssertionError("no report is written here")

    @contextmanager
    def claim_ports(self) -> Iterator[set[int]]:
        yield set()


class BrokenMachine:
    """Cannot start anything."""

    host = "127.0.0.1"

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def can_bind(self, ports: Any) -> bool:
        return True

    def values(self, entry: Entry, process: Process) -> Mapping[str, str]:
        return {}

    async def start(self, entry: Entry, *_: object) -> Entry:
        if self._error:
            raise self._error
        return entry

    def exit_of(self, entry: Entry) -> Exit:
        return UNKNOWN_EXIT

    def tail(self, *_: object) -> tuple[str, ...]:
        return ()


def started(path: Path, error: Exception | None) -> tuple[ProcessPlace, MemberState, str]:
    async def body() -> tuple[ProcessPlace, MemberState, str]:
        woken = asyncio.Event()
        place = ProcessPlace(Files(path), cast(Machine, BrokenMachine(error)), woken.set)
        await place.ensure(desired(), Ensure(desired().shape.head, (HEAD,)))
        async with asyncio.timeout(5):
            await woken.wait()
        head = (await place.observe(desired())).member(HEAD)
        assert head is not None
        return place, head.state, head.reason

    return asyncio.run(body())


@pytest.mark.parametrize("error", [ValueError("odd"), OSError("no memory")], ids=["unexpected", "expected"])
def test_member_that_cannot_be_started_has_exited(tmp_path: Path, error: Exception) -> None:
    _, state, reason = started(tmp_path, error)
    assert state is MemberState.EXITED and str(error) in reason


def test_full_disk_after_a_start_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def full(path: Path, ledger: Any) -> None:
        calls.append(ledger)
        if len(calls) == 2:  # the first is before the start
            raise OSError(28, "No space left on device")
        write_ledger(path, ledger)

    monkeypatch.setattr(module, "write_ledger", full)
    place, _, _ = started(tmp_path, ValueError("odd"))
    assert not read_ledger(tmp_path / "ledger.json").entries[HEAD].exit_reason
    asyncio.run(place.record(desired(), (asyncio.run(place.observe(desired()))).state))
    assert "odd" in read_ledger(tmp_path / "ledger.json").entries[HEAD].exit_reason
