"""Connections from this machine to the ports of a cluster's head: directly to its Service (load balancer, node port or
cluster IP) if that is reachable, else a port-forward for each port that follows the head to new pods."""

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
from oars.kube.port_forward import Forwarder
from oars.model import Desired, Port
from oars.places.kube import names
from oars.places.kube.render.values import head_values, secret_files
from oars.places.kube.state import observe
from oars.places.kube.state.secrets import read_secrets
from oars.plan.fill import fill_mapping
from oars.spec.cluster import ClusterSpec

DIAL_SECONDS = 1.0

Endpoint = tuple[str, dict[str, int]]  # a host, and its port for each port of the head by name


class Tunnels:
    """Connections to one cluster."""

    def __init__(self, client: Client, spec: ClusterSpec, cluster: Desired, state: Path) -> None:
        self._client = client
        self.spec = spec
        self.cluster = cluster
        self.directory = state / f"{cluster.namespace}-{cluster.name}-{os.getpid()}"  # secrets of this process
        self._forwards: list[Forwarder] = []
        self._host = ""
        self._ports: dict[str, int] = {}

    async def open(self) -> None:
        await self._fetch_secrets()
        served = [port for port in self.cluster.shape.head.process.ports if port.on_service]
        if endpoint := await self._reachable_endpoint(served):
            self._host, self._ports = endpoint
            return
        self._host = "127.0.0.1"
        for port in served:
            forwarder = Forwarder(self._client, self._head_port(port.default))
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
                hint = f"Recreate the cluster: `oars down {self.cluster.name}`, then `oars up {self.cluster.name}`."
                raise OarsError(f"The Secret of cluster {self.cluster.name!r} has no key {name!r}.", hint)
            descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(found[name])

    async def _reachable_endpoint(self, served: list[Port]) -> Endpoint | None:
        """The first endpoint of the Service that accepts a connection from here."""
        service = await self._client.get(SERVICE, names.head(self.cluster.name), self.cluster.namespace)
        head = await self._head() if service["spec"]["type"] == "NodePort" else None
        node = str(head["status"].get("hostIP", "")) if head else ""
        for host, ports in endpoints(service, served, node):
            try:
                async with asyncio.timeout(DIAL_SECONDS):
                    _, writer = await asyncio.open_connection(host, ports[served[0].name])
                writer.close()
                return host, ports
            except (OSError, TimeoutError):
                continue
        return None

    def _head_port(self, port: int) -> Callable[[], Awaitable[tuple[str, str, int]]]:
        """Find the current head for each new connection."""

        async def choose() -> tuple[str, str, int]:
            head = await self._head()
            if head is None:
                raise OSError("there is no running head")
            return self.cluster.namespace, head["metadata"]["name"], port

        return choose

    async def _head(self) -> Object | None:
        """The newest running pod of the head."""
        labels = names.selector(names.pod_labels(self.cluster.name))
        pods = (await self._client.list(POD, self.cluster.namespace, labels=labels)).items
        staying = [pod for pod in pods if observe.is_staying(pod) and observe.phase(pod) == "Running"]
        return max(staying, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)

    def access(self) -> Access:
        cluster, shape = self.cluster, self.cluster.shape
        values = head_values(self._host, shape, self._ports)
        values |= {f"secret.{name}": str(self.directory / name) for name in secret_files(shape)}
        found = fill_mapping(shape.endpoints, values)
        address = found.get("outside", found["client"])
        env = fill_mapping({**shape.driver_env, **shape.outside_env}, values)
        dashboard, secret = found.get("dashboard", ""), values.get(f"secret.{shape.dashboard_secret}", "")
        return Access(cluster.name, cluster.engine, address, dashboard, env, secret)

    async def close(self) -> None:
        for forwarder in self._forwards:
            await forwarder.close()
        self._forwards.clear()
        shutil.rmtree(self.directory, ignore_errors=True)


def endpoints(service: Object, served: Sequence[Port], node: str) -> list[Endpoint]:
    """Possible endpoints of a Service, the most widely reachable first. `node`: the address of a node, if the Service
    has node ports."""
    usual = {port.name: port.default for port in served}
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    found: list[Endpoint] = [(str(entry.get("ip") or entry.get("hostname")), usual) for entry in ingress]
    opened = {entry["port"]: entry.get("nodePort") for entry in service["spec"]["ports"]}
    if node and all(opened.get(port.default) for port in served):
        found.append((node, {port.name: opened[port.default] for port in served}))
    own = service["spec"].get("clusterIP", "")
    return [*found, *([(own, usual)] if own and own != "None" else [])]
