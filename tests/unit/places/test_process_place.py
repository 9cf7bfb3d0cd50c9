"""The process place when a start fails in unexpected ways, and when certificates expire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from oars.model import HEAD, Ensure, MemberId, MemberState, Observed, Process, Spill
from oars.places.process import place as module
from oars.places.process.ledger import Entry, read_ledger, write_ledger
from oars.places.process.machine import UNKNOWN_EXIT, Exit, Machine
from oars.places.process.place import ProcessPlace
from oars.places.report import Report
from oars.secure.expiry import DAY
from tests.unit.plan.clusters import desired


class Files:
    def __init__(self, path: Path) -> None:
        self.ledger_file = path / "ledger.json"

    def write_report(self, report: Report) -> None:
        raise AssertionError("no report is written here")

    def secrets_expire_at(self) -> float | None:
        return None

    def renew_certificates(self) -> None:
        raise AssertionError("there are no certificates here")

    @contextmanager
    def claim_ports(self) -> Iterator[set[int]]:
        yield set()


class BrokenMachine:
    """Cannot start anything."""

    host = "127.0.0.1"
    limits = ()
    fixed_ports: Mapping[str, int] = {}

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def can_bind(self, ports: Any) -> bool:
        return True

    def values(self, entry: Entry, process: Process) -> Mapping[str, str]:
        return {"dir": "/nowhere"}

    async def start(self, entry: Entry, *_: object) -> Entry:
        if self._error:
            raise self._error
        return entry

    def memory_kills(self, entry: Entry) -> int:
        return 0

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


class CertifiedFiles(Files):
    """With certificates that expire at a time, and are renewed for a year."""

    expires = 0.0
    renewals = 0

    def secrets_expire_at(self) -> float | None:
        return self.expires

    def renew_certificates(self) -> None:
        self.renewals += 1
        self.expires += 365 * DAY


class CountingMachine(BrokenMachine):
    """Everything starts and runs until it is stopped."""

    def __init__(self) -> None:
        super().__init__(None)
        self.running: dict[int, Entry] = {}
        self.ports = iter(range(20000, 30000))

    def free_ports(self, count: int, claimed: Any) -> list[int]:
        return [next(self.ports) for _ in range(count)]

    async def start(self, entry: Entry, *_: object) -> Entry:
        self.running[entry.incarnation] = entry
        return replace(entry, pid=entry.incarnation)

    def is_running(self, entry: Entry) -> bool:
        return entry.incarnation in self.running

    async def stop(self, entry: Entry, grace: float) -> None:
        del self.running[entry.incarnation]


@pytest.mark.parametrize("days", [61, 59, 29, -1])
def test_head_is_replaced_before_its_certificates_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    """In the last 30 days; in the 60 days before it is announced. The head keeps its ports, and nothing has died."""
    files, machine = CertifiedFiles(tmp_path), CountingMachine()
    now = files.expires = time.time()
    files.expires += 100 * DAY

    async def body() -> Observed:
        woken = asyncio.Event()
        place = ProcessPlace(files, cast(Machine, machine), woken.set)
        for _ in range(2):
            await place.ensure(desired(), Ensure(desired().shape.head, (HEAD,)))
            await asyncio.wait_for(woken.wait(), 5)
        (first,) = machine.running.values()
        woken.clear()
        monkeypatch.setattr(time, "time", lambda: now + (100 - days) * DAY)
        announced = (await place.observe(desired())).remarks
        assert [cause.reason for cause in announced] == ([] if days > 60 else ["CertificateExpires"])
        for _ in range(2):
            await place.ensure(desired(), Ensure(desired().shape.head, (HEAD,)))
            await asyncio.sleep(0)
        (second,) = machine.running.values()
        assert second.ports == first.ports
        assert (second.incarnation != first.incarnation, files.renewals) == ((True, 1) if days < 30 else (False, 0))
        return await place.observe(desired())

    observed = asyncio.run(body())
    assert observed.deaths == {}
    if days < 30:
        assert observed.remarks == ()


def test_head_that_starts_anyway_gets_new_certificates_earlier(tmp_path: Path) -> None:
    files, machine = CertifiedFiles(tmp_path), CountingMachine()
    files.expires = time.time() + 45 * DAY

    async def body() -> None:
        place = ProcessPlace(files, cast(Machine, machine), lambda: None)
        await place.ensure(desired(), Ensure(desired().shape.head, (HEAD,)))

    asyncio.run(body())
    assert files.renewals == 1


def test_members_take_spill_paths_in_turn() -> None:
    group = replace(desired(1).shape.workers[0], spill=Spill(("/a[1]", "/b")))
    first, second, third = (module._spill_directories(group, MemberId(f"worker-{number}")) for number in range(3))
    assert first == third == ("/a[1]/oars-$(tag)", "/b/oars-$(tag)")
    assert second == ("/b/oars-$(tag)", "/a[1]/oars-$(tag)")
    assert module.litter(group)[-2:] == ("/a[[]1]/oars-$(tag)", "/b/oars-$(tag)"), "they are removed by pattern"
