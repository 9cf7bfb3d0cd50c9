"""Each place against the contract."""

from __future__ import annotations

import asyncio
import glob
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from oars import engines
from oars.model import Desired, Ensure, Group, MemberId, Process, Remove
from oars.places.base import Place
from oars.places.local.place import LocalPlace
from oars.places.local.process import boot_id
from oars.places.local.store import ClusterDir, Intent, Store
from oars.plan.codec import dump_shape
from oars.plan.desired import desired
from oars.spec.cluster import ClusterSpec
from oars.testing import PlaceContract

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
SECONDS = 50  # less than a start may take
SPEC = ClusterSpec.model_validate({"engine": "toy", "workers": 2})


class TestLocal(PlaceContract):
    @pytest.fixture(autouse=True)
    def _state(self, own_state: Path) -> None:
        self.state = own_state

    def place(self) -> AbstractAsyncContextManager[tuple[Place, Desired]]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Place, Desired]]:
        shape = dump_shape(engines.get("toy").shape(SPEC))
        intent = Intent("demo", SPEC.model_dump(), shape, sys.executable, "mark", time.time(), boot=boot_id())
        directory = Store(self.state).create(intent, {"token": b"x"})
        wanted = desired("demo", SPEC, engines.get("toy"))
        first = self._new(directory, intent, wanted)
        self.places = [first]
        try:
            yield first, wanted
        finally:
            for place in self.places:
                await place.close()
                await place.sweep_all()

    def _new(self, directory: ClusterDir, intent: Intent, wanted: Desired) -> LocalPlace:
        path = (*intent.import_path, os.environ["PYTHONPATH"])
        intent = Intent(**{**intent.__dict__, "import_path": path})
        return LocalPlace(directory, intent, wanted.shape.head, os.environ, lambda: None)

    async def reopen(self, place: Place) -> Place:
        directory = Store(self.state).cluster("demo")
        wanted = desired("demo", SPEC, engines.get("toy"))
        self.places.append(self._new(directory, directory.read_intent(), wanted))
        return self.places[-1]

    async def kill(self, place: Place, member: MemberId) -> None:
        found = (await place.observe()).member(member)
        assert found is not None and found.pid is not None
        os.kill(found.pid, signal.SIGKILL)

    @pytest.mark.parametrize("exists", [True, False], ids=["it exists", "it is yet to be forked"])
    def test_one_that_is_removed_while_it_starts_leaves_nothing(self, exists: bool) -> None:
        async def test(place: Place, desired: Desired) -> None:
            group = self._littering(desired.shape.workers[0])
            worker = MemberId("worker-0")
            await place.ensure(desired, Ensure(group, (worker,)))
            await asyncio.sleep(0)  # now it is asked for; nothing is heard of it while the loop stands still
            if exists:
                self._let_go()
            await place.remove(desired, Remove((worker,), "not wanted any more"))
            if not exists:
                self._let_go()
            assert await asyncio.to_thread(_within, SECONDS, lambda: not _litter())

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
        """Have the litterer forked, while nobody hears of it."""
        assert not _litter()
        (self.state / "go").touch()
        assert _within(SECONDS, _litter)


def _litter() -> list[str]:
    return glob.glob("/tmp/oars-litter-*")


def _within(seconds: float, condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())
