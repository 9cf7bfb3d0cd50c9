"""Each verb of the Kubernetes place does what its name says and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime

import pytest

from oars.kube.errors import ApiError
from oars.model import HEAD, Ensure, LoopState, MemberId, MemberView, Remove, Retiring, Role, View
from oars.places.base import PlaceError
from oars.places.kube import names
from oars.places.kube.render.fingerprint import Fingerprint
from oars.places.kube.state import observe, status_codec
from oars.places.kube.state.cache import CATCH_UP
from oars.plan.decide import decide
from tests.unit.places.clusters import cluster
from tests.unit.places.test_kube_observe import STARTED, created_by, pod
from tests.unit.places.world import OWNER, World
from tests.unit.plan.clusters import with_replicas

LISTED = MemberView(ready=True)


@pytest.fixture
def world() -> World:
    return World()


def listing(*workers: str) -> View:
    return View(up=True, members={MemberId(worker): LISTED for worker in workers})


# observe, record


def test_observe_writes_nothing(world: World) -> None:
    world.set_ready("b", False)  # so that it looks for causes
    for desired in (world.desired, cluster(workers=5), cluster(image="i:2"), replace(world.desired, running=False)):
        world.desired = desired
        assert len(world.observe().members) == 4
    assert world.writes == []


def test_observe_of_an_empty_namespace_writes_nothing() -> None:
    world = World(workers=())
    observed = world.observe()
    assert (observed.members, observed.state, world.writes) == ((), LoopState(), [])


def test_record_writes_to_the_root_alone() -> None:
    world = World(workers=())
    world.record("a")
    assert world.writes == ["save"]


# ensure


def test_ensure_writes_only_what_differs(world: World) -> None:
    world.ensure_head()
    world.ensure("a", "b", "c")
    assert world.writes == []
    world.ensure("a", "b", "c", "d")
    assert world.writes == ["apply Deployment/demo-worker"]


def test_another_process_applies_nothing_again(world: World) -> None:
    world.reopen()
    world.ensure_head()
    world.ensure("a", "b", "c")
    assert world.writes == []


@pytest.mark.parametrize(("expose", "has_hash"), [({}, False), ({"type": "NodePort"}, True)])
def test_expose_is_applied_to_a_head_that_another_version_created(
    world: World, expose: dict[str, str], has_hash: bool
) -> None:
    """Without pods being replaced. Early versions stored no hash of the network objects."""
    head = world.running["demo-head"]
    created = replace(Fingerprint.of(head), rendered="other", version="older")
    head["metadata"]["annotations"][names.APPLIED] = str(created if has_hash else replace(created, network=""))
    world.desired = cluster(workers=2, expose=expose)
    world.ensure_head()
    assert {"apply Service/demo-head", "apply NetworkPolicy/demo-oars", "patch Deployment/demo-head"} <= set(
        world.writes
    )
    assert "apply Deployment/demo-head" not in world.writes and "apply ConfigMap/demo-oars" not in world.writes
    assert Fingerprint.of(world.running["demo-head"]).version == "older"
    world.writes.clear()
    world.ensure_head()
    assert world.writes == []


def test_ensure_collects_no_garbage(world: World) -> None:
    world.remove("c")
    world.deployment["status"] = {"observedGeneration": 1, "replicas": 2}
    del world.of_name["b"]  # the ReplicaSet took another one
    world.writes.clear()
    world.ensure_head()
    assert world.writes == []
    world.collect()
    assert world.writes == ["delete Pod/c"]


def test_settled_cluster_gets_its_disruption_budget_once(world: World) -> None:
    world.ensure_head()
    assert world.writes == []
    for _ in range(3):
        world.ensure_head(settled=True)
    world.reopen()
    world.ensure_head(settled=True)
    assert world.writes == ["apply Service/demo-head", "apply PodDisruptionBudget/demo-head"]


def is_published_early(world: World) -> bool:
    return "publishNotReadyAddresses" in world.stored["Service", "demo-head"]["spec"]


def test_service_publishes_an_unready_head_only_until_the_cluster_has_started(world: World) -> None:
    """A head that is stuck in termination would get half of all connections."""
    assert is_published_early(world)
    world.ensure_head()
    assert is_published_early(world)
    world.ensure_head(settled=True)
    assert not is_published_early(world)
    world.reopen()
    world.ensure_head()
    assert not is_published_early(world)
    world.running.pop("demo-head")
    world.ensure_head()
    assert not is_published_early(world)
    world.desired = cluster(workers=2, expose={"type": "NodePort"})
    world.ensure_head()
    assert not is_published_early(world)


def test_client_in_direct_mode_does_not_wait_until_the_cluster_is_settled() -> None:
    """It may be gone by then, as after `oars up`."""
    world = World(replace(cluster(workers=2), mode="direct"))
    world.kinds |= {"PodDisruptionBudget": None, "Service": None}
    world.reopen()
    world.set_ready("h", False)
    world.observe()
    world.ensure_head()
    assert is_published_early(world)
    world.set_ready("h", True)
    world.observe()
    world.ensure_head()
    assert not is_published_early(world)
    world.running.pop("demo-head")
    world.set_ready("h", False)
    world.observe()
    world.ensure_head()
    assert is_published_early(world), "it starts again"
    world.set_ready("h", True)
    world.observe()
    world.ensure_head()
    assert not is_published_early(world)


def test_service_of_a_cluster_that_is_never_complete_is_changed_after_a_while() -> None:
    world = World(cluster(workers=9))
    started = datetime.fromisoformat(STARTED).timestamp()
    world.now = started + 5
    for seconds, expected in ((5, True), (50, True), (70, False)):
        world.now = started + seconds
        world.observe()
        world.ensure_head()
        assert is_published_early(world) is expected


def test_service_of_a_head_that_was_lost_early_is_changed_at_once(world: World) -> None:
    """The lost one may be stuck in termination."""
    world.now = datetime.fromisoformat(STARTED).timestamp() + 5
    world.desired = replace(world.desired, head_epoch=1)
    world.set_ready("h", False)
    world.observe()
    world.ensure_head()
    assert not is_published_early(world)


def test_service_of_another_version_is_updated(world: World) -> None:
    assert is_published_early(world)
    head = world.running["demo-head"]
    created = replace(Fingerprint.of(head), rendered="other", version="older", network="other")
    head["metadata"]["annotations"][names.APPLIED] = str(created)
    world.ensure_head()
    assert not is_published_early(world)


def test_deleted_disruption_budget_is_applied_again(world: World) -> None:
    world.ensure_head(settled=True)
    world.kinds["PodDisruptionBudget"] = False
    world.ensure_head(settled=True)
    budgets = [write for write in world.writes if "Budget" in write]
    assert len(budgets) == 1, "the watch may lag"
    world.now += 60
    world.ensure_head(settled=True)
    assert [write for write in world.writes if "Budget" in write] == budgets * 2


def test_collect_withdraws_an_ingress_that_the_spec_no_longer_has(world: World) -> None:
    world.stored["Ingress", "demo-head"] = {"metadata": {"name": "demo-head", "uid": "i", "ownerReferences": [OWNER]}}
    world.desired = cluster(workers=2, expose={"host": "h"})
    world.ensure_head()
    world.collect()
    assert ("Ingress", "demo-head") in world.stored
    world.desired = cluster(workers=2)
    world.writes.clear()
    world.ensure_head()
    assert [write for write in world.writes if write.startswith("delete")] == []
    world.collect()
    assert ("Ingress", "demo-head") not in world.stored
    world.writes.clear()
    world.collect()
    assert world.writes == []


def test_head_that_may_be_evicted_has_no_disruption_budget(world: World) -> None:
    """And keeps its pod when that changes."""
    world.ensure_head(settled=True)
    owned = {"metadata": {"name": "demo-head", "uid": "b", "ownerReferences": [OWNER]}}
    world.stored["PodDisruptionBudget", "demo-head"] = owned
    world.writes.clear()
    world.desired = cluster(workers=2, head={"eviction": "allow"})
    for _ in range(2):
        world.ensure_head(settled=True)
        world.collect()
    assert world.writes.count("delete PodDisruptionBudget/demo-head") == 1
    assert "apply PodDisruptionBudget/demo-head" not in world.writes
    assert observe.is_rolled_out(world.running["demo-head"]) and world.observe().member(HEAD) is not None
    world.desired = cluster(workers=2)
    world.kinds["PodDisruptionBudget"] = False
    world.ensure_head(settled=True)
    assert world.writes[-1] == "apply PodDisruptionBudget/demo-head"


def test_disruption_budget_of_another_version_is_updated(world: World) -> None:
    world.ensure_head(settled=True)
    head = world.running["demo-head"]
    created = replace(Fingerprint.of(head), rendered="other", version="older", network="other")
    head["metadata"]["annotations"][names.APPLIED] = str(created)
    world.writes.clear()
    world.reopen()
    world.ensure_head()
    assert "apply PodDisruptionBudget/demo-head" in world.writes and "apply Deployment/demo-head" not in world.writes


def test_driver_is_refused_with_a_cause(world: World) -> None:
    driver = replace(world.desired.shape.workers[0], name="job", role=Role.DRIVER, replicas=1)
    world.desired = replace(world.desired, drivers=(driver,))
    assert len(world.observe().members) == 4
    with pytest.raises(PlaceError) as refused:
        asyncio.run(world.place.ensure(world.desired, Ensure(driver, (MemberId("job-0"),))))
    assert refused.value.cause.reason == "DriverNotSupported" and refused.value.cause.hint
    world.collect()
    assert world.writes == []


@pytest.mark.parametrize("verb", ["ensure_head", "ensure", "remove", "collect"])
def test_api_error_is_raised_with_its_cause(world: World, verb: str) -> None:
    if verb == "collect":
        world.remove("c")
        world.deployment["status"] = {"observedGeneration": 1, "replicas": 2}
        del world.of_name["b"]
    world.desired = cluster(workers=2, image="i:2") if verb == "ensure_head" else world.desired
    world.refusal = ApiError(403, {"message": "forbidden by policy"})
    steps = {
        "ensure_head": world.ensure_head,
        "ensure": lambda: world.ensure("a", "b", "c", "d"),
        "remove": lambda: world.remove("c"),
        "collect": world.collect,
    }
    with pytest.raises(PlaceError) as refused:
        steps[verb]()
    assert "forbidden by policy" in refused.value.cause.message


# members


def test_pods_that_only_have_the_labels_are_no_members(world: World) -> None:
    """As `kubectl debug --copy-to=x --keep-labels` makes them, before and after the ReplicaSet adopts the copy. It
    would be the newest head, and receive the helper's token."""
    copied, adopted = (pod(name, "head", created="2026-11-17T03:00:00Z") for name in ("copy", "adopted"))
    del copied["metadata"]["ownerReferences"], copied["metadata"]["generateName"]
    del adopted["metadata"]["generateName"]
    other = pod("other", metadata=created_by("demo-worker-of-somebody", names.pod_labels("demo", "default")))
    job = pod("job")
    job["metadata"]["ownerReferences"][0]["kind"] = "Job"
    referring = pod("referring")
    del referring["metadata"]["ownerReferences"][0]["controller"]
    before = world.observe().members
    world.of_name |= {each["metadata"]["name"]: each for each in (copied, adopted, other, job, referring)}
    assert world.observe().members == before
    assert set(world.place.wire(world.desired).incarnations) == {member.id for member in before}
    assert (observe.head_pod(world.place.pods()) or {})["metadata"]["name"] == "h"


