"""The scripts that run in Mars' environment, as text: places ship them to where Mars is."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

LAUNCH = (_HERE / "launch.py").read_text(encoding="utf-8")
HEAD_PLUGIN = (_HERE / "head_plugin.py").read_text(encoding="utf-8")
