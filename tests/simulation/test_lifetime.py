"""Lifetimes: the real operator on a virtual clock, killed after each of its writes in turn, ends a cluster that has no
work, and says so before and after."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from oars.engines.base import Wire
from oars.kube.errors import ApiError
from oars.kube.kinds import Object
from oars.model import View
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from tests.simulation.engine import SimulatedEngine
from tests.simulation.history import Replica
from tests.simulation.test_fairness import ManyClusters, is_ready

TEAM, IDLE = "team", 1800.0
DEMO, OTHER = ((COMPUTE_CLUSTER.plural, TEAM, name) for name in ("demo", "other"))


class IdleHeads(SimulatedEngine):
    """The heads have had no work since a moment of the virtual clock; None: they work."""

    since: float | None = None

    async def look(self, wire: Wire) -> View:
        view, now = await super().look(wire), asyncio.get_running_loop().time()
        return replace(view, idle=0.0 if self.since is None else now - self.since, no_client=0.0)


class Idling(ManyClusters):
    """Two clusters run, one of them with a limit; both have work once, and then none any more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine: IdleHeads = IdleHeads(self.kubernetes, self.random, self.log)
        self.replicas = [Replica("operator", self)]
        self.wanted = {name: [(0.0, 1)] for name in ("demo", "other")}
        self.shown: list[Object] = []  # what the status announced
        self.seconds = 0.0  # from the last work to the end

    async def _run(self) -> None:
        async with self._running():
            self.create(TEAM, "demo", lifetime={"idle": f"{IDLE:g}s"})
            self.create(TEAM, "other")
            await self._until(lambda: is_ready(self.server.get(DEMO)) and is_ready(self.server.get(OTHER)), 300)
            self.engine.since = asyncio.get_running_loop().time()
            await self._until(lambda: self._expires() is not None, IDLE)
            self.engine.since = None
            await self._until(lambda: self._expires() is None, 60)
            self.engine.since = began = asyncio.get_running_loop().time()
            await self._until(lambda: not self._exists(), 2 * IDLE)
            self.seconds = asyncio.get_running_loop().time() - began
            await self._until(lambda: not self.server.labelled("pods", "demo"), 120)

    def _exists(self) -> bool:
        try:
            self.server.get(DEMO)
        except ApiError:
            return False
        return True

    def _expires(self) -> Object | None:
        found: Object | None = (self.server.get(DEMO).get("status") or {}).get("expires")
        if found is not None:
            self.shown.append(found)
        return found

    def events(self) -> list[str]:
        listed = [each for each in self.server.find("events", TEAM) if each["involvedObject"]["name"] == "demo"]
        return [each["reason"] for each in listed if each["reason"] in ("Expires", "Expired")]

    def notes(self) -> list[dict[str, Any]]:
        (found,) = (each for each in self.server.find("configmaps", TEAM) if each["metadata"]["name"] == names.GONE)
        return [json.loads(text) for text in found["data"].values()]


@pytest.mark.parametrize("kills", [[], [7, 5, 3], [20], [26]])
def test_operator_ends_an_idle_cluster_once_whenever_it_is_killed(kills: list[int]) -> None:
    history = Idling(1)
    history.replicas[0].kills = kills
    history.run()
    assert IDLE <= history.seconds <= IDLE + 60, history.seconds  # an operator that was killed takes its time
    assert {each["reason"] for each in history.shown} == {"Idle"}
    assert [(note["name"], note["reason"], note["mode"]) for note in history.notes()] == [("demo", "Idle", "operator")]
    assert is_ready(history.server.get(OTHER))  # it has no limit
    if not kills:
        assert history.events() == ["Expires", "Expired"]
