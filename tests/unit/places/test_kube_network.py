"""Who reaches a cluster's pods: the NetworkPolicy, in every mode and for every engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oars.base.errors import SpecError
from oars.model import Desired
from oars.operator import manifests
from oars.places.kube import names
from oars.places.kube.render import objects
from oars.places.kube.render.values import client_ports
from oars.spec.load import build
from tests.unit.places.clusters import cluster

Object = dict[str, Any]
ENGINES = ("dask", "ray", "mars", "simulated")
MODES = ("operator", "direct", "")  # rendered manifests have no mode
HOME = "oars-system"
OPERATOR = manifests.deployment(manifests.InstallOptions())["spec"]["template"]["metadata"]["labels"]
# Everything that a pod elsewhere can call itself.
OUR_LABELS = [
    OPERATOR,
    *(names.pod_labels("demo", group) | names.labels("demo", "dask") for group in ("head", "default")),
    {**names.pod_labels("demo"), **OPERATOR, "team": "data"},
]


def in_mode(mode: str, engine: str = "dask", *, tied: bool = False, **spec: Any) -> Desired:
    desired = replace(cluster(engine, tied=tied, **spec), mode=mode)
    return replace(desired, operator_namespace=HOME) if mode == "operator" else desired


def ports_for(desired: Desired, labels: dict[str, str], namespace: str) -> set[int] | None:
    """The ports that the policy opens to such a pod; None: all."""
    opened: set[int] = set()
    for rule in objects.network_policy(desired)["spec"]["ingress"]:
        if "from" in rule and not any(selects(peer, labels, namespace, desired.namespace) for peer in rule["from"]):
            continue
        if "ports" not in rule:
            return None
        opened |= {port["port"] for port in rule["ports"]}
    return opened


def selects(peer: Object, labels: dict[str, str], namespace: str, home: str) -> bool:
    if "namespaceSelector" in peer:
        wanted = peer["namespaceSelector"]["matchLabels"]
        is_there = wanted == {"kubernetes.io/metadata.name": namespace}
    else:
        is_there = namespace == home
    return is_there and set(peer.get("podSelector", {}).get("matchLabels", {}).items()) <= set(labels.items())


def served(desired: Desired) -> set[int]:
    return {port.default for port in client_ports(desired.shape)}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", MODES)
def test_pod_of_another_namespace_reaches_nothing_whatever_its_labels(mode: str, engine: str, tied: bool) -> None:
    desired = in_mode(mode, engine, tied=tied)
    for labels in OUR_LABELS:
        assert ports_for(desired, labels, "elsewhere") == set()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", MODES)
def test_operator_is_admitted_in_its_own_namespace_and_mode_only(mode: str, engine: str) -> None:
    desired = in_mode(mode, engine)
    helper = {names.HELPER_PORT} if desired.helper else set()
    assert ports_for(desired, OPERATOR, HOME) == ((served(desired) | helper) if mode == "operator" else set())
    assert ports_for(desired, {"app": "visitor"}, HOME) == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_operator_outside_the_cluster_needs_no_rule(engine: str) -> None:
    """It uses port-forwards."""
    desired = replace(in_mode("operator", engine), operator_namespace="")
    assert ports_for(desired, OPERATOR, HOME) == set()
    assert ports_for(desired, OPERATOR, "lab") == served(desired)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", MODES)
def test_pods_of_the_namespace_reach_the_service_and_members_reach_all(mode: str, engine: str) -> None:
    """Only in direct mode does a client in a pod send requests to the helper."""
    desired = in_mode(mode, engine)
    helper = {names.HELPER_PORT} if mode == "direct" and desired.helper else set()
    assert ports_for(desired, {"app": "visitor"}, "lab") == served(desired) | helper
    assert ports_for(desired, names.pod_labels("demo", "default"), "lab") is None


@pytest.mark.parametrize("mode", MODES)
def test_supervisor_of_mars_is_for_members_only(mode: str) -> None:
    """It loads the pickles of all who reach it. Workers reach it through the Service."""
    desired, supervisor = in_mode(mode, "mars"), 7103
    assert supervisor in {port["port"] for port in objects.service(desired)["spec"]["ports"]}
    for labels, namespace in (({"app": "visitor"}, "lab"), (OPERATOR, HOME), (OPERATOR, "lab")):
        assert supervisor not in (ports_for(desired, labels, namespace) or set())
    assert ports_for(desired, names.pod_labels("demo", "default"), "lab") is None


@pytest.mark.parametrize("mode", MODES)
def test_clients_can_be_narrowed_to_labels(mode: str) -> None:
    desired = in_mode(mode, expose={"clients": {"team": "data", "role": "driver"}})
    assert ports_for(desired, {"team": "data"}, "lab") == set()
    opened = ports_for(desired, {"team": "data", "role": "driver", "app": "x"}, "lab")
    assert opened is not None and opened >= served(desired)
    assert ports_for(desired, {"team": "data", "role": "driver"}, "elsewhere") == set()
    assert ports_for(desired, names.pod_labels("demo", "default"), "lab") is None


@pytest.mark.parametrize(("engine", "opened"), [("dask", {8787, 8788}), ("ray", {8080})])
@pytest.mark.parametrize("mode", MODES)
def test_metrics_are_open_to_namespaces_with_the_labels(mode: str, engine: str, opened: set[int]) -> None:
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    desired = in_mode(mode, engine, expose={"metrics": monitoring})
    assert ports_for(desired, {"app": "prometheus"}, "monitoring") == opened
    assert ports_for(desired, {"app": "prometheus"}, "elsewhere") == set()
    assert ports_for(in_mode(mode, engine), {"app": "prometheus"}, "monitoring") == set()


def test_metrics_of_an_engine_without_any_are_refused() -> None:
    with pytest.raises(SpecError, match=r"expose\.metrics: mars has no metrics"):
        cluster("mars", expose={"metrics": {"team": "data"}})


@pytest.mark.parametrize("labels", [{"a b": "c"}, {"a": "b c"}, {"a": "x" * 64}, {"": "a"}, {"-a": "b"}])
@pytest.mark.parametrize("field", ["clients", "metrics"])
def test_clients_are_labels(labels: dict[str, str], field: str) -> None:
    with pytest.raises(SpecError, match=rf"expose\.{field}"):
        build({"engine": "dask", "expose": {field: labels}})


@pytest.mark.parametrize(
    ("engine", "expose", "opened"),
    [
        ("dask", {}, set()),
        ("dask", {"type": "NodePort"}, {8786, 8787}),
        ("dask", {"type": "LoadBalancer"}, {8786, 8787}),
        ("dask", {"host": "demo.example.org"}, {8787}),
        ("dask", {"host": "demo.example.org", "type": "NodePort"}, {8786, 8787}),
        ("ray", {"host": "demo.example.org"}, {8265}),
        ("mars", {"host": "demo.example.org"}, {7104}),
        ("mars", {"type": "NodePort"}, {7104}),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_only_what_is_exposed_is_open_to_all(mode: str, engine: str, expose: Object, opened: set[int]) -> None:
    desired = in_mode(mode, engine, expose=expose)
    assert ports_for(desired, {"app": "visitor"}, "elsewhere") == opened
