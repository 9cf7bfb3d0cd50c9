"""A namespace is deleted with a cluster only if it was created for it, on a real control plane."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
from lab.faults import die_after
from lab.kube import Kube
from lab.wait import until
from tests.api.stage import Stage, group, resource
from tests.api.test_direct import DemoClient, Proxies, run_scenario

from oars.base.errors import OarsError
from oars.client.backend import Location
from oars.service import manifests
from oars.spec.cluster import ClusterSpec
from oars.spec.load import build


def spec(**more: object) -> ClusterSpec:
    return build({**resource("demo", group(replicas=1))["spec"], "place": "kubernetes", **more}).spec


def client(stage: Stage, namespace: str) -> DemoClient:
    where = Location("kubernetes", namespace=namespace, kubeconfig=str(stage.kube.kubeconfig), mode="direct")
    return DemoClient(where)


def exists(kube: Kube) -> bool:
    """Unless it is being deleted."""
    found = kube.api.raw("GET", f"/api/v1/namespaces/{kube.namespace}")
    return found[0] == 200 and "deletionTimestamp" not in found[1]


def is_gone(kube: Kube) -> bool:
    return not exists(kube)


@pytest.fixture
def created(stage: Stage) -> Iterator[Kube]:
    """A namespace that does not exist yet."""
    kube = replace(stage.kube, namespace=f"created-{secrets.token_hex(4)}")
    yield kube
    kube.kubectl("delete", "namespace", kube.namespace, "--ignore-not-found", "--wait=false")


async def stop(stage: Stage, namespace: str) -> None:
    """As `oars down`, by another process."""
    other = client(stage, namespace)
    try:
        assert await other.demo.stop(90)
    finally:
        await other.backend.close()


def test_created_namespace_is_deleted_when_nothing_else_is_in_it(stage: Stage, created: Kube) -> None:
    async def scenario() -> None:
        home = client(stage, created.namespace)
        try:
            await home.create(spec(namespace={"create": True}))
            assert exists(created)
            data = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "notes"}}
            await asyncio.to_thread(created.apply, data)
            with pytest.raises(OarsError, match="it also contains ConfigMap notes"):
                await home.demo.stop(90)
            assert exists(created) and not await home.names()
        finally:
            await home.backend.close()
        await asyncio.to_thread(created.kubectl, "delete", "configmap/notes")
        await stop(stage, created.namespace)

    run_scenario(scenario())
    until("the namespace is deleted", lambda: not exists(created), 60)


# The writes of a client's own create: namespace, root, reasons of ends, Lease, and the first ones of its reconciler.
WRITES = 8


@pytest.mark.parametrize("tied", [False, True], ids=["detached", "tied"])
def test_cluster_whose_creator_was_killed_after_any_write_can_be_stopped(
    stage: Stage, created: Kube, fault_proxy: Proxies, tied: bool
) -> None:
    """No operator and no helper removes what is left then."""
    left: dict[int, set[str]] = {}

    async def killed_create(write: int, kube: Kube) -> None:
        proxy = fault_proxy([die_after(write)])
        where = Location("kubernetes", namespace=kube.namespace, kubeconfig=str(proxy.kubeconfig), mode="direct")
        home = DemoClient(where)
        life = asyncio.create_task(home.create(spec(namespace={"create": True}), tied=tied))
        try:
            async with asyncio.timeout(60):
                while not proxy.dead:  # noqa: ASYNC110 (the proxy runs in a thread)
                    await asyncio.sleep(0.02)
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await home.backend.close()
        assert len(proxy.deaths) == 1
        left[write] = {f"{each.request.verb} {each.request.resource}" for each in proxy.writes}

    for write in range(1, WRITES + 1):
        kube = replace(created, namespace=f"{created.namespace}-{write}")
        try:
            run_scenario(killed_create(write, kube))
            assert exists(kube), left
            run_scenario(stop(stage, kube.namespace))
            until("the namespace is deleted", partial(is_gone, kube), 60)
        finally:
            kube.kubectl("delete", "namespace", kube.namespace, "--ignore-not-found", "--wait=false")
    assert left[1] == {"create namespaces"} and "create configmaps" in left[2]
    assert {"create leases", "create configmaps"} <= left[WRITES] and len(left[WRITES]) > 3, left


def test_rendered_namespace_marks_nothing(stage: Stage) -> None:
    """`oars render demo -n team --create-namespace | kubectl apply -f -` in a namespace that others share."""
    namespace = stage.kube.namespace
    rendered = manifests.render("demo", spec(), namespace, create_namespace=True)
    assert rendered.objects[0]["kind"] == "Namespace"
    stage.kube.apply(rendered.objects[0])

    async def scenario() -> None:
        home = client(stage, namespace)
        try:
            await home.create(spec())
            assert await home.demo.stop(90)
            assert not await home.demo.has_leftovers()
        finally:
            await home.backend.close()

    run_scenario(scenario())
    assert exists(stage.kube)
    assert "oars.dev/cluster" not in stage.kube.api.get(f"/api/v1/namespaces/{namespace}")["metadata"]["labels"]
