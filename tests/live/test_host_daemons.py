"""Heads and workers in the background, with real engines. tests/live/test_hosts.py has the toy engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import OARS, Machine, machines, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

PORT = 8700
PROGRAM = """
from distributed import Client
with Client() as client:
    client.wait_for_workers(1, 60)
    print("sum", client.submit(sum, [1, 2]).result(60))
"""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[list[Machine]]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with machines(tmp_path, "main", "one") as made:
        yield made


@pytest.mark.parametrize("first", ["head", "worker"])
def test_dask_runs_in_the_background_until_down(net: list[Machine], first: str) -> None:
    """Started in any order; a worker without a head waits in the background. Nothing is left after `oars down`."""
    main, one = net
    listen, file = f"{main.address}:{PORT}", str(main.state / "join" / "dask" / "join.token")
    head = (main, ("head", "--engine", "dask", "--listen", listen))
    worker = (one, ("worker", "--head", listen, "--token-file", file, "--name", "one", "--memory", "600Mi"))
    for machine, words in (head, worker) if first == "head" else (worker, head):
        machine.run(OARS, *words, "--daemon", seconds=120.0)
    until("both run", lambda: main.ready("dask") == ["head", "one-0"], 120)
    printed = main.run(OARS, "exec", "dask", "--", sys.executable, "-c", PROGRAM, seconds=180.0)
    assert "sum 3" in printed
    pids = [one.pid("one", "one-0"), main.pid("dask", "head")]
    one.run(OARS, "down", "one")
    main.run(OARS, "down", "dask")
    until("the processes are gone", lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])
    assert not main.status("dask") and not one.status("one")


def test_worker_that_waits_in_the_background_ends_as_it_says(tmp_path: Path) -> None:
    """There is no cluster yet that `oars down` could stop."""
    words = ["worker", "--head", "127.0.0.1:9", "--token-file", str(tmp_path / "none"), "--name", "one", "--daemon"]
    env = {**os.environ, "OARS_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run([OARS, *words], env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "Stop it with: oars down one; while it waits for its head: kill " in done.stderr
    pid = int(done.stderr.split()[-1])
    os.kill(pid, signal.SIGTERM)
    until("it has ended", lambda: not Path(f"/proc/{pid}").exists())
