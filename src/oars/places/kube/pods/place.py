"""The place of bare pods: every member is a pod that Oars creates, replaces and deletes itself.

It needs the rights to create, delete and watch pods, Services and PodDisruptionBudgets, and no others. So nothing is
ever patched, and the loop state is kept in the memory of the client that runs the loop. `Group.pod` is the complete pod
of a member. The oldest head pod owns all other objects: deleting it deletes the cluster, also without a client."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from oars.base.errors import EngineUnreachable
from oars.base.log import get_logger, pairs
from oars.engines.base import ASK_SECONDS
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import POD, Object, kind_of
from oars.model import (
    HEAD,
    Cause,
    Desired,
    Ensure,
    Group,
    LoopState,
    Member,
    MemberId,
    Observed,
    Pace,
    Remove,
    Role,
)
from oars.places.http import FAULTS, describe_error, request
from oars.places.kube import names
from oars.places.kube.evidence import Evidence, SharedLists
from oars.places.kube.names import kind_and_name
from oars.places.kube.pods import observe
from oars.places.kube.render.values import head_values
from oars.places.kube.state import ownership
from oars.places.kube.state.cache import ReadYourWrites
from oars.places.kube.state.observe import has_room, phase
from oars.places.kube.why.api_errors import NameConflict, explained
from oars.places.report import Report
from oars.plan.desired import digest
from oars.plan.fill import fill

PACE = Pace(soon=0.5, waiting=2.0, resting=10.0)  # watches report changes of pods; only the engine must be polled
HTTP_SECONDS = 4.0

log = get_logger(__name__)


class PodCache(Protocol):
    """The objects of one cluster, as the watches last reported them."""

    def pods(self) -> list[Object]: ...

    def owned(self) -> list[Object]:
        """Services and PodDisruptionBudgets."""


class Route(Protocol):
    """The way from here to the head."""

    @property
    def host(self) -> str:
        """The head's host as the members of the cluster know it."""

    async def address(self, port: str) -> str:
        """host:port of the head's port of that name. Raises EngineUnreachable while there is none."""

    async def ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        """Send a request to the engine's helper in the head."""

    async def close(self) -> None: ...


@dataclass
class Memory:
    """The loop state and the report, in this process. If it is lost, the pods show all that matters."""

    state: LoopState = field(default_factory=LoopState)
    report: Report | None = None


@dataclass(frozen=True)
class Setting:
    """The dependencies of the place. `objects`: the Service and the budget, which the head owns. `head`: the head, if
    it is no pod but runs elsewhere. `owner`: owns the workers of such a head, if anything does."""

    client: Client
    cache: PodCache
    route: Route
    memory: Memory
    instance: str
    objects: Sequence[Object] = ()
    head: Member | None = None
    owner: Object | None = None


