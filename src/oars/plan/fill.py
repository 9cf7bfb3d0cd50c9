"""Filling in the `$(…)` of templates (see model). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# `$$` is how Kubernetes writes a `$` that begins no name: `$$(host)` is no placeholder.
_PLACEHOLDER = re.compile(r"\$(?:\$|\(([\w.-]+)\))")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Every `$(name)` that has a value replaced. All else stays for whoever reads the text next: a user's variables may
    hold `$(HOME)`, which Kubernetes fills in."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def fill_mapping(texts: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    return {name: fill(text, values) for name, text in texts.items()}


def unfilled(texts: Iterable[str], values: Mapping[str, str]) -> set[str]:
    """Names in the texts for which there is no value: in an engine's own templates, a mistake."""
    return {match[1] for text in texts for match in _PLACEHOLDER.finditer(text) if match[1]} - set(values)
