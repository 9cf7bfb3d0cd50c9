"""Functions that run on Ray's workers. Oars is not installed there, so they are pickled by value."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

CACHE_SIZE = 256

loaded: dict[bytes, Callable[..., Any]] = {}


def run(_oars_pickled: bytes, *arguments: Any, **options: Any) -> Any:
    """Call a pickled function; each is unpickled once per process."""
    function = loaded.get(_oars_pickled)
    if function is None:
        if len(loaded) >= CACHE_SIZE:
            loaded.clear()
        function = loaded[_oars_pickled] = pickle.loads(_oars_pickled)
    return function(*arguments, **options)


def run_chunk(function: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [function(*item) for item in items]
