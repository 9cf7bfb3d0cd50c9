"""Each place of processes against the contract."""

from __future__ import annotations

import asyncio
import glob
import os
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from oars import engines
from oars.base.errors import EngineUnreachable
from oars.model import HEAD, Desired, Ensure, Group, Member, MemberId, MemberState, Process, Remove
from oars.places.base import Place
from oars.places.intent import Intent
from oars.places.local.defaults import defaults
from oars.places.local.host import this_host
from oars.places.local.machine import LocalMachine
from oars.places.local.process import MARK, identify, start_of
from oars.places.local.store import ClusterDir, ClusterRecord, Store
from oars.places.process.ledger import read_ledger, write_ledger
from oars.places.process.machine import Machine
from oars.places.process.place import ProcessPlace
from oars.plan.desired import build
from oars.spec.cluster import ClusterSpec
from oars.testing import PlaceContract, processes
from oars.testing.place import in_place, until
from tests.contract.agent_machine import AgentMachine

LITTERER = """
import os, time
open(f"/tmp/oars-litter-{os.environ['OARS_TAG']}", "w").close()
time.sleep(600)
"""
# Imported by the fork server before it forks the litterer.
HELD_BACK = """
import pathlib, time
for _ in range(6000):
    if pathlib.Path(__file__).with_name("go").exists(): break
    time.sleep(0.02)
"""
WHO = """
import json, os, sys
for line in sys.stdin:
    print(json.dumps({"ok": os.getpid()}), flush=True)
"""
HANGS = """
import json, os, sys, time
sys.stdin.readline()
print(json.dumps({"ok": os.getpid()}), flush=True)
sys.stdin.readline()
time.sleep(600)
"""
SECONDS = 50  # less than a start may take
SPEC = ClusterSpec.model_validate({"engine": "toy", "workers": 2})


