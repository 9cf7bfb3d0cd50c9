"""What `cluster.scheduler` and the values of `cluster.workers` are: handles to pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed.utils import Log

from oars.compat.dask_kubernetes.classic.deployment import Deployment
from oars.compat.dask_kubernetes.common.model import Model, model
from oars.kube.kinds import Object


class PodHandle:
    """A pod that may not exist yet, or no longer."""

    def __init__(self, deployment: Deployment, name: str, find: Callable[[], Object | None]) -> None:
        self._deployment = deployment
        self._find = find
        self.name = name

    @property
    def pod(self) -> Model | None:
        found = self._find()
        return model(found) if found is not None else None

    @property
    def status(self) -> str:
        found = self._find()
        return str(found.get("status", {}).get("phase", "Pending")) if found is not None else "Pending"

    async def describe_pod(self) -> Model | None:
        return self.pod

    async def logs(self) -> Log:
        found = self._find()
        return Log(await self._deployment.logs(found) if found is not None else "")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: status={self.status}>"


class WorkerHandle(PodHandle):
    """A worker's pod."""


class SchedulerHandle(PodHandle):
    """The scheduler's pod. `address` is the scheduler's inside the Kubernetes cluster, `external_address` the one that
    this client uses."""

    def __init__(self, deployment: Deployment, name: str, address: str, external_address: str) -> None:
        super().__init__(deployment, name, deployment.place.head)
        self.address = address
        self.external_address = external_address

    @property
    def service(self) -> Any:
        return model(self._deployment.service())
