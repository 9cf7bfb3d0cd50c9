"""Connections from this machine to the ports of a cluster's head: directly to its Service (load balancer, node port or
cluster IP) if that is reachable, else a port-forward for each port that follows the head to new pods."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from oars.base.errors import OarsError, TimedOut
from oars.base.files import write_private
from oars.base.text import command
from oars.engines.base import Access
from oars.kube.client import Client
from oars.kube.kinds import SERVICE, Object
from oars.kube.port_forward import Forwarder
from oars.model import Desired, Port
from oars.places.kube import names
from oars.places.kube.render.values import client_ports, head_values, secret_files
from oars.places.kube.state.secrets import read_secrets
from oars.places.process.ledger import locked
from oars.plan.fill import fill, fill_mapping
from oars.spec.cluster import ClusterSpec

DIAL_SECONDS = 1.0
POLL_SECONDS = 0.5
LOCK = ".lock"

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
        served = client_ports(self.cluster.shape)
        async with contextlib.AsyncExitStack() as opened:  # if a step fails, close what is open
            directory = owned_directory(state, f"{self.cluster.namespace}-{self.cluster.name}-")
            self.directory = opened.enter_context(directory)
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
                why = command("why", name, namespace=namespace)
                hint = f"Oars restores a lost Secret within a minute; see `{why}`."
                raise OarsError(f"The Secret of cluster {name!r} has no key {key!r}.", hint)
            write_private(self.directory / key, found[key])

    async def _reachable_endpoint(self, served: list[Port]) -> Endpoint | None:
        """The first endpoint of the Service that accepts a connection from here."""
        service = await self._client.get(SERVICE, names.head(self.cluster.name), self.cluster.namespace)
        for host, ports in endpoints(service, served, await _node(service, self._find_head)):
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
        return Access(cluster.name, cluster.engine, address, found.get("dashboard", ""), env, cluster.namespace)

    async def close(self) -> None:
        await self._opened.aclose()


@contextlib.contextmanager
def owned_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """A new private directory, removed at the end, or by the next caller if this process is killed: it holds the lock
    on a file in it."""
    os.makedirs(parent, mode=0o700, exist_ok=True)
    with locked(parent.with_name(f"{parent.name}.lock")):
        for found in parent.iterdir():
            if not _is_owned(found):
                shutil.rmtree(found, ignore_errors=True)
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _is_owned(path: Path) -> bool:
    """True if a process holds the lock in the directory."""
    try:
        with open(path / LOCK, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it was killed while it created or removed the directory
        return False
    return False


def make_forwarder(client: Client, find_head: FindHead, port: int, local_port: int = 0) -> Forwarder:
    """A port-forward to a port of the head. Each new connection goes to the current head."""

    async def choose() -> tuple[str, str, int]:
        head = await find_head()
        if head is None:
            raise OSError("there is no running head")
        return head["metadata"]["namespace"], head["metadata"]["name"], port

    return Forwarder(client, choose, local_port)


async def published_address(client: Client, cluster: Desired, find_head: FindHead, seconds: float) -> str:
    """The address for clients by which others reach the head's Service: that of its load balancer, which may take
    time to get one, of the node with the head's pod, or of the Service itself. This machine may not reach it."""
    name, shape = names.head(cluster.name), cluster.shape
    served = client_ports(shape)
    try:
        async with asyncio.timeout(seconds):
            while not is_published(service := await client.get(SERVICE, name, cluster.namespace)):  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)  # a watch would need another right
    except TimeoutError:
        raise TimedOut(
            f"Service {name!r} in namespace {cluster.namespace!r} has no address after {seconds:.0f} s.",
            "Load balancers need a controller in the Kubernetes cluster: ask its administrator, or use NodePort.",
        ) from None
    host, ports = endpoints(service, served, await _node(service, find_head))[0]
    return fill(shape.endpoints["client"], head_values(host, shape, ports))


def is_published(service: Object) -> bool:
    """False for a load balancer that has no address yet."""
    return service["spec"]["type"] != "LoadBalancer" or bool(_ingress(service))


async def _node(service: Object, find_head: FindHead) -> str:
    """The address of the node with the head's pod, if the Service is for nodes."""
    head = await find_head() if service["spec"]["type"] == "NodePort" else None
    return str(head["status"].get("hostIP", "")) if head else ""


def _ingress(service: Object) -> Sequence[Object]:
    return service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()


def endpoints(service: Object, served: Sequence[Port], node: str) -> list[Endpoint]:
    """Possible endpoints of a Service, the most widely reachable first. `node`: the address of a node, if the Service
    has node ports."""
    usual = {port.name: port.default for port in served}
    found: list[Endpoint] = [(str(entry.get("ip") or entry.get("hostname")), usual) for entry in _ingress(service)]
    opened = {entry["port"]: entry.get("nodePort") for entry in service["spec"]["ports"]}
    if node and all(opened.get(port.default) for port in served):
        found.append((node, {port.name: opened[port.default] for port in served}))
    own = service["spec"].get("clusterIP", "")
    return [*found, *([(own, usual)] if own and own != "None" else [])]
