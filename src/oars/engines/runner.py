"""Runs calls on a worker. Its source is sent there (see calls.py), so it imports the standard library only."""

from __future__ import annotations

import pickle
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

CACHE_SIZE = 256

# Functions by their pickled form, so that their globals live as long as those of a module.
functions: dict[bytes, Callable[..., Any]] = {}


def run(payload: bytes, limit: float, pickler: str) -> bytes:
    """Run calls one after the other. Returns for each whether it succeeded and the pickled result or error, and the
    seconds in all. After `limit` seconds the rest is left out: other workers can run it."""
    dumps = __import__(pickler, fromlist=["dumps"]).dumps
    start = time.perf_counter()
    answers: list[tuple[bool, bytes]] = []
    for function, arguments, is_chunk in pickle.loads(payload):
        try:
            answers.append((True, dumps(_call(function, arguments, is_chunk))))
        except BaseException as error:
            if _is_of_sigterm(error):
                raise
            answers.append((False, _describe(error, dumps)))
        if time.perf_counter() - start > limit:
            break
    return pickle.dumps((answers, time.perf_counter() - start))


def _call(pickled: bytes, arguments: bytes, is_chunk: bool) -> Any:
    function = functions.get(pickled)
    if function is None:
        if len(functions) >= CACHE_SIZE:
            functions.clear()
        function = functions[pickled] = pickle.loads(pickled)
    if is_chunk:
        return [function(*args) for args in pickle.loads(arguments)]
    args, kwargs = pickle.loads(arguments)
    return function(*args, **kwargs)


def _is_of_sigterm(error: BaseException) -> bool:
    """True if the worker's handler of SIGTERM raised it: the worker ends, which is no result of the call."""
    code = getattr(signal.getsignal(signal.SIGTERM), "__code__", None)
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


def _describe(error: BaseException, dumps: Callable[[Any], bytes]) -> bytes:
    text = traceback.format_exc()
    try:
        # Not the error itself: libraries change how errors are pickled and lose what some of them contain.
        data = dumps((error.__reduce_ex__(2)[:3], text))
        rebuild(*pickle.loads(data)[0])
        return data
    except BaseException:  # noqa: BLE001 (it cannot be pickled or rebuilt; its text can)
        return pickle.dumps(((RuntimeError, (text.strip().splitlines()[-1],)), text))


def rebuild(make: Callable[..., Any], arguments: tuple[Any, ...], state: object = None) -> BaseException:
    """An error from what its __reduce_ex__ returned."""
    error: BaseException = make(*arguments)
    if state is not None:
        error.__setstate__(state)  # type: ignore[arg-type]
    return error
