"""Ray-specific behaviour with real processes: token, sizes, actors, reconnecting drivers. tests/contract covers what
all engines have in common."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oars import Cluster
from oars.places.local.process import marked
from oars.places.local.store import ClusterDir
from oars.spec.load import build
from oars.spec.status import Phase
from oars.testing.driver import DriverProgram, run_driver
from oars.testing.leaks import assert_nothing_left, command_of, files

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]


def start(name: str, **fields: Any) -> Cluster:
    return Cluster(build({"engine": "ray", **fields}).spec, name=name, timeout="120s")


def until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out waiting for a condition"
        time.sleep(0.05)


def answered(cluster: Cluster, path: str, token: str = "", method: str = "GET") -> int:
    """Return the HTTP status of a dashboard page; 0 if it does not answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{cluster.dashboard_link}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, http.client.HTTPException):
        return 0  # not up yet: a cluster is ready before its dashboard


def commands(directory: ClusterDir) -> str:
    return "\n".join(command_of(found.identity.pid) for found in marked(directory.read().mark))


class TestOneCluster:
    @pytest.fixture(scope="class")
    @classmethod
    def state(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """A path longer than the limit for Unix sockets."""
        state, before = tmp_path_factory.mktemp("ray") / ("deep-" * 20) / "state", files()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OARS_STATE_DIR", str(state))
            yield state
        assert_nothing_left(state, before)
        assert not [link for link in Path("/tmp").glob("oars-ray-*") if str(state) in os.path.realpath(link)]

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, state: Path) -> Iterator[Cluster]:
        groups = [
            {"replicas": 1, "cpu": 2, "memory": "1Gi", "resources": {"disk": 3}},
            {"name": "other", "replicas": 1, "cpu": 1, "memory": "512Mi", "labels": {"zone": "b"}},
        ]
        with start("one", workers=groups) as cluster:
            yield cluster

    def test_workers_have_the_given_sizes_and_labels(self, cluster: Cluster) -> None:
        source = "import json, ray; ray.init(log_to_driver=False); print('nodes', json.dumps(ray.nodes()))"
        (line,) = [line for line in run_driver(cluster, source) if line.startswith("nodes")]
        nodes = {node["NodeName"]: node for node in json.loads(line.removeprefix("nodes "))}
        big, small, head = nodes["worker-0"], nodes["other-0"], nodes["head"]
        assert (big["Resources"]["CPU"], big["Resources"]["disk"], small["Resources"]["CPU"]) == (2, 3, 1)
        for node, memory in ((big, 2**30), (small, 2**29)):
            store = node["Resources"]["object_store_memory"]
            assert (store, node["Resources"]["memory"]) == (int(memory * 0.3), memory - int(memory * 0.3))
        assert small["Labels"]["zone"] == "b" and small["Labels"]["oars.dev/group"] == "other"
        assert "CPU" not in head["Resources"]

    def test_requests_without_the_token_are_refused(self, cluster: Cluster, state: Path) -> None:
        token = (ClusterDir(state / "clusters/one").secrets / "token").read_text().strip()
        until(lambda: answered(cluster, "/api/jobs/", token) == 200, 60)
        assert answered(cluster, "/api/jobs/") == 401
        assert answered(cluster, "/api/jobs/", "x" * 64) == 403
        assert answered(cluster, "/api/jobs/", method="POST") == 401
        assert answered(cluster, "/api/jobs/some", method="DELETE") == 401
        source = """
import os
os.environ["RAY_AUTH_TOKEN"] = "x" * 64
os.environ["RAY_NUM_REDIS_GET_RETRIES"] = "1"  # instead of retrying for 20 seconds
import ray
try:
    ray.init(log_to_driver=False)
except BaseException as error:
    print("refused", type(error).__name__, error)
"""
        assert any(line.startswith("refused") for line in run_driver(cluster, source))

    def test_worker_with_an_actor_is_kept(self, cluster: Cluster) -> None:
        source = """
import ray
ray.init(log_to_driver=False)
@ray.remote(label_selector={"oars.dev/group": "other"})
class Counter:
    count = 0
    def add(self):
        self.count += 1
        return self.count
counter = Counter.remote()
print("count", ray.get(counter.add.remote()), flush=True)
input()
print("count", ray.get(counter.add.remote()), flush=True)
"""
        with DriverProgram(cluster, source) as program:
            program.expect("count 1")
            cluster.scale(0, group="other")
            until(lambda: any("actor" in cause.message for cause in cluster.why()), 90)
            program.tell()
            program.expect("count 2")
            program.expect("(end)")
        until(lambda: len(cluster.members()) == 2, 90)
        cluster.scale(1, group="other")
        cluster.wait(timeout="60s")

    def test_driver_gets_an_error_for_a_lost_head_and_can_reconnect(self, cluster: Cluster) -> None:
        """Ray alone would exit the process or wait forever."""
        source = """
import time
import oars
from oars.base.errors import ClusterLost
ray = oars.connect()
executor = oars.executor()
slow = ray.remote(lambda: time.sleep(600))
task, future = slow.remote(), executor.submit(time.sleep, 600)
print("started", flush=True)
try:
    ray.get(task)
except ClusterLost as error:
    print("lost", error.message, flush=True)
try:
    future.result(60)
except ClusterLost as error:
    print("lost", error.message, flush=True)
executor.shutdown()
input()
ray = oars.connect()
print("again", ray.get(ray.remote(lambda: 7).remote(), timeout=60), flush=True)
"""
        head = next(member for member in cluster.members() if member.id == "head")
        with DriverProgram(cluster, source) as program:
            program.expect("started")
            assert head.pid is not None
            os.kill(head.pid, signal.SIGKILL)
            program.expect("lost", 90)
            program.expect("lost", 90)
            until(lambda: {m.id: m.pid for m in cluster.members()}.get("head") not in (None, head.pid), 90)
            assert cluster.wait(timeout="120s").phase is Phase.READY
            program.tell()
            program.expect("again 7", 90)
            assert program.end() == 0


