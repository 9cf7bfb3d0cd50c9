"""The recording of the first lines of the README can be made."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from docs import recordings

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def shown(svg: Path) -> list[str]:
    """The lines of a picture."""
    return ["".join(each.itertext()) for each in ET.parse(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_recordings_of_the_documentation_can_be_made(tmp_path: Path) -> None:
    cast, svg = recordings.record_all(tmp_path)
    header, *events = (json.loads(line) for line in cast.read_text().splitlines())
    assert header["version"] == 2 and [event[0] for event in events] == sorted(event[0] for event in events)
    lines = shown(svg)
    for result in ("Workers:   3/3 ready", "Workers:   5/5 ready", "demo is Ready", "demo is stopped."):
        assert any(line.startswith(result) for line in lines), f"no {result!r} in {lines}"
    typed = [line for line in lines if line.startswith("$ ")]
    assert [line.split()[1] for line in typed] == [line.split()[0] for line in recordings.commands()]
