"""The page of the Python API, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import oars

SECTIONS = {
    "Clusters": ("Cluster", "AsyncCluster", "connect", "executor"),
    "Jobs": ("Job", "AsyncJob"),
    "Errors": ("OarsError",),
}
WIDTH = 100
ANNOTATION = re.compile(r"(: |-> )'([^']*)'")  # a postponed one is text, which inspect shows in quotes
HEAD = """# Python API

Signatures and docstrings of what `oars` exports. [Python](python.md) shows how to use it. `ClusterSpec` and `JobSpec`
have the fields of the [cluster spec](spec.md) and of the [job spec](job.md), in snake_case. The methods of `Job` have
the parameters of those of `AsyncJob`.
"""


def page(note: str) -> str:
    lines = [note, HEAD]
    for title, names in SECTIONS.items():
        lines.append(f"## {title}\n")
        for name in names:
            lines += describe(name, getattr(oars, name))
    return "\n".join(lines)


def describe(name: str, found: Any) -> Iterator[str]:
    yield f"### {name}\n"
    yield from entry(name, found)
    for member, value in vars(found).items() if inspect.isclass(found) else ():
        if not member.startswith("_") and (text := inspect.getdoc(getattr(found, member))):
            if isinstance(value, property):
                yield f"**`{name}.{member}`**: {text}\n"
            elif callable(getattr(found, member)):
                yield f"#### {name}.{member}\n"
                yield from entry(f"{name}.{member}", getattr(found, member))


def entry(name: str, found: Any) -> Iterator[str]:
    yield f"```text\n{signature(name, found)}\n```\n"
    yield f"{inspect.getdoc(found)}\n"


def signature(name: str, found: Any) -> str:
    """On one line, or with a line for each parameter."""
    given = inspect.signature(found)
    parameters = [each for each in given.parameters.values() if each.name != "self"]
    whole = str(given.replace(parameters=parameters))
    start = f"{'async ' if inspect.iscoroutinefunction(found) else ''}{name}"
    if len(line := ANNOTATION.sub(r"\1\2", f"{start}{whole}")) <= WIDTH:
        return line
    rows = [f"    {each}," for each in parameters]
    keywords = [each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters]
    if any(keywords):
        rows.insert(keywords.index(True), "    *,")
    returned = whole[whole.rindex(")") :]
    return ANNOTATION.sub(r"\1\2", "\n".join([f"{start}(", *rows, returned]))
