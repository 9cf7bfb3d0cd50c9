"""Source of the scripts that run in Mars' environment; places copy them there."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

LAUNCH = (_HERE / "launch.py").read_text(encoding="utf-8")
HEAD_PLUGIN = (_HERE / "head_plugin.py").read_text(encoding="utf-8")