class ProcessContract(PlaceContract):
    """Members are processes; subclasses choose the machine that runs them."""

    @pytest.fixture(autouse=True)
    def _state(self, own_state: Path) -> None:
        self.state = own_state

    async def machine(self, directory: ClusterDir, record: ClusterRecord) -> Machine:
        raise NotImplementedError

    async def end(self, place: ProcessPlace, machine: Machine, desired: Desired) -> None:
        """Leave nothing behind."""
        raise NotImplementedError

    def place(self) -> AbstractAsyncContextManager[tuple[Place, Desired]]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Place, Desired]]:
        desired = build("demo", SPEC, engines.get("toy"), defaults(SPEC, 2**33))
        self.mark = secrets.token_hex(4)  # of its own: a sweep kills everything that carries the mark
        record = ClusterRecord(
            "demo", Intent(SPEC.model_dump()), desired, sys.executable, self.mark, time.time(),
            host=this_host(), import_path=(os.environ["PYTHONPATH"],),
        )  # fmt: skip
        directory = Store(self.state).create(record, {"token": b"x"})
        self.opened: list[tuple[ProcessPlace, Machine]] = []
        try:
            yield await self._open(directory), desired
        finally:
            for place, machine in self.opened:
                await self.end(place, machine, desired)

    async def _open(self, directory: ClusterDir) -> ProcessPlace:
        machine = await self.machine(directory, directory.read())
        self.opened.append((ProcessPlace(directory, machine, lambda: None), machine))
        return self.opened[-1][0]

    async def reopen(self, place: Place) -> Place:
        return await self._open(Store(self.state).cluster("demo"))

    async def inventory(self, place: Place) -> Mapping[str, str]:
        """Processes by pid, files by path. Members write into their own directories and logs."""
        directory = Store(self.state).cluster("demo")
        stored = (directory.ledger_file, directory.report_file)
        written = [str(path.stat().st_mtime_ns) for path in stored if path.exists()]
        others = [
            path for path in directory.path.rglob("*") if path not in stored and directory.logs not in path.parents
        ]
        members = (directory.members, directory.path / "host")
        files = {str(path): "" for path in others if not any(each in path.parents for each in members)}
        files |= {str(path): "" for each in members if each.exists() for path in each.iterdir()}
        return {**files, **{line.split()[0]: "" for line in processes(self.state)}, "records": " ".join(written)}

    async def kill(self, place: Place, member: Member) -> None:
        assert member.pid is not None
        os.kill(member.pid, signal.SIGKILL)

    @in_place
    async def test_an_exit_is_reported_until_it_is_ensured_again(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)

        async def answers() -> bool:
            return (await engines.get("toy").look(place.wire(desired))).up

        await until(answers)
        head = (await place.observe(desired)).member(HEAD)
        assert head is not None
        await self.kill(place, head)
        for _ in range(2):  # also for the loop that takes over
            dead = await self._exited(place, desired)
            assert (dead.reason, dead.exit_code) == ("was killed by SIGKILL", -signal.SIGKILL)
            assert "toy head starts" in dead.tail
            await place.record(desired, (await place.observe(desired)).state)
            place = await self.reopen(place)

    async def _exited(self, place: Place, desired: Desired) -> Member:
        async with asyncio.timeout(SECONDS):
            while True:
                head = (await place.observe(desired)).member(HEAD)
                if head is not None and head.state is MemberState.EXITED:
                    return head
                await asyncio.sleep(0.02)

    @in_place
    async def test_a_helper_runs_beside_the_head(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        wire = place.wire(desired)
        first = await wire.ask(WHO, {})
        await place.collect(desired)
        assert first == await wire.ask(WHO, {}), "it is neither started for every request nor collected"

    @in_place
    async def test_helper_whose_caller_is_gone_ends(self, place: Place, desired: Desired) -> None:
        """Also if it hangs and does not read its stdin."""
        await self.start(place, desired)
        wire = place.wire(desired)
        pid = await wire.ask(HANGS, {})
        with pytest.raises(EngineUnreachable):
            await wire.ask(HANGS, {}, seconds=0.1)
        assert await asyncio.to_thread(_within, SECONDS, lambda: start_of(pid) is None)

    @in_place
    async def test_removed_workers_leave_nothing(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        assert await asyncio.to_thread(_within, SECONDS, lambda: len(_files("toy", self.mark)) == 2)
        everyone = tuple(member.id for member in (await place.observe(desired)).members)
        await place.remove(desired, Remove(everyone, "test"))
        assert _files("toy", self.mark) == []


class TestLocal(ProcessContract):
    async def machine(self, directory: ClusterDir, record: ClusterRecord) -> Machine:
        return LocalMachine(directory, record, os.environ, lambda: None)

    async def end(self, place: ProcessPlace, machine: Machine, desired: Desired) -> None:
        assert isinstance(machine, LocalMachine)
        await place.close()
        await machine.sweep_all({pattern for group in desired.groups for pattern in group.process.litter})

    @pytest.mark.parametrize("exists", [True, False], ids=["it exists", "it is yet to be forked"])
    def test_one_that_is_removed_while_it_starts_leaves_nothing(self, exists: bool) -> None:
        async def test(place: Place, desired: Desired) -> None:
            group = self._littering(desired.shape.workers[0])
            worker = MemberId("worker-0")
            await place.ensure(desired, Ensure(group, (worker,)))
            await asyncio.sleep(0)  # now its start is requested; the reply is not read while the event loop is blocked
            if exists:
                self._let_go()
            await place.remove(desired, Remove((worker,), "not wanted any more"))
            if not exists:
                self._let_go()
            assert await asyncio.to_thread(_within, SECONDS, lambda: not _files("litter", self.mark))

        self.run(test)

    @in_place
    async def test_collect_ends_what_a_loop_that_died_did_not_record(self, place: Place, desired: Desired) -> None:
        env = {**os.environ, MARK: self.mark}
        stray = await asyncio.create_subprocess_exec("sleep", "600", env=env, start_new_session=True)
        await self.start(place, desired)
        assert stray.returncode is None
        await place.collect(desired)
        assert await asyncio.wait_for(stray.wait(), SECONDS) == -signal.SIGKILL
        assert {m.state for m in (await place.observe(desired)).members} == {MemberState.RUNNING}

    def test_head_whose_start_was_not_recorded_ends_before_the_next_one_starts(self) -> None:
        """The keeper was killed after the fork of the head and before it wrote the pid."""

        async def test(place: Place, desired: Desired) -> None:
            await self.start(place, desired)
            before = (await place.observe(desired)).member(HEAD)
            assert before is not None and before.pid is not None
            old = identify(before.pid)
            await place.close()
            path = Store(self.state).cluster("demo").ledger_file
            ledger = read_ledger(path)
            write_ledger(path, ledger.with_entries([replace(ledger.entries[HEAD], pid=None, start=0, boot="")]))
            place = await self.reopen(place)

            async def is_another() -> bool:
                await place.observe(desired)
                await place.ensure(desired, Ensure(desired.shape.head, (HEAD,)))
                entry = read_ledger(path).entries[HEAD]
                assert str(entry.incarnation) == before.incarnation or (old and not old.alive()), "there are two heads"
                await place.collect(desired)
                return entry.pid is not None

            await until(is_another)

        self.run(test)

    def _littering(self, group: Group) -> Group:
        script = self.state / "litterer.py"
        script.write_text(LITTERER)
        (self.state / "held_back.py").write_text(HELD_BACK)
        program = Process(
            ("x",), entry=str(script), litter=("/tmp/oars-litter-$(tag)",),
            env={"PYTHONPATH": str(self.state)}, preload=("held_back",),
        )  # fmt: skip
        return replace(group, process=program)

    def _let_go(self) -> None:
        """Have the litterer forked while the event loop is blocked."""
        assert not _files("litter", self.mark)
        (self.state / "go").touch()
        assert _within(SECONDS, lambda: _files("litter", self.mark))


class TestHost(ProcessContract):
    """A machine behind a transport: an agent starts plain processes and is reached by TCP."""

    async def machine(self, directory: ClusterDir, record: ClusterRecord) -> Machine:
        return await AgentMachine.connect(directory, record, lambda: None)

    async def end(self, place: ProcessPlace, machine: Machine, desired: Desired) -> None:
        everyone = tuple(member.id for member in (await place.observe(desired)).members)
        await place.remove(desired, Remove(everyone, "test", grace=0.0))
        await place.close()


def _files(name: str, mark: str) -> list[str]:
    return glob.glob(f"/tmp/oars-{name}-{mark}-*")


def _within(seconds: float, condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())