class PodPlace:
    """One cluster's pods in one namespace."""

    def __init__(self, setting: Setting, namespace: str, clock: Callable[[], float] = time.time) -> None:
        self._client, self._cache, self._route = setting.client, setting.cache, setting.route
        self._setting, self._memory = setting, setting.memory
        self._namespace = namespace
        self._clock = clock
        self._written, self._written_objects = ReadYourWrites(), ReadYourWrites()
        lists = SharedLists(setting.client)
        self._evidence = Evidence(setting.client, namespace, lists, is_member=lambda pod: True)

    # observe

    async def observe(self, desired: Desired) -> Observed:
        pods = observe.current(self.pods())
        revisions = {group.name: _revision(group) for group in desired.shape.workers}
        members = tuple(observe.member(pod, revisions) for pod in pods)
        if self._setting.head is not None:
            members = (self._setting.head, *members)
        found = {_member_id(pod): observe.death(pod, self._clock()) for pod in pods}
        deaths = {member: death for member, death in found.items() if death is not None}
        answering = Counter(member.group for member in members if member.probe_ready)
        causes: tuple[Cause, ...] = ()
        if any(answering[group.name] < group.replicas for group in (desired.shape.head, *desired.shape.workers)):
            causes = await self._evidence.causes(pods, (), desired.shape.log_patterns)
        else:
            self._evidence.forget()
        is_placed = self._setting.head is not None or any(_member_id(pod) == HEAD and has_room(pod) for pod in pods)
        return Observed(members, self._memory.state, deaths, PACE, causes, has_head_room=is_placed)

    def pods(self) -> list[Object]:
        """All pods of the cluster, dead ones and those that are being deleted included."""
        return self._written.newest(self._cache.pods())

    def workers(self) -> list[MemberId]:
        """The workers that exist, the oldest first."""
        return [_member_id(pod) for pod in observe.current(self.pods()) if _member_id(pod) != HEAD]

    def head(self) -> Object | None:
        """The newest head pod, which may have ended."""
        return next((pod for pod in observe.current(self.pods()) if _member_id(pod) == HEAD), None)

    def has_head_died(self) -> bool:
        """True if this or an earlier head failed."""
        return any(_member_id(pod) == HEAD and phase(pod) == "Failed" for pod in self.pods())

    # ensure

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        with explained():
            if step.group.role is Role.HEAD:
                await self._ensure_head(desired)
            else:
                await self._ensure_workers(desired, step)

    async def _ensure_head(self, desired: Desired) -> None:
        if self._setting.head is not None:
            return
        head = self.head()
        if head is None or observe.has_ended(head):
            await self._check_names()
            await self._create_pod(desired, desired.shape.head, head)
        await self._ensure_objects()

    async def _check_names(self) -> None:
        """Raise NameConflict before anything is created: the Service of another cluster must not select our head."""
        for obj in self._setting.objects:
            try:
                found = await self._client.get(kind_of(obj), obj["metadata"]["name"], self._namespace)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                self._check_instance(obj, found)

    def _check_instance(self, obj: Object, found: Object) -> None:
        if (found["metadata"].get("labels") or {}).get(names.INSTANCE) != self._setting.instance:
            raise NameConflict(obj["kind"], obj["metadata"]["name"], self._namespace)

    async def _ensure_objects(self) -> None:
        """Create the Service and the budget. One that an earlier head owns is first deleted by `collect`."""
        owner = observe.owner_of(self.pods())
        if owner is None:
            return
        live = {kind_and_name(obj) for obj in self._objects()}
        for obj in self._setting.objects:
            if kind_and_name(obj) in live:
                continue
            wanted = copy.deepcopy(obj)
            wanted["metadata"]["ownerReferences"] = [_reference(owner)]
            try:
                self._written_objects.note(await self._client.create(wanted))
            except ApiError as error:
                if error.status != 409:
                    raise
                existing = await self._client.get(kind_of(obj), obj["metadata"]["name"], self._namespace)
                self._check_instance(obj, existing)
                self._written_objects.note(existing)

    async def _ensure_workers(self, desired: Desired, step: Ensure) -> None:
        """Create a pod for each member that has none. A dead one gets a successor under another name."""
        pods = {_member_id(pod): pod for pod in observe.current(self.pods())}
        dead = [pods[name] for name in step.members if name in pods and observe.has_ended(pods[name])]
        missing = [name for name in step.members if name not in pods]
        creating = [self._create_pod(desired, step.group, before) for before in (*dead, *(None for _ in missing))]
        await _all_done(creating)

    async def _create_pod(self, desired: Desired, group: Group, before: Object | None) -> None:
        """`before`: the dead pod that this one replaces."""
        pod = copy.deepcopy(dict(group.pod))
        metadata = pod["metadata"]
        label = HEAD if group.role is Role.HEAD else group.name
        of_cluster = names.pod_labels(desired.name, label) | {names.REVISION: _revision(group)}
        metadata["labels"] = {**metadata.get("labels", {}), **of_cluster, names.INSTANCE: self._setting.instance}
        notes = {names.HEAD_EPOCH: str(desired.head_epoch)}
        if before is not None:
            count = observe.deaths_before_successor(before, self._clock())
            notes |= {observe.REPLACES: before["metadata"]["name"], observe.EARLIER_DEATHS: str(count)}
        metadata["annotations"] = {**metadata.get("annotations", {}), **notes}
        owner = observe.owner_of(self.pods())
        if owner is not None or self._setting.owner is not None:
            owned_by = _reference(owner) if owner is not None else self._setting.owner
            metadata["ownerReferences"] = [owned_by]
        made = await self._client.create(pod)
        self._written.note(made)
        log.info(pairs("created", pod=made["metadata"]["name"], group=group.name))

    # remove, collect

    async def remove(self, desired: Desired, step: Remove) -> Sequence[Cause]:
        chosen = [pod for pod in observe.current(self.pods()) if _member_id(pod) in step.members]
        grace = 0 if step.grace == 0.0 else None
        with explained():
            # The other members stay if only the head is removed from a running cluster.
            policy = "Orphan" if desired.running else "Background"
            await _all_done(self._delete_pod(pod, grace, policy) for pod in chosen)
        return ()

    async def collect(self, desired: Desired) -> None:
        """Delete dead workers that have been replaced, objects that an earlier head owns and, of a stopped cluster,
        everything."""
        with explained():
            if desired.running:
                await _all_done(map(self._delete_pod, observe.replaced(self.pods())))
                await _all_done(map(self._delete_object, self._stale_objects()))
            else:
                await _all_done(self._delete_object(each) for each in self._cache.owned())
                await _all_done(self._delete_pod(pod) for pod in self.pods() if not observe.is_deleted(pod))

    def _objects(self) -> list[Object]:
        """The Services and budgets that exist."""
        return self._written_objects.newest(self._cache.owned())

    def _stale_objects(self) -> list[Object]:
        """Those that the head does not own: Kubernetes deletes them with the head that did."""
        owner, wanted = observe.owner_of(self.pods()), {kind_and_name(obj) for obj in self._setting.objects}
        if owner is None:
            return []
        found = [obj for obj in self._objects() if kind_and_name(obj) in wanted]
        return [obj for obj in found if not ownership.has_owner(obj, owner["metadata"]["uid"])]

    async def _delete_pod(self, pod: Object, grace: int | None = None, policy: str = "Background") -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        try:
            await self._client.delete(POD, name, self._namespace, grace=grace, propagation=policy, uid=uid)
        except ApiError as error:
            if error.status != 409:  # another pod has its name
                raise
        self._written.forget(uid)

    async def _delete_object(self, obj: Object) -> None:
        name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
        try:
            await self._client.delete(kind_of(obj), name, self._namespace, uid=uid)
        except ApiError as error:
            if error.status != 409:
                raise
        self._written_objects.forget(uid)

    # wire, record

    def wire(self, desired: Desired) -> PodWire:
        members = [observe.member(pod, {}) for pod in observe.current(self.pods())]
        if self._setting.head is not None:
            members.insert(0, self._setting.head)
        return PodWire(desired, tuple(members), self._route)

    async def record(self, desired: Desired, state: LoopState, report: Report | None = None) -> None:
        self._memory.state = state
        self._memory.report = report or self._memory.report

    async def close(self) -> None:
        await self._route.close()


