"""minReady with real processes: a start may return before all workers are ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from oars import Cluster
from oars.base.errors import SpecError
from oars.spec.load import build
from oars.spec.status import Phase

pytestmark = pytest.mark.live

SLOW = {"TOY_WAIT": "120"}


@pytest.mark.parametrize(("min_ready", "ready"), [(1, {"quick": 1, "slow": 0}), (0, {"slow": 0})])
def test_start_returns_when_min_ready_workers_are_ready(min_ready: int, ready: dict[str, int]) -> None:
    groups = [{"name": name, "replicas": 1, "env": SLOW if name == "slow" else {}} for name in ready]
    spec = build({"engine": "toy", "workers": groups, "minReady": min_ready}).spec
    with Cluster(spec, name="demo", timeout="60s") as cluster:
        status = cluster.status()
        assert {group.name: group.ready for group in status.groups} == ready
        assert [member.phase for member in status.members if member.id == "head"] == [Phase.READY]
        assert cluster.client() is not None


def test_min_ready_above_the_number_of_workers_is_rejected(own_state: Path) -> None:
    spec = build({"engine": "toy", "workers": 2, "minReady": 3}).spec
    with pytest.raises(SpecError, match="minReady is 3"):
        Cluster(spec, name="demo")
    assert not (own_state / "clusters/demo").exists()
