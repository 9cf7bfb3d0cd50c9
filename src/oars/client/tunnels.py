"""Connections from this machine to the ports of a cluster's head: directly to its Service (load balancer, node port or
cluster IP) if that is reachable, else a port-forward for each port that follows the head to new pods."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from oars.base.errors import OarsError
from oars.base.files import write_private
from oars.base.text import command
from oars.engines.base import Access
from oars.kube.client import Client
from oars.kube.kinds import SERVICE, Object
from oars.kube.port_forward import Forwarder
from oars.model import Desired, Port
from oars.places.kube import names
from oars.places.kube.render.values import head_values, secret_files
from oars.places.kube.state.secrets import read_secrets
from oars.plan.fill import fill_mapping
from oars.spec.cluster import ClusterSpec

DIAL_SECONDS = 1.0

Endpoint = tuple[str, dict[str, int]]  # a host, and its port for each port of the head by name
FindHead = Callable[[], Awaitable[Object | None]]  # the running pod of the head


class Tunnels:
    """Connections to one cluster."""

    def __init__(self, client: Client, spec: ClusterSpec, cluster: Desired, find_head: FindHead) -> None:
        self._client = client
        self.spec = spec
        self.cluster = cluster
        self._find_head = find_head
        self._opened = contextlib.AsyncExitStack()
        self.directory = Path()  # of this object: the secrets, as files
        self._host = ""
        self._ports: dict[str, int] = {}

    async def open(self, state: Path) -> None:
        """`state`: where to make the directory."""
        served = [port for port in self.cluster.shape.head.process.ports if port.on_service]
        async with contextlib.AsyncExitStack() as opened:  # if a step fails, close what is open
            os.makedirs(state, mode=0o700, exist_ok=True)
            prefix = f"{self.cluster.namespace}-{self.cluster.name}-"
            self.directory = Path(tempfile.mkdtemp(prefix=prefix, dir=state))
            opened.callback(shutil.rmtree, self.directory, ignore_errors=True)
            await self._fetch_secrets()
            if endpoint := await self._reachable_endpoint(served):
                self._host, self._ports = endpoint
            else:
                self._host = "127.0.0.1"
                for port in served:
                    forwarder = make_forwarder(self._client, self._find_head, port.default)
                    opened.push_async_callback(forwarder.close)
                    self._ports[port.name] = await forwarder.start()
            self._opened = opened.pop_all()

    async def _fetch_secrets(self) -> None:
        name, namespace = self.cluster.name, self.cluster.namespace
        wanted = secret_files(self.cluster.shape)
        found = await read_secrets(self._client, name, namespace) if wanted else {}
        for key in wanted:
            if key not in found:
                hint = f"Remove the cluster with `{command('down', name, namespace=namespace)}` and create it again."
                raise OarsError(f"The Secret of cluster {name!r} has no key {key!r}.", hint)
            write_private(self.directory / key, found[key])

    async def _reachable_endpoint(self, served: list[Port]) -> Endpoint | None:
        """The first endpoint of the Service that accepts a connection from here."""
        service = await self._client.get(SERVICE, names.head(self.cluster.name), self.cluster.namespace)
        head = await self._find_head() if service["spec"]["type"] == "NodePort" else None
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
        await self._opened.aclose()


def make_forwarder(client: Client, find_head: FindHead, port: int, local_port: int = 0) -> Forwarder:
    """A port-forward to a port of the head. Each new connection goes to the current head."""

    async def choose() -> tuple[str, str, int]:
        head = await find_head()
        if head is None:
            raise OSError("there is no running head")
        return head["metadata"]["namespace"], head["metadata"]["name"], port

    return Forwarder(client, choose, local_port)


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
