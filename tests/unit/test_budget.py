"""Limits of size and complexity, and which modules an import loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import oars
from oars.client.backend import PLACES
from oars.engines import BUILT_IN

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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_have_at_most_600_lines_and_functions_60(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) <= 600
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name


def test_complexity_is_limited_to_10_by_ruff() -> None:
    lint = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "C901" in lint["select"] and lint["mccabe"]["max-complexity"] == 10
    ignored = [
        *lint.get("ignore", ()),
        *(rule for rules in lint.get("per-file-ignores", {}).values() for rule in rules),
    ]
    assert "C901" not in ignored
    assert [path.name for path in FILES if "noqa: C901" in path.read_text()] == []


def test_only_one_module_builds_the_desired_state() -> None:
    builders = {
        str(path.relative_to(SOURCE))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Desired"
    }
    assert builders == {"plan/desired.py"}


def test_commands_ask_for_no_types() -> None:
    """What differs between clusters is the service's business."""
    calls = [
        f"{path.name}:{node.lineno}"
        for path in (SOURCE / "cli").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id in ("isinstance", "issubclass", "in_kubernetes")
    ]
    assert not calls


def test_front_doors_ask_for_capabilities_and_not_for_the_kind_of_place() -> None:
    """What places can do is in client.backend.PLACES."""
    comparisons = [
        f"{path.name}:{node.lineno}"
        for part in ("cli", "service")
        for path in (SOURCE / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and any(isinstance(each, ast.Constant) and each.value in PLACES for each in ast.walk(node))
    ]
    assert not comparisons


PLACE_PACKAGES = {path.parent.name for path in (SOURCE / "places").glob("*/__init__.py")} - {"process"}  # a common word
NAMES_OF_PARTS = {*BUILT_IN, *PLACES, *PLACE_PACKAGES}


def named_parts(source: str) -> list[str]:
    """Identifiers and strings, without docstrings, that have the name of an engine or a place in them."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented)
        if node.body and isinstance(node.body[0], ast.Expr)
    }  # fmt: skip
    fields = (value for node in ast.walk(tree) if id(node) not in docstrings for _, value in ast.iter_fields(node))
    texts = [value for value in fields if isinstance(value, str)]
    return [text for text in texts if NAMES_OF_PARTS & {word.lower() for word in re.findall("[A-Z]?[a-z]+", text)}]


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.relative_to(SOURCE).parts[0] in ("plan", "control")], ids=lambda p: p.name
)
def test_plan_and_control_name_no_engine_and_no_place(path: Path) -> None:
    assert not named_parts(path.read_text()), "if they differ, the model lacks a field"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('if desired.engine == "ray": pass', ["ray"]),
        ('x = f"on {place} or kubernetes"', [" or kubernetes"]),
        ("from oars.places.kube import names", ["oars.places.kube"]),
        ("class KubePlace: ...", ["KubePlace"]),
        ("def f(is_local=1): ...", ["is_local"]),
        ("x.mars_web = 1", ["mars_web"]),
        ('def f():\n    """As Ray does on Kubernetes."""\n    array = locality = process', []),
    ],
)
def test_names_of_engines_and_places_are_found(source: str, found: list[str]) -> None:
    assert named_parts(source) == found


def test_kubernetes_client_may_import_no_other_part_of_oars() -> None:
    """import-linter checks the contract; this, that it names every part."""
    contracts = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (forbidden,) = (each["forbidden_modules"] for each in contracts if each.get("source_modules") == ["oars.kube"])
    parts = {f"oars.{path.stem}" for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"}
    others = parts - {"oars.kube", "oars.base", "oars.__init__", "oars.__main__", "oars.__pycache__", "oars.py"}
    assert others <= set(forbidden), "add them to the contract"


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
    """It runs in the engines' cached environments, which do not contain Oars."""
    code = "from oars import engines; [engines.session(engines.get(name)) for name in ('dask', 'ray', 'mars')]"
    assert modules_after("from oars.client import current; " + code).isdisjoint({"pydantic", "yaml", "click", "rich"})


def test_public_names_are_those_of_all() -> None:
    assert sorted(oars._MODULES) == sorted(oars.__all__)
    for name in oars.__all__:
        assert getattr(oars, name).__name__ == name
    with pytest.raises(AttributeError, match="Clustr"):
        oars.Clustr  # noqa: B018
