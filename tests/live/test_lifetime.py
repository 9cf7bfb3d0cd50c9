"""Lifetimes of real clusters on this machine: they end by themselves, and it stays known why."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from oars import Cluster
from oars.base.settings import Settings
from oars.client.local import LocalBackend
from oars.places.local.endings import read_gone
from oars.spec.load import build
from oars.testing.cluster import until
from oars.testing.driver import DriverProgram
from tests.contract.test_engines import TestDask as Dask
from tests.contract.test_engines import TestRay as Ray
from tests.contract.test_engines import TestXorbits as Xorbits
from tests.live.test_cli import _processes as processes

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


def started(spec: dict[str, Any]) -> Cluster:
    """A detached cluster with a limit that is far away: shorter ones might be over before it is ready."""
    worker = {"replicas": 1, "cpu": 1, "memory": "1Gi"}
    data = {**spec, "workers": [worker], "lifetime": {"max": "1h"}}
    return Cluster(build(data).spec, name="demo", timeout="120s", tied=False)


def limit(**lifetime: str) -> None:
    """Change the lifetime, as `oars apply` does."""

    async def apply() -> None:
        handle = LocalBackend(Settings.from_environ(os.environ), os.environ).cluster("demo")
        spec = await handle.spec()
        changed = spec.model_copy(update={"lifetime": type(spec.lifetime).model_validate(lifetime)})
        (change,) = await handle.diff(changed)
        assert change.effect == "in place"
        await handle.apply(changed)

    asyncio.run(apply())


@pytest.mark.parametrize("engine", [Dask, Ray, Xorbits])
def test_cluster_ends_when_its_last_client_left(engine: Any, own_state: Path) -> None:
    with started(engine.spec) as cluster:
        assert [cluster.status().expires.reason] == ["MaxLifetime"]  # type: ignore[union-attr]
        with DriverProgram(cluster, engine.hold) as program:
            program.expect("held")
            limit(noClient="2s")
            until(lambda: cluster.status().expires is None, 30)  # the new limit counts, and a client is there
            program.tell()
            program.expect("intact")
            program.tell("end")
            program.expect("(end)")
        until(lambda: not (own_state / "clusters/demo").exists(), 60)
    (gone,) = read_gone(own_state)
    assert (gone.name, gone.reason, gone.message) == ("demo", "NoClient", "2s without a client (lifetime.noClient)")


def test_time_without_work_counts_although_the_keeper_was_killed(own_state: Path) -> None:
    with started(Dask.spec) as cluster:
        limit(idle="1m")
        until(lambda: cluster.status().expires is None, 30)
        (keeper,) = processes(str(own_state / "clusters/demo"))
        os.kill(keeper, signal.SIGKILL)
        limit(idle="1s")  # starts another keeper
        until(lambda: not (own_state / "clusters/demo").exists(), 60)
    assert [gone.reason for gone in read_gone(own_state)] == ["Idle"]
