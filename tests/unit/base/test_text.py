from __future__ import annotations

from oars.base.text import MOST_NAMES, listed


def test_a_few_names_are_told_and_many_are_counted() -> None:
    names = [f"w{number}" for number in range(MOST_NAMES + 3)]
    assert listed(names[:2]) == "w0,w1"
    assert listed(names[:MOST_NAMES]).endswith(f",w{MOST_NAMES - 1}")
    assert listed(names).endswith(f",w{MOST_NAMES - 1} and 3 more")
