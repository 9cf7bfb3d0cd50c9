"""Filling in the `$(…)` of templates (see model). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACEHOLDER = re.compile(r"\$\(([\w.-]+)\)")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Every `$(name)` replaced; a name without a value is a mistake in an engine's shape."""
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def fill_mapping(texts: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    return {name: fill(text, values) for name, text in texts.items()}
