"""Scale-downs under load lose no result and fail no call, on each engine. `python -m bench scale_down` measures it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import __main__ as bench
from bench import scale_down

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]


@pytest.mark.parametrize("engine", ["dask", "ray", "mars", "pymars"])
def test_scale_downs_lose_nothing(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_down, "WORKERS", 4)
    monkeypatch.setattr(scale_down, "SECONDS", 60.0)
    row = scale_down.measure(engine, "Oars", scale_down.leave_drained, 12)
    assert (row["failed"], row["lost"], row["problem"]) == (0, 0, ""), row
    assert 2 <= row["left"] <= 2 * row["steps"] and row["calls"] > 0, row


def test_workers_end_as_containers_of_a_deleted_pod_do() -> None:
    """SIGTERM, and SIGKILL for those that are still there after the grace period."""
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    waiting = "import signal; print(flush=True); signal.pause()"
    processes = [
        subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
        for source in (ignoring, waiting)
    ]
    with processes[0] as stubborn, processes[1] as obedient:
        for each in processes:
            assert each.stdout is not None and each.stdout.readline() == "\n"
        assert scale_down.end([each.pid for each in processes], grace=1.0) == 1
        assert (stubborn.wait(10), obedient.wait(10)) == (-signal.SIGKILL, -signal.SIGTERM)
    assert scale_down.end([stubborn.pid]) == 0, "it is gone"


def test_interrupted_bench_keeps_the_rows_that_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"engine": "first"}
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        bench.report("scale_down", rows())
    assert json.loads((tmp_path / "scale_down.json").read_text())["rows"] == [{"engine": "first"}]


def test_rows_that_are_not_measured_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"engine": "dask", "way": "Oars"}, {"engine": "ray", "way": "KubeRay's way"}]
    (tmp_path / "rows.json").write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(scale_down, "RESULTS", tmp_path / "rows.json")
    monkeypatch.setattr(scale_down, "ONLY", "mars: another")
    assert list(scale_down.bench_scale_down()) == rows
    assert scale_down.is_chosen("mars", "another way") and not scale_down.is_chosen("mars", "Oars")
