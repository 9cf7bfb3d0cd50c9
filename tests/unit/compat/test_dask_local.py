"""The scheduler of deploy_mode="local": a real one in this process, where the arguments say."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from distributed.core import Status

from oars.base.errors import StartFailed, UsageError
from oars.compat.dask_kubernetes import KubeCluster, make_pod_spec
from oars.compat.dask_kubernetes.classic.deployment import Plan


def local(**arguments: Any) -> KubeCluster:
    """Needs a running loop."""
    return KubeCluster(
        make_pod_spec("i:1"), deploy_mode="local", dashboard_address="127.0.0.1:0", asynchronous=True, **arguments
    )


async def start(cluster: KubeCluster) -> Plan:
    return await cluster._start_scheduler(cluster._arguments.plan("lab"))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_scheduler_listens_on_the_interface_and_the_port() -> None:
    async def body() -> None:
        port = free_port()
        cluster = local(interface="lo", port=port, env={"A": 1})
        plan = await start(cluster)
        address = cluster.scheduler.address
        worker = {each["name"]: each.get("value") for each in plan.worker().spec.containers[0].env}
        await cluster.close()
        assert address == f"tcp://127.0.0.1:{port}"
        assert (worker["DASK_SCHEDULER_ADDRESS"], worker["A"]) == (address, "1")

    asyncio.run(body())


def test_idle_scheduler_ends_the_cluster() -> None:
    async def body() -> None:
        cluster = local(host="127.0.0.1", idle_timeout="200ms")
        await start(cluster)
        cluster.status = Status.running
        async with asyncio.timeout(60):
            await cluster.scheduler.finished()
            while cluster.status != Status.closed:  # noqa: ASYNC110 (nobody announces it)
                await asyncio.sleep(0.05)

    asyncio.run(body())


def test_host_and_interface_are_not_given_together() -> None:
    async def body() -> None:
        with pytest.raises(UsageError, match=r"host=.127.0.0.1. and interface=.lo. both say where"):
            local(host="127.0.0.1", interface="lo")

    asyncio.run(body())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interface": "none0"}, "cannot listen on interface none0: 'none0' is not a valid network interface"),
        ({"host": "203.0.113.77"}, r"cannot listen on 203.0.113.77:0: .*assign requested address"),
    ],
)
def test_place_that_does_not_exist_is_named(arguments: dict[str, Any], message: str) -> None:
    async def body() -> None:
        cluster = local(**arguments)
        try:
            with pytest.raises(StartFailed, match=message):
                await start(cluster)
        finally:
            await cluster.close()

    asyncio.run(body())