def test_driver_ends_with_its_error_when_its_cluster_is_stopped(own_state: Path) -> None:
    """Ray's excepthook reports the error to the head, and waits without limit for a head that is gone."""
    source = """
import oars
ray = oars.connect()
print("started", flush=True)
ray.get(ray.remote(lambda: __import__("time").sleep(600)).remote())
"""
    with start("stopped", workers=1, ray={"dashboard": False}) as cluster, DriverProgram(cluster, source) as program:
        program.expect("started")
        cluster.stop()
        program.expect("ClusterLost", 30)
        assert program.end(30) == 1


def test_one_process_can_use_two_clusters_with_different_tokens(own_state: Path) -> None:
    source = """
import os, sys
from oars import Cluster
from oars.base.errors import UsageError
for name in ("first", "second", "first"):
    cluster = Cluster.attach(name)
    ray = cluster.client()
    where = ray.get(ray.remote(lambda: ray.get_runtime_context().gcs_address).remote(), timeout=60)
    print("at", name, where == cluster.address, flush=True)
    if name == "second":
        try:
            Cluster.attach("first").client()
        except UsageError as error:
            print("refused", error.message, flush=True)
    cluster.close()
    assert not ray.is_initialized()
    assert "RAY_AUTH_MODE" not in os.environ
"""
    with start("first", workers=0, ray={"dashboard": False}), start("second", workers=0) as cluster:
        with_state = f"import os; os.environ['OARS_STATE_DIR'] = {str(own_state)!r}\n"
        without_ours = "for name in [n for n in os.environ if n.startswith('RAY_')]: del os.environ[name]\n"
        lines = run_driver(cluster, with_state + without_ours + source)
    assert [line for line in lines if line.startswith("at")] == ["at first True", "at second True", "at first True"]
    assert any(line.startswith("refused") for line in lines)


def test_head_without_workers_runs_tasks_and_disabled_parts_are_off(own_state: Path) -> None:
    with start("alone", workers=0, ray={"dashboard": False, "auth": "none"}) as cluster:
        directory = ClusterDir(own_state / "clusters/alone")
        assert "token" not in [path.name for path in directory.secrets.iterdir()]
        assert cluster.dashboard_link == ""
        source = "import ray; ray.init(log_to_driver=False); print('sum', ray.get(ray.remote(lambda: 3).remote()))"
        assert "sum 3" in run_driver(cluster, source)
        assert "dashboard.py" not in commands(directory)
        assert len(cluster.members()) == 1
