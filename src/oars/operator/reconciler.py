"""The operator's reconciler: one pass of the loop for one resource (see control.runner.Reconciler)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace

from oars import engines
from oars.base.errors import OarsError, SpecError
from oars.base.log import get_logger, pairs
from oars.control.loop import Loop
from oars.kube.client import Client
from oars.kube.kinds import Object
from oars.model import Cause, Desired, Pause
from oars.operator.admission import AuthorCheck
from oars.operator.index import Watches
from oars.operator.owners import OwnerWatch, orphan_limit
from oars.operator.resources import Key, ResourceKind, with_requests
from oars.places.kube import names
from oars.places.kube.evidence import SharedLists
from oars.places.kube.place import KubePlace, Setting
from oars.places.kube.state import endings
from oars.places.kube.state.observe import seconds, timestamp
from oars.places.kube.state.renewal import read_lifetime
from oars.places.kube.state.root import ResourceRoot
from oars.places.kube.why.api_errors import cause_of
from oars.places.kube.wire import Reach
from oars.plan.lifetime import MAX, OWNER_GONE, max_rule
from oars.spec.resources import show_duration
from oars.spec.status import Gone, Phase, Status

UNCHECKED = Pause(60.0, limited=True)  # until a refused resource is looked at again: the policy may have changed
LONGEST = Pause(600.0)
STANDBY_SECONDS = 1.0  # until a replica whose Lease expired looks again; its elector stops it meanwhile

log = get_logger(__name__)


@dataclass
class Tracked:
    """The operator's state of one cluster between passes."""

    uid: str
    root: ResourceRoot
    place: KubePlace
    loop: Loop
    specified: Desired  # by the spec alone
    desired: Desired = field(init=False)  # with what the status requires

    def __post_init__(self) -> None:
        self.desired = self.specified


