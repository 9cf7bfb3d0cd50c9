"""What a reader changes in the code of a document: the table of its migration page, and sizes that fit on the lab."""

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

# Numbers and amounts, so that the page's clusters fit on the lab's node, which has two processors.
MARS_SIZES: tuple[Edit, ...] = (
    ("new_client_from_config())\n", "new_client_from_config(), scheduler_cpu=0.3, worker_cpu=0.3)\n"),
    ("scheduler_num=1,", "scheduler_num=1, scheduler_cpu=0.1,"),
    ("worker_num=100", "worker_num=2"),
    ("min_worker_num=95", "min_worker_num=1"),
    ("worker_cpu=4", "worker_cpu=1.1"),
    ("worker_mem='16g'", "worker_mem='1g'"),
    ("rescale_workers(20)", "rescale_workers(3)"),
)
DASK_SIZES: tuple[Edit, ...] = (
    ("--memory-limit, 6GB", "--memory-limit, 1GB"),
    ("memory: 6G", "memory: 1G"),
    ('cpu: "2"', 'cpu: "0.1"'),
    ("'worker-spec.yml')\ncluster.scale(10)", "'worker-spec.yml')\ncluster.scale(1)"),
    ("deploy_mode='local')\ncluster.scale(10)", "deploy_mode='local')\ncluster.scale(1)"),
)


def table(page: str) -> list[list[str]]:
    """The rows of the table "What you change" or "What changes"."""
    text = re.split(r"^## What (?:you change|changes)$", (ROOT / page).read_text(), flags=re.MULTILINE)[1]
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
