"""Client, informer and leader election against a real API server, partly through a fault proxy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
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
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, LEASE, POD, SERVICE, Object, kind_of
from oars.kube.lease import Elector, find_holder
from oars.kube.target import Impersonation
from oars.places.kube.render import objects
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.sidecar import head_and_owned
from oars.places.kube.state.owned_objects import CREATE_ONLY
from oars.plan import desired as plan
from oars.spec.load import build

Start = Callable[..., FaultProxy]
CREATED = "metadata.name!=kube-root-ca.crt"


def client(kube: Kube, kubeconfig: Path | None = None, **options: Any) -> Client:
    return Client(load({}, kubeconfig=kubeconfig or kube.kubeconfig, namespace=kube.namespace), **options)


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def run(work: Coroutine[Any, Any, None], seconds: float = 150) -> None:
    """Run the body of a test with a time limit."""
    asyncio.run(asyncio.wait_for(work, seconds))


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.02)


def test_create_patch_replace_delete(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            created = await api.create(config_map("a", k="1"))
            assert created["metadata"]["namespace"] == kube_api.namespace
            assert "managedFields" not in created["metadata"]
            with pytest.raises(ApiError) as duplicate:
                await api.create(config_map("a"))
            assert duplicate.value.reason == "AlreadyExists"
            current = await api.patch(CONFIG_MAP, "a", None, {"data": {"k": None, "l": "2"}})
            assert current["data"] == {"l": "2"}
            with pytest.raises(ApiError) as stale:
                await api.replace({**created, "data": {}})
            assert stale.value.reason == "Conflict"
            assert (await api.replace({**current, "data": {"n": "4"}}))["data"] == {"n": "4"}
            with pytest.raises(ApiError) as other_uid:
                await api.delete(CONFIG_MAP, "a", uid="00000000-0000-0000-0000-000000000000")
            assert other_uid.value.reason == "Conflict"
            assert await api.delete(CONFIG_MAP, "a")
            assert not await api.delete(CONFIG_MAP, "a")
            with pytest.raises(ApiError) as missing:
                await api.get(CONFIG_MAP, "a")
            assert missing.value.exit_code == 3

    run(body())


def test_server_side_apply(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            first = await api.apply(config_map("a", k="1", l="1"))
            again = await api.apply(config_map("a", k="1", l="1"))
            assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], (
                "the second apply writes nothing"
            )
            assert (await api.apply(config_map("a", k="1")))["data"] == {"k": "1"}
            with pytest.raises(ApiError) as unknown:
                await api.apply({**config_map("a"), "colour": "red"})
            assert unknown.value.reason == "Invalid" and "colour" in unknown.value.message
            assert (await api.apply(deployment("d", 2)))["spec"]["replicas"] == 2
            scaled = await api.patch(DEPLOYMENT, "d", None, {"spec": {"replicas": 5}}, subresource="scale")
            assert scaled["spec"]["replicas"] == 5

    run(body())


def test_apply_that_may_only_create_fails_if_the_object_exists(kube_api: Kube) -> None:
    """For each kind of object that a cluster consists of."""
    spec = build({"engine": "dask", "image": "i:1", "expose": {"host": "h.example"}}).spec
    cluster = plan.build("demo", spec, engines.get("dask"), DEFAULTS, namespace=kube_api.namespace, tied=True)
    owned, head = head_and_owned(cluster, True)
    wanted = [*owned, head, *objects.disruption_budgets(cluster)]
    assert len({obj["kind"] for obj in wanted}) == 9

    async def body() -> None:
        async with client(kube_api) as api:
            for obj in wanted:
                create_only = {**obj, "metadata": {**obj["metadata"], "resourceVersion": CREATE_ONLY}}
                created = await api.apply(create_only)
                assert created["metadata"]["resourceVersion"] != CREATE_ONLY, obj["kind"]
                with pytest.raises(ApiError) as conflict:
                    await api.apply(
                        {**create_only, "metadata": {**create_only["metadata"], "labels": {"other": "yes"}}}
                    )
                assert (conflict.value.status, conflict.value.reason) == (409, "Conflict"), obj["kind"]
                found = await api.get(kind_of(obj), obj["metadata"]["name"], kube_api.namespace)
                assert found["metadata"]["labels"] == created["metadata"]["labels"]

    run(body())


def deployment(name: str, replicas: int) -> Object:
    labels = {"app": name}
    container = {"name": "main", "image": "nothing"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": spec}


def test_list_reads_pages_and_applies_selectors(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            await asyncio.gather(*[api.create(config_map(f"c{number}")) for number in range(12)])
            await api.patch(CONFIG_MAP, "c3", None, {"metadata": {"labels": {"app": "x"}}})
            listing = await api.list(CONFIG_MAP, kube_api.namespace, fields=CREATED, limit=5)
            assert sorted(item["metadata"]["name"] for item in listing.items) == sorted(f"c{n}" for n in range(12))
            assert all(item["kind"] == "ConfigMap" and item["apiVersion"] == "v1" for item in listing.items)
            chosen = await api.list(CONFIG_MAP, kube_api.namespace, labels="app in (x,y)")
            assert [item["metadata"]["name"] for item in chosen.items] == ["c3"]
            everywhere = await api.list(CONFIG_MAP)
            assert {item["metadata"]["namespace"] for item in everywhere.items} > {kube_api.namespace}

    run(body())


def test_impersonated_user_is_denied(kube_api: Kube) -> None:
    async def body() -> None:
        target = load({}, kubeconfig=kube_api.kubeconfig, namespace=kube_api.namespace)
        async with Client(replace(target, impersonate=Impersonation(user="nobody"))) as api:
            with pytest.raises(ApiError) as denied:
                await api.list(SERVICE, kube_api.namespace)
            assert denied.value.exit_code == 5 and '"nobody" cannot list' in denied.value.message

    run(body())


def test_apply_is_retried_and_create_is_not(kube_api: Kube, fault_proxy: Start) -> None:
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

    run(body())


def test_slow_server_times_out(kube_api: Kube, fault_proxy: Start) -> None:
    async def body() -> None:
        proxy = fault_proxy([Rule(Delay(5), verb="get")])
        async with client(kube_api, proxy.kubeconfig, timeout=0.5) as api:
            with pytest.raises(Unreachable, match="Timed out waiting for API server"):
                await api.get(CONFIG_MAP, "a")

    run(body())


def test_watch_with_an_expired_version_raises_410(kube_api: Kube, fault_proxy: Start) -> None:
    async def body() -> None:
        proxy = fault_proxy([Rule(EndWatch(events=1, how="expired"), verb="watch")])
        async with client(kube_api, proxy.kubeconfig) as api:
            listing = await api.list(CONFIG_MAP, kube_api.namespace, fields=CREATED)
            await api.create(config_map("a"))
            events = []
            with pytest.raises(ApiError) as expired:
                async for event, obj in api.watch(
                    CONFIG_MAP, kube_api.namespace, resource_version=listing.resource_version, fields=CREATED
                ):
                    events.append((event, obj["metadata"]["name"]))
            assert events == [("ADDED", "a")] and expired.value.status == 410

    run(body())


@asynccontextmanager
async def run_informer(api: Client, namespace: str) -> AsyncIterator[tuple[Informer, list[tuple[str, str]]]]:
    """Run an informer for ConfigMaps; yield it and the changes that it reports."""
    changes: list[tuple[str, str]] = []

    def on_change(key: Key, old: Object | None, new: Object | None) -> None:
        changes.append((key[1], "new" if old is None else "deleted" if new is None else "changed"))

    informer = Informer(api, CONFIG_MAP, namespace, fields=CREATED, on_change=on_change)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), 60)
        yield informer, changes
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("how", ["cut", "silent", "expired"])
def test_informer_recovers_from_a_broken_watch(
    kube_api: Kube, fault_proxy: Start, how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "FIRST_DELAY", 0.05)

    async def body() -> None:
        proxy = fault_proxy([Rule(EndWatch(events=1, how=how), verb="watch", times=2)])
        async with (
            client(kube_api) as api,
            client(kube_api, proxy.kubeconfig, watch_idle_timeout=1.0) as faulty,
            run_informer(faulty, kube_api.namespace) as (informer, changes),
        ):
            for name in ("a", "b", "c", "d"):
                await api.create(config_map(name))
            await api.delete(CONFIG_MAP, "a")
            await until(lambda: {key[1] for key in informer.objects} == {"b", "c", "d"} and ("a", "deleted") in changes)
            expected = [*[(name, "new") for name in "abcd"], ("a", "deleted")]
            assert sorted(changes) == sorted(expected), "each change is reported once"
            # The second watch expires only if an event follows the relist.
            listed = proxy.count(verb="list")
            assert listed in ((2, 3) if how == "expired" else (1,)), "only an expired watch causes a relist"

    run(body())


def test_relist_after_an_outage_reports_missed_changes(kube_api: Kube, fault_proxy: Start) -> None:
    async def body() -> None:
        proxy = fault_proxy()
        async with client(kube_api) as api, client(kube_api, proxy.kubeconfig) as faulty:
            await asyncio.gather(*[api.create(config_map(name)) for name in "abc"])
            async with run_informer(faulty, kube_api.namespace) as (_, changes):
                proxy.script = Script([Rule(Answer(410), verb="watch"), Rule(Answer(500), verb="list", times=6)])
                proxy.hang_up()
                await api.delete(CONFIG_MAP, "b")
                await api.patch(CONFIG_MAP, "c", None, {"data": {"k": "1"}})
                await until(lambda: len(changes) == 5, 60)
                assert sorted(changes[3:]) == [("b", "deleted"), ("c", "changed")]
                proxy.script = Script()
                await api.delete(CONFIG_MAP, "a")
                await until(lambda: ("a", "deleted") in changes, 60)

    run(body())


def test_informer_survives_an_api_server_restart(kube_api: Kube, outage: Callable[[str], Any]) -> None:
    async def body() -> None:
        async with client(kube_api) as api, run_informer(api, kube_api.namespace) as (_, changes):
            with outage("kube-apiserver"):
                with pytest.raises(Unreachable):
                    await api.get(CONFIG_MAP, "a")
            await api.create(config_map("a"))
            await until(lambda: changes == [("a", "new")], 90)

    run(body(), 280)


class Clock:
    """The electors' clock. It advances only when the test says so: a slow machine cannot make a Lease expire."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def until_polled(proxy: FaultProxy, candidate: asyncio.Task[bool]) -> None:
    """Wait until a candidate has read the Lease and acted on it: it sent two more requests for it, or leads."""
    seen = proxy.count(verb="get", resource="leases")
    await until(lambda: candidate.done() or proxy.count(verb="get", resource="leases") > seen + 1)


