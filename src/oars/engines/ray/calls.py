"""Runs on Ray's workers, where nothing of Oars is installed: these functions travel whole, with what they refer to."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

REMEMBERED = 256

loaded: dict[bytes, Callable[..., Any]] = {}


def run(_oars_pickled: bytes, *arguments: Any, **options: Any) -> Any:
    """Call a function that came pickled; the same one is unpickled only once in a process."""
    function = loaded.get(_oars_pickled)
    if function is None:
        if len(loaded) >= REMEMBERED:
            loaded.clear()
        function = loaded[_oars_pickled] = pickle.loads(_oars_pickled)
    return function(*arguments, **options)


def run_chunk(function: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [function(*item) for item in items]
