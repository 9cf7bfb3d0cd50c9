"""The way to a head in a pod: its address if it can be dialled from here, else a forward through the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from oars.base.errors import EngineUnreachable, OarsError
from oars.kube.client import Client
from oars.kube.streams import Forwarder
from oars.model import HEAD, Member, MemberId, Port, Role, Shape
from oars.places.http import FAULTS, answered, request, words
from oars.places.kube import names
from oars.places.kube.render.values import head_values, secret_files
from oars.plan.fill import fill

DIAL_SECONDS = 1.0
HTTP_SECONDS = 4.0
ASK_SECONDS = 120.0


class Reach:
    """From here to a port of a pod. One forward per port, opened when it is first needed."""

    def __init__(self, client: Client, namespace: str, *, forward: bool = True) -> None:
        self._client = client
        self._namespace = namespace
        self._forward = forward
        self._direct: dict[str, bool] = {}
        self._forwards: dict[tuple[str, int], tuple[Forwarder, int]] = {}
        self._pods: list[str] = []  # in the order in which they came: each replaced those before it
        self._lock = asyncio.Lock()

    async def address(self, pod: str, ip: str, port: int) -> str:
        """host:port that leads there."""
        if not self._forward:
            return f"{ip}:{port}"
        if outdated := self._outdated(pod):
            await _close_all(outdated)
        if await self._can_dial(ip, port):
            return f"{ip}:{port}"
        async with self._lock:
            if (pod, port) not in self._forwards:
                forwarder = Forwarder(self._client, lambda: _chosen(self._namespace, pod, port))
                self._forwards[pod, port] = forwarder, await forwarder.start()
            return f"127.0.0.1:{self._forwards[pod, port][1]}"

    async def _can_dial(self, ip: str, port: int) -> bool:
        """What is refused is dialled again the next time: it may be a firewall, which a forward passes, or a head that
        does not listen yet and can be dialled in a moment."""
        if ip not in self._direct:
            try:
                async with asyncio.timeout(DIAL_SECONDS):
                    _, writer = await asyncio.open_connection(ip, port)
                    writer.close()
                self._direct[ip] = True
            except ConnectionRefusedError:
                return False
            except (OSError, TimeoutError):
                self._direct[ip] = False
        return self._direct[ip]

    def doubt(self, ip: str) -> None:
        """The way that was found no longer leads there, e.g. since a policy holds: it is looked for anew."""
        self._direct.pop(ip, None)

    def _outdated(self, pod: str) -> list[Forwarder]:
        """Forwards to pods that this one replaced, which nobody finds here any more. A late question to one of those
        takes nothing from its successor."""
        if pod not in self._pods:
            self._pods.append(pod)
        before = self._pods[: self._pods.index(pod)]
        return [self._forwards.pop(key)[0] for key in list(self._forwards) if key[0] in before]

    async def close(self) -> None:
        forwarders = [forwarder for forwarder, _ in self._forwards.values()]
        self._forwards.clear()
        await _close_all(forwarders)


async def _close_all(forwarders: Iterable[Forwarder]) -> None:
    """Also if whoever waits for it is cancelled: nobody else knows them any more."""
    await asyncio.shield(asyncio.gather(*(forwarder.close() for forwarder in forwarders)))


async def _chosen(namespace: str, pod: str, port: int) -> tuple[str, str, int]:
    return namespace, pod, port


class KubeWire:
    """A snapshot of where everyone is, with the means to ask."""

    def __init__(self, shape: Shape, members: tuple[Member, ...], service: str, head_pod: str, reach: Reach) -> None:
        self._shape = shape
        self._members = members
        self._service = service
        self._head_pod = head_pod
        self._reach = reach
        self.token = ""

    @property
    def addresses(self) -> Mapping[MemberId, Mapping[str, str]]:
        return {
            member.id: {port.name: f"{member.address}:{port.default}" for port in self._ports(member)}
            for member in self._members
            if member.address
        }

    def _ports(self, member: Member) -> tuple[Port, ...]:
        """Those of its group. Workers of a group that is no longer described are reached until they are emptied, where
        the workers of any other group are: an engine's ports are the same in every pod."""
        if member.role is Role.HEAD:
            return self._shape.head.process.ports
        groups = {group.name: group for group in self._shape.workers}
        others = next(iter(groups.values()), None)
        group = groups.get(member.group.partition("@")[0], others)
        return group.process.ports if group else ()

    @property
    def incarnations(self) -> Mapping[MemberId, str]:
        return {member.id: member.incarnation for member in self._members}

    @property
    def answering(self) -> frozenset[MemberId]:
        return frozenset(member.id for member in self._members if member.answers)

    def fill(self, text: str) -> str:
        secrets = {f"secret.{name}": name for name in secret_files(self._shape)}
        return fill(text, {**head_values(self._service, self._shape), **secrets})

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        number = next(p.default for p in self._shape.head.process.ports if p.name == port)
        return await self._request(number, path, method, body, HTTP_SECONDS)

    async def ask(self, script: str, question: Mapping[str, Any]) -> Any:
        body = json.dumps({"script": script, "request": question}).encode()
        text = await self._request(names.HELPER_PORT, "/ask", "POST", body, ASK_SECONDS)
        return answered(text, f"port {names.HELPER_PORT} of the head")

    async def _request(self, port: int, path: str, method: str, body: bytes, seconds: float) -> bytes:
        head = next((member for member in self._members if member.id == HEAD), None)
        if head is None or not head.address:
            raise EngineUnreachable("The head has no address yet.")
        headers = {"Authorization": f"Bearer {self.token}"} if port == names.HELPER_PORT else {}
        try:
            async with asyncio.timeout(seconds):
                address = await self._reach.address(self._head_pod, head.address, port)
                return await request(address, path, method, body, headers)
        except asyncio.CancelledError:
            self._reach.doubt(head.address)  # whoever asked had less patience: packets may vanish on the way
            raise
        except FAULTS as error:
            self._reach.doubt(head.address)
            raise EngineUnreachable(f"port {port} of the head: {words(error)}") from error
        except EngineUnreachable:
            raise
        except OarsError as error:
            raise EngineUnreachable(error.message) from error