def test_second_elector_takes_over_when_the_lease_expires(kube_api: Kube, fault_proxy: Start) -> None:
    async def body() -> None:
        first, second = fault_proxy(), fault_proxy()
        async with client(kube_api, first.kubeconfig) as faulty, client(kube_api, second.kubeconfig) as api:
            clock = Clock()
            times: dict[str, Any] = {"lease_duration": 16, "renew_deadline": 3, "retry_period": 2, "clock": clock}
            one = Elector(faulty, kube_api.namespace, "l", "one", **times)
            two = Elector(api, kube_api.namespace, "l", "two", **times)
            assert await find_holder(api, kube_api.namespace, "l") is None
            await one.lead()
            waiting = asyncio.create_task(two.lead())
            renewals = first.count(verb="update", resource="leases")
            await until(lambda: first.count(verb="update", resource="leases") > renewals)
            await until_polled(second, waiting)
            assert one.is_leader and not waiting.done() and not two.is_leader
            assert (await api.get(LEASE, "l"))["spec"]["holderIdentity"] == "one"

            first.script = Script([Rule(Drop())])
            first.hang_up()
            await until_polled(second, waiting)
            clock.now += 3.1
            await asyncio.wait_for(one.lost.wait(), 60)
            clock.now += 12.8
            await until_polled(second, waiting)
            assert not waiting.done(), "a renewed Lease stays valid for its duration"
            while not waiting.done():
                assert clock.now < 1030
                clock.now += 1  # less than the renew deadline: two must not lose what it acquires during the step
                await until_polled(second, waiting)
            assert not one.is_leader and two.is_leader

            first.script = Script()
            back = asyncio.create_task(one.lead())
            await until_polled(first, back)
            assert not back.done()
            await two.release()
            assert await asyncio.wait_for(back, 60), "a released Lease does not have to expire"
            assert (await api.get(LEASE, "l"))["spec"]["leaseTransitions"] >= 2
            await one.release()
            assert await find_holder(api, kube_api.namespace, "l") is None

    run(body(), 400)


