"""The way from a client to the head of a cluster of bare pods: through its Service if that can be dialled, else by
port-forward, which follows the head to new pods."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from oars.base.errors import EngineUnreachable, OarsError, TimedOut
from oars.client.tunnels import FindHead, make_forwarder
from oars.kube import config
from oars.kube.client import Client
from oars.kube.kinds import NODE, Object
from oars.kube.port_forward import open_port
from oars.model import Port
from oars.places.kube.why.api_errors import denied_with_rule

DIAL_SECONDS = 1.0
RETRY_SECONDS = 0.5
NODES_TRIED = 3  # of a NodePort: any node forwards to the head

Ask = Callable[[Mapping[str, Any], float], Awaitable[Any]]


@dataclass(frozen=True)
class Patience:
    """How long to wait for what Kubernetes does by itself."""

    load_balancer: float = 30.0  # seconds until the Service has an address; 0: without a limit
    name_attempts: int = 20  # to resolve the Service's name, inside the cluster


class ServiceRoute:
    """`find_head` returns the head's pod; `ask` sends a request to the engine's helper in the head."""

    def __init__(
        self,
        client: Client,
        service: tuple[str, str],
        ports: Sequence[Port],
        find_head: FindHead,
        ask: Ask,
        patience: Patience | None = None,
    ) -> None:
        self._client = client
        self._name, self._namespace = service
        self._ports = ports
        self._find_head = find_head
        self._ask = ask
        self._patience = patience or Patience()
        self._opened = AsyncExitStack()
        self._addresses: dict[str, str] = {}

    @property
    def host(self) -> str:
        return f"{self._name}.{self._namespace}"

    async def address(self, port: str) -> str:
        if port not in self._addresses:
            raise EngineUnreachable("There is no connection to the head yet.")
        return self._addresses[port]

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        return await self._ask(request, seconds)

    async def open(self, services: AsyncIterator[Object]) -> None:
        """`services`: the Service now and after each change."""
        service = await anext(services)
        kind = service["spec"].get("type", "ClusterIP")
        if kind == "LoadBalancer":
            found = await self._balanced(service, services)
        elif kind == "NodePort":
            found = await self._on_node(service)
        else:
            found = await self._by_name()
        self._addresses = found or await self._forwarded()

    async def close(self) -> None:
        self._addresses = {}
        await self._opened.aclose()

    async def _by_name(self) -> dict[str, str] | None:
        """Inside the cluster its DNS knows the Service, after a moment."""
        attempts = max(1, self._patience.name_attempts) if config.in_cluster(os.environ) else 1
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(RETRY_SECONDS)
            if await is_reachable(self.host, self._ports[0].default):
                return self._at(self.host)
        return None

    async def _on_node(self, service: Object) -> dict[str, str] | None:
        with denied_with_rule():
            nodes = (await self._client.list(NODE)).items
        opened = {entry["port"]: entry["nodePort"] for entry in service["spec"]["ports"]}
        for host in node_addresses(nodes)[:NODES_TRIED]:
            if await is_reachable(host, opened[self._ports[0].default]):
                return {port.name: f"{host}:{opened[port.default]}" for port in self._ports}
        return None

    async def _balanced(self, service: Object, services: AsyncIterator[Object]) -> dict[str, str] | None:
        limit = self._patience.load_balancer or None
        try:
            async with asyncio.timeout(limit):
                while not (ingress := service.get("status", {}).get("loadBalancer", {}).get("ingress")):
                    service = await anext(services)
                host = str(ingress[0].get("hostname") or ingress[0].get("ip"))
                while not await is_reachable(host, self._ports[0].default):  # noqa: ASYNC110 (another machine)
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            raise TimedOut(
                f"Service {self._name} has no load balancer that answers after {limit:.0f} s.",
                "Load balancers need a controller in the Kubernetes cluster: ask its administrator, or set "
                "`kubernetes.scheduler-service-type` to ClusterIP.",
            ) from None
        return self._at(host)

    def _at(self, host: str) -> dict[str, str]:
        return {port.name: f"{host}:{port.default}" for port in self._ports}

    async def _forwarded(self) -> dict[str, str]:
        await self._check_forward()
        found = {}
        for port in self._ports:
            forwarder = make_forwarder(self._client, self._find_head, port.default)
            self._opened.push_async_callback(forwarder.close)
            found[port.name] = f"127.0.0.1:{await forwarder.start()}"
        return found

    async def _check_forward(self) -> None:
        """Raise Denied now if we may not forward ports: a Forwarder retries, and its user sees a timeout only."""
        head = await self._find_head()
        if head is None:
            raise EngineUnreachable("The head is gone.")
        name = head["metadata"]["name"]
        with denied_with_rule():
            connection = await open_port(self._client, self._namespace, name, self._ports[0].default)
        await connection.close()


def node_addresses(nodes: Sequence[Object]) -> list[str]:
    """External addresses first: we are most likely outside."""
    kinds = ("ExternalIP", "InternalIP")
    found = [
        (kinds.index(entry["type"]), entry["address"])
        for node in nodes
        for entry in node.get("status", {}).get("addresses") or ()
        if entry["type"] in kinds
    ]
    return [address for _, address in sorted(found, key=lambda item: item[0])]


async def is_reachable(host: str, port: int) -> bool:
    """True if somebody is at that address, who may not listen yet."""
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    return True


class LocalRoute:
    """The way to a head that runs in this process."""

    def __init__(self, host: str, ports: Sequence[Port], ask: Ask) -> None:
        self.host = host
        self._ports = {port.name: port.default for port in ports}
        self._ask = ask

    async def address(self, port: str) -> str:
        if port not in self._ports:
            raise OarsError(f"The head has no port {port!r}.")
        return f"{self.host}:{self._ports[port]}"

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        return await self._ask(request, seconds)

    async def close(self) -> None:
        """Nothing is open."""
