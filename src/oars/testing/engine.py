"""The contract of engines on a real place. Subclass it; the cluster is started once per class."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from oars import engines
from oars.client.sync import Cluster
from oars.model import Shape
from oars.places.kube.render.values import head_values, pod_values, secret_files
from oars.places.local import process
from oars.places.local.store import ClusterDir
from oars.plan.fill import unfilled
from oars.spec.load import build
from oars.spec.status import Phase
from oars.testing.driver import DriverProgram, run_driver
from oars.testing.leaks import assert_nothing_left, files, listeners

LOOPBACK = re.compile(r"0100007F:.*|0{24}01000000:.*|0{16}FFFF00000100007F:.*")

EXECUTOR = """
import concurrent.futures as cf, time, traceback
import oars
def boom(): raise ValueError("as expected")
if __name__ == "__main__":
    ex = oars.executor()
    assert ex.submit(pow, 2, 10).result(60) == 1024
    assert list(ex.map(abs, [-1, -2, -3], timeout=60)) == [1, 2, 3]
    futures = [ex.submit(str.upper, x) for x in "abc"]
    assert sorted(f.result() for f in cf.as_completed(futures, timeout=60)) == ["A", "B", "C"]
    done, pending = cf.wait(futures, timeout=60)
    assert len(done) == 3 and not pending
    error = ex.submit(boom).exception(60)
    text = "".join(traceback.format_exception(error))
    assert isinstance(error, ValueError) and "as expected" in text and "boom" in text, text
    waiting = [ex.submit(time.sleep, 1) for _ in range(12)]
    assert waiting[-1].cancel() and waiting[-1].cancelled()
    ex.shutdown(wait=True, cancel_futures=True)
    assert all(f.done() for f in waiting)
    assert any(f.cancelled() for f in waiting[1:-1])
    try:
        ex.submit(abs, 1)
    except RuntimeError:
        print("executor ok")
