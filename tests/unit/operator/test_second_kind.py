"""The operator serves a second kind of resource beside ComputeCluster, with its own spec, key, owner and status: it is
one row in the operator's table."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from oars import engines
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.informer import OnChange
from oars.kube.kinds import Kind, Object
from oars.kube.target import Target
from oars.model import Cause, Desired, LoopState
from oars.operator.index import Watches
from oars.operator.reconciler import ClusterReconciler
from oars.operator.resources import COMPUTE_CLUSTERS, Course, Key, ResourceKind
from oars.places.kube import names
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.state.root import ResourceRoot
from oars.places.report import Report
from oars.plan.desired import build
from oars.spec import load
from oars.spec.status import Phase

TOYS = Kind("example.org", "v1", "toyclusters", "ToyCluster")
TOY = Key("ToyCluster", "team", "demo")
OURS = Key("ComputeCluster", "team", "demo")
AT = ("team", "demo")


class ToyStatus:
    """Another project's status: a state in its own words, and where the loop state is stored."""

    def load_state(self, status: Mapping[str, Any]) -> LoopState:
        return LoopState(head_epoch=status.get("epoch", 0))

    def dump_state(self, state: LoopState) -> Object:
        return {"epoch": state.head_epoch}

    def dump_report(self, report: Report, before: Mapping[str, Any], now: str) -> Object:
        status = report.status
        return {"state": status.phase.value.lower(), "desiredSize": status.wanted}

    def dump_failure(
        self, cause: Cause, phase: Phase | None, generation: int, before: Mapping[str, Any], now: str
    ) -> Object:
        return {"state": "invalid", "why": cause.message}

    def is_progress(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        return False

    def transitions(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Cause, ...]:
        return ()


def to_desired(resource: Object) -> Desired:
    spec = load.build({"engine": "ray", "workers": resource["spec"]["size"], "place": "kubernetes"}).spec
    return build(resource["metadata"]["name"], spec, engines.get("ray"), DEFAULTS, namespace="team")


KINDS = (COMPUTE_CLUSTERS, ResourceKind(TOYS, to_desired, ToyStatus()))


class Api:
    """Records writes."""

    def __init__(self) -> None:
        self.applied: list[Object] = []
        self.statuses: list[tuple[str, Object]] = []
        self.deleted: list[tuple[str, str, str | None]] = []

    async def apply(self, obj: Object) -> Object:
        self.applied.append(obj)
        assigned = {"uid": obj["metadata"]["name"], "resourceVersion": "2", "generation": 1}
        return {**obj, "metadata": {**obj["metadata"], **assigned}}

    async def create(self, obj: Object) -> Object:
        return obj if obj["kind"] == "Event" else await self.apply(obj)

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, *, subresource: str) -> Object:
        assert subresource == "status", "the operator never writes a spec"
        self.statuses.append((kind.kind, body["status"]))
        return {}

    async def delete(self, kind: Kind, name: str, namespace: str, *, uid: str | None = None) -> bool:
        self.deleted.append((kind.kind, name, uid))
        return True

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        raise ApiError(404, {"reason": "NotFound"})

    async def list(self, *_: Any, **__: Any) -> Any:
        raise ApiError(403, {"reason": "Forbidden"})


def on_change(watches: Watches, plural: str) -> OnChange:
    return next(informer for informer in watches if informer._kind.plural == plural)._on_change


def watching(*resources: Key) -> tuple[Watches, list[Key]]:
    """Watches that know these resources, and the keys that they wake."""
    woken: list[Key] = []
    watches = Watches(Client(Target("https://localhost")), (), KINDS, lambda key, due: woken.append(key))
    plurals = {each.kind.kind: each.kind.plural for each in KINDS}
    for key in resources:
        metadata = {"name": key.name, "namespace": key.namespace, "uid": f"uid of {key}", "generation": 1}
        on_change(watches, plurals[key.kind])(AT, None, {"metadata": metadata, "spec": {"size": 2}})
    return watches, woken


def reconcile(watches: Watches, key: Key) -> Api:
    api = Api()
    asyncio.run(ClusterReconciler(cast(Client, api), watches, KINDS, pod_namespace="oars-system").reconcile(key))
    return api


def test_resource_of_a_second_kind_becomes_a_cluster_that_it_owns() -> None:
    watches, woken = watching(TOY)
    assert woken == [TOY]
    api = reconcile(watches, TOY)
    assert "demo-head" in {obj["metadata"]["name"] for obj in api.applied if obj["kind"] == "Deployment"}
    owners = [obj["metadata"]["ownerReferences"] for obj in api.applied]
    assert all((owner["kind"], owner["uid"]) == ("ToyCluster", f"uid of {TOY}") for (owner,) in owners)
    ((kind, status),) = api.statuses
    assert (kind, status["state"], status["desiredSize"], status["epoch"]) == ("ToyCluster", "pending", 2, 0)


def test_invalid_spec_of_a_second_kind_is_shown_in_its_status() -> None:
    watches, _ = watching(TOY)
    watches.resources[TOY]["spec"]["size"] = "many"
    ((kind, status),) = reconcile(watches, TOY).statuses
    assert (kind, status["state"]) == ("ToyCluster", "invalid") and status["why"]


