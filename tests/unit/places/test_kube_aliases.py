"""Further names of members: their Services, and the numbers of workers that these select."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from oars.exposure import Alias
from oars.kube.kinds import Kind, Object
from oars.model import HEAD, Desired
from oars.places.kube import aliases
from oars.places.kube.aliases import free_numbers
from oars.places.kube.names import GROUP
from oars.places.kube.render import objects
from oars.places.kube.state.cache import ClusterCache
from oars.places.kube.state.owned_objects import OwnedObjects
from tests.unit.places.clusters import cluster

LABEL = "number"
DIRECT_HEAD = Alias("demo-scheduler", HEAD, {"port": (7103, 7103)}, is_direct=True)


def named(workers: int = 2) -> Desired:
    """A cluster whose head has a further name, and each of whose workers has one."""
    desired = cluster(workers=workers)
    groups = tuple(replace(each, number_label=LABEL) for each in desired.shape.workers)
    aliases = (
        Alias("demo-web", HEAD, {"http": (80, 7104)}),
        Alias("demo-number", groups[0].name, {"port": (7105, 7105)}, is_direct=True, is_numbered=True),
    )
    return replace(desired, aliases=aliases, shape=replace(desired.shape, workers=groups))


def pod(name: str, number: str = "", created: str = "2026-01-01T00:00:00Z") -> Object:
    labels = {LABEL: number} if number else {}
    return {"metadata": {"name": name, "creationTimestamp": created, "labels": labels}}


def test_alias_of_the_head_is_a_service_with_ports_of_its_own() -> None:
    web = objects.alias_services(named())[0]
    (port,) = web["spec"]["ports"]
    assert (web["metadata"]["name"], port["port"], port["targetPort"]) == ("demo-web", 80, 7104)
    assert "clusterIP" not in web["spec"]


def test_each_worker_has_a_service_that_stands_for_its_own_address() -> None:
    found = {each["metadata"]["name"]: each["spec"] for each in objects.alias_services(named(workers=3))[1:]}
    assert list(found) == ["demo-number-0", "demo-number-1", "demo-number-2"]
    assert [each["selector"][LABEL] for each in found.values()] == ["0", "1", "2"]
    assert all(each["clusterIP"] == "None" for each in found.values())


def test_aliases_lead_to_ready_members_only() -> None:
    """A member on a lost node stays in termination for ever, and would get connections."""
    head, *_, worker = objects.alias_services(replace(named(), aliases=(DIRECT_HEAD, *named().aliases)))
    assert (head["metadata"]["name"], worker["metadata"]["name"]) == ("demo-scheduler", "demo-number-1")
    assert not any(each["spec"].get("publishNotReadyAddresses") for each in (head, worker))


class Services:
    """The Services of a namespace, and their deletions."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def has(self, kind: str, name: str) -> bool:
        assert kind == "Service"
        return name in self.names

    async def withdraw(self, kind: Kind, name: str, namespace: str) -> None:
        self.names.remove(name)


def test_numbers_of_one_group_may_follow_those_of_another() -> None:
    desired = named(workers=2)
    (first,) = desired.shape.workers
    second = replace(first, name="spot", replicas=1, first_number=2)
    more = replace(desired.aliases[1], group="spot")
    both = replace(desired, shape=replace(desired.shape, workers=(first, second)), aliases=(*desired.aliases[1:], more))
    services = {each["metadata"]["name"]: each["spec"]["selector"] for each in objects.alias_services(both)}
    assert [each[LABEL] for each in services.values()] == ["0", "1", "2"]
    assert services["demo-number-2"][GROUP] == "spot" != services["demo-number-1"][GROUP]
    present = Services(*services, "demo-number-3", "demo-number-4")
    asyncio.run(aliases.withdraw(cast(OwnedObjects, present), cast(ClusterCache, present), both))
    assert present.names == {*services}


def test_aliases_are_network_objects_so_that_a_change_of_them_replaces_no_pod() -> None:
    some, more = named(), replace(named(), aliases=named().aliases[:1])
    assert objects.network_objects(some) != objects.network_objects(more)
    assert objects.head_deployment(some) == objects.head_deployment(more)


@pytest.mark.parametrize(
    ("pods", "numbers"),
    [
        ([], {}),
        ([pod("a"), pod("b")], {"a": 0, "b": 1}),
        ([pod("a", created="2026-01-02T00:00:00Z"), pod("b")], {"b": 0, "a": 1}),
        ([pod("a", "1"), pod("b"), pod("c")], {"b": 0, "c": 2}),
        ([pod("a", "0"), pod("b", "1")], {}),
        ([pod("a", "0"), pod("b", "7")], {"b": 1}),
        ([pod("a", "1"), pod("b", "1")], {"b": 0}),
    ],
)
def test_pods_without_a_number_get_the_lowest_free_one_the_oldest_first(
    pods: list[Object], numbers: dict[str, int]
) -> None:
    found = free_numbers(pods, LABEL, range(3))
    assert {each["metadata"]["name"]: number for each, number in found} == numbers


def test_ingress_below_a_path_lets_the_controller_remove_it() -> None:
    desired = cluster()
    below = replace(desired, expose=replace(desired.expose, host="mars.domain.com", path="/mars/default/x"))
    ((rule,),) = [objects.ingress(below)["spec"]["rules"]]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/mars/default/x(/|$)(.*)", "ImplementationSpecific")
    annotations = objects.ingress(below)["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/rewrite-target"] == "/$2"
