"""Descriptions that the schema lets through and we cannot follow: told once, in a sentence."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from oars.base.rate import PollSpread
from oars.kube.client import Client
from oars.kube.kinds import Kind, Object
from oars.operator import reconciler
from oars.operator.index import Watches
from oars.operator.reconciler import Reconciler
from oars.plan.decide import HEALING_RESTING, HEALING_SOON, HEALING_WAITING

KEY = ("team", "demo")


class World:
    """One resource, and what is written to it."""

    def __init__(self, **spec: Any) -> None:
        metadata = {"name": "demo", "namespace": "team", "uid": "u", "generation": 1}
        self.clusters = {KEY: {"metadata": metadata, "spec": {"engine": "dask", "image": "i:1", **spec}}}
        self.told: list[Object] = []
        self.keeping = Reconciler(
            cast(Client, self), cast(Watches, self), PollSpread(1.0), PollSpread(1.0), inside=True
        )

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, *, subresource: str) -> Object:
        self.told.append(body["status"])
        return {}

    def look(self) -> float | None:
        return asyncio.run(self.keeping.once(KEY))

    def edit(self, **spec: Any) -> None:
        before = self.clusters[KEY]
        metadata = {**before["metadata"], "generation": before["metadata"]["generation"] + 1}
        self.clusters[KEY] = {"metadata": metadata, "spec": {**before["spec"], **spec}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dask": {"config": {"distributed": {"scheduler": 5}}}}, "dask.config.distributed.scheduler is not a map."),
    ({"dask": {"config": {"distributed": {"scheduler": {"preload": 5}}}}}, "preload is not a list."),
    ({"engine": "mars", "mars": {"config": {"web": 5}}}, "mars.config.web is not a map."),
    ({"head": {"memory": "much"}}, "memory"),
    ({"namespace": {"name": "elsewhere"}}, "'elsewhere'"),
]


@pytest.mark.parametrize(("spec", "sentence"), WRONG)
def test_what_is_wrong_is_told_once(spec: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture) -> None:
    world = World(**spec)
    assert world.look() is None and world.look() is None, "a change of its pods is no reason to say it again"
    (status,) = world.told
    assert (status["phase"], status["reason"], status["observedGeneration"]) == ("Failed", "InvalidSpec", 1)
    assert sentence in status["message"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    world.edit()
    world.look()
    assert [status["observedGeneration"] for status in world.told] == [1, 2]


def test_what_breaks_us_is_told_as_well(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody foresaw it; to try it again and again would help as little as to say nothing."""

    def broken(_: Object) -> None:
        raise AttributeError("'int' object has no attribute 'get'")

    monkeypatch.setattr(reconciler, "described", broken)
    world = World()
    assert world.look() is None and world.look() is None
    (status,) = world.told
    assert status["reason"] == "InvalidSpec" and "AttributeError: 'int' object" in status["message"]
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.exc_info is not None, "with the traceback, once"


def test_a_deleted_one_is_forgotten() -> None:
    world = World(**WRONG[0][0])
    world.look()
    found = world.clusters.pop(KEY)
    world.look()
    world.clusters[KEY] = found
    world.look()
    assert len(world.told) == 2


def test_those_that_wait_and_those_that_rest_take_turns_among_themselves() -> None:
    """However many there are, so many looks a second in all; one that acts is in neither crowd."""
    waiting, resting = PollSpread(10.0), PollSpread(20.0)
    kept = Reconciler(cast(Client, None), cast(Watches, None), waiting, resting, inside=True)
    pauses = [kept._spread(("team", str(number)), HEALING_RESTING) for number in range(300)]
    assert (pauses[0], pauses[-1], waiting.turn) == (HEALING_RESTING, 15.0, 0.0)
    pauses = [kept._spread(("team", str(number)), HEALING_WAITING) for number in range(100)]
    assert (pauses[0], pauses[-1], resting.turn) == (HEALING_WAITING, 10.0, 10.0)
    assert (kept._spread(("team", "0"), HEALING_SOON), waiting.turn) == (HEALING_SOON, 9.9)
