"""`make demo`: for each engine start a cluster of three workers, run a job, scale to four and to two workers during the
job, and stop. Nothing may be left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import NoReturn, Self

from oars import Cluster
from oars.testing.leaks import processes

EXAMPLES = Path(__file__).parents[1]
JOBS = {"dask": "dask-array-mean", "ray": "ray-two-hops", "mars": "mars-inner"}
HEADER = ("engine", "version", "start", "result", "scale 3→4→2", "stop", "left behind")


@dataclass(frozen=True)
class Row:
    engine: str
    version: str
    start: str
    result: str
    scale: str
    stop: str
    left: int


class Progress:
    """Lines on stderr; on a terminal each replaces the one before."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._start = time.monotonic()
        self._last = ""

    def __call__(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        line = f"[{self._engine} {time.monotonic() - self._start:5.1f} s] {text}"
        on_terminal = sys.stderr.isatty()
        sys.stderr.write(f"\r\033[K{line[:110]}" if on_terminal else f"{line}\n")
        sys.stderr.flush()


class Job:
    """Runs an example repeatedly as a driver of the cluster. Its stderr is shown if it fails."""

    def __init__(self, cluster: Cluster, script: Path) -> None:
        driver = cluster.driver()
        command = [driver.python, str(EXAMPLES / "demo/repeat.py"), str(script)]
        pipe = subprocess.PIPE
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, env=dict(driver.env), stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )

    def first_result(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip() or self._fail("ended without a result")

    def end(self, result: str) -> None:
        """Wait until it ends; all results must be equal."""
        others, _ = self._process.communicate(timeout=120)
        if self._process.returncode != 0 or any(line != result for line in others.splitlines()):
            self._fail(f"failed while the cluster was scaled: {others}")

    def _fail(self, what: str) -> NoReturn:
        self._errors.seek(0)
        raise SystemExit(f"The job {what}\n{self._errors.read()[-4000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()
        self._errors.close()


def version(cluster: Cluster) -> str:
    names = {"dask": "distributed", "ray": "ray", "mars": "xorbits"}
    code = f"import importlib.metadata as m; print(m.version({names[cluster.engine]!r}))"
    driver = cluster.driver()
    return subprocess.run(
        [driver.python, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def demonstrate(engine: str, script: Path) -> Row:
    progress = Progress(engine)
    progress("starting three workers")
    began = time.monotonic()
    with Cluster(engine, workers=3, timeout="5m", progress=progress) as cluster:
        started = time.monotonic() - began
        with Job(cluster, script) as job:
            progress("at work")
            result = job.first_result()
            began = time.monotonic()
            for size in (4, 2):
                cluster.scale(size)
                cluster.wait(timeout="3m")
            scaled = time.monotonic() - began
            job.end(result)
        release = version(cluster)
        progress("stopping")
        began = time.monotonic()
    stopped = time.monotonic() - began
    left = processes(Path(os.environ["OARS_STATE_DIR"]))
    progress(f"done: {result}")
    sys.stderr.write("\n" if sys.stderr.isatty() else "")
    return Row(engine, release, f"{started:.1f} s", result, f"{scaled:.1f} s", f"{stopped:.1f} s", len(left))


def table(rows: list[Row]) -> str:
    cells = [HEADER, *(tuple(str(value) for value in astuple(row)) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="oars-demo-") as state:
        os.environ["OARS_STATE_DIR"] = state  # the user's own clusters are not counted
        rows = [demonstrate(engine, EXAMPLES / name / "main.py") for engine, name in JOBS.items()]
    print(table(rows))
    return 1 if any(row.left for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
