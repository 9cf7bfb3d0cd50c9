"""The ways from here to what a cluster's head serves: its Service if it can be dialled, else a forward for each port
that finds the head again wherever it goes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from oars.base.errors import OarsError
from oars.engines.base import Access
from oars.kube.client import Client
from oars.kube.kinds import POD, SERVICE, Object
from oars.kube.streams import Forwarder
from oars.model import Port
from oars.places.kube import names, observe
from oars.places.kube.pod import Cluster
from oars.places.kube.secrets import read_secrets
from oars.places.kube.values import head_values, secret_files
from oars.plan.fill import fill_mapping

DIAL_SECONDS = 1.0


class Ways:
    """To one cluster."""

    def __init__(self, client: Client, cluster: Cluster, state: Path) -> None:
        self._client = client
        self.cluster = cluster
        self.directory = state / f"{cluster.namespace}-{cluster.name}-{os.getpid()}"  # what is fetched for this program
        self._forwards: list[Forwarder] = []
        self._host = ""
        self._ports: dict[str, int] = {}

    async def open(self) -> None:
        await self._fetch_secrets()
        served = [port for port in self.cluster.shape.head.process.ports if port.served]
        host = await self._dialled(served)
        if host:
            self._host, self._ports = host, {port.name: port.default for port in served}
            return
        self._host = "127.0.0.1"
        for port in served:
            forwarder = Forwarder(self._client, self._chooser(port.default))
            self._ports[port.name] = await forwarder.start()
            self._forwards.append(forwarder)

    async def _fetch_secrets(self) -> None:
        wanted = secret_files(self.cluster.shape)
        if not wanted:
            return
        found = await read_secrets(self._client, self.cluster.name, self.cluster.namespace)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in wanted:
            if name not in found:
                raise OarsError(f"The Secret of {self.cluster.name!r} lacks {name}.", "Was it changed by hand?")
            descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(found[name])

    async def _dialled(self, served: list[Port]) -> str:
        """The Service's address, if packets get there from here."""
        service = await self._client.get(SERVICE, names.head(self.cluster.name), self.cluster.namespace)
        for host in _hosts(service):
            try:
                async with asyncio.timeout(DIAL_SECONDS):
                    _, writer = await asyncio.open_connection(host, served[0].default)
                writer.close()
                return host
            except (OSError, TimeoutError):
                continue
        return ""

    def _chooser(self, port: int) -> Callable[[], Awaitable[tuple[str, str, int]]]:
        async def choose() -> tuple[str, str, int]:
            labels = {names.CLUSTER: self.cluster.name, names.ROLE: "head"}
            pods = (await self._client.list(POD, self.cluster.namespace, labels=names.selector(labels))).items
            staying = [pod for pod in pods if observe.is_staying(pod) and observe.phase(pod) == "Running"]
            if not staying:
                raise OSError("the head is not there")
            newest = max(staying, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
            return self.cluster.namespace, newest["metadata"]["name"], port

        return choose

    def access(self) -> Access:
        cluster, shape = self.cluster, self.cluster.shape
        values = head_values(self._host, shape, self._ports)
        values |= {f"secret.{name}": str(self.directory / name) for name in secret_files(shape)}
        endpoints = fill_mapping(shape.endpoints, values)
        address = endpoints.get("outside", endpoints["client"])
        env = fill_mapping({**shape.driver_env, **shape.outside_env}, values)
        return Access(cluster.name, cluster.spec.engine, address, endpoints.get("dashboard", ""), env)

    async def close(self) -> None:
        for forwarder in self._forwards:
            await forwarder.close()
        self._forwards.clear()
        shutil.rmtree(self.directory, ignore_errors=True)


def _hosts(service: Object) -> list[str]:
    """Addresses under which its ports are the usual ones."""
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    balanced = [str(entry.get("ip") or entry.get("hostname")) for entry in ingress]
    own = service["spec"].get("clusterIP", "")
    return [*balanced, *([own] if own and own != "None" else [])]
