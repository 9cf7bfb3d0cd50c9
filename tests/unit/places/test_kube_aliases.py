"""Further names of members: their Services, and the numbers of workers that these select."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oars.exposure import Alias
from oars.kube.kinds import Object
from oars.model import HEAD, Desired
from oars.places.kube.aliases import free_numbers
from oars.places.kube.render import objects
from tests.unit.places.clusters import cluster

LABEL = "number"


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
    ],
)
def test_pods_without_a_number_get_the_lowest_free_one_the_oldest_first(
    pods: list[Object], numbers: dict[str, int]
) -> None:
    assert {each["metadata"]["name"]: number for each, number in free_numbers(pods, LABEL)} == numbers


def test_ingress_below_a_path_lets_the_controller_remove_it() -> None:
    desired = cluster()
    below = replace(desired, expose=replace(desired.expose, host="mars.domain.com", path="/mars/default/x"))
    ((rule,),) = [objects.ingress(below)["spec"]["rules"]]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/mars/default/x(/|$)(.*)", "ImplementationSpecific")
    annotations = objects.ingress(below)["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/rewrite-target"] == "/$2"
