"""Which changes an operator acts on at once, and which can wait for others."""

from __future__ import annotations

from typing import Any

import pytest

from oars.kube.client import Client
from oars.kube.informer import Changed
from oars.kube.kinds import Object
from oars.kube.target import Target
from oars.operator.index import AT_ONCE, COURSE, TOGETHER, TROUBLE, Due, Watches
from oars.places.kube import names

KEY = ("team", "demo")


def pod(**status: Any) -> Object:
    labels = names.pod_labels("demo", "default")
    metadata = {"name": "w", "namespace": "team", "uid": "1", "labels": labels, "creationTimestamp": ""}
    return {"metadata": metadata, "spec": {}, "status": status}


def labelled(found: Object, **labels: str | None) -> Object:
    """The same with other labels; None: without it."""
    wanted = {**found["metadata"]["labels"], **{f"oars.dev/{name}": value for name, value in labels.items()}}
    kept = {name: value for name, value in wanted.items() if value is not None}
    return {**found, "metadata": {**found["metadata"], "labels": kept}}


def owned(kind: str, name: str) -> list[Object]:
    return [{"kind": kind, "name": name, "uid": "any"}]


def deployment(generation: int, replicas: int) -> Object:
    metadata = {"name": "d", "namespace": "team", "generation": generation, "labels": {names.CLUSTER: "demo"}}
    metadata["ownerReferences"] = owned("ComputeCluster", "demo")
    return {"metadata": metadata, "spec": {}, "status": {"replicas": replicas}}


READY = pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
FAILED = pod(phase="Failed")
SCHEDULED = pod(conditions=[{"type": "PodScheduled", "status": "True"}])
NOWHERE = pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}])
UNPULLED = pod(containerStatuses=[{"name": "worker", "state": {"waiting": {"reason": "ErrImagePull"}}}])
REFUSED = deployment(1, 0)
REFUSED["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True"}]
CARRIED_OUT = deployment(2, 3)
CARRIED_OUT["status"] |= {"observedGeneration": 2, "updatedReplicas": 1}


@pytest.mark.parametrize(
    ("kind", "old", "new", "due"),
    [
        ("pods", None, pod(), COURSE),
        ("pods", pod(), SCHEDULED, COURSE),
        ("pods", pod(), NOWHERE, TROUBLE),
        ("pods", None, NOWHERE, TROUBLE),
        ("pods", SCHEDULED, UNPULLED, TROUBLE),
        ("pods", SCHEDULED, READY, TOGETHER),
        ("pods", READY, FAILED, TOGETHER),
        ("pods", READY, None, TOGETHER),
        ("pods", FAILED, None, COURSE),
        ("deployments", None, deployment(1, 0), COURSE),
        ("deployments", deployment(1, 0), deployment(1, 3), COURSE),
        ("deployments", deployment(1, 0), REFUSED, TROUBLE),
        ("deployments", deployment(1, 3), deployment(2, 3), TOGETHER),
        ("deployments", deployment(2, 3), CARRIED_OUT, TOGETHER),
        ("deployments", deployment(1, 3), None, TOGETHER),
    ],
)
def test_what_may_change_a_decision_comes_first(kind: str, old: Object | None, new: Object | None, due: Due) -> None:
    woken, watches = watched("demo")
    changed = told(watches, kind)
    if old is not None:
        changed(KEY, None, old)
        woken.clear()
    changed(KEY, old, new)
    assert woken == [(KEY, due)]


@pytest.mark.parametrize(
    ("due", "alone", "in_a_crowd"),
    [(AT_ONCE, 0.0, 0.0), (TOGETHER, 0.1, 0.1), (TROUBLE, 1.0, 4.0), (COURSE, 1.0, 15.0)],
)
def test_what_takes_its_course_waits_for_its_turn_and_trouble_does_not(
    due: Due, alone: float, in_a_crowd: float
) -> None:
    assert (due.pause(0.05), due.pause(15.0)) == (alone, in_a_crowd)


def renamed(found: Object, name: str) -> Object:
    return {**found, "metadata": {**found["metadata"], "name": name}}


def test_of_workers_that_come_up_the_last_is_urgent_and_the_head_always() -> None:
    woken, watches = watched("demo")
    changed = told(watches, "pods")
    head = labelled(pod(), group="head")
    members = {name: renamed(pod(), name) for name in ("a", "b")} | {"h": renamed(head, "h")}
    for member in members.values():
        changed(KEY, None, member)
    woken.clear()
    changed(KEY, members["a"], renamed(READY, "a"))
    changed(KEY, members["h"], renamed(labelled(READY, group="head"), "h"))
    changed(KEY, members["b"], renamed(READY, "b"))
    changed(KEY, renamed(READY, "b"), renamed(pod(), "b"))
    changed(KEY, renamed(READY, "a"), renamed(FAILED, "a"))
    assert [due for _, due in woken] == [COURSE, TOGETHER, TOGETHER, TOGETHER, TOGETHER]


def watched(*clusters: str) -> tuple[list[tuple[tuple[str, str], Due]], Watches]:
    """What they wake, and the watches of an operator that knows these clusters."""
    woken: list[tuple[tuple[str, str], Due]] = []
    watches = Watches(Client(Target("https://localhost")), (), lambda key, due: woken.append((key, due)))
    watches.clusters |= {("team", name): {} for name in clusters}
    return woken, watches


def told(watches: Watches, kind: str) -> Changed:
    return next(informer for informer in watches if informer._kind.plural == kind)._changed


def test_a_pod_that_is_no_member_is_nothing_to_a_cluster() -> None:
    odd = labelled(READY, group=None)
    woken, watches = watched("demo")
    changed = told(watches, "pods")
    changed(KEY, None, odd)
    changed(KEY, odd, labelled(odd, more="x"))
    assert (woken, watches.seen(KEY).pods()) == ([], [])
    changed(KEY, odd, READY)
    assert (woken, watches.seen(KEY).pods()) == ([(KEY, COURSE)], [READY])
    changed(KEY, READY, odd)
    assert (woken[1:], watches.seen(KEY).pods()) == ([(KEY, TOGETHER)], []), "it has lost a member"
    changed(KEY, odd, None)
    assert len(woken) == 2


def test_what_goes_over_to_another_cluster_is_gone_from_the_first() -> None:
    woken, watches = watched("demo", "other")
    changed, theirs = told(watches, "pods"), labelled(READY, cluster="other")
    changed(KEY, None, READY)
    woken.clear()
    changed(KEY, READY, theirs)
    assert (watches.seen(KEY).pods(), watches.seen(("team", "other")).pods()) == ([], [theirs])
    assert woken == [(KEY, TOGETHER), (("team", "other"), COURSE)]


@pytest.mark.parametrize(
    ("owners", "is_there"),
    [
        ([], False),
        (owned("ComputeCluster", "demo"), True),
        (owned("ComputeCluster", "other"), False),
        (owned("ConfigMap", "demo-oars"), False),
    ],
    ids=["nobody's", "its own", "another cluster's", "of a cluster without an operator"],
)
@pytest.mark.parametrize("kind", ["deployments", "services"])
def test_what_only_has_the_label_is_not_the_clusters(kind: str, owners: list[Object], is_there: bool) -> None:
    _, watches = watched("demo")
    found = deployment(1, 0)
    found["metadata"]["ownerReferences"] = owners
    told(watches, kind)(KEY, None, found)
    seen = watches.seen(KEY)
    assert seen.has("Deployment" if kind == "deployments" else "Service", "d") is is_there
    assert seen.deployments() == ([found] if is_there and kind == "deployments" else [])
    assert seen.has("Secret", "d") is None, "not watched"
