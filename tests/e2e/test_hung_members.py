"""Members that hang in real pods: their processes exist, but do nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from lab.kube import Kube

from oars.plan import decide, why
from oars.testing.driver import run_driver
from tests.contract import test_engines as engines
from tests.e2e.contract import TIMEOUT, staying, until
from tests.e2e.test_eviction import started

pytestmark = [pytest.mark.timeout(570)]

TTL = {"config": {"distributed.scheduler.worker-ttl": "10s"}}  # after which the scheduler gives a silent worker up


def test_worker_that_hangs_is_reported_and_replaced(
    kube: Kube, frozen: Callable[[Any, str], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop runs in this process: in direct mode."""
    monkeypatch.setattr(decide, "JOIN_TIMEOUT", 20.0)
    monkeypatch.setattr(why, "LATE_SECONDS", 5.0)
    with started(kube, engines.TestDask, "dask", dask=TTL) as demo:
        (head,) = staying(kube, "head")
        hung, other = staying(kube, "worker")
        name = hung["metadata"]["name"]
        with frozen(hung, hung["spec"]["containers"][0]["name"]):
            until(lambda: any(each.reason == "NotJoined" and name in each.message for each in demo.why()), 120)
            until(lambda: name not in {pod["metadata"]["name"] for pod in staying(kube, "worker")}, 120)
            assert demo.wait(timeout=TIMEOUT).ready == 2
        assert other["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in staying(kube, "worker")}
        assert [pod["metadata"]["uid"] for pod in staying(kube, "head")] == [head["metadata"]["uid"]]
        assert any(line.startswith("result") for line in run_driver(demo, engines.TestDask.work, 180))