def test_pods_of_a_deleted_deployment_are_members_until_they_are_gone(world: World) -> None:
    world.observe()
    world.running.clear()
    assert len(world.observe().members) == 4
    world.reopen()
    assert world.observe().members == (), "they may be those of an earlier cluster of the same name"


# remove


def test_workers_start_with_a_head_that_waits_for_its_gang(world: World) -> None:
    """Volcano chooses no node before all pods of the PodGroup exist."""
    assert not world.observe().has_head_room
    world.of_name["h"]["metadata"].setdefault("annotations", {})[names.GANG] = "demo-1"
    assert world.observe().has_head_room


def test_workers_make_room_for_a_head_without_a_node(world: World) -> None:
    """Their Deployment starts no others until the head runs."""
    assert not world.observe().has_head_room
    no_node = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    world.of_name["h"] = pod("h", "head", ready=False, containerStatuses=[], conditions=[no_node])
    assert world.remove("a", "b", "c", grace=0.0) == []
    assert world.replicas == 0
    world.of_name["h"] = pod("h", "head")
    world.of_name["h"]["spec"]["nodeName"] = "node-1"
    assert world.observe().has_head_room
    world.ensure("a", "b")
    assert world.replicas == 2


def test_the_head_can_be_removed(world: World) -> None:
    world.remove(HEAD)
    assert world.writes == ["save", "delete Deployment/demo-head"]
    assert world.replicas == 3


