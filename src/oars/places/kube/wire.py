"""Connections to the head pod: directly to its address if that is reachable, else by port-forward."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from oars.base.errors import EngineUnreachable, OarsError
from oars.engines.base import ASK_SECONDS
from oars.kube.client import Client
from oars.kube.port_forward import Forwarder
from oars.model import HEAD, Desired, Member, MemberId, Port, Role
from oars.places.http import FAULTS, bearer, describe_error, parse_reply, request
from oars.places.kube import names
from oars.places.kube.render.values import CONTROL_TOKEN, head_values, secret_files
from oars.plan.fill import fill

DIAL_SECONDS = 1.0
HTTP_SECONDS = 4.0


class Reach:
    """Finds an address for a port of a pod. Opens one port-forward per port, on first use."""

    def __init__(self, client: Client, namespace: str, *, forward: bool = True) -> None:
        self._client = client
        self._namespace = namespace
        self._forward = forward
        self._direct: dict[tuple[str, int], bool] = {}  # address and port: a NetworkPolicy may admit us to some ports
        self._forwards: dict[tuple[str, int], tuple[Forwarder, int]] = {}
        self._pods: list[str] = []  # oldest first: each replaced the ones before it
        self._lock = asyncio.Lock()

    async def address(self, pod: str, ip: str, port: int) -> str:
        """The host:port to connect to."""
        if not self._forward:
            return f"{ip}:{port}"
        # Close the port-forwards to pods that this one replaced. A late request to an older pod does not close those of
        # its successor.
        if pod not in self._pods:
            self._pods.append(pod)
        before = self._pods[: self._pods.index(pod)]
        await self._close([key for key in self._forwards if key[0] in before])
        if await self._can_dial(ip, port):
            return f"{ip}:{port}"
        async with self._lock:
            if (pod, port) not in self._forwards:

                async def target() -> tuple[str, str, int]:
                    return self._namespace, pod, port

                forwarder = Forwarder(self._client, target)
                self._forwards[pod, port] = forwarder, await forwarder.start()
            return f"127.0.0.1:{self._forwards[pod, port][1]}"

    async def _can_dial(self, ip: str, port: int) -> bool:
        """A refused connection is not remembered: it may come from a firewall, which a port-forward passes, or from a
        head that does not listen yet."""
        key = (ip, port)
        if key not in self._direct:
            try:
                async with asyncio.timeout(DIAL_SECONDS):
                    _, writer = await asyncio.open_connection(ip, port)
                    writer.close()
                self._direct[key] = True
            except ConnectionRefusedError:
                return False
            except (OSError, TimeoutError):
                self._direct[key] = False
        return self._direct[key]

    def recheck(self, ip: str, port: int) -> None:
        """Dial again before the next use: the pod may have become unreachable, e.g. because of a NetworkPolicy."""
        self._direct.pop((ip, port), None)

    async def close(self) -> None:
        await self._close(list(self._forwards))

    async def _close(self, keys: Sequence[tuple[str, int]]) -> None:
        """Close them even if the caller is cancelled: nothing else refers to them."""
        if forwarders := [self._forwards.pop(key)[0] for key in keys]:
            await asyncio.shield(asyncio.gather(*(forwarder.close() for forwarder in forwarders)))


class KubeWire:
    """A snapshot of the members' addresses, with the means to send requests to the head."""

    def __init__(
        self,
        desired: Desired,
        members: tuple[Member, ...],
        head_pod: str,
        reach: Reach,
        secrets: Mapping[str, bytes],
        ending: Mapping[MemberId, str] = MappingProxyType({}),
    ) -> None:
        self._shape = desired.shape
        self._members = members
        self._service = f"{names.head(desired.name)}.{desired.namespace}"
        self._head_pod = head_pod
        self._reach = reach
        self._secrets = secrets
        self._ending = ending

    @property
    def addresses(self) -> Mapping[MemberId, Mapping[str, str]]:
        return {
            member.id: {port.name: f"{member.address}:{port.default}" for port in self._ports(member)}
            for member in self._members
            if member.address
        }

    def _ports(self, member: Member) -> tuple[Port, ...]:
        """The ports of the member's group. Workers of a group that the spec no longer has must be reachable until they
        are drained; they have the ports of any other group, for an engine uses the same ports in every pod."""
        if member.role is Role.HEAD:
            return self._shape.head.process.ports
        ports = {group.name: group.process.ports for group in self._shape.workers}
        others = next(iter(ports.values()), ())
        return ports.get(member.group.partition("@")[0], others)

    @property
    def incarnations(self) -> Mapping[MemberId, str]:
        """The pod's uid, which the process knows as its incarnation; the place also counts restarts of a head. Workers
        that are ending run until they have handed over what they hold."""
        return {**self._ending, **{member.id: member.incarnation.partition(":")[0] for member in self._members}}

    def fill(self, text: str) -> str:
        secrets = {f"secret.{name}": name for name in secret_files(self._shape)}
        return fill(text, {**head_values(self._service, self._shape), **secrets})

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        found = next(p for p in self._shape.head.process.ports if p.name == port)
        return await self._request(found.default, path, method, body, HTTP_SECONDS, found.secret)

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = ASK_SECONDS) -> Any:
        body = json.dumps({"script": script, "request": request, "seconds": seconds}).encode()
        text = await self._request(names.HELPER_PORT, "/ask", "POST", body, seconds, CONTROL_TOKEN)
        return parse_reply(text, f"port {names.HELPER_PORT} of the head")

    async def _request(self, port: int, path: str, method: str, body: bytes, seconds: float, secret: str) -> bytes:
        """`secret`: the key of the token that the port requires, if it does."""
        head = next((member for member in self._members if member.id == HEAD), None)
        if head is None or not head.address:
            raise EngineUnreachable("The head has no address yet.")
        headers = bearer(self._secrets.get(secret, b"").decode())
        try:
            async with asyncio.timeout(seconds):
                address = await self._reach.address(self._head_pod, head.address, port)
                return await request(address, path, method, body, headers)
        except asyncio.CancelledError:
            self._reach.recheck(head.address, port)  # the caller's timeout was shorter: packets may be dropped
            raise
        except FAULTS as error:
            self._reach.recheck(head.address, port)
            raise EngineUnreachable(f"port {port} of the head: {describe_error(error)}") from error
        except EngineUnreachable:
            raise
        except OarsError as error:
            raise EngineUnreachable(error.message) from error
