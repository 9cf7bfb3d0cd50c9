"""Convert dataclasses to plain JSON data and back, driven by type hints.

Loading ignores unknown keys and uses the field's default for missing ones, so that different versions of Oars can read
each other's files.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import cache
from typing import Any, NewType, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


def dump(value: Any) -> Any:
    """Return plain data from which `load` restores an equal value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: dump(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): dump(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [dump(item) for item in value]
    return value


def load(kind: type[T], data: Any) -> T:
    """Return an instance of the dataclass `kind`. Raises ValueError if the data does not fit."""
    try:
        result: T = _reader(cast(Hashable, kind))(data)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a valid {kind.__name__}: {type(error).__name__}: {error}") from error
    return result


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """The function that loads a value of that type."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, NewType):
        return _reader(kind.__supertype__)
    if origin in (Union, types.UnionType):
        read = _reader(next(each for each in inner if each is not type(None)))
        return lambda data: None if data is None else read(data)
    if origin is tuple:
        read = _reader(inner[0])
        return lambda data: tuple(read(item) for item in _checked(data, list, tuple))
    if origin is not None and issubclass(origin, Mapping):
        read = _reader(inner[1])
        return lambda data: {key: read(item) for key, item in _checked(data, Mapping).items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if kind is Any:
        return lambda data: data
    accepted = _ACCEPTED.get(kind, (kind,))
    return lambda data: _checked(data, *accepted)


_ACCEPTED: Mapping[Any, tuple[type, ...]] = {float: (float, int)}


def _checked(data: Any, *kinds: type) -> Any:
    if not isinstance(data, kinds) or (isinstance(data, bool) and bool not in kinds):
        raise TypeError(f"{type(data).__name__} instead of {kinds[0].__name__}")
    return data


def _dataclass_reader(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]

    def read(data: Mapping[str, Any]) -> Any:
        given = _checked(data, Mapping)
        return kind(**{name: _reader(hints[name])(given[name]) for name in fields if name in given})

    return read
