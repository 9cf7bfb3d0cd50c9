"""The place of bare pods against the contract: a real control plane, simulated pods, and the Role of the page of
dask-kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.kwok import POD as SIMULATED
from lab.wait import until as wait_until
from tests.api.stage import Stage
from tests.api.test_rbac_modes import account, kubeconfig_of, may
from tests.compat.blocks import DASK_KUBERNETES_CLASSIC, page
from tests.unit.places.pod_world import World

from oars.client.pods import PodWatches
from oars.kube import config
from oars.kube.client import Client
from oars.kube.kinds import POD, POD_DISRUPTION_BUDGET, SERVICE, Object
from oars.model import HEAD, Desired, Group, Member, Port, Process, Role, Shape
from oars.places.base import Place
from oars.places.kube import names
from oars.places.kube.pods.place import Memory, PodPlace, Setting
from oars.testing import PlaceContract
from oars.testing.place import in_place, until

INSTANCE = "abc"
ROLE = next(yaml.safe_load(code) for _, code in page(DASK_KUBERNETES_CLASSIC) if "kind: Role" in code)


def group(name: str, role: Role, replicas: int, namespace: str) -> Group:
    container = {"name": "main", "image": "oars.lab/simulated:1"}
    labels = {"component": role.value}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "demo-", "namespace": namespace, "labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [container], **SIMULATED},
    }
    ports = (Port("client", 8786),) if role is Role.HEAD else (Port("any", 0),)
    return Group(name, role, replicas, Process(argv=(), ports=ports), pod=pod)


class TestBarePods(PlaceContract):
    @pytest.fixture(autouse=True)
    def _stage(self, stage: Stage, tmp_path: Path) -> None:
        """Everything is done with exactly the rights of the page's Role."""
        self.stage = stage
        account(stage, "ann")
        version, metadata = "rbac.authorization.k8s.io/v1", {"name": "dask-kubernetes"}
        binding = {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": metadata,
            "subjects": [{"kind": "ServiceAccount", "name": "ann", "namespace": stage.kube.namespace}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", **metadata},
        }
        stage.kube.apply({**ROLE, "apiVersion": version, "metadata": metadata}, binding)
        wait_until("the role is effective", lambda: may(stage, "ann", "list", "pods"))
        self.kubeconfig = kubeconfig_of(stage, "ann", tmp_path / "config")

    def place(self) -> AbstractAsyncContextManager[tuple[Place, Desired]]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[Place, Desired]]:
        namespace = self.stage.kube.namespace
        target = config.load({}, namespace=namespace, kubeconfig=self.kubeconfig)
        self.memory = Memory()
        self.watches: list[PodWatches] = []
        shape = Shape(
            head=group("head", Role.HEAD, 1, namespace),
            workers=(group("default", Role.WORKER, 2, namespace),),
            endpoints={"client": "tcp://$(head.host):$(head.client)"},
        )
        async with Client(target, user_agent="oars-test") as self.client:
            try:
                yield await self._open(), Desired("demo", "dask", "kubernetes", shape, namespace=namespace)
            finally:
                for each in self.watches:
                    await each.close()

    async def _open(self) -> PodPlace:
        namespace = self.stage.kube.namespace
        watches = PodWatches(self.client, namespace, INSTANCE, lambda: None)
        await watches.start()
        self.watches.append(watches)
        objects = [self._object("v1", "Service"), self._object("policy/v1", "PodDisruptionBudget")]
        setting = Setting(self.client, watches, World(), self.memory, INSTANCE, objects)
        return PodPlace(setting, namespace)

    def _object(self, version: str, kind: str) -> Object:
        selected = {"component": "head", names.INSTANCE: INSTANCE}
        spec: dict[str, Any] = {"selector": selected, "ports": [{"port": 8786}]}
        if kind != "Service":
            spec = {"selector": {"matchLabels": selected}, "minAvailable": 1}
        metadata = {"name": "demo", "namespace": self.stage.kube.namespace, "labels": {names.INSTANCE: INSTANCE}}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}

    async def reopen(self, place: Place) -> Place:
        return await self._open()

    async def kill(self, place: Place, member: Member) -> None:
        """The process ends, and the kubelet, which nobody simulates, does not restart it."""
        pods = await asyncio.to_thread(self.stage.kube.pods, f"{names.INSTANCE}={INSTANCE}")
        pod = next(each for each in pods if each["metadata"]["uid"] == member.incarnation.partition(":")[0])
        (status,) = pod["status"]["containerStatuses"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ended = {"terminated": {"exitCode": 137, "startedAt": now, "finishedAt": now}}
        body = {"phase": "Failed", "containerStatuses": [{**status, "state": ended, "ready": False}]}
        path = self.stage.kube.path(f"pods/{pod['metadata']['name']}/status")
        await asyncio.to_thread(self.stage.kube.api.patch, path, {"status": body})

    async def inventory(self, place: Place) -> Mapping[str, str]:
        """Versions are left out: kwok writes to pods too."""
        found = {"recorded": ""}
        for kind in (POD, SERVICE, POD_DISRUPTION_BUDGET):
            listed = await self.client.list(kind, self.stage.kube.namespace, labels=f"{names.INSTANCE}={INSTANCE}")
            found |= {f"{kind.kind} {each['metadata']['name']}": "" for each in listed.items}
        return found

    @in_place
    async def test_deleting_the_head_pod_deletes_everything(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        head = next(pod for pod in self.watches[0].pods() if pod["metadata"]["labels"][names.GROUP] == HEAD)
        await self.client.delete(POD, head["metadata"]["name"], self.stage.kube.namespace)

        async def is_empty() -> bool:
            return await self.inventory(place) == {"recorded": ""}

        await until(is_empty)

    @in_place
    async def test_stopped_cluster_leaves_nothing(self, place: Place, desired: Desired) -> None:
        await self.start(place, desired)
        stopped = replace(desired, running=False)

        async def is_empty() -> bool:
            await place.collect(stopped)
            return await self.inventory(place) == {"recorded": ""}

        await until(is_empty)
