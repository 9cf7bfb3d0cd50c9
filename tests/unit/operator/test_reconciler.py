"""The operator's reconciler: specs that it rejects, passes that fail, and a replica that lost its Lease."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.errors import ApiError, Unreachable
from oars.kube.kinds import Kind, Object
from oars.model import Desired, Pause
from oars.operator.index import Watches
from oars.operator.reconciler import UNCHECKED, ClusterReconciler
from oars.operator.resources import RESOURCE_KINDS, Key
from oars.places.kube.state.nodes import NodeWatch

KEY = Key("ComputeCluster", "team", "demo")


class World:
    """One resource, and the statuses written to it."""

    def __init__(self, **spec: Any) -> None:
        metadata = {"name": "demo", "namespace": "team", "uid": "u", "generation": 1}
        self.resources = {KEY: {"metadata": metadata, "spec": {"engine": "dask", "image": "i:1", **spec}}}
        self.statuses: list[Object] = []
        self.nodes = NodeWatch(cast(Client, self), lambda _: None)
        self.is_leader = True
        self.is_away = False  # the API server does not respond
        self.use(RESOURCE_KINDS)

    def use(self, kinds: Any) -> None:
        self.reconciler = ClusterReconciler(
            cast(Client, self),
            cast(Watches, self),
            kinds,
            pod_namespace="oars-system",
            is_leader=lambda: self.is_leader,
        )

    def cluster(self, key: Key, uid: str) -> World:
        return self

    async def create(self, event: Object) -> Object:
        return event

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, *, subresource: str) -> Object:
        if self.is_away:
            raise Unreachable("The API server does not respond.")
        self.statuses.append(body["status"])
        return {}

    def reconcile(self) -> Pause | None:
        return asyncio.run(self.reconciler.reconcile(KEY))

    async def failed_pass(self) -> None:
        """What the runner does with a pass that raises."""
        with pytest.raises(Exception) as raised:
            await self.reconciler.reconcile(KEY)
        await self.reconciler.report_failure(KEY, raised.value)

    def edit(self, **spec: Any) -> None:
        before = self.resources[KEY]
        metadata = {**before["metadata"], "generation": before["metadata"]["generation"] + 1}
        self.resources[KEY] = {"metadata": metadata, "spec": {**before["spec"], **spec}}


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"dask": {"config": {"distributed": {"scheduler": 5}}}}, "dask.config.distributed.scheduler is not a mapping."),
    ({"dask": {"config": {"distributed": {"scheduler": {"preload": 5}}}}}, "preload is not a list."),
    ({"engine": "mars", "mars": {"config": {"web": 5}}}, "mars.config.web is not a mapping."),
    ({"head": {"memory": "much"}}, "memory"),
    ({"namespace": {"name": "elsewhere"}}, "'elsewhere'"),
]


@pytest.mark.parametrize(("spec", "sentence"), INVALID)
def test_invalid_spec_is_reported_once(spec: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World(**spec)
    assert world.reconcile() is None and world.reconcile() is None, "another pass does not report it again"
    (status,) = world.statuses
    assert (status["phase"], status["reason"], status["observedGeneration"]) == ("Failed", "InvalidSpec", 1)
    assert sentence in status["message"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    world.edit()
    world.reconcile()
    assert [status["observedGeneration"] for status in world.statuses] == [1, 2]


class Wrong(World):
    """The desired state of each generation after `good` cannot be built while `error` is set."""

    def __init__(self, error: Exception, good: int = 0) -> None:
        super().__init__()
        self.error: Exception | None = error
        self.built = 0
        source = RESOURCE_KINDS[0]

        def desired(resource: Object) -> Desired:
            self.built += 1
            if self.error is not None and resource["metadata"]["generation"] > good:
                raise self.error
            return source.desired(resource)

        self.use([replace(source, desired=desired)])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(24, "Too many open files"), "PassFailed"),
        (OarsError("The engine plug-in cannot be loaded."), "PassFailed"),
        (AttributeError("'int' object has no attribute 'get'"), "InternalError"),
    ],
)
@pytest.mark.parametrize("good", [0, 1], ids=["of a new cluster", "of a running cluster"])
def test_error_that_is_not_about_the_spec_is_reported_and_tried_again(
    error: Exception, reason: str, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []

    async def once(_: object, desired: Desired) -> Pause:
        passes.append(desired.generation)
        return Pause(1.0)

    monkeypatch.setattr("oars.control.loop.Loop.once", once)
    world = Wrong(error, good)

    async def story() -> None:
        if good:
            assert await world.reconciler.reconcile(KEY) == Pause(1.0)
            world.edit(replicas=2)
        await world.failed_pass()
        await world.failed_pass()
        world.error = None
        assert await world.reconciler.reconcile(KEY) == Pause(1.0)

    asyncio.run(story())
    assert (passes[-1], world.built) == (good + 1, good + 3), "built in each pass until it succeeds"
    status = world.statuses[-1]
    assert (status["phase"], status["reason"], status["observedGeneration"]) == ("Pending", reason, good + 1)


def test_unchecked_author_is_reported_once_and_checked_again() -> None:
    class Unguarded(World):
        """Without the admission policy; the watch shows the written status."""

        async def get(self, kind: Kind, name: str) -> Object:
            raise ApiError(404, {})

        async def patch(self, *args: Any, **options: Any) -> Object:
            await super().patch(*args, **options)
            self.resources[KEY]["status"] = self.statuses[-1]
            return {}

    world = Unguarded(head={"pod": {"spec": {"hostNetwork": True}}})
    assert world.reconcile() == UNCHECKED and world.reconcile() == UNCHECKED
    (status,) = world.statuses
    assert (status["phase"], status["reason"], status["observedGeneration"]) == ("Failed", "AuthorNotChecked", 1)
    assert "head.pod.spec.hostNetwork" in status["message"]


def test_recreated_resource_is_reported_again() -> None:
    world = World(**INVALID[0][0])
    world.reconcile()
    found = world.resources.pop(KEY)
    world.reconcile()
    world.resources[KEY] = found
    world.reconcile()
    assert len(world.statuses) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("name"), "InternalError"),
        (TimeoutError(), "PassFailed"),
        (OSError("no file descriptors"), "PassFailed"),
        (OarsError("The engine does not answer."), "PassFailed"),
        (ApiError(500, {"message": "etcd is down"}), "InternalError"),
        (ApiError(409, {"message": "changed"}), "Conflict"),
        (ApiError(403, {"message": "no"}), "Forbidden"),
        (Unreachable("cut"), "ApiServerUnreachable"),
    ],
)
def test_every_failed_pass_is_reported_once(error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("oars.control.loop.Loop.once", fail)
    world = World()

    async def passes() -> None:
        await world.failed_pass()
        await world.failed_pass()

    asyncio.run(passes())
    (status,) = world.statuses
    assert (status["phase"], status["reason"], status["observedGeneration"]) == ("Pending", reason, 1)


def test_pass_that_fails_before_the_cluster_is_tracked_is_reported() -> None:
    """Here the stored loop state is damaged, so that no place can be made."""
    world = World()
    world.resources[KEY]["status"] = {"retiring": {"worker-0": 5}}
    asyncio.run(world.failed_pass())
    (status,) = world.statuses
    assert status["reason"] == "InternalError" and "ValueError" in status["message"]


def test_failure_appears_in_the_status_when_the_api_server_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise TimeoutError("the quota service does not answer")

    monkeypatch.setattr("oars.control.loop.Loop.once", fail)
    world = World()
    world.is_away = True

    async def passes() -> None:
        with pytest.raises(Unreachable):  # the runner logs it
            await world.failed_pass()
        world.is_away = False
        await world.failed_pass()

    asyncio.run(passes())
    (status,) = world.statuses
    assert "the quota service does not answer" in status["message"]


def test_replica_that_lost_its_lease_neither_reconciles_nor_reports() -> None:
    world = World()
    world.is_leader = False
    assert world.reconcile() is not None, "it looks again"
    asyncio.run(world.reconciler.report_failure(KEY, KeyError("x")))
    assert not world.statuses
