"""An event loop on a virtual clock: sleeping costs nothing, and one seed gives one order of events."""

from __future__ import annotations

import asyncio
import random
import selectors
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")
EPOCH = 1_800_000_000.0  # the wall clock at the start of every history


class Clock:
    """Seconds since the start, and a wall clock that faults may step."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0  # how far the wall clock is off

    def wall(self) -> float:
        return EPOCH + self.now + self.step

    def monotonic(self) -> float:
        return self.now


class _Selector(selectors.SelectSelector):
    """Advances the clock instead of waiting."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0) if timeout != 0 else []
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: every task waits, and no timer is set")
            self._clock.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock) -> None:
        self._virtual = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run it at once: a thread takes real time, so that a seed would not replay."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (the caller gets it)
            future.set_exception(error)
        return future


@contextmanager
def _patched(clock: Clock) -> Iterator[None]:
    """Replace the real clocks, also where one is the default of a parameter."""
    clocks = {id(time.time): clock.wall, id(time.monotonic): clock.monotonic}
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            for owner in list(vars(module).values()) if name.startswith("oars.") else ():
                init = vars(owner).get("__init__") if isinstance(owner, type) else None
                if (defaults := getattr(init, "__defaults__", None)) and any(id(each) in clocks for each in defaults):
                    replaced = tuple(clocks.get(id(each), each) for each in defaults)
                    stack.enter_context(mock.patch.object(init, "__defaults__", replaced))
                if keywords := getattr(init, "__kwdefaults__", None):
                    changed = {key: clocks[id(each)] for key, each in keywords.items() if id(each) in clocks}
                    stack.enter_context(mock.patch.dict(keywords, changed))
        stack.enter_context(mock.patch.object(time, "clock_gettime", lambda _: clock.monotonic()))
        stack.enter_context(mock.patch.object(time, "time", clock.wall))
        stack.enter_context(mock.patch.object(time, "monotonic", clock.monotonic))
        yield


def run(main: Coroutine[Any, Any, T], clock: Clock, seed: int) -> T:
    """Run to completion in virtual time."""
    random.seed(seed)
    loop = _Loop(clock)
    loop.set_exception_handler(lambda *_: None)  # tasks of killed processes end with exceptions
    try:
        with _patched(clock):
            return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
