"""The client, the informer and the leases on a real API server, with faults in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from lab.faultproxy import FaultProxy
from lab.faults import Answer, Delay, Drop, EndWatch, Fault, Rule, Script
from lab.kube import Kube

from oars import engines
from oars.kube import informer as informers
from oars.kube.client import Client
from oars.kube.config import load
from oars.kube.errors import ApiError, Unreachable
from oars.kube.informer import Informer, Key
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, LEASE, POD, SERVICE, Object, of
from oars.kube.lease import Elector, holder
from oars.places.kube.render import objects
from oars.places.kube.render.describe import describe
from oars.places.kube.render.sidecar import head_and_owned
from oars.places.kube.state.owned_objects import OF_NOTHING
from oars.spec.load import build

Start = Callable[..., FaultProxy]
OURS = "metadata.name!=kube-root-ca.crt"


def client(kube: Kube, kubeconfig: Path | None = None, **options: Any) -> Client:
    return Client(load({}, kubeconfig=kubeconfig or kube.kubeconfig, namespace=kube.namespace), **options)


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def go(work: Coroutine[Any, Any, None], seconds: float = 150) -> None:
    """Run one test's work, never for ever."""
    asyncio.run(asyncio.wait_for(work, seconds))


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (the world has no event to wait for)
            await asyncio.sleep(0.02)


