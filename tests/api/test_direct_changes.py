"""Direct clusters on a real control plane: changed by two at once, their patience, and a namespace of their own."""

from __future__ import annotations

import asyncio
import os

from lab.wait import until
from tests.api.stage import Stage, group, resource
from tests.api.test_direct import DemoClient, at_home, make, ready, run_scenario, stage_is_empty

from oars.client.backend import Location
from oars.client.handles import scale
from oars.kube.kinds import CONFIG_MAP, LEASE, NAMESPACE
from oars.places.kube import names
from oars.service import Service
from oars.spec.load import build


def test_concurrent_scales_of_two_groups_are_both_applied(stage: Stage) -> None:
    async def scenario() -> None:
        async with at_home(stage) as first, at_home(stage) as second:
            spec = build({**resource("demo", group("a", 1), group("b", 1))["spec"], "place": "kubernetes"}).spec
            await first.create(spec)
            await ready(first, 2)
            for number in range(2, 7):
                await asyncio.gather(scale(first.demo, number, "a"), scale(second.demo, number, "b"))
                assert [group.replicas for group in (await first.demo.spec()).workers] == [number, number]
            assert await first.demo.generation() == 11
            await ready(first, 12)
            assert await first.demo.stop(90)

    run_scenario(scenario())


def test_changed_drain_timeout_keeps_the_head(stage: Stage) -> None:
    async def scenario() -> None:
        async with at_home(stage) as home:
            await make(home, 1, tied=True)
            await ready(home, 1)

            def patience() -> str:
                lease = stage.kube.api.get(LEASE.path(home.backend.namespace, names.root("demo")))
                return str(lease["metadata"]["annotations"][names.ORPHANED])

            assert patience() == "120"
            before = stage.deployments("demo")[names.head("demo")]["metadata"]
            spec = await home.demo.spec()
            lifetime = spec.lifetime.model_copy(update={"orphaned": 600.0})
            await home.demo.apply(spec.model_copy(update={"lifetime": lifetime}))
            await ready(home, 1)
            await asyncio.to_thread(until, "the Lease says so", lambda: patience() == "600")
            after = stage.deployments("demo")[names.head("demo")]["metadata"]
            assert (after["uid"], after["generation"]) == (before["uid"], before["generation"])
            assert await home.demo.stop(90)

    run_scenario(scenario())


def test_new_namespace_is_created_and_deleted_with_the_cluster(stage: Stage) -> None:
    own = f"{stage.kube.namespace}-own"
    location = Location("kubernetes", namespace=own, kubeconfig=str(stage.kube.kubeconfig), mode="direct")
    described = {**resource("demo", group(replicas=1))["spec"], "place": "kubernetes", "namespace": {"create": True}}
    spec = build(described).spec

    async def scenario() -> None:
        home = DemoClient(location)
        try:
            await home.create(spec)
            status = await ready(home, 1)
            assert status.namespace == own, "as -n says"
            # The root goes, as the watcher beside the head would have it: the namespace stays; `oars down` knows it.
            await home.backend.client.delete(LEASE, names.root("demo"), own)
            await home.backend.client.delete(CONFIG_MAP, names.root("demo"), own)
            assert await home.names() == []
        finally:
            await home.backend.close()
        assert await Service(os.environ, location).stop(["demo"], 90) == {"demo": None}

    run_scenario(scenario())
    until("its namespace is gone", lambda: _is_gone(stage, own), 180)
    stage_is_empty(stage)


def _is_gone(stage: Stage, namespace: str) -> bool:
    return stage.kube.api.raw("GET", NAMESPACE.path(None, namespace))[0] == 404