def test_stopped_cluster_is_removed_completely(world: World) -> None:
    world.desired = replace(world.desired, running=False)
    assert world.remove(HEAD, "a", "b", "c") == []
    assert set(world.writes) == {"save", "delete Deployment/demo-head", "delete Deployment/demo-worker"}
    world.remove(HEAD, "a", "b", "c")
    assert world.running == {}


def test_deployments_without_pods_of_a_stopped_cluster_are_collected() -> None:
    world = World(workers=("a", "b"))
    world.of_name.clear()  # none was admitted
    world.collect()
    assert world.writes == []
    world.desired = replace(world.desired, running=False)
    world.collect()
    assert set(world.writes) == {"delete Deployment/demo-head", "delete Deployment/demo-worker"}


def test_removing_who_is_gone_changes_nothing(world: World) -> None:
    world.remove("x")
    assert world.writes == ["save"]


def test_workers_of_a_lost_head_are_left_to_their_deployment() -> None:
    world = World(epoch=0)
    world.desired = replace(world.desired, head_epoch=1)
    world.remove("a", "b", "c", grace=0.0)
    assert world.writes == ["save"]


def test_deployment_of_an_older_revision_is_deleted_when_its_head_is_replaced() -> None:
    """Not before: if the change cannot be applied, the workers still serve the head that runs."""
    world = World()
    world.desired = replace(cluster(workers=2, image="i:2"), head_epoch=1)
    world.remove("a", "b", "c", grace=0.0)
    assert world.writes == ["save"]
    world.ensure_head()
    world.remove("a", "b", "c", grace=0.0)
    assert world.writes[-1] == "delete Deployment/demo-worker"


