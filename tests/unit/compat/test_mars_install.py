"""What an error says about a Python without Mars. tests/live/test_envs.py runs the command."""

from __future__ import annotations

import json
import shlex
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from oars.compat.mars import install

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("origin", "package"),
    [
        (None, "oars"),
        ({"url": "file:///src/oars", "dir_info": {"editable": True}}, "oars @ file:///src/oars"),
        ({"url": "https://example.org/oars-1-py3-none-any.whl"}, "oars @ https://example.org/oars-1-py3-none-any.whl"),
        (
            {"url": "https://example.org/oars", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "oars @ git+https://example.org/oars@abc",
        ),
    ],
)
def test_python_with_pymars_gets_oars_from_where_this_one_has_it(
    origin: dict[str, object] | None, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if origin is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(tmp_path))
    assert shlex.split(install.pymars_command())[-2:] == ["--package", package]


def test_oars_that_is_only_on_the_path_comes_from_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install.pymars_command().endswith("--package oars")


def test_hint_names_the_distributions_that_help() -> None:
    """pymars has no wheel for a Python that Oars runs in, so pip cannot install it."""
    assert "`pip install 'oars[mars]'`" in install.hint("xorbits") and "pymars" not in install.hint("xorbits")
    assert f"`{install.pymars_command()}`" in install.hint("pymars") and "pip install" not in install.hint("pymars")
    assert install.hint("pymars", "xorbits") == f"{install.hint('pymars')} {install.hint('xorbits')}"
    assert any(each.startswith("xorbits==") for each in PROJECT["optional-dependencies"]["mars"])
