"""Print data as an aligned table, JSON, YAML or bare names."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from oars.cli.errors import has_colour

T = TypeVar("T")
PHASES = {
    **dict.fromkeys(("Ready", "Running", "Succeeded"), "green"),
    **dict.fromkeys(("Starting", "Pending", "Degraded", "Queued", "Retrying", "Suspended"), "yellow"),
    **dict.fromkeys(("Failed", "Cancelled"), "red"),
}
_GAP = "  "
MIN_LAST = 12  # columns: a narrower rest of a column says nothing


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a table. wide: shown only with -o wide."""

    title: str
    value: Callable[[T], object]
    wide: bool = False
    paint: Callable[[str], str] = str


def _output_option(*formats: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """-o FORMAT, passed to the command as `output`; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        metavar="FORMAT",
        help=f"{', '.join(formats)}.",
    )


output_option = _output_option("table", "wide", "json", "yaml", "name")
manifest_output_option = _output_option("yaml", "json", "name")


def write(text: str) -> None:
    """Print data on stdout."""
    click.echo(text, color=has_colour(sys.stdout))


def emit(output: str, data: Any, names: Sequence[str], table: Callable[[bool], str]) -> None:
    """Print data in a format. `table` makes the text for people; its argument says whether it may be wide."""
    if output == "json":
        write(json.dumps(data, indent=2, ensure_ascii=False))
    elif output == "yaml":
        write(as_yaml(data))
    elif output == "name":
        if names:
            write("\n".join(names))
    else:
        text = table(output == "wide")
        if text:
            write(text)


def emit_manifests(
    output: str, objects: Sequence[dict[str, Any]], to_yaml: Callable[[dict[str, Any]], str] | None = None
) -> None:
    """Print Kubernetes objects: as YAML documents, as a List in JSON, or as kind/name."""
    if output == "yaml" and objects:
        write("\n---\n".join(map(to_yaml or as_yaml, objects)))
    elif output != "yaml":
        names = [f"{obj['kind'].lower()}/{obj['metadata']['name']}" for obj in objects]
        emit(output, {"apiVersion": "v1", "kind": "List", "items": objects}, names, lambda _: "")


BOOLEANS = ("y", "Y", "n", "N")  # in Go's YAML, besides those of Python's


def as_yaml(data: Any) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes multi-line strings as blocks, and quotes what kubectl and Helm take for true or false."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else "'" if value in BOOLEANS else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    plain = json.loads(json.dumps(data))  # converts enumerations and tuples
    return str(yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)).rstrip()


def table(rows: Sequence[T], columns: Sequence[Column[T]], wide: bool) -> str:
    """A header and a line per row. Unless it is wide, empty columns are omitted, and on a terminal the last columns are
    omitted and the last one of the others is cut to fit."""
    chosen = [
        column for column in columns
        if wide or (not column.wide and any(_plain(column.value(row)) != "-" for row in rows))
    ]  # fmt: skip
    cells = [[_plain(column.value(row)) for column in chosen] for row in rows]
    titles = [column.title for column in chosen]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    limit = None if wide else _columns()
    used = [sum(widths[:end]) + len(_GAP) * end for end in range(len(widths))]  # left of each column
    while limit and len(chosen) > 1 and used[len(chosen) - 1] + min(widths[len(chosen) - 1], MIN_LAST) > limit:
        chosen.pop()
    count = len(chosen)
    titles, cells = titles[:count], [row[:count] for row in cells]
    room = None if limit is None else limit - used[count - 1]

    def line(texts: Sequence[str], paints: Sequence[Callable[[str], str]]) -> str:
        fitted = [*texts[:-1], _cut(texts[-1], room)]
        padded = (paint(text.ljust(width)) for text, width, paint in zip(fitted, widths[:count], paints, strict=True))
        return _GAP.join(padded).rstrip()

    paints = [column.paint for column in chosen]
    return "\n".join([line(titles, [str] * len(chosen)), *(line(row, paints) for row in cells)])


def show_span(seconds: float | None) -> str:
    """A time, rounded down to the largest unit of which it has two: 5400 → '90m'; '-' for None."""
    if seconds is None:
        return "-"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds // 1):.0f}s"


def paint_phase(text: str) -> str:
    """A phase with its colour, which write() removes unless stdout is a terminal."""
    name = text.strip()
    return click.style(text, fg=PHASES[name]) if name in PHASES else text


def _plain(value: object) -> str:
    return " ".join(str(value).split()) or "-"


def _columns() -> int | None:
    """The width of the terminal; None: unlimited."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _cut(text: str, room: int | None) -> str:
    return text if room is None or len(text) <= room else text[: max(0, room - 1)] + "…"
