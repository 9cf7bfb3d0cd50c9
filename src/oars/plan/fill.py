"""Fills in the `$(…)` placeholders of templates (see model). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_PLACEHOLDER = re.compile(r"\$(?:\$|\(([\w.-]+)\))")  # `$$` is an escaped `$`: `$$(host)` is not a placeholder


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace every `$(name)` that has a value. The others stay: a user's variable may contain `$(HOME)`, which the
    container runtime fills in."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def fill_mapping(texts: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    return {name: fill(text, values) for name, text in texts.items()}


def unfilled(texts: Iterable[str], values: Mapping[str, str]) -> set[str]:
    """Placeholders without a value; in the templates of an engine they are errors."""
    return {match[1] for text in texts for match in _PLACEHOLDER.finditer(text) if match[1]} - set(values)
