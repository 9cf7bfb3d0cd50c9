"""Scripts that run in an engine's environment run on the oldest Python that its `needs` allow, which is older than that
of Oars. What cannot be seen here, `tests/live/test_old_pythons.py` runs."""

from __future__ import annotations

import ast
import builtins
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oars import engines
from oars.client import pod_programs
from oars.envs.scan import python_allowed
from oars.places.kube.render import driver, sidecar
from oars.spec.load import build

SOURCE = Path(engines.__file__).parents[1]
# Modules of an engine that run where all of Oars runs; the others are scripts.
OWN = {"__init__", "connection", "link", "live", "options", "session", "shape"}
SHARED = [
    SOURCE / "engines/web_guard.py",
    SOURCE / "engines/runner.py",
    SOURCE / "places/kube/helper.py",
    SOURCE / "places/local/fork_server.py",
]
SPECS = {"dask": {}, "ray": {}, "xorbits": {}, "pymars": {"mars": {"distribution": "pymars"}}}
# Methods that a name alone shows, whatever it belongs to → the Python 3 that has them first.
METHODS = {"removeprefix": 9, "removesuffix": 9, "bit_count": 10, "add_note": 11}


def engine_of(name: str) -> str:
    return "mars" if name in ("xorbits", "pymars") else name


def oldest(name: str) -> int:
    """The minor number of the oldest Python for this engine or distribution."""
    engine = engine_of(name)
    condition = engines.get(engine).needs(build({"engine": engine, **SPECS[name]}).spec).python
    return next(minor for minor in range(50) if python_allowed(condition, (3, minor, 0)))


def own_scripts(engine: str) -> list[Path]:
    return sorted(path for path in (SOURCE / "engines" / engine).glob("*.py") if path.stem not in OWN)


def scripts(name: str) -> list[Path]:
    preload = [SOURCE / "compat/dask_kubernetes/scheduler_preload.py"] if name == "dask" else []
    return [*own_scripts(engine_of(name)), *SHARED, *preload]


def newer(paths: list[Path], minor: int) -> list[str]:
    """What these files use that Python 3.minor does not have."""
    # vermin knows the syntax, and in which Python each name of the standard library appeared.
    vermin = Path(sys.executable).with_name("vermin")
    options = ["--no-config-file", "--quiet", "--no-tips", "--violations", "-vvv", f"--target=3.{minor}-"]
    done = subprocess.run([vermin, *options, *map(str, paths)], capture_output=True, text=True, timeout=120)
    found = [line for line in done.stdout.splitlines() if line.strip()]
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    for path in paths:
        tree = ast.parse(path.read_text(), feature_version=(3, minor))
        found += [f"{path.name}:{line}: {what}" for line, what, since in uses(tree) if since > minor]
    return found


def uses(tree: ast.Module) -> Iterator[tuple[int, str, int]]:
    """What vermin does not find: classes in brackets and unions of classes outside of annotations, and methods."""
    classes = set(imported_classes(tree)) | {name for name, value in vars(builtins).items() if isinstance(value, type)}
    for node in evaluated(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in classes:
            yield node.lineno, ast.unparse(node), 9
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            if classes & {ast.unparse(node.left), ast.unparse(node.right)}:
                yield node.lineno, ast.unparse(node), 10
        elif isinstance(node, ast.Attribute) and node.attr in METHODS:
            yield node.lineno, node.attr, METHODS[node.attr]


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that are evaluated at run time: not those of annotations, which `from __future__` delays."""
    for name, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST) and name not in ("annotation", "returns"):
                yield each
                yield from evaluated(each)


def imported_classes(tree: ast.Module) -> Iterator[str]:
    """Names under which the file has classes of the standard library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in sys.stdlib_module_names:
            module = importlib.import_module(node.module or "")  # noqa: TID251 (the standard library)
            for each in node.names:
                if isinstance(getattr(module, each.name, None), type):
                    yield each.asname or each.name
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.name in sys.stdlib_module_names:
                    module = importlib.import_module(each.name)  # noqa: TID251 (the standard library)
                    yield from (
                        f"{each.asname or each.name}.{k}" for k, v in vars(module).items() if isinstance(v, type)
                    )


@pytest.mark.parametrize("name", SPECS)
def test_scripts_run_on_the_oldest_python_of_the_engine(name: str) -> None:
    assert newer(scripts(name), oldest(name)) == []


def test_oldest_pythons() -> None:
    """What the tests of this file and the images of Mars rely on."""
    assert {name: oldest(name) for name in SPECS} == {"dask": 11, "ray": 11, "xorbits": 9, "pymars": 8}


@pytest.mark.parametrize("name", SPECS)
def test_every_script_that_runs_there_is_checked(name: str) -> None:
    engine = engines.get(engine_of(name))
    shape = engine.shape(build({"engine": engine_of(name), "workers": [{}], **SPECS[name]}).spec)
    files = [group.process.files for group in (shape.head, *shape.workers)] + [shape.driver_files]
    texts = {text for each in files for key, text in each.items() if key.endswith(".py")} | {sidecar.SCRIPT}
    if shape.inquiry is not None and shape.inquiry.script:
        texts.add(shape.inquiry.script)
    assert texts <= {path.read_text() for path in scripts(name)}


@pytest.mark.parametrize("name", SPECS)
def test_programs_on_command_lines_run_there(name: str, tmp_path: Path) -> None:
    """Those of a shell in a pod and of a job's driver."""
    env = {"OARS_ENGINE": engine_of(name), "OARS_NAME": "demo", "OARS_ADDRESS": "demo:1"}
    lines = [pod_programs.python(env, interactive=each)[-1] for each in (True, False)] + [driver.START]
    paths = [tmp_path / f"line{number}.py" for number in range(len(lines))]
    for path, line in zip(paths, lines, strict=True):
        path.write_text(line)
    assert newer(paths, oldest(name)) == []


NEWER = """
from __future__ import annotations
import asyncio
from collections import Counter
seen: dict[str, int | None] = {}
Counter[str]()
asyncio.Queue[int]()
isinstance(1, int | str)
list[int]
zip("a", "b", strict=True)
{"a": 1} | seen
def end(text: str | None) -> list[str]: return [text.removeprefix("a")]
"""


def test_check_finds_what_is_newer(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(NEWER)
    found = "\n".join(newer([path], 8))
    for each in (
        "zip(strict)",
        "dict union",
        "Counter[str]",
        "asyncio.Queue[int]",
        "int | str",
        "list[int]",
        "removeprefix",
    ):
        assert found.count(each) == 1, each
    assert len(found.splitlines()) == 8, "nothing of the annotations, and the line with the name of the file"
    assert newer([path], 10) == []