"""


class EngineContract:
    """Set `spec` and the three programs; they run as drivers and use the engine's own API."""

    spec: ClassVar[Mapping[str, Any]]
    work: ClassVar[str]  # prints "result …"
    # Makes results on every worker, prints "held"; after a line on stdin checks them, prints "intact".
    hold: ClassVar[str]
    hang: ClassVar[str]  # starts a call that takes minutes, prints "started"; prints `lost` when the call fails
    lost: ClassVar[str] = "failed:"
    timeout: ClassVar[str] = "120s"

    @pytest.fixture(scope="class")
    @classmethod
    def state(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """A state directory for the class; checks afterwards that nothing is left behind."""
        state, before = tmp_path_factory.mktemp("contract") / "state", files()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OARS_STATE_DIR", str(state))
            yield state
        assert_nothing_left(state, before)

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, state: Path) -> Iterator[Cluster]:
        data = {"workers": [{"replicas": 2, "cpu": 1, "memory": "1Gi"}], **cls.spec}
        with Cluster(build(data).spec, name="contract", timeout=cls.timeout) as cluster:
            yield cluster

    def test_every_template_can_be_filled(self) -> None:
        """A place does not change unknown names, so nothing else would detect a misspelt one."""
        shape = engines.get(self.spec["engine"]).shape(build(dict(self.spec)).spec)
        assert set(shape.endpoints) >= {"client"}
        assert unfilled_names(shape) == set()

    def test_shape_depends_on_the_spec_only(self) -> None:
        engine, spec = engines.get(self.spec["engine"]), build(dict(self.spec)).spec
        assert engine.shape(spec) == engine.shape(spec)

    def test_every_worker_is_a_separate_process(self, cluster: Cluster) -> None:
        status = cluster.status()
        assert status.phase is Phase.READY and status.ready == 2
        pids = [member.pid for member in status.members]
        assert len(set(pids)) == 3 and None not in pids

    def test_engine_s_own_api_finds_the_cluster(self, cluster: Cluster) -> None:
        assert any(line.startswith("result") for line in run_driver(cluster, self.work))

    def test_members_listen_on_loopback_only(self, cluster: Cluster, state: Path) -> None:
        mark = ClusterDir(state / "clusters/contract").read().mark
        addresses = listeners({found.identity.pid for found in process.marked(mark)})
        assert addresses and all(LOOPBACK.fullmatch(address) for address in addresses), addresses

    def test_secrets_are_in_private_files_only(self, cluster: Cluster, state: Path) -> None:
        directory = ClusterDir(state / "clusters/contract")
        secrets = [
            path.read_bytes().strip() for path in directory.secrets.iterdir() if path.name in ("token", "key.pem")
        ]
        for found in process.marked(directory.read().mark):
            for name in ("cmdline", "environ"):
                data = _read(process.PROC / str(found.identity.pid) / name)
                assert not any(secret in data for secret in secrets)
        for path in [p for p in directory.path.rglob("*") if p.is_file() and not p.is_symlink()]:
            assert _mode(path) & 0o077 == 0 or "members" in path.parts, path
            if path.parent != directory.secrets:
                data = _read(path)
                assert not any(secret in data for secret in secrets), path

    def test_executor_implements_concurrent_futures(self, cluster: Cluster) -> None:
        assert "executor ok" in run_driver(cluster, EXECUTOR)

    def test_results_survive_scale_down(self, cluster: Cluster) -> None:
        """Results are moved, or the worker is kept and reported until it is safe to remove."""
        cluster.scale(3)
        cluster.wait(timeout=self.timeout)
        with DriverProgram(cluster, self.hold) as program:
            program.expect("held")
            cluster.scale(1)
            _until(lambda: _settled(cluster) or any(c.hint for c in cluster.why() if c.reason == "Draining"), 120)
            program.tell()
            program.expect("intact")
            program.tell("end")
            program.expect("(end)")
        _until(lambda: _settled(cluster), 120)
        assert cluster.status().groups[0].wanted == 1
        cluster.scale(2)
        cluster.wait(timeout=self.timeout)
        assert any(line.startswith("result") for line in run_driver(cluster, self.work))

    def test_killed_worker_is_replaced_within_ten_seconds(self, cluster: Cluster) -> None:
        """One late replacement may be due to the machine; two are a failure."""
        took: list[float] = []
        for victim in [name for name in _pids(cluster) if name != "head"][:2]:
            took.append(_kill_and_wait(cluster, victim, _pids(cluster)))
            assert any(victim in cause.message and "SIGKILL" in cause.message for cause in cluster.why())
            if took[-1] < self.replace_seconds:
                break
        assert min(took) < self.replace_seconds, took
        assert any(line.startswith("result") for line in run_driver(cluster, self.work))

    replace_seconds: ClassVar[float] = 10.0

    def test_killed_head_is_restarted_and_calls_in_flight_fail(self, cluster: Cluster) -> None:
        before, address = _pids(cluster), cluster.address
        with DriverProgram(cluster, self.hang) as program:
            program.expect("started")
            _kill_and_wait(cluster, "head", before)
            program.expect(self.lost, 90)
            program.end(120)
        assert cluster.address == address
        assert any(line.startswith("result") for line in run_driver(cluster, self.work))


def _settled(cluster: Cluster) -> bool:
    status = cluster.status()
    return status.phase is Phase.READY and len(status.members) == 1 + status.wanted


def _pids(cluster: Cluster) -> dict[str, int | None]:
    return {member.id: member.pid for member in cluster.members()}


def _kill_and_wait(cluster: Cluster, victim: str, before: dict[str, int | None]) -> float:
    pid = before[victim]
    assert pid is not None
    start = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    _until(lambda: _pids(cluster).get(victim) not in (None, pid), 90)
    cluster.wait(timeout="90s")
    return time.monotonic() - start


def _until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {seconds} s"
        time.sleep(0.05)


def unfilled_names(shape: Shape) -> set[str]:
    """Names in the templates of a shape that no place fills in; see oars.model for those that all do."""
    secrets = {f"secret.{name}": "" for name in secret_files(shape)}
    for_drivers = {**head_values("", shape), **secrets}
    texts = [*shape.endpoints.values(), *shape.driver_env.values(), *shape.outside_env.values()]
    found = unfilled(texts, for_drivers)
    for group in (shape.head, *shape.workers):
        program, values = group.process, pod_values("", shape, group)
        found |= unfilled([*program.argv, *program.env.values(), *program.files.values(), program.entry], values)
        found |= unfilled(program.litter, {"tag": ""})
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # the process has just ended, or the file was replaced


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0  # it was replaced
