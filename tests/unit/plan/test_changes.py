"""The diff of plain data."""

from __future__ import annotations

from oars.plan.changes import MOST_LINES, lines_between


def test_lines_between() -> None:
    assert lines_between({"a": 1}, {"a": 1}) == ()
    assert lines_between({"a": {"b": [1]}}, {"a": {"b": [2], "c": None}}) == ("a.b: [1] → [2]", "a.c differs")
    assert lines_between({"l": [{"name": "x", "v": 1}]}, {"l": [{"name": "x", "v": 2}]}) == ("l[x].v: 1 → 2",)
    many = lines_between({}, {str(number): number for number in range(MOST_LINES + 5)})
    assert many[-1] == "… and 5 more"
    assert len(many) == MOST_LINES + 1
