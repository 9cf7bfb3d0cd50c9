"""Mars-specific behaviour with real clusters of both distributions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from oars import Cluster, engines
from oars.base.settings import Settings
from oars.engines.mars import launch
from oars.envs.build import Environments
from oars.places.local.process import all_pids, environment_of
from oars.spec.load import build
from oars.testing.driver import DriverProgram, run_driver

pytestmark = [pytest.mark.live, pytest.mark.timeout(500)]

both = pytest.mark.parametrize("distribution", ["xorbits", "pymars"])

CONNECT = """
import os, time
import oars
session = oars.connect()
if os.environ["OARS_MARS_DISTRIBUTION"] == "xorbits":
    from xorbits._mars import tensor as mt, dataframe as md, remote as mr
    from xorbits._mars.deploy.oscar.session import new_session
else:
    from mars import tensor as mt, dataframe as md, remote as mr
    from mars.deploy.oscar.session import new_session
quiet = {"show_progress": False}
def run(x): return x.execute(**quiet).fetch()
"""


def mars(workers: int | list[dict[str, Any]], distribution: str = "xorbits", **more: Any) -> Cluster:
    groups = [{"replicas": workers, "memory": "1Gi"}] if isinstance(workers, int) else workers
    data = {"engine": "mars", "workers": groups, "mars": {"distribution": distribution}, **more}
    return Cluster(build(data).spec, timeout="180s")


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out waiting for a condition"
        time.sleep(0.05)


def members(cluster: Cluster) -> dict[str, int]:
    return {member.id: member.pid or 0 for member in cluster.members()}


def why(cluster: Cluster) -> str:
    return " ".join(cause.message for cause in cluster.why())


def held_memory() -> set[Path]:
    """Return the shared memory files with chunks of data, which only workers create."""
    return set(Path("/dev/shm").glob("oars-*"))


def draining(cluster: Cluster) -> bool:
    return any(cause.reason == "Draining" for cause in cluster.why())


class TestDrain:
    def test_drain_keeps_all_data_while_other_work_runs(self) -> None:
        """Tensors, data frames and objects on every worker. Concurrent work must not fail."""
        source = (
            CONNECT
            + """
import threading
import numpy as np
a = mt.random.rand(900, 900, chunk_size=300).execute(**quiet)
df = md.DataFrame(mt.random.rand(600, 4, chunk_size=(60, 4)), columns=list("abcd")).execute(**quiet)
objects = [mr.spawn(lambda n: {"n": n}, args=(n,)) for n in range(12)]
tuple_ = mr.ExecutableTuple(objects).execute(**quiet)
A, D, O = a.fetch(), df.fetch(), list(tuple_.fetch())
errors, runs, stop = [], [], threading.Event()
def others():
    own = new_session(os.environ["OARS_ADDRESS"], default=False)
    while not stop.is_set():
        x = mt.random.rand(100, 100, chunk_size=50)
        try: runs.append(x.dot(x).sum().execute(session=own, **quiet).fetch(session=own))
        except Exception as error: errors.append(repr(error))
thread = threading.Thread(target=others, daemon=True)
thread.start()
while not runs: time.sleep(0.1)
print("held", flush=True)
input()
assert np.array_equal(a.fetch(), A) and df.fetch().equals(D) and list(tuple_.fetch()) == O
assert np.isclose(run((a + 1).sum()), (A + 1).sum())
assert run(df.head(100)).equals(D.head(100)) and run(df.iloc[5:400]).equals(D.iloc[5:400])
assert np.allclose(run(df.sort_values("b")).values, D.sort_values("b").values)
assert run(mr.spawn(lambda xs: sum(x["n"] for x in xs), args=(objects,))) == 66
stop.set()
thread.join(60)
print("errors:", errors, flush=True)
"""
        )
        with mars(3) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("held")
            cluster.scale(1)
            until(lambda: len(members(cluster)) == 2, 90)
            driver.tell()
            assert driver.expect("errors:").endswith("[]")

    def test_last_worker_is_kept_while_it_holds_results(self) -> None:
        source = (
            CONNECT
            + """
held = mt.random.rand(100, 100).execute(**quiet)
total = held.fetch().sum()
print("held", flush=True)
input()
print("there:", held.fetch().sum() == total, flush=True)
del held
input()
"""
        )
        with mars(1) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("held")
            cluster.scale(0)
            until(lambda: "results that no other worker can take" in why(cluster))
            driver.tell()
            assert driver.expect("there:").endswith("True")
            until(lambda: set(members(cluster)) == {"head"})

    def test_forced_removal_discards_data(self) -> None:
        source = (
            CONNECT
            + """
held = mt.random.rand(100, 100).execute(**quiet)
print("held", flush=True)
input()
try:
    held.fetch()
except Exception as error:
    print("lost:", type(error).__name__, flush=True)
print("again:", run(mt.ones((3, 3)).sum()), flush=True)
"""
        )
        with mars(2) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("held")
            cluster.scale(0, force=True)
            until(lambda: set(members(cluster)) == {"head"})
            cluster.scale(1)
            cluster.wait(timeout="60s")
            driver.tell()
            driver.expect("lost:")
            assert driver.expect("again:").endswith("9.0")

    def test_scaling_up_during_a_drain_keeps_the_worker(self) -> None:
        source = (
            CONNECT
            + """
