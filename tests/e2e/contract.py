"""What any engine must do on Kubernetes, in each mode. The programs are those of the contract on one machine, run here
as drivers outside the cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from lab.kube import Kube

from oars.client.homes import Where
from oars.client.sync import Cluster
from oars.model import Cause
from oars.spec.load import build
from oars.spec.status import Phase, Status
from oars.testing.driver import DriverProgram, run_driver

TIMEOUT = "180s"
SMALL = {"cpu": 0.3, "burst": True}


class KubeContract:
    """One cluster for all tests of a class, in the order in which they stand."""

    engine: ClassVar[type]  # a class of tests/contract/test_engines.py, for its spec and programs
    image: ClassVar[str]
    mode: ClassVar[str]
    more: ClassVar[dict[str, Any]] = {}  # besides the contract's own spec
    lost: ClassVar[str] = "failed:"
    back_seconds: ClassVar[float] = 60.0  # three times what is promised: the machine may be busy with other tests

    @pytest.fixture(scope="class")
    @classmethod
    def needs_mode(cls, request: pytest.FixtureRequest) -> None:
        if cls.mode == "operator":
            request.getfixturevalue("operator")

    @pytest.fixture(scope="class")
    @classmethod
    def demo(cls, home: Kube, needs_mode: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        where = Where("kubernetes", namespace=home.namespace, kubeconfig=str(home.kubeconfig), mode=cls.mode)
        data: dict[str, Any] = {
            **cls.engine.spec,  # type: ignore[attr-defined]
            **cls.more,
            "image": home.image(cls.image),
            "head": {**SMALL, "memory": "2Gi"},
            "workers": [{"replicas": 1, "memory": "1Gi", **SMALL}],
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OARS_STATE_DIR", str(tmp_path_factory.mktemp("state")))
            with Cluster(build(data).spec, name="demo", where=where, timeout=TIMEOUT) as made:
                yield made

    def program(self, name: str) -> str:
        return str(getattr(self.engine, name))

    def test_it_is_ready_and_says_who_looks_after_it(self, demo: Cluster, home: Kube) -> None:
        status = demo.status()
        assert (status.phase, status.ready, status.mode, status.namespace) == (
            Phase.READY, 1, self.mode, home.namespace,
        )  # fmt: skip
        assert len({member.id for member in status.members}) == 2

    def test_results_survive_scaling_down(self, demo: Cluster, home: Kube) -> None:
        """A program outside holds results on all workers: either they are moved, or the worker is kept, and said so,
        until it is safe to remove. Nobody but the chosen one goes: no other pod is replaced on the way."""
        demo.scale(2)
        assert demo.wait(timeout=TIMEOUT).ready == 2
        before = {pod["metadata"]["name"] for pod in staying(home, "worker")}
        with DriverProgram(demo, self.program("hold")) as program:
            program.expect("held", 180)
            demo.scale(1)
            until(lambda: settled(demo) or any(draining(cause) for cause in demo.why()), 90)
            program.tell()
            program.expect("intact")
            program.tell("end")
            program.expect("(end)")
        until(lambda: settled(demo), 120)
        assert demo.status().wanted == 1
        after = {pod["metadata"]["name"] for pod in staying(home, "worker")}
        assert len(after) == 1 and after < before

    def test_a_lost_worker_is_replaced(self, demo: Cluster, home: Kube) -> None:
        victim = staying(home, "worker")[0]["metadata"]["name"]
        delete_pod(home, victim)
        until(lambda: victim not in {member.id for member in demo.members()}, 60)
        assert demo.wait(timeout=TIMEOUT).ready == 1

    def test_a_lost_head_comes_back_with_its_workers(self, demo: Cluster, home: Kube) -> None:
        before = {pod["metadata"]["uid"] for pod in home.pods("oars.dev/cluster=demo")}
        with DriverProgram(demo, self.program("hang")) as program:
            while program.expect("started", 120) != "started":
                pass  # Ray's warning that versions differ has the word in it
            started = time.monotonic()
            delete_pod(home, staying(home, "head")[0]["metadata"]["name"])
            until(lambda: demo.status().phase is not Phase.READY, 30)
            assert demo.wait(timeout=TIMEOUT).ready == 1
            seconds = time.monotonic() - started
            program.expect(self.lost, 120)
        sys.stderr.write(f"{self.engine.__name__} {self.mode}: back after {seconds:.1f} s\n")  # shown with -s
        assert seconds < self.back_seconds
        serving = [*staying(home, "head"), *staying(home, "worker")]
        assert not before & {pod["metadata"]["uid"] for pod in serving}, "workers of the old head stayed"
        assert any(line.startswith("result") for line in run_driver(demo, self.program("work"), 180))
        stamps = {pod["metadata"]["annotations"].get("oars.dev/head") for pod in staying(home, "worker")}
        assert stamps == {"1"}, "the workers' template was changed once"


def settled(demo: Cluster) -> bool:
    status: Status = demo.status()
    return status.phase is Phase.READY and len(status.members) == 1 + status.wanted


def staying(home: Kube, role: str) -> list[Any]:
    return [pod for pod in home.pods(f"oars.dev/role={role}") if not pod["metadata"].get("deletionTimestamp")]


def draining(cause: Cause) -> bool:
    return cause.reason == "Draining" and bool(cause.todo)


def delete_pod(home: Kube, name: str) -> None:
    subprocess.run([*home.command(), "delete", "pod", name, "--grace-period=0", "--force"], check=True, timeout=60,
                   capture_output=True)  # fmt: skip


def until(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.2)  # asking is the only way to know