def test_there_are_never_two_leaders_despite_faults(kube_api: Kube, fault_proxy: Start) -> None:

    async def body() -> None:
        faults: list[Fault] = [Drop(True), Drop(False), Answer(409), Answer(500)]
        proxy = fault_proxy([Rule(fault, resource="leases", chance=0.15) for fault in faults], seed=5)
        async with client(kube_api, proxy.kubeconfig) as api:
            electors = [
                Elector(api, kube_api.namespace, "l", f"e{n}", lease_duration=4, renew_deadline=2.4, retry_period=0.8)
                for n in range(4)
            ]

            async def compete(elector: Elector) -> None:
                while True:
                    await elector.lead()
                    await elector.lost.wait()

            tasks = [asyncio.create_task(compete(elector)) for elector in electors]
            end, deadline = time.monotonic() + 12, time.monotonic() + 60
            polls_with_leader = 0
            while time.monotonic() < end or (polls_with_leader <= 100 and time.monotonic() < deadline):
                leaders = sum(elector.is_leader for elector in electors)
                assert leaders <= 1
                polls_with_leader += leaders
                await asyncio.sleep(0.005)
            for task in tasks:
                assert not task.done()
                task.cancel()
            await asyncio.wait(tasks)
            for elector in electors:
                await elector.release()
            assert polls_with_leader > 100

    run(body())


def test_stop_ends_the_wait_for_leadership(kube_api: Kube) -> None:
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

    run(body())


def test_list_of_events_and_pods(kube_api: Kube) -> None:
    async def body() -> None:
        async with client(kube_api) as api:
            assert (await api.list(EVENT, kube_api.namespace)).resource_version
            assert (await api.list(POD, kube_api.namespace)).items == []

    run(body())
