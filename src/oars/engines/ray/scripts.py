"""The scripts that run in Ray's environment, as text: places ship them to where Ray is."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

LAUNCH = (_HERE / "launch.py").read_text(encoding="utf-8")
HEAD_HELPER = (_HERE / "head_helper.py").read_text(encoding="utf-8")