def test_worker_of_the_present_head_can_be_removed_without_grace(world: World) -> None:
    world.remove("c", grace=0.0)
    assert (world.replicas, world.leaving) == (2, ["c"])


def test_older_revision_loses_only_the_named_pods() -> None:
    world = World()
    world.desired = cluster(workers=2, image="i:2")
    world.remove("c")
    assert (world.replicas, world.leaving) == (2, ["c"])
    world.collect()
    assert "demo-worker" in world.running, "a and b have not been drained"
    world.remove("a", "b")
    world.of_name = {name: pod for name, pod in world.of_name.items() if name == "h"}
    world.collect()
    assert "demo-worker" not in world.running


# the head epoch


def test_workers_are_started_for_the_epoch_of_the_desired_state(world: World) -> None:
    world.desired = replace(world.desired, head_epoch=4)
    world.ensure("d", "e", "f")
    assert world.epoch == 4
    assert world.observe().state.head_epoch == 4


def test_worker_of_an_earlier_epoch_that_joined_the_new_head_keeps_its_template() -> None:
    """A new template would replace it with what it holds. The others are replaced one by one."""
    world = World(epoch=1)
    world.desired = replace(cluster(workers=3), head_epoch=2)
    world.observe()
    world.ensure("a", "d", "e")
    assert (world.epoch, world.replicas) == (1, 3)
    world.remove("b", "c", grace=0.0)
    assert world.epoch == 1 and {"b", "c"}.isdisjoint(world.of_name) and "a" in world.of_name
    world.observe()
    world.ensure("d", "e", "f")
    assert world.epoch == 2, "nobody serves who was started for the earlier head"


def test_lost_status_keeps_the_head_epoch() -> None:
    """Workers that are fine would be taken for those of an earlier head."""
    world = World(epoch=3)
    world.state = LoopState()
    world.reopen()
    observed = world.observe()
    assert observed.state.head_epoch == 3
    decision = decide(world.desired, observed, listing("a", "b", "c"), world.now)
    assert (decision.state.head, decision.state.head_epoch) == ("uid-h:0", 3)
    assert not any(isinstance(step, Remove) for step in decision.steps)


