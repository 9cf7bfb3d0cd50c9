"""The Kubernetes place against the contract: real pods that only sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lab.kube import Kube

from oars.model import Desired, Group, Member
from oars.places.base import Place
from tests.api.place_contract import KubePlaceContract

SLEEP = ("sh", "-c", 'trap "exit 0" TERM; sleep 3600 & wait')


class TestSleepers(KubePlaceContract):
    mode = "direct"  # tests/api has both

    @pytest.fixture(autouse=True)
    def _kube(self, kube: Kube, crash: Callable[[Any, str], None]) -> None:
        self.kube = kube
        self.crash = crash

    def spec(self) -> dict[str, Any]:
        size = {"cpu": "0.05", "memory": "64Mi"}
        return {"engine": "simulated", "image": self.kube.image("base"), "head": size, "workers": [size], "replicas": 2}

    def desired(self) -> Desired:
        found = super().desired()
        shape = found.shape
        return replace(found, shape=replace(shape, head=_asleep(shape.head), workers=(_asleep(shape.workers[0]),)))

    async def kill(self, place: Place, member: Member) -> None:
        await asyncio.to_thread(self.crash, await self.pod_of(member), member.role.value)


def _asleep(group: Group) -> Group:
    return replace(group, process=replace(group.process, argv=SLEEP))
