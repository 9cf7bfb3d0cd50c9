"""An API server in memory: resource versions, conflicts, server-side apply, watches with lag, bookmarks and 410.

`Connection` has the methods of oars.kube.client.Client that the operator uses. Its faults are drawn from the history's
random numbers.
"""

from __future__ import annotations

import asyncio
import marshal
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from oars.kube.client import Listing
from oars.kube.errors import ApiError, Unreachable
from oars.kube.kinds import Kind, Object, kind_of
from oars.places.kube import names
from tests.simulation.virtual_time import Clock

T = TypeVar("T")
Key = tuple[str, str, str]  # plural, namespace, name
KEEP_EVENTS = 400  # older ones are compacted: a watch from before gets 410
DEFAULTS: Mapping[str, Mapping[str, Any]] = {"deployments": {"replicas": 1}}


def copied(value: Any) -> Any:
    """A deep copy of plain data; faster than copy.deepcopy."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [copied(each) for each in value]
    return value


def sent(value: Any) -> Any:
    """A deep copy of what is stored, which is plain data without tuples; faster than `copied`."""
    return marshal.loads(marshal.dumps(value))


def cluster_of(obj: Object) -> str:
    """The cluster that the object's label names."""
    return str((obj.get("metadata", {}).get("labels") or {}).get(names.CLUSTER, ""))


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def without(target: Any, before: Any, now: Any) -> Any:
    """Remove what a manager applied before and does not apply any more."""
    if not isinstance(target, dict) or not isinstance(before, dict) or not isinstance(now, dict):
        return target
    return {
        key: without(value, before.get(key), now[key]) if key in now else value
        for key, value in target.items()
        if key in now or key not in before
    }


@dataclass(frozen=True)
class Event:
    version: int
    at: float
    type: str
    key: Key
    object: Object