def test_the_verbs(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            assert (await api.version())["major"] == "1"
            made = await api.create(config_map("a", k="1"))
            assert made["metadata"]["namespace"] == kube_api.namespace and "managedFields" not in made["metadata"]
            with pytest.raises(ApiError) as twice:
                await api.create(config_map("a"))
            assert twice.value.reason == "AlreadyExists"
            assert (await api.patch(CONFIG_MAP, "a", None, {"data": {"k": None, "l": "2"}}))["data"] == {"l": "2"}
            operations = [{"op": "add", "path": "/data/m", "value": "3"}]
            current = await api.json_patch(CONFIG_MAP, "a", None, operations)
            assert current["data"] == {"l": "2", "m": "3"}
            with pytest.raises(ApiError) as late:
                await api.replace({**made, "data": {}})
            assert late.value.reason == "Conflict"
            assert (await api.replace({**current, "data": {"n": "4"}}))["data"] == {"n": "4"}
            with pytest.raises(ApiError) as other:
                await api.delete(CONFIG_MAP, "a", uid="00000000-0000-0000-0000-000000000000")
            assert other.value.reason == "Conflict"
            assert await api.delete(CONFIG_MAP, "a")
            assert not await api.delete(CONFIG_MAP, "a")
            with pytest.raises(ApiError) as gone:
                await api.get(CONFIG_MAP, "a")
            assert gone.value.exit_code == 3

    go(body())


def test_apply(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            trial = await api.apply(config_map("a", k="0"), dry_run=True)
            assert trial["data"] == {"k": "0"}
            first = await api.apply(config_map("a", k="1", l="1"))
            again = await api.apply(config_map("a", k="1", l="1"))
            assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], "nothing was written"
            assert (await api.apply(config_map("a", k="1")))["data"] == {"k": "1"}
            with pytest.raises(ApiError) as taken:
                await api.apply(config_map("a", k="2"), force=False, manager="another")
            assert taken.value.reason == "Conflict" and taken.value.details
            with pytest.raises(ApiError) as unknown:
                await api.apply({**config_map("a"), "colour": "red"})
            assert unknown.value.reason == "Invalid" and "colour" in unknown.value.message
            assert (await api.apply(deployment("d", 2)))["spec"]["replicas"] == 2
            scaled = await api.patch(DEPLOYMENT, "d", None, {"spec": {"replicas": 5}}, subresource="scale")
            assert scaled["spec"]["replicas"] == 5

    go(body())


def test_what_shall_only_be_made_is_refused_where_anything_has_its_name(kube_api: Kube) -> None:
    """With one request, for each kind that a cluster is made of."""
    spec = build({"engine": "dask", "image": "i:1", "expose": {"host": "h.example"}}).spec
    cluster = describe("demo", kube_api.namespace, spec, engines.get("dask"), watched=True)
    around, head = head_and_owned(cluster, True)
    wanted = [*around, head, objects.disruption_budget(cluster)]
    assert len({obj["kind"] for obj in wanted}) == 9

    async def body() -> None:
        async with client(kube_api) as api:
            for obj in wanted:
                asked = {**obj, "metadata": {**obj["metadata"], "resourceVersion": OF_NOTHING}}
                made = await api.apply(asked)
                assert made["metadata"]["resourceVersion"] != OF_NOTHING, obj["kind"]
                with pytest.raises(ApiError) as taken:
                    await api.apply({**asked, "metadata": {**asked["metadata"], "labels": {"other": "yes"}}})
                assert (taken.value.status, taken.value.reason) == (409, "Conflict"), obj["kind"]
                found = await api.get(of(obj), obj["metadata"]["name"], kube_api.namespace)
                assert found["metadata"]["labels"] == made["metadata"]["labels"]

    go(body())


def deployment(name: str, replicas: int) -> Object:
    labels = {"app": name}
    container = {"name": "main", "image": "nothing"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": spec}


def test_lists_in_pages_and_by_selector(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            await asyncio.gather(*[api.create(config_map(f"c{number}")) for number in range(12)])
            await api.patch(CONFIG_MAP, "c3", None, {"metadata": {"labels": {"app": "x"}}})
            listing = await api.list(CONFIG_MAP, kube_api.namespace, fields=OURS, limit=5)
            assert sorted(item["metadata"]["name"] for item in listing.items) == sorted(f"c{n}" for n in range(12))
            assert all(item["kind"] == "ConfigMap" and item["apiVersion"] == "v1" for item in listing.items)
            chosen = await api.list(CONFIG_MAP, kube_api.namespace, labels="app in (x,y)")
            assert [item["metadata"]["name"] for item in chosen.items] == ["c3"]
            everywhere = await api.list(CONFIG_MAP)
            assert {item["metadata"]["namespace"] for item in everywhere.items} > {kube_api.namespace}
            await api.delete_all(CONFIG_MAP, kube_api.namespace, "app=x")
            assert len((await api.list(CONFIG_MAP, kube_api.namespace, fields=OURS)).items) == 11

    go(body())


def test_rights(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            assert await api.may("create", "pods", namespace=kube_api.namespace, subresource="exec")
            nobody = load({}, kubeconfig=kube_api.kubeconfig, namespace=kube_api.namespace)
            object.__setattr__(nobody, "impersonate", type(nobody.impersonate)(user="nobody"))
            async with Client(nobody) as stranger:
                assert not await stranger.may("create", "pods", namespace=kube_api.namespace)
                with pytest.raises(ApiError) as refused:
                    await stranger.list(SERVICE, kube_api.namespace)
                assert refused.value.exit_code == 5 and '"nobody" cannot list' in refused.value.message

    go(body())


def test_a_dropped_write_is_made_once(kube_api: Kube, fault_proxy: Start) -> None:
    async def body() -> None:
        rules = [Rule(Drop(applied), verb="patch", times=1) for applied in (False, True)]
        proxy = fault_proxy(
            [*rules, Rule(Answer(429), verb="patch", times=1), Rule(Answer(500), verb="patch", times=1)]
        )
        async with client(kube_api, proxy.kubeconfig) as api:
            for value in "1234":
                assert (await api.apply(config_map("a", k=value)))["data"] == {"k": value}
            proxy.script = Script([Rule(Drop(True), verb="create")])
            with pytest.raises(Unreachable):
                await api.create(config_map("b"))
            assert await api.get(CONFIG_MAP, "b")
            assert proxy.count(verb="create") == 1

    go(body())


def test_a_delay_longer_than_our_patience(kube_api: Kube, fault_proxy: Start) -> None:
    async def body() -> None:
        proxy = fault_proxy([Rule(Delay(5), verb="get")])
        async with client(kube_api, proxy.kubeconfig, seconds=0.5) as api:
            with pytest.raises(Unreachable, match="in time"):
                await api.get(CONFIG_MAP, "a")

    go(body())


def test_an_old_version_cannot_be_watched(kube_api: Kube, fault_proxy: Start) -> None:
    async def body() -> None:
        proxy = fault_proxy([Rule(EndWatch(events=1, how="expired"), verb="watch")])
        async with client(kube_api, proxy.kubeconfig) as api:
            listing = await api.list(CONFIG_MAP, kube_api.namespace, fields=OURS)
            await api.create(config_map("a"))
            seen = []
            with pytest.raises(ApiError) as expired:
                async for what, obj in api.watch(
                    CONFIG_MAP, kube_api.namespace, resource_version=listing.resource_version, fields=OURS
                ):
                    seen.append((what, obj["metadata"]["name"]))
            assert seen == [("ADDED", "a")] and expired.value.status == 410

    go(body())


@asynccontextmanager
async def informing(api: Client, namespace: str) -> AsyncIterator[tuple[Informer, list[tuple[str, str]]]]:
    """An informer of the test's ConfigMaps, and what it tells."""
    told: list[tuple[str, str]] = []

    def changed(key: Key, old: Object | None, new: Object | None) -> None:
        told.append((key[1], "new" if old is None else "gone" if new is None else "changed"))

    informer = Informer(api, CONFIG_MAP, namespace, fields=OURS, changed=changed)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), 60)
        yield informer, told
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("how", ["cut", "silent", "expired"])
def test_an_informer_survives_its_watch(
    kube_api: Kube, fault_proxy: Start, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "FIRST_WAIT", 0.05)

    async def body() -> None:
        proxy = fault_proxy([Rule(EndWatch(events=1, how=how), verb="watch", times=2)])
        async with (
            client(kube_api) as api,
            client(kube_api, proxy.kubeconfig, silence=1.0) as weak,
            informing(weak, kube_api.namespace) as (informer, told),
        ):
            for name in ("a", "b", "c", "d"):
                await api.create(config_map(name))
            await api.delete(CONFIG_MAP, "a")
            await until(lambda: {key[1] for key in informer.objects} == {"b", "c", "d"} and ("a", "gone") in told)
            assert sorted(told) == sorted([*[(name, "new") for name in "abcd"], ("a", "gone")]), "each thing once"
            # The second expiry strikes only if there was something to tell since the list after the first.
            listed = proxy.count(verb="list")
            assert listed in ((2, 3) if how == "expired" else (1,)), "only an expired one lists again"

    go(body())


def test_an_informer_finds_what_went_while_the_server_was_away(kube_api: Kube, fault_proxy: Start) -> None:
    async def body() -> None:
        proxy = fault_proxy()
        async with client(kube_api) as api, client(kube_api, proxy.kubeconfig) as weak:
            await asyncio.gather(*[api.create(config_map(name)) for name in "abc"])
            async with informing(weak, kube_api.namespace) as (_, told):
                proxy.script = Script([Rule(Answer(410), verb="watch"), Rule(Answer(500), verb="list", times=6)])
                proxy.hang_up()
                await api.delete(CONFIG_MAP, "b")
                await api.patch(CONFIG_MAP, "c", None, {"data": {"k": "1"}})
                await until(lambda: len(told) == 5, 60)
                assert sorted(told[3:]) == [("b", "gone"), ("c", "changed")]
                proxy.script = Script()
                await api.delete(CONFIG_MAP, "a")
                await until(lambda: ("a", "gone") in told, 60)

    go(body())


def test_the_api_server_restarts(kube_api: Kube, outage: Callable[[str], Any]) -> None:
    async def body() -> None:
        async with client(kube_api) as api, informing(api, kube_api.namespace) as (_, told):
            with outage("kube-apiserver"):
                with pytest.raises(Unreachable):
                    await api.get(CONFIG_MAP, "a")
            await api.create(config_map("a"))
            await until(lambda: told == [("a", "new")], 90)

    go(body(), 280)


def test_two_electors_have_one_leader(kube_api: Kube, fault_proxy: Start) -> None:
    async def body() -> None:
        proxy = fault_proxy()
        async with client(kube_api, proxy.kubeconfig) as weak, client(kube_api) as api:
            times: dict[str, Any] = {"duration": 16, "renew": 12, "retry": 2}
            one = Elector(weak, kube_api.namespace, "l", "one", **times)
            two = Elector(api, kube_api.namespace, "l", "two", **times)
            assert await holder(api, kube_api.namespace, "l") is None
            await one.lead()
            assert one.leads and await holder(api, kube_api.namespace, "l") == "one"
            waiting = asyncio.create_task(two.lead())
            renewed = await last_before_a_renewal(api)
            assert one.leads and not waiting.done() and not two.leads
            proxy.script = Script([Rule(Drop())])
            proxy.hang_up()
            cut = time.monotonic()
            while not waiting.done():
                assert not (one.leads and two.leads)
                assert time.monotonic() - cut < 90
                await asyncio.sleep(0.005)
            assert time.monotonic() - renewed > times["duration"], "a renewal keeps it for that long"
            assert one.lost.is_set() and not one.leads and two.leads
            proxy.script = Script()
            back = asyncio.create_task(one.lead())
            await asyncio.sleep(1)
            await two.release()
            released = time.monotonic()
            await asyncio.wait_for(back, 60)
            assert time.monotonic() - released < times["duration"], "a released Lease need not run out"
            assert (await api.get(LEASE, "l"))["spec"]["leaseTransitions"] >= 2
            await one.release()
            assert await holder(api, kube_api.namespace, "l") is None

    go(body())


async def last_before_a_renewal(api: Client) -> float:
    """Waits until the Lease was renewed; when we last saw that it was not yet."""
    before = asked = time.monotonic()
    version = now = (await api.get(LEASE, "l"))["metadata"]["resourceVersion"]
    async with asyncio.timeout(60):
        while now == version:
            before = asked
            await asyncio.sleep(0.1)
            asked = time.monotonic()
            now = (await api.get(LEASE, "l"))["metadata"]["resourceVersion"]
    return before


def test_electors_in_a_storm(kube_api: Kube, fault_proxy: Start) -> None:
    """Conflicts, failures and lost answers: never two leaders, and in the end there is one."""

    async def body() -> None:
        faults: list[Fault] = [Drop(True), Drop(False), Answer(409), Answer(500)]
        proxy = fault_proxy([Rule(fault, resource="leases", chance=0.15) for fault in faults], seed=5)
        async with client(kube_api, proxy.kubeconfig) as api:
            electors = [
                Elector(api, kube_api.namespace, "l", f"e{n}", duration=4, renew=2.4, retry=0.8) for n in range(4)
            ]

            async def compete(elector: Elector) -> None:
                while True:
                    await elector.lead()
                    await elector.lost.wait()

            tasks = [asyncio.create_task(compete(elector)) for elector in electors]
            ends, latest = time.monotonic() + 12, time.monotonic() + 60
            led = 0
            while time.monotonic() < ends or (led <= 100 and time.monotonic() < latest):
                leaders = sum(elector.leads for elector in electors)
                assert leaders <= 1
                led += leaders
                await asyncio.sleep(0.005)
            for task in tasks:
                assert not task.done()
                task.cancel()
            await asyncio.wait(tasks)
            for elector in electors:
                await elector.release()
            assert led > 100

    go(body())


def test_stopping_before_we_lead(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            one = Elector(api, kube_api.namespace, "l", "one")
            assert await one.lead()
            stop = asyncio.Event()
            waiting = asyncio.create_task(Elector(api, kube_api.namespace, "l", "two").lead(stop))
            await asyncio.sleep(0.2)
            stop.set()
            assert not await asyncio.wait_for(waiting, 30)
            await one.release()

    go(body())


def test_kinds_that_nothing_else_uses(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            assert (await api.list(EVENT, kube_api.namespace)).resource_version
            assert (await api.list(POD, kube_api.namespace)).items == []

    go(body())
