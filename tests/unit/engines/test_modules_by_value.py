"""docs/how-to/packages.md: functions of a module that workers cannot import are sent by value."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import pytest
from ray import cloudpickle as ray_cloudpickle

from oars.engines.calls import cloudpickled

CALL = "import pickle, sys; print(pickle.load(sys.stdin.buffer)(4))"


@pytest.mark.parametrize(
    ("register", "dump"),
    [
        (cloudpickle.register_pickle_by_value, cloudpickled),  # executor() on Dask and Mars
        (ray_cloudpickle.register_pickle_by_value, ray_cloudpickle.dumps),  # Ray, and its executor()
    ],
)
def test_registered_module_need_not_be_importable(
    register: Callable[[object], None], dump: Callable[[object], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_by_value.py").write_text("def double(n):\n    return 2 * n\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "helper_by_value", raising=False)
    helper = __import__("helper_by_value")

    def call() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-c", CALL], input=dump(helper.double), capture_output=True, check=False)

    assert b"No module named 'helper_by_value'" in call().stderr
    register(helper)
    assert call().stdout == b"8\n"
