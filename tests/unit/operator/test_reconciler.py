"""Specs that the schema accepts and the operator rejects: reported once, with a message."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any, cast

import pytest

from oars.control.loop import Pause
from oars.kube.client import Client
from oars.kube.kinds import Kind, Object
from oars.model import Desired
from oars.operator.index import Watches
from oars.operator.reconciler import ClusterReconciler
from oars.operator.resources import RESOURCE_KINDS, Key

KEY = Key("ComputeCluster", "team", "demo")


class World:
    """One resource, and the statuses written to it."""

    def __init__(self, **spec: Any) -> None:
        metadata = {"name": "demo", "namespace": "team", "uid": "u", "generation": 1}
        self.resources = {KEY: {"metadata": metadata, "spec": {"engine": "dask", "image": "i:1", **spec}}}
        self.statuses: list[Object] = []
        self.use(RESOURCE_KINDS)

    def use(self, kinds: Any) -> None:
        self.reconciler = ClusterReconciler(cast(Client, self), cast(Watches, self), kinds, in_cluster=True)

    async def create(self, event: Object) -> Object:
        return event

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, *, subresource: str) -> Object:
        self.statuses.append(body["status"])
        return {}

    def reconcile(self) -> Pause | None:
        return asyncio.run(self.reconciler.reconcile(KEY))

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


def test_unexpected_error_while_reading_a_spec_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Object) -> Desired:
        raise AttributeError("'int' object has no attribute 'get'")

    world = World()
    world.use([replace(RESOURCE_KINDS[0], desired=broken)])
    assert world.reconcile() is None and world.reconcile() is None
    (status,) = world.statuses
    assert status["reason"] == "InvalidSpec" and "AttributeError: 'int' object" in status["message"]
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.exc_info is not None, "logged once, with the traceback"


def test_recreated_resource_is_reported_again() -> None:
    world = World(**INVALID[0][0])
    world.reconcile()
    found = world.resources.pop(KEY)
    world.reconcile()
    world.resources[KEY] = found
    world.reconcile()
    assert len(world.statuses) == 2
