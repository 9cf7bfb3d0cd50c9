"""The chart's README.md, with a table of values.yaml: each value, the comment above it, and its default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_LINE = re.compile(r"( *)(\w+):(?: +(.*))?$")
INDENT = 2


def text(chart: Path) -> str:
    rows = "\n".join(f"| `{name}` | {comment} | `{value}` |" for name, value, comment in values(chart))
    return (chart / "README.in.md").read_text().replace("VALUES\n", f"{rows}\n")


def values(chart: Path) -> Iterator[tuple[str, str, str]]:
    """Path, default and description of each value."""
    path: list[str] = []
    comment: list[str] = []
    for line in (chart / "values.yaml").read_text().splitlines():
        if line.lstrip().startswith("# "):
            comment.append(line.lstrip().removeprefix("# "))
        elif found := _LINE.match(line):
            depth = len(found[1]) // INDENT
            path = [*path[:depth], found[2]]
            if found[3] is not None:
                yield ".".join(path), found[3], " ".join(comment)
                comment = []
        else:  # an empty line
            comment = []
