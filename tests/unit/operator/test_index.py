"""Which changes need a pass immediately, and which can be batched or delayed."""

from __future__ import annotations

from typing import Any

import pytest

from oars.kube.client import Client
from oars.kube.informer import OnChange
from oars.kube.kinds import Object
from oars.kube.target import Target
from oars.model import Pause
from oars.operator.index import BATCHED, FAILURE, PROGRESS, Watches
from oars.operator.resources import RESOURCE_KINDS, Key
from oars.places.kube import names
from tests.unit.places.test_kube_observe import created_by

KEY = Key("ComputeCluster", "team", "demo")
OTHER = Key("ComputeCluster", "team", "other")
AT = ("team", "demo")


def pod(**status: Any) -> Object:
    metadata = {"name": "w", "namespace": "team", "uid": "1", "creationTimestamp": ""}
    metadata |= created_by("demo-worker", names.pod_labels("demo", "default"))
    return {"metadata": metadata, "spec": {}, "status": status}


def labelled(found: Object, **labels: str | None) -> Object:
    """A copy with other labels; None removes a label."""
    merged = {**found["metadata"]["labels"], **{f"oars.dev/{name}": value for name, value in labels.items()}}
    result = {name: value for name, value in merged.items() if value is not None}
    return {**found, "metadata": {**found["metadata"], "labels": result}}


def as_head(found: Object) -> Object:
    return {**found, "metadata": found["metadata"] | created_by("demo-head", names.pod_labels("demo"))}


def owned(kind: str, name: str, uid: str = "") -> list[Object]:
    return [{"kind": kind, "name": name, "uid": uid or name}]


def deployment(generation: int, replicas: int) -> Object:
    metadata = {"name": "d", "namespace": "team", "generation": generation, "labels": {names.CLUSTER: "demo"}}
    metadata["ownerReferences"] = owned("ComputeCluster", "demo")
    return {"metadata": metadata, "spec": {}, "status": {"replicas": replicas}}


READY = pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])
FAILED = pod(phase="Failed")
SCHEDULED = pod(conditions=[{"type": "PodScheduled", "status": "True"}])
UNSCHEDULABLE = pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}])
PULL_FAILED = pod(containerStatuses=[{"name": "worker", "state": {"waiting": {"reason": "ErrImagePull"}}}])
REPLICA_FAILURE = deployment(1, 0)
REPLICA_FAILURE["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True"}]
ROLLED_OUT = deployment(2, 3)
ROLLED_OUT["status"] |= {"observedGeneration": 2, "updatedReplicas": 1}


@pytest.mark.parametrize(
    ("kind", "old", "new", "due"),
    [
        ("pods", None, pod(), PROGRESS),
        ("pods", pod(), SCHEDULED, PROGRESS),
        ("pods", pod(), UNSCHEDULABLE, FAILURE),
        ("pods", None, UNSCHEDULABLE, FAILURE),
        ("pods", SCHEDULED, PULL_FAILED, FAILURE),
        ("pods", SCHEDULED, READY, BATCHED),
        ("pods", READY, FAILED, BATCHED),
        ("pods", READY, None, BATCHED),
        ("pods", FAILED, None, PROGRESS),
        ("deployments", None, deployment(1, 0), PROGRESS),
        ("deployments", deployment(1, 0), deployment(1, 3), PROGRESS),
        ("deployments", deployment(1, 0), REPLICA_FAILURE, FAILURE),
        ("deployments", deployment(1, 3), deployment(2, 3), BATCHED),
        ("deployments", deployment(2, 3), ROLLED_OUT, BATCHED),
        ("deployments", deployment(1, 3), None, BATCHED),
    ],
)
def test_urgency_of_change(kind: str, old: Object | None, new: Object | None, due: Pause) -> None:
    woken, watches = watched("demo")
    changed = on_change(watches, kind)
    if old is not None:
        changed(AT, None, old)
        woken.clear()
    changed(AT, old, new)
    assert woken == [(KEY, due)]


def renamed(found: Object, name: str) -> Object:
    return {**found, "metadata": {**found["metadata"], "name": name}}


