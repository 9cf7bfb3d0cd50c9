"""The Kubernetes place against the contract: a real control plane, simulated pods."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.api.place_contract import KubePlaceContract
from tests.api.stage import Stage, group, resource, sized

from oars.kube.kinds import Object
from oars.model import Member
from oars.places.base import Place


class Simulated(KubePlaceContract):
    @pytest.fixture(autouse=True)
    def _kube(self, stage: Stage) -> None:
        self.kube = stage.kube

    def spec(self) -> dict[str, Any]:
        return {**resource("demo")["spec"], **sized(group(replicas=2))}

    async def kill(self, place: Place, member: Member) -> None:
        """The container ends, and its kubelet, which nobody simulates, restarts it."""
        pod = await self.pod_of(member)
        (status,) = pod["status"]["containerStatuses"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ended = {"terminated": {"exitCode": 137, "startedAt": now, "finishedAt": now}}
        await self._patch(pod, {**status, "state": ended, "ready": False})
        again = {
            "state": {"running": {"startedAt": now}},
            "lastState": ended,
            "restartCount": status["restartCount"] + 1,
        }
        await self._patch(pod, {**status, **again})

    async def _patch(self, pod: Object, container: Object) -> None:
        path = self.kube.path(f"pods/{pod['metadata']['name']}/status")
        await asyncio.to_thread(self.kube.api.patch, path, {"status": {"containerStatuses": [container]}})


class TestOperator(Simulated):
    mode = "operator"


class TestDirect(Simulated):
    mode = "direct"
