"""The ways from here to what a cluster's head serves: its Service if that can be dialled, from a balancer, a node or
inside, else a forward for each port that finds the head again wherever it goes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from oars.base.errors import OarsError
from oars.engines.base import Access
from oars.kube.client import Client
from oars.kube.kinds import POD, SERVICE, Object
from oars.kube.streams import Forwarder
from oars.model import Port
from oars.places.kube import names
from oars.places.kube.render.pod import Cluster
from oars.places.kube.render.values import head_values, secret_files
from oars.places.kube.state import observe
from oars.places.kube.state.secrets import read_secrets
from oars.plan.fill import fill_mapping

DIAL_SECONDS = 1.0

Address = tuple[str, dict[str, int]]  # a host, and its port for each of ours by name


class Tunnels:
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
        served = [port for port in self.cluster.shape.head.process.ports if port.on_service]
        door = await self._dialled(served)
        if door:
            self._host, self._ports = door
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

    async def _dialled(self, served: list[Port]) -> Address | None:
        """The Service's address, if packets get there from here."""
        service = await self._client.get(SERVICE, names.head(self.cluster.name), self.cluster.namespace)
        head = await self._head() if service["spec"]["type"] == "NodePort" else None
        node = str(head["status"].get("hostIP", "")) if head else ""
        for host, ports in doors(service, served, node):
            try:
                async with asyncio.timeout(DIAL_SECONDS):
                    _, writer = await asyncio.open_connection(host, ports[served[0].name])
                writer.close()
                return host, ports
            except (OSError, TimeoutError):
                continue
        return None

    def _chooser(self, port: int) -> Callable[[], Awaitable[tuple[str, str, int]]]:
        async def choose() -> tuple[str, str, int]:
            head = await self._head()
            if head is None:
                raise OSError("the head is not there")
            return self.cluster.namespace, head["metadata"]["name"], port

        return choose

    async def _head(self) -> Object | None:
        """The head's pod, if it runs."""
        labels = names.selector(names.pod_labels(self.cluster.name))
        pods = (await self._client.list(POD, self.cluster.namespace, labels=labels)).items
        staying = [pod for pod in pods if observe.is_staying(pod) and observe.phase(pod) == "Running"]
        return max(staying, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)

    def access(self) -> Access:
        cluster, shape = self.cluster, self.cluster.shape
        values = head_values(self._host, shape, self._ports)
        values |= {f"secret.{name}": str(self.directory / name) for name in secret_files(shape)}
        endpoints = fill_mapping(shape.endpoints, values)
        address = endpoints.get("outside", endpoints["client"])
        env = fill_mapping({**shape.driver_env, **shape.outside_env}, values)
        page, secret = endpoints.get("dashboard", ""), values.get(f"secret.{shape.dashboard_secret}", "")
        return Access(cluster.name, cluster.spec.engine, address, page, env, secret)

    async def close(self) -> None:
        for forwarder in self._forwards:
            await forwarder.close()
        self._forwards.clear()
        shutil.rmtree(self.directory, ignore_errors=True)


def doors(service: Object, served: Sequence[Port], node: str) -> list[Address]:
    """Where the Service may answer, the widest open first. `node`: any node's address, if it opens ports there."""
    usual = {port.name: port.default for port in served}
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    found: list[Address] = [(str(entry.get("ip") or entry.get("hostname")), usual) for entry in ingress]
    opened = {entry["port"]: entry.get("nodePort") for entry in service["spec"]["ports"]}
    if node and all(opened.get(port.default) for port in served):
        found.append((node, {port.name: opened[port.default] for port in served}))
    own = service["spec"].get("clusterIP", "")
    return [*found, *([(own, usual)] if own and own != "None" else [])]