class NotAllowed(Exception):
    """The author of the spec was not checked."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.message)
        self.cause = cause


class ClusterReconciler:
    """Reconciles all resources of the operator."""

    def __init__(  # noqa: PLR0913 (its dependencies)
        self,
        client: Client,
        watches: Watches,
        kinds: Sequence[ResourceKind],
        *,
        pod_namespace: str = "",
        trust_authors: bool = False,
        is_leader: Callable[[], bool] = lambda: True,
        waiting: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        """`pod_namespace`: of the operator's own pod; empty if it runs outside the cluster. `waiting`: see
        control.loop.Loop."""
        self._client = client
        self._authors = AuthorCheck(client, trust_authors=trust_authors)
        self._watches = watches
        self._kinds = {each.name: each for each in kinds}
        self._pod_namespace = pod_namespace
        self._is_leader = is_leader
        self._waiting = waiting
        self._lists = SharedLists(client)
        self._tracked: dict[Key, Tracked] = {}
        self._invalid: dict[Key, tuple[str, int]] = {}  # uid and generation of rejected specs
        self._owners: dict[Key, tuple[str, OwnerWatch]] = {}  # by key, with the uid: also while no pass succeeds

    def statuses(self) -> list[Status]:
        """As of the last pass of each cluster."""
        return [each.loop.report.status for each in self._tracked.values() if each.loop.report is not None]

    async def reconcile(self, key: Key) -> Pause | None:
        if not self._is_leader():
            return Pause(STANDBY_SECONDS)
        resource = self._watches.resources.get(key)
        if resource is None or resource["metadata"].get("deletionTimestamp"):
            self._invalid.pop(key, None)
            self._owners.pop(key, None)
            await self._untrack(key)
            return None  # Kubernetes deletes the owned objects
        longest = await self._end_in_any_case(key, resource)  # first: a pass may fail
        if not longest:
            return None  # the watch announces the deletion
        pause = await self._pass(key, resource)
        if math.isinf(longest):
            return pause
        return Pause(longest) if pause is None else replace(pause, seconds=min(pause.seconds, longest))

    async def _pass(self, key: Key, resource: Object) -> Pause | None:
        if self._invalid.get(key) == _version(resource):
            return None  # until the spec changes
        try:
            tracked = await self._track(key, resource)
        except SpecError as error:  # the only error that nothing but another spec can remove
            log.info(pairs("invalid spec", key=key, error=error.message))
            await self._refuse(key, resource, cause_of(error))
            self._invalid[key] = _version(resource)
            return None
        except NotAllowed as error:
            await self._refuse(key, resource, error.cause)
            return UNCHECKED
        pause, longest, source = LONGEST, math.inf, self._kinds[key.kind]
        failure: Exception | None = None
        if source.prepare is not None:
            pods = tracked.place.pods()
            resources = self._watches.resources
            try:
                longest = await source.prepare(self._client, tracked.root, tracked.specified, pods, resources)
            except (OarsError, OSError) as error:
                if not pods:
                    raise
                failure = error  # such as that of a queue: what runs is reconciled nevertheless
            self._settled(key, tracked)
        if not source.is_left_alone(resource, tracked.root.status):
            pause = await tracked.loop.once(tracked.desired)
        followed = await self._follow(key, tracked)
        await tracked.root.publish()
        await self._act_on_lifetime(key, tracked)
        if failure is not None:
            raise failure
        soon = min(followed, longest)
        return pause if pause.seconds <= soon else Pause(soon)

    async def _follow(self, key: Key, tracked: Tracked) -> float:
        """Let the kind decide what becomes of its resource. Returns the seconds until it must be looked at again."""
        source, root, report = self._kinds[key.kind], tracked.root, tracked.loop.report
        if source.follow is None:
            return math.inf
        causes = report.causes if report is not None else ()
        course = source.follow(root.resource, root.status, tracked.place.pods(), causes, time.time())
        await root.amend(course.changes, course.events)
        if course.is_over:
            await self._client.delete(source.kind, key.name, key.namespace, uid=tracked.uid)
        is_settled = source.settle(tracked.specified, root.status) == tracked.desired
        return course.pause if is_settled else 0.0

    async def _act_on_lifetime(self, key: Key, tracked: Tracked) -> None:
        """Announce that the cluster is going to end, and delete it when it is due, as its user would."""
        outlook = tracked.loop.outlook
        if outlook.expires is None or not outlook.is_near:
            return
        expires = outlook.expires
        if not outlook.is_due:
            message = f"The cluster ends at {timestamp(expires.at)}: {expires.message}."
            await tracked.root.announce(Cause("Expires", message))
            return
        await self._end(key, tracked.root.resource, expires.reason, expires.message)

    async def _end(self, key: Key, resource: Object, reason: str, rule: str) -> None:
        log.info(pairs("cluster ends by itself", key=key, reason=reason, rule=rule))
        tracked, (uid, _) = self._tracked.get(key), _version(resource)
        engine = tracked.desired.engine if tracked is not None else str(resource["spec"].get("engine", ""))
        gone = Gone(key.name, engine, "kubernetes", time.time(), reason, rule, "operator", key.namespace)
        await endings.store(self._client, uid, gone)
        root = tracked.root if tracked is not None else self._root(key, resource)
        await root.announce(Cause("Expired", f"The cluster ended: {rule}."))
        await self._client.delete(self._kinds[key.kind].kind, key.name, key.namespace, uid=uid)

    async def _end_in_any_case(self, key: Key, resource: Object) -> float:
        """Delete a cluster that is left by its program or older than lifetime.max, also if its passes fail or its spec
        is invalid. Returns the seconds until the next look; 0: it is deleted."""
        lifetime, created = read_lifetime(resource), seconds(resource["metadata"].get("creationTimestamp"))
        most = lifetime.max if lifetime is not None else 0.0
        left = created + most - time.time() if most and created else math.inf
        if left <= 0:
            await self._end(key, resource, MAX, max_rule(most))
            return 0.0
        limit = orphan_limit(resource)
        if not limit:
            return left
        if await self._is_orphaned(key, resource, limit):
            rule = f"its program has been gone for {show_duration(limit)} (lifetime.orphaned)"
            await self._end(key, resource, OWNER_GONE, rule)
            return 0.0
        return min(left, names.owner_interval(limit))

    async def _is_orphaned(self, key: Key, resource: Object, limit: float) -> bool:
        """True if its program has not renewed it for too long. The renewal is read, not taken from the watch, which may
        lag behind."""
        (uid, _), now = _version(resource), time.monotonic()
        known, watch = self._owners.get(key, ("", OwnerWatch()))
        if known != uid:
            watch = OwnerWatch()
        self._owners[key] = uid, watch
        if not watch.is_due(limit, now):
            return False
        try:
            metadata = await self._client.get_metadata(self._kinds[key.kind].kind, key.name, key.namespace)
        except OarsError as error:  # only looks that succeed count; the pass goes on
            log.warning(pairs("the owner of a cluster cannot be read", key=key, error=error.message))
            return False
        limit = orphan_limit({**resource, "metadata": metadata})
        return bool(limit) and watch.look(metadata, limit, now)

    async def report_failure(self, key: Key, error: Exception) -> None:
        """Show the error in the status, also of a resource whose first pass failed. While the API server is away this
        fails too; if the error persists, a later pass reports it."""
        resource, tracked = self._watches.resources.get(key), self._tracked.get(key)
        if resource is None or not self._is_leader():
            return
        root = tracked.root if tracked is not None else self._root(key, resource)
        await root.refuse(cause_of(error), _version(root.resource)[1])
        await root.publish()

    async def _track(self, key: Key, resource: Object) -> Tracked:
        uid, generation = _version(resource)
        tracked = self._tracked.get(key)
        if tracked is not None and tracked.uid == uid:
            tracked.root.resource = resource
            if tracked.specified.generation != generation:
                tracked.specified = await self._desired(key, resource)
            else:
                tracked.specified = with_requests(tracked.specified, resource)
            return self._settled(key, tracked)
        await self._untrack(key)
        desired = await self._desired(key, resource)
        reach = Reach(self._client, key.namespace, forward=not self._pod_namespace)
        root = self._root(key, resource)
        setting = Setting(
            self._client, self._watches.cluster(key, uid), root, reach, self._lists, self._watches.nodes.departing
        )
        place = KubePlace(setting, key.namespace)
        loop = Loop(place, engines.get(desired.engine), time.time, self._waiting)
        self._tracked[key] = tracked = Tracked(uid, root, place, loop, desired)
        return self._settled(key, tracked)

    def _settled(self, key: Key, tracked: Tracked) -> Tracked:
        tracked.desired = self._kinds[key.kind].settle(tracked.specified, tracked.root.status)
        return tracked

    def _root(self, key: Key, resource: Object) -> ResourceRoot:
        source = self._kinds[key.kind]
        return ResourceRoot(self._client, source.kind, resource, source.status)

    async def _desired(self, key: Key, resource: Object) -> Desired:
        """Raises SpecError and NotAllowed."""
        source = self._kinds[key.kind]
        desired = replace(source.desired(resource), operator_namespace=self._pod_namespace)
        if objection := await self._authors.objection(resource, source.restricted(resource), source.policy):
            raise NotAllowed(objection)
        return desired

    async def _refuse(self, key: Key, resource: Object, cause: Cause) -> None:
        """Show in the status why this spec is not acted on."""
        await self._untrack(key)
        root = self._root(key, resource)
        await root.refuse(cause, _version(resource)[1], Phase.FAILED)
        await root.publish()

    async def _untrack(self, key: Key) -> None:
        tracked = self._tracked.pop(key, None)
        if tracked is not None:
            await tracked.loop.close()
            await tracked.place.close()

    async def close(self) -> None:
        for key in list(self._tracked):
            await self._untrack(key)


def _version(resource: Object) -> tuple[str, int]:
    return str(resource["metadata"]["uid"]), int(resource["metadata"]["generation"])