import tempfile, threading
def nap(directory, number):
    open(f"{directory}/{number}", "w").close()
    while not os.path.exists(f"{directory}/end"): time.sleep(0.05)
with tempfile.TemporaryDirectory() as directory:
    def tell():
        while len(os.listdir(directory)) < 2: time.sleep(0.05)
        print("busy", flush=True)
        input()
        open(f"{directory}/end", "w").close()
    threading.Thread(target=tell, daemon=True).start()
    naps = [mr.spawn(nap, args=(directory, n)) for n in range(2)]
    run(mr.ExecutableTuple(naps))
print("free", flush=True)
input()
where = mr.ExecutableTuple([mr.spawn(lambda n: os.getpid(), args=(n,)) for n in range(8)])
print("used:", len(set(run(where))), flush=True)
"""
        )
        with mars(2) as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("busy")
            cluster.scale(1)
            until(lambda: "running subtasks" in why(cluster) or "running task" in why(cluster))
            cluster.scale(2)
            until(lambda: not draining(cluster))
            driver.tell()
            driver.expect("free")
            cluster.wait(timeout="60s")
            driver.tell()
            assert driver.expect("used:").endswith("2")


class TestLosses:
    def test_work_succeeds_once_the_cluster_is_ready_again(self) -> None:
        source = CONNECT + "input()\nprint('sum:', run(mt.ones((900, 900), chunk_size=300).sum()), flush=True)\n"
        with mars(2) as cluster, DriverProgram(cluster, source) as driver:
            pid = members(cluster)["worker-1"]
            os.kill(pid, signal.SIGKILL)
            until(lambda: members(cluster)["worker-1"] not in (0, pid))
            cluster.wait(timeout="90s")
            driver.tell()
            assert driver.expect("sum:").endswith("810000.0")

    def test_mars_replaces_a_killed_subprocess(self) -> None:
        with mars(1, "pymars") as cluster:
            main = members(cluster)["worker-0"]
            before = set(session(main))
            first = used_process(cluster)
            os.kill(first, signal.SIGKILL)
            until(lambda: len(set(session(main)) - {first}) == len(before))
            second = used_process(cluster)
            assert second in session(main) and second != first
            assert members(cluster)["worker-0"] == main

    def test_worker_that_was_suspended_is_used_again(self) -> None:
        """As after a laptop was suspended; Mars alone would never use the worker again."""
        with mars(1) as cluster:
            frozen = session(members(cluster)["worker-0"])
            for pid in frozen:
                send(pid, signal.SIGSTOP)
            try:
                until(lambda: cluster.status().ready == 0, 90)
                until(lambda: silence(cluster) > 12, 90)  # Mars must not have heard from the worker
            finally:
                for pid in frozen:
                    send(pid, signal.SIGCONT)
            until(lambda: cluster.status().ready == 1, 90)
            assert "sum 4.0" in run_driver(cluster, CONNECT + "print('sum', run(mt.ones((2, 2)).sum()))")

    def test_worker_that_hangs_is_replaced(self, impatient: None) -> None:
        with mars(2) as cluster:
            before = members(cluster)
            for pid in session(before["worker-0"]):
                send(pid, signal.SIGSTOP)
            until(lambda: any(cause.reason == "NotJoined" for cause in cluster.why()), 90)
            until(lambda: members(cluster).get("worker-0", 0) not in (0, before["worker-0"]), 90)
            cluster.wait(timeout="90s")
            assert members(cluster)["worker-1"] == before["worker-1"]

    def test_killed_worker_leaves_no_shared_memory(self) -> None:
        source = (
            CONNECT
            + "held = mt.random.rand(600, 600, chunk_size=200).execute(**quiet)\nprint('held', flush=True)\ninput()\n"
        )
        with mars(1, "pymars") as cluster, DriverProgram(cluster, source) as driver:
            driver.expect("held")
            pid = members(cluster)["worker-0"]
            held = held_memory()
            assert held
            os.kill(pid, signal.SIGKILL)
            until(lambda: members(cluster)["worker-0"] not in (0, pid))
            assert not held & held_memory() and not session(pid)


def used_process(cluster: Cluster) -> int:
    """Return the worker process that runs a call. The driver may print other lines too."""
    lines = run_driver(cluster, CONNECT + "print('process', run(mr.spawn(os.getpid)))")
    (line,) = [line for line in lines if line.startswith("process ")]
    return int(line.split()[1])


def silence(cluster: Cluster) -> float:
    """Return the seconds since Mars last heard from a worker."""
    env = cluster.driver().env
    token = {"Authorization": f"Bearer {Path(env['OARS_TOKEN_FILE']).read_text()}"}
    request = urllib.request.Request(env["OARS_ADDRESS"] + "/api/oars/nodes", headers=token)
    with urllib.request.urlopen(request, timeout=10) as page:
        nodes = json.load(page)["nodes"].values()
    return max(float(node["age"]) for node in nodes if node["identity"].startswith("worker-"))


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # a process of the session may have ended meanwhile
        os.kill(pid, number)


def session(leader: int) -> list[int]:
    return [pid for pid in all_pids() if session_of(pid) == leader and environment_of(pid)]


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def handles_sigterm(pid: int) -> bool:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(lines["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)


class TestMembers:
    @both
    def test_worker_that_starts_ends_at_sigterm(self, distribution: str, tmp_path: Path) -> None:
        """The first process of a container ignores SIGTERM until it handles it. There is nothing to hand over yet."""
        spec = build({"engine": "mars", "mars": {"distribution": distribution}}).spec
        environments = Environments(Settings.from_environ(os.environ).cache_dir)
        python = environments.prepare("mars", engines.get("mars").needs(spec), (), lambda _: None).python
        words = [distribution, "worker", "worker-1", str(tmp_path), "--joined", "127.0.0.1:1", "-e", "127.0.0.1:1"]
        env = {**os.environ, "OARS_HAND_OVER": "1", "OARS_MARS_ADDRESS": "http://127.0.0.1:1"}
        with subprocess.Popen([str(python), launch.__file__, "--", *words, "-s", "127.0.0.1:1"], env=env) as worker:
            until(lambda: handles_sigterm(worker.pid))
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(10) == 128 + signal.SIGTERM

    @both
    def test_successful_start_has_clean_logs_and_independent_workers(
        self, distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No errors in the logs, no files in the home directory; forked workers draw different random numbers."""
        source = CONNECT + (
            "def draw(n):\n"
            "    import random, uuid, numpy\n"
            "    time.sleep(1)  # occupies its slot, so that the next call needs another one\n"
            "    return os.getpid(), random.random(), numpy.random.rand(), uuid.uuid4().hex\n"
            "drawn = run(mr.ExecutableTuple([mr.spawn(draw, args=(n,)) for n in range(12)]))\n"
            "first = list({d[0]: d for d in reversed(drawn)}.values())\n"
            "print('different:', len(first), [len(set(column)) for column in zip(*first)])\n"
        )
        home = tmp_path / "home"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        with mars([{"replicas": 2, "cpu": 2, "memory": "1Gi"}], distribution) as cluster:
            text = cluster.logs()
            assert "Supervisor started at" in text
            assert not [line for line in text.splitlines() if "ERROR" in line or "Traceback" in line]
            assert "different: 4 [4, 4, 4, 4]" in run_driver(cluster, source)
        assert list(home.iterdir()) == []

    def test_workers_have_the_given_sizes_and_configuration(self) -> None:
        groups = [
            {"replicas": 1, "cpu": 2, "memory": "600Mi"},
            {"name": "big", "replicas": 1, "cpu": 1.5, "memory": "2Gi"},
            {"name": "small", "replicas": 1, "cpu": 0.5, "memory": "300Mi"},
        ]
        source = """
import json, os, urllib.request
token = {"Authorization": "Bearer " + open(os.environ["OARS_TOKEN_FILE"]).read()}
url = os.environ["OARS_ADDRESS"] + "/api/cluster/nodes?role=1&resource=1&detail=1"
page = urllib.request.Request(url, headers=token)
for node in json.load(urllib.request.urlopen(page))["nodes"].values():
    band, quota = node["resource"]["numa-0"], node["detail"]["quota"]["numa-0"]
    print("node", band["cpu_total"], band["memory_total"] >> 20, round(quota["quota_size"] / band["memory_total"], 2))
"""
        with mars(groups, head={"cpu": 2}, mars={"config": {"scheduling": {"mem_quota_size": "50%"}}}) as cluster:
            until(lambda: len([line for line in run_driver(cluster, source) if line.endswith(" 0.5")]) == 3)
            nodes = sorted(line.split(" ")[1:3] for line in run_driver(cluster, source) if line.startswith("node "))
            assert nodes == [["1.0", "300"], ["2.0", "2048"], ["2.0", "600"]]
            assert len(session(members(cluster)["big-0"])) == len(session(members(cluster)["worker-0"]))
            assert "sum 4.0" in run_driver(cluster, CONNECT + "print('sum', run(mt.ones((2, 2)).sum()))")

    def test_concurrent_sessions_do_not_starve(self) -> None:
        """Without a patch, Mars forgets work that found all slots taken by another session."""
        source = CONNECT + (
            "import threading\n"
            "def many(n):\n"
            "    own = new_session(os.environ['OARS_ADDRESS'], default=False)\n"
            "    for _ in range(4):\n"
            "        x = mt.random.rand(60, 60, chunk_size=20)\n"
            "        x.dot(x).sum().execute(session=own, **quiet)\n"
            "    print('done', n, flush=True)\n"
            "threads = [threading.Thread(target=many, args=(n,)) for n in range(3)]\n"
            "for t in threads: t.start()\n"
            "for t in threads: t.join()\n"
        )
        with mars(2) as cluster:
            assert len([line for line in run_driver(cluster, source) if line.startswith("done")]) == 3
