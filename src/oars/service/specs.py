"""Specs from files, text and options, with the options of the installed engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oars import engines
from oars.spec import load
from oars.spec.load import Manifest


def from_text(content: str, source: str, sets: Sequence[str], overrides: Mapping[str, Any]) -> Manifest:
    return load.load_text(content, source, sets, overrides, engines.option_model)


def from_file(path: Path, sets: Sequence[str], overrides: Mapping[str, Any]) -> Manifest:
    return load.load_file(path, sets, overrides, engines.option_model)


def from_options(sets: Sequence[str], overrides: Mapping[str, Any]) -> Manifest:
    return load.build({}, sets, overrides, engines.option_model)
