"""Autoscaling by the operator with real pods of every engine: with the load, from zero and to zero, groups with a
device of the node, and groups that no node has room for. The programs are those of the tests on one machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest
from lab.kube import Cluster as LabCluster
from lab.kube import Kube

from oars.client.sync import Cluster
from oars.model import Cause
from oars.spec.load import build
from oars.spec.status import GroupStatus
from oars.testing.driver import DriverProgram
from tests.contract import test_engines as engines
from tests.e2e.contract import SMALL, TIMEOUT, staying
from tests.live.test_autoscale import (
    BURSTS,
    DASK_ACCELERATOR,
    RAY_ACCELERATOR,
    recorded,
    until,
    until_wanted,
    wanted,
)

pytestmark = [pytest.mark.timeout(600)]

DEVICE = "example.com/accelerator"
NEEDS_DEVICE = {"spec": {"containers": [{"name": "worker", "resources": {"limits": {DEVICE: "1"}}}]}}
NOWHERE = {"spec": {"nodeSelector": {"example.com/there-is": "none"}}}


@pytest.fixture(scope="module", autouse=True)
def devices(cluster_with_node: LabCluster) -> Iterator[None]:
    """The node has two devices, as with a device plugin."""
    (node,) = cluster_with_node.api.get("/api/v1/nodes")["items"]
    path = f"/api/v1/nodes/{node['metadata']['name']}/status"
    for number in ("2", None):
        cluster_with_node.api.patch(path, {"status": {kind: {DEVICE: number} for kind in ("capacity", "allocatable")}})
        if number:
            yield


def group(name: str, most: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "replicas": 0, "max": most, "memory": "1Gi", **SMALL, **more}


def groups_and_causes(demo: Cluster) -> tuple[Sequence[GroupStatus], Sequence[Cause]]:
    return demo.status().groups, demo.why()


def assert_nowhere_was_blocked(seen: list[tuple[Sequence[GroupStatus], Sequence[Cause]]]) -> None:
    """It kept one pod as a probe, until another group served the work."""
    nowhere = [each for groups, _ in seen for each in groups if each.name == "nowhere"]
    blocked = [each for each in nowhere if each.reason == "Blocked"]
    assert blocked and all(each.wanted in (0, 1) and not each.ready for each in blocked), nowhere
    assert any("no node has room" in each.message for each in blocked), [each.message for each in blocked]
    causes = [cause for _, causes in seen for cause in causes]
    assert any(cause.reason == "ScaleUpBlocked" and "nowhere" in cause.message for cause in causes), causes


class Autoscaled:
    """One cluster for all tests of a class."""

    engine: ClassVar[Any]
    image: ClassVar[str]
    groups: ClassVar[list[dict[str, Any]]]
    program: ClassVar[str] = ""  # three tasks that need an accelerator

    @pytest.fixture(scope="class")
    @classmethod
    def demo(cls, home: Kube, operator: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        spec = {
            **cls.engine.spec,
            "image": home.image(cls.image),
            "head": {**SMALL, "memory": "2Gi"},
            "workers": cls.groups,
            "autoscale": {"scaleDownDelay": "5s", "patience": "3s"},
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OARS_STATE_DIR", str(tmp_path_factory.mktemp("state")))
            with Cluster(
                build(spec).spec, name="demo", timeout=TIMEOUT, mode="operator", namespace=home.namespace,
                kubeconfig=str(home.kubeconfig),
            ) as made:  # fmt: skip
                yield made

    def test_workers_follow_two_bursts_from_zero_and_to_zero(self, demo: Cluster, home: Kube) -> None:
        assert set(wanted(demo).values()) == {0}
        with recorded(demo, wanted) as seen, DriverProgram(demo, BURSTS) as driver:
            driver.expect("done")
            numbers = [each["default"] for each in seen]
            assert numbers == sorted(numbers), "workers left between the bursts"
            assert numbers[0] == 0 and numbers[-1] >= 1
            until_wanted(demo, **dict.fromkeys(wanted(demo), 0))
        until(demo, lambda: not staying(home, "worker"))


class Grouped(Autoscaled):
    """Engines that schedule on resources."""

    groups: ClassVar = [
        group("default", 2),
        group("device", 1, resources={"accelerator": 1}, pod=NEEDS_DEVICE),
        group("nowhere", 2, resources={"special": 1}, pod=NOWHERE, priority=1),
        group("elsewhere", 2, resources={"special": 1}),
    ]

    def test_work_for_a_device_grows_only_the_group_that_has_it(self, demo: Cluster, home: Kube) -> None:
        with recorded(demo, wanted) as seen, DriverProgram(demo, self.program) as driver:
            driver.expect("sum 6")
            (pod,) = home.pods("oars.dev/group=device")
            assert pod["spec"]["containers"][0]["resources"]["requests"][DEVICE] == "1"
            until_wanted(demo, **dict.fromkeys(wanted(demo), 0))
        assert max(each["device"] for each in seen) == 1
        assert {sum(each.values()) - each["device"] for each in seen} == {0}, seen

    def test_another_group_serves_work_of_one_that_no_node_has_room_for(self, demo: Cluster, home: Kube) -> None:
        program = self.program.replace("accelerator", "special")
        with recorded(demo, groups_and_causes) as seen, DriverProgram(demo, program) as driver:
            driver.expect("sum 6")
            until_wanted(demo, **dict.fromkeys(wanted(demo), 0))
        assert_nowhere_was_blocked(seen)


class TestDask(Grouped):
    engine, image, program = engines.TestDask, "dask", DASK_ACCELERATOR


class TestRay(Grouped):
    engine, image, program = engines.TestRay, "ray", RAY_ACCELERATOR

    @pytest.mark.long
    def test_work_for_a_device_grows_only_the_group_that_has_it(self, demo: Cluster, home: Kube) -> None:
        super().test_work_for_a_device_grows_only_the_group_that_has_it(demo, home)

    @pytest.mark.long
    def test_another_group_serves_work_of_one_that_no_node_has_room_for(self, demo: Cluster, home: Kube) -> None:
        super().test_another_group_serves_work_of_one_that_no_node_has_room_for(demo, home)


class TestMars(Autoscaled):
    """Mars schedules on processors and GPUs only: its work could run in each group, and prefers the one that no node
    has room for."""

    engine, image = engines.TestXorbits, "mars-xorbits"
    groups: ClassVar = [group("default", 2, pod=NEEDS_DEVICE), group("nowhere", 1, pod=NOWHERE, priority=1)]

    def test_another_group_serves_work_of_one_that_no_node_has_room_for(self, demo: Cluster, home: Kube) -> None:
        with recorded(demo, groups_and_causes) as seen, DriverProgram(demo, BURSTS) as driver:
            driver.expect("done")
            until_wanted(demo, **dict.fromkeys(wanted(demo), 0))
        assert_nowhere_was_blocked(seen)
