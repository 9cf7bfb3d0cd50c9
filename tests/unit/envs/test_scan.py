"""What the running Python has installed, and version specifiers."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from oars import engines
from oars.envs import scan
from oars.model import Needs
from oars.spec.load import build


def needs(distribution: str = "pytest", *modules: str, requirements: tuple[str, ...] = ()) -> Needs:
    return Needs(distribution, modules or (distribution,), requirements)


def test_version_of_an_installed_engine() -> None:
    assert scan.installed(needs("pytest")) == version("pytest")
    assert scan.installed(needs("pytest", "_pytest.config.argparsing")) == version("pytest")


@pytest.mark.parametrize(
    "wanted",
    [needs("no-such-thing"), needs("pytest", "pytest", "no_such_module"), needs("pytest", "_pytest.no_such_module")],
)
def test_missing_engine_has_no_version(wanted: Needs) -> None:
    assert scan.installed(wanted) is None


def test_scan_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        (">=3.9, <=3.12", (3, 12, 3), False),
        ("<=3.12", (3, 12, 0), True),
        ("~=3.11", (3, 12, 3), True),
        ("==3.11.*", (3, 11, 2), True),
        ("==3.11", (3, 11, 2), False),
        ("!=3.11.*", (3, 11, 2), False),
        (">3.10", (3, 11, 0), True),
        ("", (3, 8, 0), True),
    ],
)
def test_python_versions(condition: str, python: tuple[int, ...], allowed: bool) -> None:
    assert scan.python_allowed(condition, python) is allowed


def test_invalid_specifier_raises() -> None:
    with pytest.raises(ValueError, match="Invalid specifier"):
        scan.python_allowed("about 3", (3, 11))


def test_engine_is_pinned_to_its_installed_version() -> None:
    wanted = needs("pytest", requirements=("pytest[x]>=1", "ruff>=0.1", "no-such-thing==3"))
    assert scan.pinned(wanted) == (f"pytest[x]=={version('pytest')}", "ruff>=0.1", "no-such-thing==3")
    assert scan.pinned(needs("pytest", requirements=("pytest<1",))) == ("pytest<1",)


def test_installed_versions_that_differ_from_pins_are_reported() -> None:
    same = f"pytest=={version('pytest')}"
    wanted = needs("pytest", requirements=(same, "hypothesis==1.0", "ruff>=0.1", "no-such-thing==3"))
    assert scan.differences(wanted) == (scan.Difference("hypothesis", version("hypothesis"), "1.0"),)
    assert scan.differences(needs("pytest", requirements=(same,))) == ()


def test_packages_override_pins() -> None:
    wanted = needs("toy", requirements=("Toy[all]==1.0", "other==2", "numpy>=2"))
    kept, found = scan.overridden(wanted, ["toy==2.0", "other==2", "numpy<3", "./path", "pandas"])
    assert kept.requirements == ("Toy[all]", "other==2", "numpy>=2")
    assert [str(each) for each in found] == ["Toy 2.0 instead of 1.0"]


@pytest.mark.parametrize(
    ("spec", "changed"),
    [
        ({"engine": "dask"}, {"dask", "distributed"}),
        ({"engine": "ray"}, {"ray"}),
        ({"engine": "mars"}, {"xorbits", "xoscar"}),
        ({"engine": "mars", "mars": {"distribution": "pymars"}}, {"pymars"}),
    ],
)
def test_libraries_whose_private_parts_oars_uses_are_pinned(spec: dict[str, Any], changed: set[str]) -> None:
    """A pin is what the running Python is compared with."""
    wanted = engines.get(spec["engine"]).needs(build(spec, option_model=engines.option_model).spec)
    pins = {Requirement(text).name for text in wanted.requirements if "==" in text}
    assert changed <= pins
