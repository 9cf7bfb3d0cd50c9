"""What a reader changes in the code of a document, and sizes that fit on the lab: tables of its migration page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARS = "docs/migrate/mars.md"
DASK = "docs/migrate/dask-kubernetes-classic.md"
RAY = "docs/migrate/ray.md"
BY_HAND = "docs/migrate/mars-by-hand.md"
_CODE = re.compile(r"`([^`]+)`")
Edit = tuple[str, str]


def sizes(page: str) -> list[Edit]:
    """The table "Sizes in the tests": numbers and amounts, so that the page's clusters fit on the lab's node."""
    cells = [[_CODE.findall(cell)[0].replace("\\n", "\n") for cell in row] for row in _rows(page, "Sizes in the tests")]
    return [(before, after) for before, after in cells]


def table(page: str) -> list[list[str]]:
    """The rows of the table "What you change" or "What changes"."""
    return _rows(page, "What (?:you change|changes)")


def _rows(page: str, title: str) -> list[list[str]]:
    text = re.split(rf"^## {title}$", (ROOT / page).read_text(), flags=re.MULTILINE)[1]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def edits(page: str, *where: str, **values: str) -> list[Edit]:
    """What becomes of the code in the second column: the first code in the third column. `where`: the first column of
    the rows that count. `values`: for rows without code in the third column, such as an image of the reader's own."""
    rows = {first: (_CODE.findall(before), _CODE.findall(after)) for first, before, after in table(page)}
    found = []
    for first in where:
        before, after = rows[first]
        assert before and (after or first in values), f"{page}: no code in the row {first!r}"
        found += [(each, values.get(first) or after[0]) for each in before]
    return found


def added(page: str, where: str) -> str:
    """The code that a row adds; `where`: how its first column begins."""
    (after,) = (after for first, _, after in table(page) if first.startswith(where))
    return str(_CODE.findall(after)[0])


def edited(text: str, changes: Iterable[Edit]) -> str:
    for before, after in changes:
        text = text.replace(before, after)
    return text


def options(page: str, **values: str) -> Mapping[str, str]:
    """The options that a page adds to the commands of its document, with these values for its placeholders."""
    found = re.findall(r"`[^`]*?(--[\w-]+) (\w+)`", "\n".join(cells[2] for cells in table(page)))
    return {option: values.get(value, value) for option, value in found}


MARS_SIZES, DASK_SIZES = sizes(MARS), sizes(DASK)
