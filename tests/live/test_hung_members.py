"""Members that hang: their processes exist, but do nothing."""

from __future__ import annotations

import os
import signal

import pytest

from oars import Cluster
from oars.spec.load import build
from oars.spec.status import Phase
from tests.live.test_faults import pids, until

pytestmark = pytest.mark.live


def test_worker_that_hangs_before_it_joins_is_reported_and_replaced(impatient: None) -> None:
    spec = build({"engine": "toy", "workers": 2, "env": {"TOY_WAIT": "1.5"}}).spec
    with Cluster(spec, name="demo", timeout="60s") as cluster:
        before = pids(cluster)
        cluster.scale(3)
        until(lambda: pids(cluster).get("worker-2"))
        hung = pids(cluster)["worker-2"]
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)  # it waits for 1.5 s before it joins
        until(lambda: any(cause.reason == "NotJoined" and "worker-2" in cause.message for cause in cluster.why()))
        until(lambda: pids(cluster).get("worker-2") not in (None, hung))
        cluster.wait(timeout="60s")
        assert pids(cluster) == {**before, "worker-2": pids(cluster)["worker-2"]}


def test_head_that_hangs_is_reported_and_nobody_is_replaced() -> None:
    with Cluster("toy", workers=2, name="demo", timeout="60s") as cluster:
        before = pids(cluster)
        assert before["head"] is not None
        os.kill(before["head"], signal.SIGSTOP)
        try:
            until(lambda: cluster.status().phase is not Phase.READY)
            until(lambda: cluster.status().reason == "HeadSilent")
            assert cluster.status().phase is Phase.DEGRADED
        finally:
            os.kill(before["head"], signal.SIGCONT)
        cluster.wait(timeout="60s")
        assert pids(cluster) == before
