"""What the running Python holds."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from oars.envs import scan
from oars.model import Needs


def needs(distribution: str = "pytest", *modules: str, requirements: tuple[str, ...] = ()) -> Needs:
    return Needs(distribution, modules or (distribution,), requirements)


def test_the_version_of_what_is_there() -> None:
    assert scan.installed(needs("pytest")) == version("pytest")
    assert scan.installed(needs("pytest", "_pytest.config.argparsing")) == version("pytest")


@pytest.mark.parametrize(
    "wanted",
    [needs("no-such-thing"), needs("pytest", "pytest", "no_such_module"), needs("pytest", "_pytest.no_such_module")],
)
def test_what_is_not_there(wanted: Needs) -> None:
    assert scan.installed(wanted) is None


def test_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud_package").mkdir()
    (tmp_path / "loud_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "loud_package" / "part.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert scan.installed(needs("pytest", "loud_package", "loud_package.part")) == version("pytest")
    assert "loud_package" not in sys.modules


@pytest.mark.parametrize(
    ("condition", "python", "allowed"),
    [
        (">=3.11", (3, 11, 7), True),
        (">=3.9,<3.13", (3, 12, 1), True),
        (">=3.9,<3.13", (3, 13, 0), False),
        (">=3.9, <=3.12", (3, 12, 9), True),
        ("==3.11", (3, 11, 2), True),
        ("!=3.11", (3, 11, 2), False),
        (">3.10", (3, 11, 0), True),
        ("", (3, 8, 0), True),
    ],
)
def test_python_versions(condition: str, python: tuple[int, ...], allowed: bool) -> None:
    assert scan.python_allowed(condition, python) is allowed


def test_a_condition_that_is_none() -> None:
    with pytest.raises(ValueError, match="not a condition"):
        scan.python_allowed("~=3", (3, 11))


def test_what_is_here_is_pinned_and_the_rest_left() -> None:
    wanted = needs("pytest", requirements=("pytest[x]>=1", "hypothesis==1.0", "ruff>=0.1", "no-such-thing==3"))
    here = (f"pytest[x]=={version('pytest')}", f"hypothesis=={version('hypothesis')}", "ruff>=0.1", "no-such-thing==3")
    assert scan.pinned(wanted) == here
