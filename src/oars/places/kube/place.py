"""Kubernetes: the six verbs for one cluster. Deployments do the healing; we describe, drain, and say what is wrong."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from oars.base.log import get_logger, pairs
from oars.base.text import listed
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import DEPLOYMENT, INGRESS, POD, Object
from oars.model import HEAD, Cause, Desired, Ensure, Group, LoopState, Member, MemberId, Observed, Remove, Role
from oars.places.kube import names
from oars.places.kube.disruption_budget import BudgetTimer
from oars.places.kube.render import objects, sidecar
from oars.places.kube.render.fingerprint import Fingerprint, group_fingerprint, head_fingerprint
from oars.places.kube.render.pod import Cluster, revision
from oars.places.kube.scale_down import Waiting
from oars.places.kube.state import observe
from oars.places.kube.state.cache import ReadYourWrites, Seen
from oars.places.kube.state.owned_objects import OwnedObjects
from oars.places.kube.state.secrets import ensure_secret
from oars.places.kube.why.api_errors import Taken, cause_of, is_about_roles
from oars.places.kube.why.evidence import Evidence, Ground
from oars.places.kube.wire import KubeWire, Reach
from oars.spec.status import Phase, Status

FIRST_TO_GO = "-1000"

log = get_logger(__name__)


class Root(Protocol):
    """The object on which all others hang, and which keeps what the loop must remember."""

    @property
    def owner(self) -> Object:
        """A reference to it, for the others."""

    @property
    def notes(self) -> LoopState: ...

    @property
    def was_ready(self) -> bool:
        """Whether the cluster was last told to be ready."""

    async def save(self, notes: LoopState, status: Status | None, causes: tuple[Cause, ...]) -> None:
        """Writes only what changed."""

    async def settle(self) -> None:
        """The cluster has been ready for a while."""


@dataclass(frozen=True)
class Setting:
    """All that a place needs besides the cluster itself."""

    client: Client
    seen: Seen
    root: Root
    reach: Reach
    mode: str  # "operator" or "direct"
    watched: bool = False  # whether our helper shall end the cluster when its owner is gone
    ground: Ground | None = None  # shared by the clusters of an operator
    is_busy: Callable[[], bool] = lambda: False  # many others are being started: what can wait shall


class KubePlace:
    """The six verbs for one cluster."""

    def __init__(self, setting: Setting, cluster: Cluster, clock: Callable[[], float] = time.time) -> None:
        self._setting = setting
        self._client = setting.client
        self._cluster = cluster
        self._clock = clock
        self._pods, self._deployments = ReadYourWrites(), ReadYourWrites()
        ground = setting.ground or Ground(setting.client)
        self._evidence = Evidence(setting.client, cluster.namespace, ground)
        self._refusals: tuple[Cause, ...] = ()
        self._waits: tuple[Cause, ...] = ()
        self._waiting = Waiting(clock)
        self._notes = setting.root.notes
        self._watched = setting.watched
        self._token = ""
        self._around = OwnedObjects(setting.client, setting.seen, setting.root.owner, clock)
        told, ready = setting.mode == "operator", setting.root.was_ready
        self._guard = BudgetTimer(cluster.name, self._around, clock, told=told, ready=ready, is_busy=setting.is_busy)
        # What the description comes to; rendering it in every pass would be dear.
        self._rendered: dict[object, Fingerprint] = {}
        self._revision_of: dict[object, str] = {}

    def describe(self, cluster: Cluster) -> None:
        """It shall be so from now on."""
        if cluster != self._cluster:
            self._cluster = cluster
            self._rendered.clear()
            self._revision_of.clear()

    # observe

    async def observe(self) -> Observed:
        pods = self.pods()
        members = observe.members(pods, self._revisions())
        if self._is_head_outdated():
            members = tuple(observe.replaced(member) if member.id == HEAD else member for member in members)
        failures = observe.failures(pods, self._clock())
        found: tuple[Cause, ...] = ()
        if self._is_lacking(members):
            found = await self._evidence.causes(pods, self.deployments())
        else:
            self._evidence.forget()
        causes = (*self._refusals, *found, *self._waits)
        self._refusals = self._waits = ()
        remarks = (sidecar.UNWATCHED,) if self._setting.watched and not self._watched else ()
        notes = replace(self._notes, failures=failures)
        return Observed(members, notes, heals=True, causes=causes, remarks=remarks)

    def _is_head_outdated(self) -> bool:
        """What is there will be replaced, by us in a moment or by its Deployment."""
        live = self._deployment(names.head(self._cluster.name))
        if live is None:
            return False
        asked, wanted = Fingerprint.of(live), self._head_asked()
        return (not asked.covers(wanted) and asked.words != wanted.words) or not observe.is_rolled_out(live)

    def _head_asked(self) -> Fingerprint:
        if HEAD not in self._rendered:
            around, wanted = self._render_head(watched=self._watched)
            if self._watched:
                others, unwatched = self._render_head(watched=False)
                live = self._deployment(names.head(self._cluster.name))
                if live is not None and Fingerprint.of(live).mark == unwatched.mark:
                    # By somebody who could not have it watched. Another head would cost all that the cluster holds.
                    self._watched, around, wanted = False, others, unwatched
            self._around.expect(around)
            self._rendered[HEAD] = wanted
        return self._rendered[HEAD]

    def _render_head(self, *, watched: bool) -> tuple[list[Object], Fingerprint]:
        around, head = sidecar.head_and_owned(self._cluster, watched)
        return around, Fingerprint(revision({"around": around, "head": head}), head_fingerprint(self._cluster))

    def pods(self) -> list[Object]:
        return self._pods.newest(self._setting.seen.pods())

    def deployments(self) -> list[Object]:
        return self._deployments.newest(self._setting.seen.deployments())

    def _is_lacking(self, members: tuple[Member, ...]) -> bool:
        """Those of an older description do not make up for those that shall replace them."""
        answering = Counter(member.group for member in members if member.answers)
        groups = (self._cluster.shape.head, *self._cluster.shape.workers)
        return any(answering[group.name] < group.replicas for group in groups)

    def _revisions(self) -> dict[str, str]:
        return {group.name: self._revision(group) for group in self._cluster.shape.workers}

    def _revision(self, group: Group) -> str:
        key = (group.name, self._notes.head_changes)
        if key not in self._revision_of:
            self._revision_of[key] = self._revision_of_kin(group) or objects.revision_of(self._cluster, group)
        return self._revision_of[key]

    def _revision_of_kin(self, group: Group) -> str:
        """Of workers that another version of Oars made from the same words; they stay."""
        wanted = Fingerprint("", group_fingerprint(self._cluster, group, self._notes.head_changes))
        kin = [d for d in self._of_group(group) if Fingerprint.of(d).same_spec_older_oars(wanted)]
        return str(kin[0]["metadata"]["labels"][names.REVISION]) if kin else ""

    # ensure

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        try:
            if step.group.role is Role.HEAD:
                await self._ensure_head()
                await self._collect_leftovers()
            else:
                await self._ensure_workers(step.group, self._never_below_retiring(step.group, len(step.members)))
        except (ApiError, Taken) as error:
            self._refused(error)

    def _refused(self, error: ApiError | Taken) -> None:
        self._refusals = (*self._refusals, cause_of(error))
        log.warning(pairs("refused", cluster=self._cluster.name, error=error.message))

    async def _ensure_head(self) -> None:
        """Everything but the workers; one look at the Deployment tells whether all of it has been asked for, one at the
        rest whether it is still there."""
        cluster, name = self._cluster, names.head(self._cluster.name)
        wanted = self._head_asked()
        asked = self._is_asked(name, HEAD)
        if asked and self._around.is_whole():
            return
        around, head = sidecar.head_and_owned(cluster, self._watched)
        try:
            await self._surround([obj for obj in around if not asked or self._around.is_lost(names.kind_and_name(obj))])
        except ApiError as error:
            if error.status != 403 or not self._watched or not is_about_roles(error):
                raise
            log.warning(pairs("nobody will watch the owner", cluster=cluster.name, error=error.message))
            self._watched = False
            del self._rendered[HEAD]
            await self._ensure_head()
            return
        if not asked:
            if self._deployment(name) is not None and not cluster.spec.expose.host:
                await self._around.withdraw(INGRESS, name, cluster.namespace)
            self._guard.renew()
            await self._ask(head, wanted)

    async def _surround(self, objects: list[Object]) -> None:
        """The account comes first: without it no pod of the cluster is let in."""
        first, others = (
            [obj for obj in objects if (obj["kind"] == "ServiceAccount") is is_it] for is_it in (True, False)
        )
        for account in first:
            await self._around.apply(account)
        await asyncio.gather(self.ensure_helper_token(), *map(self._around.apply, others))

    async def _ensure_workers(self, group: Group, count: int) -> None:
        name = self._name(group, self._revision(group))
        live = self._deployment(name)
        counted = live is not None and live["spec"].get("replicas") == count
        changes = self._notes.head_changes
        key = (name, count, changes)
        if counted and self._is_asked(name, key):
            return
        deployment = objects.managed_worker_deployment(
            self._cluster, group, count, name, self._revision(group), changes
        )
        wanted = self._rendered[key] = Fingerprint(
            revision(deployment), group_fingerprint(self._cluster, group, changes)
        )
        if counted and self._is_asked(name, key):
            return
        if live is not None and Fingerprint.of(live).same_spec_older_oars(wanted):
            await self._count(name, count)
        else:
            await self._ask(deployment, wanted)

    def _never_below_retiring(self, group: Group, count: int) -> int:
        """While workers are on their way out only `remove` lowers, which says who goes. Fewer were seen than there are
        if a watch lags, and a ReplicaSet that is lowered by it would take any."""
        live = self._deployment(self._name(group, self._revision(group)))
        if live is None or (now := int(live["spec"].get("replicas", 1))) <= count:
            return count
        return now if count > group.replicas or observe.has_unseen(live, self.pods()) else count

    def _name(self, group: Group, wanted: str) -> str:
        """The Deployment's: a group that is being replaced by another description of itself has two for a while."""
        base = names.workers(self._cluster.name, group.name)
        of_group = self._of_group(group)
        for deployment in of_group:
            if deployment["metadata"]["labels"].get(names.REVISION) == wanted:
                return str(deployment["metadata"]["name"])
        return f"{base}-{wanted[:5]}" if any(d["metadata"]["name"] == base for d in of_group) else base

    def _deployment(self, name: str) -> Object | None:
        return next((d for d in self.deployments() if d["metadata"]["name"] == name), None)

    def _of_group(self, group: Group) -> list[Object]:
        return [d for d in self.deployments() if d["metadata"]["labels"].get(names.GROUP) == group.name]

    def _is_asked(self, name: str, key: object) -> bool:
        live, wanted = self._deployment(name), self._rendered.get(key)
        return live is not None and wanted is not None and Fingerprint.of(live).covers(wanted)

    async def _ask(self, deployment: Object, wanted: Fingerprint) -> None:
        name = deployment["metadata"]["name"]
        rollout = observe.annotation(self._deployment(name) or {"metadata": {}}, names.ROLLOUT) or "1"
        # The second is what its controller would write with a write of its own.
        deployment["metadata"]["annotations"] = {names.APPLIED: str(wanted), names.ROLLOUT: rollout}
        log.info(pairs("apply", deployment=name, replicas=deployment["spec"]["replicas"]))
        self._deployments.note(await self._around.apply(deployment))

    async def _count(self, name: str, count: int) -> None:
        """Only the number changes, whatever the pods are made of."""
        body = {"spec": {"replicas": count}}
        self._deployments.note(await self._client.patch(DEPLOYMENT, name, self._cluster.namespace, body))

    async def _collect_leftovers(self) -> None:
        """Chosen pods that outlived the lowering of their Deployment go now, as do Deployments that stay empty."""
        for deployment in self.deployments():
            labels = deployment["metadata"]["labels"]
            if labels.get(names.GROUP, HEAD) == HEAD or deployment["metadata"].get("deletionTimestamp"):
                continue
            pods = [pod for pod in self.pods() if observe.is_of(pod, deployment)]
            if self._is_obsolete(deployment) and not any(map(observe.is_staying, pods)):
                await self._drop(deployment)
            elif observe.is_settled(deployment, pods):
                await self._delete([pod for pod in pods if observe.annotation(pod, names.GOING) and observe.is_up(pod)])

    def _is_obsolete(self, deployment: Object) -> bool:
        labels = deployment["metadata"]["labels"]
        return bool(self._revisions().get(labels[names.GROUP]) != labels.get(names.REVISION))

    # remove

    async def remove(self, desired: Desired, step: Remove) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in self.pods()}
        chosen = [pods[member] for member in step.members if member in pods]
        if step.grace == 0.0:
            await self._drop_obsolete(chosen)
            return
        waits = []
        for deployment in self.deployments():
            victims = [pod for pod in chosen if observe.is_of(pod, deployment)]
            if victims:
                waits += await self._scale_down(desired, deployment, victims)
        self._waits = tuple(waits)

    async def _drop_obsolete(self, lost: list[Object]) -> None:
        """Workers of a lost head are replaced by their Deployment, whose template has changed: what we delete now it
        would restore. One that is itself of an older description goes, and they with it."""
        for deployment in self.deployments():
            if any(observe.is_of(pod, deployment) for pod in lost) and self._is_obsolete(deployment):
                await self._drop(deployment)

    async def _drop(self, deployment: Object) -> None:
        await self._client.delete(DEPLOYMENT, deployment["metadata"]["name"], self._cluster.namespace)
        self._deployments.forget(deployment["metadata"]["uid"])

    async def _scale_down(self, desired: Desired, deployment: Object, victims: list[Object]) -> list[Cause]:
        going = {pod["metadata"]["name"] for pod in victims}
        if waits := self._waiting.cause(desired, deployment, self.pods(), going):
            return [waits]
        name = deployment["metadata"]["name"]
        marks = {"metadata": {"annotations": {names.DELETION_COST: FIRST_TO_GO, names.GOING: "true"}}}
        namespace = self._cluster.namespace
        for answer in await asyncio.gather(*(self._client.patch(POD, n, namespace, marks) for n in sorted(going))):
            self._pods.note(answer)
        count = self._wanted(desired, deployment, going)
        log.info(pairs("lower", deployment=name, replicas=count, victims=listed(sorted(going))))
        current = {group.name: group for group in desired.shape.workers}
        if self._is_obsolete(deployment):
            await self._count(name, count)
        else:
            await self._ensure_workers(current[deployment["metadata"]["labels"][names.GROUP]], count)
        return []

    def _wanted(self, desired: Desired, deployment: Object, going: set[str]) -> int:
        """An absolute number, so that asking twice asks for the same."""
        labels = deployment["metadata"]["labels"]
        groups = {} if self._is_obsolete(deployment) else {group.name: group for group in desired.shape.workers}
        group = groups.get(labels[names.GROUP])
        mine = {
            pod["metadata"]["name"] for pod in self.pods() if observe.is_of(pod, deployment) and observe.is_staying(pod)
        }
        kept = {member for member in self._notes.retiring if member in mine and member not in going}
        return len(mine - going) if group is None else group.replicas + len(kept)

    async def _delete(self, pods: list[Object]) -> None:
        going = [pod["metadata"]["name"] for pod in pods]
        for name in going:
            log.info(pairs("delete", pod=name))
        await asyncio.gather(*(self._client.delete(POD, name, self._cluster.namespace) for name in going))

    # wire, logs, record

    def wire(self) -> KubeWire:
        members = observe.members(self.pods(), self._revisions())
        service = f"{names.head(self._cluster.name)}.{self._cluster.namespace}"
        wire = KubeWire(self._cluster.shape, members, service, self._head_pod(members), self._setting.reach)
        wire.token = self._token
        return wire

    async def ensure_helper_token(self) -> None:
        """The helper's token, from the cluster's Secret, which is made if it is not there."""
        if objects.needs_secret(self._cluster) and not self._token:
            self._token = await ensure_secret(self._client, self._cluster, self._setting.root.owner)

    def _head_pod(self, members: tuple[Member, ...]) -> str:
        head = next((member.incarnation for member in members if member.id == HEAD), "")
        return next((pod["metadata"]["name"] for pod in self.pods() if pod["metadata"]["uid"] == head), "")

    def logs(self, member: MemberId, *, follow: bool = False, tail: int | None = None) -> AsyncIterator[str]:
        members = observe.members(self.pods(), self._revisions())
        pod, container = (self._head_pod(members), "head") if member == HEAD else (member, "worker")
        return self._client.logs(pod, self._cluster.namespace, container=container, follow=follow, tail=tail)

    async def record(self, notes: LoopState, status: Status | None = None, causes: tuple[Cause, ...] = ()) -> None:
        self._notes = notes
        shown = replace(status, mode=self._setting.mode, namespace=self._cluster.namespace) if status else None
        await self._setting.root.save(notes, shown, causes)
        if status is not None:
            due = self._guard.is_due(ready=status.phase is Phase.READY)
            if self._guard.is_calm:
                await self._settle(budget=due)

    async def _settle(self, *, budget: bool) -> None:
        """What can wait until a cluster has been ready for a while."""
        try:
            await self._setting.root.settle()
            if budget:
                await self._around.apply(objects.disruption_budget(self._cluster))
                self._guard.asked()
        except (ApiError, Taken) as error:
            self._refused(error)

    async def close(self) -> None:
        await self._setting.reach.close()