class PodWire:
    """A snapshot of the members' addresses, with the way to the head."""

    def __init__(self, desired: Desired, members: tuple[Member, ...], route: Route) -> None:
        self._shape = desired.shape
        self._members = members
        self._route = route

    @property
    def addresses(self) -> Mapping[MemberId, Mapping[str, str]]:
        ports = {Role.HEAD: self._shape.head.process.ports, Role.WORKER: self._shape.workers[0].process.ports}
        return {
            member.id: {port.name: f"{member.address}:{port.default}" for port in ports[member.role]}
            for member in self._members
            if member.address
        }

    @property
    def incarnations(self) -> Mapping[MemberId, str]:
        return {member.id: member.incarnation.partition(":")[0] for member in self._members}

    def fill(self, text: str) -> str:
        return fill(text, head_values(self._route.host, self._shape))

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        try:
            async with asyncio.timeout(HTTP_SECONDS):
                return await request(await self._route.address(port), path, method, body)
        except FAULTS as error:
            raise EngineUnreachable(f"port {port} of the head: {describe_error(error)}") from error

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = ASK_SECONDS) -> Any:
        return await self._route.ask(request, seconds)


def _reference(pod: Object) -> Object:
    """An owner reference to a pod. It is not marked as a controller: a node that is emptied must not take the pods of a
    controller that cannot replace them."""
    metadata = pod["metadata"]
    return {"apiVersion": POD.api_version, "kind": POD.kind, "name": metadata["name"], "uid": metadata["uid"]}


def _member_id(pod: Object) -> MemberId:
    is_head = pod["metadata"]["labels"].get(names.GROUP) == HEAD
    return HEAD if is_head else MemberId(pod["metadata"]["name"])


def _revision(group: Group) -> str:
    return digest(group.pod)


async def _all_done(jobs: Iterable[Awaitable[None]]) -> None:
    """Wait for all of them, then raise the first error."""
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
