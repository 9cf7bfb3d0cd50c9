"""Calls on their way to a worker and back. An engine transports bytes only: user objects are pickled and unpickled in
submit(), on the worker by runner.py, and when a result is delivered. An error there fails one call."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from oars.engines.base import script
from oars.engines.runner import rebuild


class Pickled(NamedTuple):
    """A call, or a chunk of calls of one function (see Executor.map)."""

    function: bytes
    arguments: bytes  # (args, kwargs); for a chunk, a list of args
    is_chunk: bool = False


class RemoteTraceback(Exception):
    """The worker's traceback, as the cause of the exception that a future raises."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def cloudpickled(value: Any) -> bytes:
    import cloudpickle

    return bytes(cloudpickle.dumps(value))


def make_run(pickler: str = "cloudpickle") -> Callable[..., bytes]:
    """The function that an engine runs on a worker. It is a local one so that engines pickle it by value: Oars is not
    installed there. `pickler`: the module that pickles results. `unique` is for engines that merge equal calls."""
    source = script(__file__, "runner.py")
    name = f"oars_runner_{zlib.crc32(source.encode()):x}"

    def run(payload: bytes, limit: float, unique: str = "") -> bytes:
        import sys
        import types

        if name not in sys.modules:
            module = types.ModuleType(name)
            exec(source, module.__dict__)
            sys.modules[name] = module
        return sys.modules[name].run(payload, limit, pickler)  # type: ignore[no-any-return]

    return run


def pack(calls: Sequence[Pickled]) -> bytes:
    """The payload of run()."""
    return pickle.dumps([tuple(call) for call in calls])


def unpack(data: bytes) -> tuple[list[tuple[bool, bytes]], float]:
    """The answers to the first calls of a batch, at least one, and the seconds that these took."""
    answers, seconds = pickle.loads(data)
    return answers, seconds


def unpickle(answer: tuple[bool, bytes]) -> tuple[Any, BaseException | None]:
    """The result or the error of a call."""
    succeeded, data = answer
    try:
        value = pickle.loads(data)
        if succeeded:
            return value, None
        reduced, text = value
        raised = rebuild(*reduced)
        raised.__cause__ = RemoteTraceback(text)
        return None, raised
    except BaseException as error:  # noqa: BLE001 (SystemExit in a user's class must not end the delivering thread)
        return None, error