def test_last_worker_to_become_ready_is_urgent_and_head_always() -> None:
    woken, watches = watched("demo")
    changed = on_change(watches, "pods")
    head = as_head(pod())
    members = {name: renamed(pod(), name) for name in ("a", "b")} | {"h": renamed(head, "h")}
    for member in members.values():
        changed(AT, None, member)
    woken.clear()
    changed(AT, members["a"], renamed(READY, "a"))
    changed(AT, members["h"], renamed(as_head(READY), "h"))
    changed(AT, members["b"], renamed(READY, "b"))
    changed(AT, renamed(READY, "b"), renamed(pod(), "b"))
    changed(AT, renamed(READY, "a"), renamed(FAILED, "a"))
    assert [due for _, due in woken] == [PROGRESS, BATCHED, BATCHED, BATCHED, BATCHED]


def watched(*clusters: str) -> tuple[list[tuple[Key, Pause]], Watches]:
    """The keys that are woken, and the watches of an operator with these clusters."""
    woken: list[tuple[Key, Pause]] = []
    watches = Watches(
        Client(Target("https://localhost")), (), RESOURCE_KINDS, lambda key, due: woken.append((key, due))
    )
    watches.resources |= {Key("ComputeCluster", "team", name): {} for name in clusters}
    return woken, watches


def on_change(watches: Watches, kind: str) -> OnChange:
    return next(informer for informer in watches if informer._kind.plural == kind)._on_change


def test_pod_without_group_label_is_ignored() -> None:
    ungrouped = labelled(READY, group=None)
    woken, watches = watched("demo")
    changed = on_change(watches, "pods")
    changed(AT, None, ungrouped)
    changed(AT, ungrouped, labelled(ungrouped, more="x"))
    assert (woken, watches.cluster(KEY, "demo").pods()) == ([], [])
    changed(AT, ungrouped, READY)
    assert (woken, watches.cluster(KEY, "demo").pods()) == ([(KEY, PROGRESS)], [READY])
    changed(AT, READY, ungrouped)
    assert (woken[1:], watches.cluster(KEY, "demo").pods()) == ([(KEY, BATCHED)], []), "the cluster lost a member"
    changed(AT, ungrouped, None)
    assert len(woken) == 2


def test_relabelled_pod_leaves_its_cluster_and_joins_no_other() -> None:
    woken, watches = watched("demo", "other")
    changed, theirs = on_change(watches, "pods"), labelled(READY, cluster="other")
    changed(AT, None, READY)
    woken.clear()
    changed(AT, READY, theirs)
    assert (watches.cluster(KEY, "demo").pods(), watches.cluster(OTHER, "other").pods()) == ([], [])
    assert woken == [(KEY, BATCHED)]


@pytest.mark.parametrize(
    ("owners", "is_indexed"),
    [
        ([], False),
        (owned("ComputeCluster", "demo"), True),
        (owned("ComputeCluster", "demo", "earlier"), False),
        (owned("ComputeCluster", "other"), False),
        (owned("ConfigMap", "demo-oars"), False),
    ],
    ids=["no owner", "this cluster", "earlier cluster", "another cluster", "a cluster in direct mode"],
)
@pytest.mark.parametrize("kind", ["deployments", "services"])
def test_labelled_object_with_another_owner_is_ignored(kind: str, owners: list[Object], is_indexed: bool) -> None:
    _, watches = watched("demo")
    found = deployment(1, 0)
    found["metadata"]["ownerReferences"] = owners
    on_change(watches, kind)(AT, None, found)
    cached = watches.cluster(KEY, "demo")
    assert cached.has("Deployment" if kind == "deployments" else "Service", "d") is is_indexed
    assert cached.deployments() == ([found] if is_indexed and kind == "deployments" else [])
    assert cached.has("Secret", "d") is None, "not watched"


def test_recreated_resource_is_woken() -> None:
    """Both have generation 1, and the watch may have missed the deletion."""
    woken, watches = watched()
    first, second = ({"metadata": {"namespace": "team", "name": "demo", "uid": uid, "generation": 1}} for uid in "ab")
    changed = on_change(watches, "computeclusters")
    changed(AT, None, first)
    woken.clear()
    changed(AT, first, second)
    assert [key for key, _ in woken] == [KEY]
