"""The size budget, and what may be imported when: kept by tests, not by good intentions."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oars

SOURCE = Path(oars.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
HEAVY = [
    "pydantic",
    "yaml",
    "rich",
    "click",
    "cryptography",
    "asyncio",
    "dask",
    "distributed",
    "ray",
    "xorbits",
    "mars",
]


def functions() -> Iterator[tuple[str, int]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield f"{path.relative_to(SOURCE)}:{node.name}", node.end_lineno - node.lineno + 1


def test_functions_are_short() -> None:
    sizes = dict(functions())
    ordered = sorted(sizes.values())
    assert statistics.median(ordered) <= 10
    assert ordered[int(len(ordered) * 0.9)] <= 30
    assert {name: size for name, size in sizes.items() if size > 60} == {}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 600


def modules_after(code: str) -> set[str]:
    listing = "import sys; " + code + "; print(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_import_oars_loads_nothing_heavy() -> None:
    assert modules_after("import oars").isdisjoint(HEAVY)


def test_help_loads_neither_engine_nor_pydantic() -> None:
    code = (
        "sys.argv = ['oars', '--help']; from oars.cli.entry import main; exec('try: main()\\nexcept SystemExit: pass')"
    )
    loaded = modules_after(code)
    assert "oars.cli.entry" in loaded
    assert loaded.isdisjoint({*HEAVY, "oars.client"})


def test_the_driver_s_half_needs_no_pydantic() -> None:
    """It runs in the engines' cached environments, which have nothing of ours."""
    code = "from oars import engines; [engines.session(engines.get(name)) for name in ('dask', 'ray', 'mars')]"
    assert modules_after("from oars.client import current; " + code).isdisjoint({"pydantic", "yaml", "click", "rich"})


def test_public_names_are_those_of_all() -> None:
    assert sorted(oars._MODULES) == sorted(oars.__all__)
    for name in oars.__all__:
        assert getattr(oars, name).__name__ == name
    with pytest.raises(AttributeError, match="Clustr"):
        oars.Clustr  # noqa: B018