def test_status_lost_during_a_drain_loses_no_data() -> None:
    """The engine no longer lists the drained worker, so it is chosen again, drained again and then removed."""
    world = World()
    world.state = LoopState()  # it said that a is drained
    world.reopen()
    decision = decide(world.desired, world.observe(), listing("b", "c"), world.now)
    assert decision.state.retiring == {MemberId("a"): Retiring(world.now)}
    asyncio.run(world.place.record(world.desired, decision.state))
    for step in decision.steps:
        assert not isinstance(step, Remove), "nothing is removed that has not been drained"
        if isinstance(step, Ensure):
            asyncio.run(world.place.ensure(world.desired, step))
    assert world.replicas == 3, "the ReplicaSet would take any"
    drained = replace(world.observe(), state=LoopState(retiring={MemberId("a"): Retiring(world.now, drained=True)}))
    decision = decide(world.desired, drained, listing("b", "c"), world.now)
    (removal,) = [step for step in decision.steps if isinstance(step, Remove)]
    asyncio.run(world.place.record(world.desired, decision.state))
    asyncio.run(world.place.remove(world.desired, removal))
    assert (world.replicas, world.leaving) == (2, ["a"])


def test_the_status_stores_what_the_loop_must_remember() -> None:
    state = LoopState(retiring={MemberId("a"): Retiring(1.5, True, "b")}, head="h:1", head_epoch=2)
    assert status_codec.load_state(status_codec.dump_state(state)) == state
    assert status_codec.load_state({}) == status_codec.load_state(None) == LoopState()


# the engine's view, as the status tells it


def test_pod_is_ready_only_if_the_engine_lists_it(world: World) -> None:
    members = world.observe().members
    status = {"headReady": True, "groups": [{"name": "default", "ready": 2, "unready": ["b"]}]}
    view = status_codec.load_view(status, members)
    assert view.up and {m for m, each in view.members.items() if each.ready} == {"a", "c"}


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        ({}, set()),
        ({"headReady": False, "groups": [{"name": "default", "ready": 3}]}, set()),
        ({"headReady": True}, set()),
        ({"headReady": True, "groups": [{"name": "default", "ready": 0}]}, set()),
        ({"headReady": True, "groups": [{"name": "default", "ready": 3}]}, {"a", "b", "c"}),
        ({"headReady": True, "groups": [{"name": "default", "ready": 2}], "retiring": {"a": {}}}, {"b", "c"}),
        ({"headReady": True, "groups": [{"name": "other", "ready": 3}]}, set()),
    ],
    ids=["no status", "no head", "no groups", "none ready", "all ready", "one leaves", "another group"],
)
def test_ready_workers_are_as_many_as_the_status_counts(
    world: World, status: dict[str, object], ready: set[str]
) -> None:
    view = status_codec.load_view(status, world.observe().members)
    assert {m for m, each in view.members.items() if each.ready} == ready
    assert view.up is bool(status.get("headReady"))


def test_pod_with_a_failing_probe_is_not_ready(world: World) -> None:
    world.set_ready("a", False)
    status = {"headReady": True, "groups": [{"name": "default", "ready": 3}]}
    assert set(status_codec.load_view(status, world.observe().members).members) == {"b", "c"}


def test_scaling_alone_changes_no_revision(world: World) -> None:
    world.desired = with_replicas(world.desired, {"default": 7})
    assert {member.group for member in world.observe().members} == {"head", "default"}


@pytest.mark.parametrize("step", [-3600.0, 3600.0], ids=["back", "forward"])
def test_deleted_object_is_created_again_after_a_step_of_the_clock(step: float) -> None:
    world = World(workers=())
    world.ensure_head()
    world.clock_step = step
    world.kinds["Service"] = False  # it is deleted, or the watch has not shown it yet
    for seconds, writes in ((CATCH_UP - 1, 0), (2, 1)):
        world.now += seconds
        world.writes.clear()
        world.ensure_head()
        assert len([write for write in world.writes if "Service/" in write]) == writes


def test_renderings_of_earlier_epochs_are_forgotten(world: World) -> None:
    for epoch in range(1, 50):
        world.desired = replace(world.desired, head_epoch=epoch)
        world.ensure("a", "b", "c")
    assert len(world.place._rendered_workers) == 1