def test_objects_of_one_kind_are_not_those_of_another_with_the_same_name() -> None:
    watches, _ = watching(TOY, OURS)
    owner = {"kind": "ToyCluster", "name": "demo", "uid": f"uid of {TOY}"}
    metadata = {"name": "demo-head", "namespace": "team", "labels": {names.CLUSTER: "demo"}, "generation": 1}
    deployment = {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": {}, "status": {}}
    on_change(watches, "deployments")(AT, None, deployment)
    assert watches.cluster(TOY, f"uid of {TOY}").deployments() == [deployment]
    assert watches.cluster(OURS, f"uid of {OURS}").deployments() == []


def test_course_of_a_kind_changes_its_status_stops_its_members_and_deletes_it() -> None:
    course = Course({"ended": True}, (Cause("Ended", "It ended."),))

    def settle(desired: Desired, status: Mapping[str, Any]) -> Desired:
        return replace(desired, running="ended" not in status)

    kinds = (replace(KINDS[1], follow=lambda *_: course, settle=settle),)
    watches = Watches(Client(Target("https://localhost")), (), kinds, lambda key, due: None)
    metadata = {"name": "demo", "namespace": "team", "uid": "u", "generation": 1}
    watches.resources[TOY] = {"metadata": metadata, "spec": {"size": 2}}
    api = Api()
    reconciler = ClusterReconciler(cast(Client, api), watches, kinds, pod_namespace="oars-system")

    async def story() -> None:
        nonlocal course
        pause = await reconciler.reconcile(TOY)
        assert pause is not None and pause.seconds == 0, "its members are to be stopped at once"
        assert api.statuses[-1] == ("ToyCluster", {"ended": True})
        applied = len(api.applied)
        course = Course(is_over=True)
        await reconciler.reconcile(TOY)
        assert len(api.applied) == applied, "nothing is started any more"
        assert [(kind, name) for kind, name, _ in api.deleted] == [("Deployment", "demo-head"), ("ToyCluster", "demo")]

    asyncio.run(story())


def test_kind_prepares_its_resource_before_each_pass_and_may_leave_its_members_alone() -> None:
    async def prepare(
        client: object, root: ResourceRoot, cluster: Desired, pods: Sequence[Object], resources: Mapping[Key, Object]
    ) -> float:
        assert not pods and cluster.shape.workers[0].replicas == 2 and TOY in resources
        await root.amend({"smaller": 1})
        return 0.25

    def settle(desired: Desired, status: Mapping[str, Any]) -> Desired:
        (group,) = desired.shape.workers
        smaller = replace(group, replicas=group.replicas - int(status.get("smaller", 0)))
        return replace(desired, shape=replace(desired.shape, workers=(smaller,)))

    kind = replace(KINDS[1], prepare=prepare, settle=settle, is_left_alone=lambda resource, status: "done" in status)
    watches = Watches(Client(Target("https://localhost")), (), (kind,), lambda key, due: None)
    metadata = {"name": "demo", "namespace": "team", "uid": "u", "generation": 1}
    watches.resources[TOY] = {"metadata": metadata, "spec": {"size": 2}}
    api = Api()
    reconciler = ClusterReconciler(cast(Client, api), watches, (kind,), pod_namespace="oars-system")

    async def story() -> None:
        pause = await reconciler.reconcile(TOY)
        assert pause is not None and pause.seconds <= 0.25
        assert reconciler._tracked[TOY].desired.shape.workers[0].replicas == 1
        applied = len(api.applied)
        assert applied
        await reconciler._tracked[TOY].root.amend({"done": True})
        reconciler._tracked[TOY].desired = replace(reconciler._tracked[TOY].desired, running=False)
        assert await reconciler.reconcile(TOY) is not None
        assert len(api.applied) == applied and not api.deleted

    asyncio.run(story())


@pytest.mark.parametrize("has_pods", [True, False])
def test_failed_preparation_stops_a_resource_that_has_not_started_and_not_one_that_runs(has_pods: bool) -> None:
    async def prepare(
        client: object, root: ResourceRoot, cluster: Desired, pods: Sequence[Object], resources: Mapping[Key, Object]
    ) -> float:
        raise ApiError(500, {"message": "the queue is away"})

    kind = replace(KINDS[1], prepare=prepare)
    watches = Watches(Client(Target("https://localhost")), (), (kind,), lambda key, due: None)
    metadata = {"name": "demo", "namespace": "team", "uid": "u", "generation": 1}
    watches.resources[TOY] = {"metadata": metadata, "spec": {"size": 2}}
    if has_pods:
        labels = {names.CLUSTER: "demo", names.GROUP: "head", "pod-template-hash": "a"}
        common = {"namespace": "team", "labels": labels, "generation": 1, "uid": "p"}
        common["creationTimestamp"] = "2026-01-01T00:00:00Z"
        owner: Object = {"kind": "ToyCluster", "name": "demo", "uid": "u"}
        deployment = {"metadata": {**common, "name": "demo-head", "ownerReferences": [owner]}, "spec": {}, "status": {}}
        on_change(watches, "deployments")(AT, None, deployment)
        owner = {"kind": "ReplicaSet", "name": "demo-head-a", "uid": "r", "controller": True}
        metadata = {**common, "name": "demo-head-a-1", "generateName": "demo-head-a-", "ownerReferences": [owner]}
        on_change(watches, "pods")(AT, None, {"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}})
    api = Api()
    reconciler = ClusterReconciler(cast(Client, api), watches, (kind,), pod_namespace="oars-system")
    with pytest.raises(ApiError, match="the queue is away"):
        asyncio.run(reconciler.reconcile(TOY))
    assert bool(api.applied) is has_pods, "what is missing of a cluster that runs is created again"
