"""min_ready on real processes: whoever starts a cluster need not wait for the last worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from oars import Cluster
from oars.base.errors import SpecError
from oars.spec.load import build
from oars.spec.status import Phase

pytestmark = pytest.mark.live

SLOW = {"TOY_WAIT": "120"}


@pytest.mark.parametrize(("wanted", "ready"), [(1, {"quick": 1, "slow": 0}), (0, {"slow": 0})])
def test_whoever_starts_it_goes_on_when_enough_are_ready(wanted: int, ready: dict[str, int]) -> None:
    groups = [{"name": name, "replicas": 1, "env": SLOW if name == "slow" else {}} for name in ready]
    spec = build({"engine": "toy", "workers": groups, "minReady": wanted}).spec
    with Cluster(spec, name="demo", timeout="60s") as cluster:
        status = cluster.status()
        assert {group.name: group.ready for group in status.groups} == ready
        assert [member.phase for member in status.members if member.id == "head"] == [Phase.READY]
        assert cluster.client() is not None


def test_a_gate_that_nobody_could_pass_starts_nothing(own_state: Path) -> None:
    spec = build({"engine": "toy", "workers": 2, "minReady": 3}).spec
    with pytest.raises(SpecError, match="waits for 3 workers"):
        Cluster(spec, name="demo")
    assert not (own_state / "clusters/demo").exists()
