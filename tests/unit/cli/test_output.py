"""Tables, JSON, YAML and names."""

from __future__ import annotations

import json

import click
import pytest
import yaml

from oars.cli import output as out
from oars.cli.clusters import _cluster_columns
from oars.cli.output import Column
from oars.service import Service
from oars.spec.status import Endpoints, GroupStatus, MemberStatus, Phase, Status

COLUMNS = (
    Column[dict[str, str]]("NAME", lambda row: row["name"]),
    Column[dict[str, str]]("NOTE", lambda row: row.get("note", "")),
    Column[dict[str, str]]("MORE", lambda row: row.get("more", "m"), wide=True),
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (-3.0, "0s"), (1.9, "1s"), (119.0, "119s"), (120.0, "2m"), (5400.0, "90m"), (3 * 86400.0, "3d")],
)
def test_spans_are_short(seconds: float | None, text: str) -> None:
    assert out.show_span(seconds) == text


def test_columns_are_aligned() -> None:
    text = out.table([{"name": "a", "note": "x"}, {"name": "long-name"}], COLUMNS, wide=False)
    assert text.splitlines() == ["NAME       NOTE", "a          x", "long-name  -"]


def test_empty_columns_are_omitted_unless_wide() -> None:
    rows = [{"name": "a"}, {"name": "b"}]
    assert out.table(rows, COLUMNS, wide=False) == "NAME\na\nb"
    assert out.table(rows, COLUMNS, wide=True).splitlines() == ["NAME  NOTE  MORE", "a     -     m", "b     -     m"]


def test_multi_line_values_become_one_line() -> None:
    assert out.table([{"name": "a", "note": "x\n y"}], COLUMNS, wide=False).splitlines()[1] == "a     x y"


def test_the_last_column_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_columns", lambda: 30)
    line = out.table([{"name": "abcd", "note": "word " * 20}], COLUMNS, wide=False).splitlines()[1]
    assert len(line) == 30
    assert line.endswith("…")
    assert not out.table([{"name": "abcd", "note": "word " * 20}], COLUMNS, wide=True).endswith("…")


@pytest.mark.parametrize("columns", [20, 30, 50, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "_columns", lambda: columns)
    status = Status(
        "dask-1f09ab", "dask", "local", Phase.READY, endpoints=Endpoints("", "http://127.0.0.1:23857/status")
    )
    lines = out.table([status], _cluster_columns(Service({}), all_namespaces=False), wide=False).splitlines()
    assert max(len(click.unstyle(line)) for line in lines) <= columns
    assert lines[0].startswith("NAME") and "dask-1f09ab" in lines[1]
    assert ("http://127.0.0.1:23857/status" in lines[1]) == (columns >= 80)


STATUS = Status(
    "demo", "dask", "local", Phase.READY, endpoints=Endpoints("tls://h:1", ""),
    groups=(GroupStatus("default", 1, 1),), members=(MemberStatus("head", "head", "head", Phase.READY, pid=7),),
)  # fmt: skip


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_keys_of_the_status_are_stable(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    out.emit(output, STATUS.to_dict(), ["demo"], lambda wide: "table")
    text = capsys.readouterr().out
    data = json.loads(text) if output == "json" else yaml.safe_load(text)
    assert list(data) == [
        "name", "engine", "place", "phase", "reason", "message", "endpoints", "groups", "members", "mode", "namespace",
            "expires", "host", "created",
    ]  # fmt: skip
    assert data["phase"] == "Ready"
    assert data["endpoints"] == {"client": "tls://h:1", "dashboard": ""}
    assert data["groups"] == [{"name": "default", "wanted": 1, "ready": 1}]
    assert data["members"] == [
        {
            "id": "head",
            "role": "head",
            "group": "head",
            "phase": "Ready",
            "address": "",
            "pid": 7,
            "reason": "",
            "tasks": None,
        }
    ]


def test_names_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    out.emit("name", [], ["a", "b"], lambda wide: "table")
    out.emit("name", [], [], lambda wide: "table")
    out.emit("wide", [], ["a"], lambda wide: f"wide {wide}")
    assert capsys.readouterr().out == "a\nb\nwide True\n"