@dataclass
class ApiServer:
    """The store. Controllers use it directly; the product uses it through connections."""

    clock: Clock
    random: random.Random
    objects: dict[Key, Object] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=KEEP_EVENTS))
    version: int = 1
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    _applied: dict[str, Object] = field(default_factory=dict)  # by uid: what the manager "oars" applied last
    _created: int = 0
    _by_plural: dict[str, dict[Key, Object]] = field(default_factory=dict)
    _by_owner: dict[str, dict[Key, None]] = field(default_factory=dict)
    _by_cluster: dict[tuple[str, str], dict[Key, Object]] = field(default_factory=dict)  # by plural and label
    _by_uid: dict[str, Object] = field(default_factory=dict)

    def stamp(self) -> str:
        return datetime.fromtimestamp(self.clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def find(self, plural: str, namespace: str = "") -> Iterator[Object]:
        for key, obj in list(self._by_plural.get(plural, {}).items()):
            if namespace in ("", key[1]):
                yield obj

    def labelled(self, plural: str, cluster: str) -> list[Object]:
        """The objects with this cluster's label."""
        return list(self._by_cluster.get((plural, cluster), {}).values())

    def with_uid(self, uid: str) -> Object | None:
        return self._by_uid.get(uid)

    def owned(self, plural: str, uid: str) -> list[Object]:
        """The objects with this owner."""
        return [self.objects[key] for key in self._by_owner.get(uid, ()) if key[0] == plural]

    def is_garbage(self, obj: Object) -> bool:
        """True if the object had owners and all of them are gone: Kubernetes will delete it."""
        owners = obj["metadata"].get("ownerReferences") or ()
        return bool(owners) and not any(owner["uid"] in self._by_uid for owner in owners)

    def get(self, key: Key) -> Object:
        if key not in self.objects:
            raise ApiError(404, {"message": f'{key[0]} "{key[2]}" not found', "details": {"kind": key[0]}})
        return self.objects[key]

    def create(self, plural: str, obj: Object) -> Object:
        metadata = obj["metadata"]
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        if key in self.objects:
            raise ApiError(409, {"reason": "AlreadyExists", "message": f'{plural} "{key[2]}" already exists'})
        self._created += 1
        obj = {**obj, "metadata": dict(metadata)}
        obj["metadata"] |= {"uid": f"uid-{self._created}", "creationTimestamp": self.stamp(), "generation": 1}
        obj["metadata"].pop("resourceVersion", None)
        if plural in DEFAULTS and "spec" in obj:
            obj["spec"] = {**DEFAULTS[plural], **obj["spec"]}
        return self._store("ADDED", key, obj)

    def update(self, key: Key, obj: Object) -> Object:
        """Store a changed object; the generation grows with the spec. A write that changes nothing is no event."""
        before = self.get(key)
        obj["metadata"] = {**obj["metadata"], **{k: before["metadata"][k] for k in ("uid", "creationTimestamp")}}
        changed = obj.get("spec") != before.get("spec")
        obj["metadata"]["generation"] = before["metadata"]["generation"] + changed
        obj["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        return before if obj == before else self._store("MODIFIED", key, obj)

    def patch(self, key: Key, body: Object, subresource: str = "") -> Object:
        before = self.get(key)
        self.check(before, body.get("metadata", {}))
        if subresource == "status":
            return self.update(key, {**before, "status": merged(before.get("status"), body.get("status"))})
        return self.update(
            key, {**merged(before, body), **({"status": before["status"]} if "status" in before else {})}
        )

    def apply(self, plural: str, obj: Object) -> Object:
        metadata = obj["metadata"]
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        if key not in self.objects:
            if "uid" in metadata:
                raise ApiError(409, {"reason": "Conflict", "message": "uid mismatch: no existing object was found"})
            found = self.create(plural, obj)
        else:
            before = self.objects[key]
            self.check(before, metadata)
            kept = without(before, self._applied.get(before["metadata"]["uid"], {}), obj)
            found = self.update(key, merged(kept, obj))
        self._applied[found["metadata"]["uid"]] = copied(obj)
        return found

    def delete(self, key: Key, uid: str | None = None, grace: float | None = None) -> None:
        """Pods end gracefully: their kubelet removes them. Everything else is gone at once."""
        obj = self.get(key)
        if uid is not None:
            self.check(obj, {"uid": uid})
        if key[0] == "pods" and grace != 0 and obj["spec"].get("nodeName"):
            if not obj["metadata"].get("deletionTimestamp"):
                self.update(key, {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": self.stamp()}})
            return
        self.remove(key)

    def remove(self, key: Key) -> None:
        obj = self.objects.pop(key)
        del self._by_plural[key[0]][key]
        del self._by_uid[obj["metadata"]["uid"]]
        self._by_cluster.get((key[0], cluster_of(obj)), {}).pop(key, None)
        for owner in obj["metadata"].get("ownerReferences") or ():
            self._by_owner.get(owner["uid"], {}).pop(key, None)
        self._applied.pop(obj["metadata"]["uid"], None)
        self._publish("DELETED", key, obj)

    @staticmethod
    def check(obj: Object, conditions: Mapping[str, Any]) -> None:
        for name in ("resourceVersion", "uid"):
            if conditions.get(name) not in (None, obj["metadata"][name]):
                raise ApiError(409, {"reason": "Conflict", "message": "the object has been modified"})

    def _store(self, event: str, key: Key, obj: Object) -> Object:
        obj = copied(obj)
        if cluster_of(before := self.objects.get(key, {})) != (cluster := cluster_of(obj)):
            self._by_cluster.get((key[0], cluster_of(before)), {}).pop(key, None)
        self._by_cluster.setdefault((key[0], cluster), {})[key] = obj
        self.objects[key] = self._by_plural.setdefault(key[0], {})[key] = obj
        self._by_uid[obj["metadata"]["uid"]] = obj
        for owner in obj["metadata"].get("ownerReferences") or ():
            self._by_owner.setdefault(owner["uid"], {})[key] = None
        self._publish(event, key, obj)
        return obj

    def _publish(self, event: str, key: Key, obj: Object) -> None:
        self.version += 1
        obj["metadata"] = {**obj["metadata"], "resourceVersion": str(self.version)}
        published = Event(self.version, self.clock.now, event, key, obj)
        self.events.append(published)
        for listener in list(self.listeners):
            listener(published)


@dataclass
class Faults:
    """Probabilities, and how long an answer and an event may take. All end with `stop`."""

    lost_request: float = 0.0  # the write was not made, and no answer came
    lost_reply: float = 0.0  # the write was made, but no answer came
    server_error: float = 0.0
    broken_watch: float = 0.0
    expired_watch: float = 0.0
    slowest_reply: float = 0.02
    watch_lag: float = 0.05

    def stop(self) -> None:
        self.lost_request = self.lost_reply = self.server_error = self.broken_watch = self.expired_watch = 0.0
        self.slowest_reply, self.watch_lag = 0.02, 0.05


class Killed(BaseException):
    """The process died between two writes. Nothing in it may catch this."""


@dataclass
class Process:
    """One life of a process that writes. After `dies_after` writes it is killed."""

    name: str
    dies_after: int | None = None
    on_death: Callable[[], object] = lambda: None
    writes: int = 0
    dead: bool = False
    paused_until: float = 0.0


@dataclass
class Connection:
    """A client of the API server. `check` is called before each write and may raise."""

    _server: ApiServer
    _faults: Faults
    _log: Callable[[str], None]
    process: Process
    check: Callable[[], None] = lambda: None
    wrote: Callable[[str], None] = lambda name: None  # called with the writer of anything but a Lease
    errors: Counter[str] = field(default_factory=Counter)  # as the real client counts them

    def guarded(self, check: Callable[[], None]) -> Connection:
        return replace(self, check=check)

    async def close(self) -> None:
        """Nothing to close."""

    # Read

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        await self._travel()
        found: Object = sent(self._server.get((kind.plural, namespace or "", name)))
        return found

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = "", limit: int = 500
    ) -> Listing:
        await self._travel()
        found = [
            sent(each)
            for each in self._server.find(kind.plural, namespace or "")
            if _matches(each, labels) and _has_fields(each, fields)
        ]
        return Listing(found, str(self._server.version))

    async def watch(
        self, kind: Kind, namespace: str | None = None, *, resource_version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        await self._travel()
        server, arrived, pending = self._server, asyncio.Event(), deque[Event]()

        def notice(event: Event) -> None:
            if event.key[0] == kind.plural and namespace in (None, event.key[1]) and _matches(event.object, labels):
                pending.append(event)
                arrived.set()

        missed = server.version - int(resource_version)
        for event in islice(server.events, max(0, len(server.events) - missed), None):
            notice(event)
        server.listeners.append(notice)
        ends = server.clock.now + server.random.uniform(300, 600)
        try:
            while server.clock.now < ends:
                is_compacted = missed > KEEP_EVENTS or len(pending) > KEEP_EVENTS
                if is_compacted or server.random.random() < self._faults.expired_watch:
                    raise ApiError(410, {"reason": "Expired", "message": "too old resource version"})
                if server.random.random() < self._faults.broken_watch:
                    raise Unreachable("The connection was closed.", "")
                while pending:
                    event = pending.popleft()
                    due = event.at + server.random.uniform(0, self._faults.watch_lag)
                    await asyncio.sleep(max(0.0, due - server.clock.now))
                    await self._resume()
                    self._check_alive()
                    yield event.type, sent(event.object)
                arrived.clear()
                version = server.version
                try:
                    async with asyncio.timeout(60):
                        await arrived.wait()
                except TimeoutError:
                    yield "BOOKMARK", {"metadata": {"resourceVersion": str(version)}}
        finally:
            server.listeners.remove(notice)

    async def logs(self, name: str, namespace: str | None = None, **options: Any) -> AsyncIterator[str]:
        await self._travel()
        lines: tuple[str, ...] = ()
        for line in lines:
            yield line

    # Write

    async def create(self, obj: Object, kind: Kind | None = None) -> Object:
        plural = (kind or kind_of(obj)).plural
        return await self._write(
            f"create {plural} {obj['metadata'].get('name', '')}", lambda: self._create(plural, obj)
        )

    def _create(self, plural: str, obj: Object) -> Object:
        if "name" not in obj["metadata"]:
            suffix = f"{self._server.random.getrandbits(32):08x}"
            obj = {**obj, "metadata": {**obj["metadata"], "name": obj["metadata"]["generateName"] + suffix}}
        return self._server.create(plural, obj)

    async def apply(self, obj: Object) -> Object:
        plural = kind_of(obj).plural
        replicas = obj.get("spec", {}).get("replicas")
        text = f"apply {plural} {obj['metadata']['name']}" + (f" replicas={replicas}" if replicas is not None else "")
        return await self._write(text, lambda: self._server.apply(plural, obj))

    async def patch(
        self, kind: Kind, name: str, namespace: str | None, body: Object, *, subresource: str = ""
    ) -> Object:
        key = (kind.plural, namespace or "", name)
        text = f"patch {kind.plural} {name} {subresource}".rstrip()
        return await self._write(text, lambda: self._server.patch(key, body, subresource))

    async def replace(self, obj: Object) -> Object:
        kind, metadata = kind_of(obj), obj["metadata"]
        key = (kind.plural, metadata.get("namespace", ""), metadata["name"])

        def write() -> Object:
            self._server.check(self._server.get(key), metadata)
            return self._server.update(key, copied(obj))

        return await self._write(f"replace {kind.plural} {metadata['name']}", write)

    async def delete(
        self, kind: Kind, name: str, namespace: str | None = None, *, propagation: str = "Background",
        grace: int | None = None, uid: str | None = None, **conditions: Any,
    ) -> bool:  # fmt: skip
        key = (kind.plural, namespace or "", name)

        def write() -> bool:
            try:
                self._server.delete(key, uid, grace)
            except ApiError as error:
                if error.status != 404:
                    raise
                return False
            return True

        return await self._write(f"delete {kind.plural} {name}", write)

    # Faults

    def _check_alive(self) -> None:
        if self.process.dead:
            raise Killed

    async def _resume(self) -> None:
        """Return when the process is not suspended."""
        while (seconds := self.process.paused_until - self._server.clock.now) > 0:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(seconds)

    async def _travel(self) -> None:
        await self._resume()
        self._check_alive()
        await asyncio.sleep(self._server.random.uniform(0.001, self._faults.slowest_reply))
        self._check_alive()
        if self._server.random.random() < self._faults.server_error:
            self.errors["503"] += 1
            raise ApiError(503, {"message": "the server is currently unable to handle the request"})

    async def _write(self, text: str, write: Callable[[], T]) -> T:
        await self._resume()
        self.check()
        await self._travel()
        if self._server.random.random() < self._faults.lost_request:
            self._log(f"{self.process.name}: {text} (lost)")
            raise Unreachable("Timed out.", "")
        before = self._server.version
        try:
            result: T = sent(write())
        except ApiError as error:
            self._log(f"{self.process.name}: {text} → {error.status}")
            raise
        if self._server.version > before:
            self.process.writes += 1
            self._log(f"{self.process.name}: {text}")
            if " leases " not in text:
                self.wrote(self.process.name)
        process = self.process
        if process.dies_after is not None and process.writes >= process.dies_after:
            process.dead = True
            self._log(f"{process.name}: killed")
            process.on_death()
            raise Killed
        await asyncio.sleep(self._server.random.uniform(0.001, self._faults.slowest_reply))
        await self._resume()
        self._check_alive()
        if self._server.random.random() < self._faults.lost_reply:
            self._log(f"{self.process.name}: {text} (reply lost)")
            raise Unreachable("Timed out.", "")
        return result


def _matches(obj: Object, selector: str) -> bool:
    """Equality and existence, which is all that the product uses."""
    labels = obj["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        name, equals, value = term.partition("=")
        if (labels.get(name) != value) if equals else name not in labels:
            return False
    return True


def _has_fields(obj: Object, selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        path, _, value = term.partition("=")
        found: Any = obj
        for part in path.split("."):
            found = (found or {}).get(part)
        if str(found) != value:
            return False
    return True
