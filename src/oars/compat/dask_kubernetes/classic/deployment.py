"""The pods of one classic KubeCluster: created, connected to, kept and removed from the event loop of its client."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oars.base.errors import EngineUnreachable, OarsError, StartFailed
from oars.client.pod_route import Ask, LocalRoute, Patience, ServiceRoute
from oars.client.pods import PodCluster, PodWatches
from oars.compat.dask_kubernetes import templates
from oars.compat.dask_kubernetes.common.model import Model
from oars.compat.dask_kubernetes.engine import PodWorkers, pod_engine
from oars.compat.dask_kubernetes.templates import PORTS, Settings
from oars.kube import config as kube_config
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import POD, Object
from oars.model import HEAD, Member, MemberState, Port, Role
from oars.places.kube.pods.place import Memory, PodPlace, Setting
from oars.places.kube.why.api_errors import cause_of


@dataclass(frozen=True)
class Plan:
    """What to deploy. `scheduler` is None if the scheduler runs in the client's process; then `head` has its host and
    its ports."""

    settings: Settings
    template: Model  # of the workers
    scheduler: Model | None
    workers: int
    patience: Patience
    service: Mapping[str, Any] = field(default_factory=dict)  # the configured templates
    budget: Mapping[str, Any] = field(default_factory=dict)
    service_type: str = "ClusterIP"
    head: tuple[str, tuple[Port, ...]] | None = None

    def worker(self) -> Model:
        """A worker's pod. It has the address of the scheduler."""
        return templates.worker_pod(self.template, self.settings)

    def with_head(self, address: str, host: str, ports: tuple[Port, ...]) -> Plan:
        """The plan for a scheduler that runs in this process."""
        return replace(self, settings=replace(self.settings, address=address), head=(host, ports))


class Deployment:
    """`ask` sends a request to the helper in the scheduler."""

    def __init__(self, client: Client, plan: Plan, ask: Ask) -> None:
        self._dask = PodWorkers()
        self._client, self._plan, self._ask = client, plan, ask
        self._instance = secrets.token_hex(8)
        self._memory = Memory()
        settings = plan.settings
        self._watches = PodWatches(client, settings.namespace, self._instance, self._wake)
        self.pods: PodCluster | None = None
        self._objects: list[Object] = []
        if plan.scheduler is not None:
            self._objects = [
                templates.service(plan.service, plan.service_type, settings, self._instance),
                templates.disruption_budget(plan.budget, settings, self._instance),
            ]

    def _wake(self) -> None:
        if self.pods is not None:
            self.pods.wake()

    async def start(self) -> None:
        """Return when the scheduler answers. Raises, and leaves nothing behind, if that cannot be."""
        await self._check()
        await self._watches.start()
        try:
            self.pods = await self._reconciled()
            await self.pods.start()
            if isinstance(self.route, ServiceRoute):
                await self._connect(self.pods, self.route)
        except BaseException:
            await self.stop()
            raise

    async def _connect(self, pods: PodCluster, route: ServiceRoute) -> None:
        await pods.wait_until_running()
        while True:
            try:
                await route.open(self._watches.services(self._plan.settings.name))
                break
            except EngineUnreachable:  # the scheduler has just ended; the next line says why
                await pods.wait_until_running()
        await pods.wait_until_up()

    async def _check(self) -> None:
        """Let the API server check everything before anything is created."""
        pods = [pod for pod in (self._plan.worker(), self._plan.scheduler) if pod is not None]
        for obj in (*pods, *self._objects):
            try:
                await self._client.create(dict(obj), dry_run=True)
            except ApiError as error:
                if error.status == 400 and "dry run" in error.message.lower():
                    continue  # an admission webhook of the cluster cannot check without acting
                cause = cause_of(error)
                raise StartFailed(cause.message, cause.hint) from error

    async def _reconciled(self) -> PodCluster:
        plan, settings = self._plan, self._plan.settings
        head, owner = None, None
        self.route: ServiceRoute | LocalRoute
        if plan.head is None:
            ports: tuple[Port, ...] = PORTS
            self.route = ServiceRoute(
                self._client, (settings.name, settings.namespace), PORTS, self.find_head, self._ask, plan.patience
            )
        else:
            host, ports = plan.head
            self.route = LocalRoute(host, ports, self._ask)
            head = Member(HEAD, Role.HEAD, HEAD, MemberState.RUNNING, "local", address=host)
            owner = await self._own_pod()
        setting = Setting(
            self._client, self._watches, self.route, self._memory, self._instance, self._objects, head, owner
        )
        self.place = PodPlace(setting, settings.namespace)
        desired = templates.desired(settings, plan.scheduler, plan.worker(), plan.workers, ports)
        return PodCluster(self.place, pod_engine(self._dask), self._watches, self._memory, desired)

    async def _own_pod(self) -> Object | None:
        """A reference to the pod that this process runs in: the workers of its scheduler are deleted with it."""
        name = os.environ.get("HOSTNAME", "")
        if not name or not kube_config.in_cluster(os.environ):
            return None
        try:
            pod = await self._client.get(POD, name, self._plan.settings.namespace)
        except OarsError:  # it runs in another namespace, or HOSTNAME is another name
            return None
        return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}

    async def find_head(self) -> Object | None:
        head = self.place.head()
        return head if head is not None and head.get("status", {}).get("phase") == "Running" else None

    def worker_pods(self) -> list[Object]:
        """Those that exist, dead ones included."""
        return [pod for pod in self.place.pods() if pod["metadata"]["labels"][templates.COMPONENT] == "worker"]

    def find_pod(self, name: str) -> Object | None:
        return next((pod for pod in self.place.pods() if pod["metadata"]["name"] == name), None)

    def dask_names(self, pod: str) -> list[str]:
        """The names of the pod's workers in Dask: its own, until they are known."""
        return self._dask.workers_of(pod)

    async def stop(self) -> None:
        if self.pods is not None:
            await self.pods.stop()
        else:
            await self._watches.close()

    def service(self) -> Object | None:
        return next((obj for obj in self._watches.owned() if obj["kind"] == "Service"), None)

    async def logs(self, pod: Object) -> str:
        """The log of the pod's first container; empty before it has started."""
        container = pod["spec"]["containers"][0]["name"]
        lines = self._client.logs(pod["metadata"]["name"], pod["metadata"]["namespace"], container=container)
        try:
            return "\n".join([line async for line in lines])
        except ApiError as error:
            if error.status == 400:
                return ""
            raise
