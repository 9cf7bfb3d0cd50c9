"""`oars.compat.mars.session` takes the distribution that this Python uses."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from oars.base.errors import EngineMissing
from oars.compat.mars import session


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`install("mars")`: as if this distribution were imported. Others are not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("mars", "xorbits")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(session, "find_spec", lambda name: None)

    def add(package: str, home: str) -> None:
        for name in (package, home, f"{home}.session"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        module: Any = sys.modules[f"{home}.session"]
        module.new_session = lambda address, **options: (package, address, options)

    yield add


def test_imported_distribution_is_used(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if pymars is installed beside it."""
    install("xorbits", "xorbits._mars")
    monkeypatch.setattr(session, "find_spec", lambda name: object())
    assert session.new_session("http://web:1", new=True) == ("xorbits", "http://web:1", {"new": True})
    install("mars", "mars")
    assert session.new_session("http://web:1")[0] == "mars"


def test_python_without_mars_gets_an_error(install: Any) -> None:
    with pytest.raises(EngineMissing, match="neither pymars nor xorbits"):
        session.new_session("http://web:1")
