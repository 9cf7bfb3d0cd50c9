"""Kubernetes: the six verbs for one cluster. Deployments do the healing; we describe, drain, and say what is wrong."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import DEPLOYMENT, POD, Object
from oars.model import HEAD, Cause, Desired, Ensure, Group, Member, MemberId, Notes, Observed, Remove, Role
from oars.places.kube import beside, names, observe, render, why
from oars.places.kube.evidence import Evidence, Ground
from oars.places.kube.pod import Cluster, revision
from oars.places.kube.secrets import ensure_secret
from oars.places.kube.seen import Fresh, Seen
from oars.places.kube.wire import KubeWire, Reach
from oars.spec.status import Phase, Status

FIRST_TO_GO = "-1000"

UNWATCHED = Cause(
    "Unwatched",
    "You may not make a Role here, so nobody watches over the cluster: if this program is killed, everything stays.",
    "Remove it with `oars down` then, or ask for the rights that `oars rbac` prints.",
)

log = get_logger(__name__)


class Root(Protocol):
    """The object on which all others hang, and which keeps what the loop must remember."""

    @property
    def owner(self) -> Object:
        """A reference to it, for the others."""

    @property
    def notes(self) -> Notes: ...

    @property
    def was_ready(self) -> bool:
        """Whether the cluster was last told to be ready."""

    async def save(self, notes: Notes, status: Status | None, causes: tuple[Cause, ...]) -> None:
        """Writes only what changed."""


@dataclass(frozen=True)
class Setting:
    """All that a place needs besides the cluster itself."""

    client: Client
    seen: Seen
    root: Root
    reach: Reach
    mode: str  # "operator" or "direct"
    watch: beside.Watch | None = None
    ground: Ground | None = None  # shared by the clusters of an operator


class KubePlace:
    """The six verbs for one cluster."""

    def __init__(self, setting: Setting, cluster: Cluster, clock: Callable[[], float] = time.time) -> None:
        self._setting = setting
        self._client = setting.client
        self._cluster = cluster
        self._clock = clock
        self._pods, self._deployments = Fresh(), Fresh()
        ground = setting.ground or Ground(setting.client)
        self._evidence = Evidence(setting.client, cluster.namespace, ground)
        self._refusals: tuple[Cause, ...] = ()
        self._waits: tuple[Cause, ...] = ()
        self._notes = setting.root.notes
        self._watch = setting.watch
        self._guarded = setting.root.was_ready
        self._token = ""
        self._marks: dict[object, str] = {}  # of what the description comes to; rendering it in every pass is dear

    def describe(self, cluster: Cluster) -> None:
        """It shall be so from now on."""
        if cluster != self._cluster:
            self._cluster = cluster
            self._marks.clear()

    # observe

    async def observe(self) -> Observed:
        pods = self.pods()
        members = observe.members(pods, self._revisions())
        failures = observe.failures(pods, self._clock())
        found: tuple[Cause, ...] = ()
        if self._is_lacking(members):
            found = await self._evidence.causes(pods, self.deployments())
        else:
            self._evidence.forget()
        unwatched = self._setting.watch and not self._watch and self._is_lacking(members)
        causes = (*self._refusals, *found, *self._waits, *((UNWATCHED,) if unwatched else ()))
        self._refusals = ()
        return Observed(members, replace(self._notes, failures=failures), heals=True, causes=causes)

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
        if group.name not in self._marks:
            self._marks[group.name] = render.revision_of(self._cluster, group)
        return self._marks[group.name]

    # ensure

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        try:
            if step.group.role is Role.HEAD:
                await self._ensure_head()
                await self._put_right()
            else:
                await self._ensure_workers(step.group, len(step.members))
        except ApiError as error:
            self._refused(error)

    def _refused(self, error: ApiError) -> None:
        refusal = why.refusal(error.status, error.reason, error.message, error.status_details)
        self._refusals = (*self._refusals, refusal)
        log.warning(pairs("refused", cluster=self._cluster.name, error=error.message))

    async def _ensure_head(self) -> None:
        """Everything but the workers; one look at the Deployment tells whether all of it has been asked for."""
        cluster, name = self._cluster, names.head(self._cluster.name)
        if self._is_asked(name, self._marks.get(HEAD, "")):
            return
        around = [*render.surroundings(cluster), *(beside.rights(cluster) if self._watch else [])]
        head = render.head_deployment(cluster)
        if cluster.helped:
            head = beside.with_helper(head, cluster, self._watch)
            _files(around, cluster)[beside.KEY] = beside.SCRIPT
        mark = self._marks[HEAD] = revision({"around": around, "head": head})
        if self._is_asked(name, mark):
            return
        account, *others = around  # first: without it no pod of the cluster is let in
        await self._apply(account)
        try:
            await asyncio.gather(self.know_token(), *(self._apply(obj) for obj in others))
        except ApiError as error:
            if error.status != 403 or not self._watch or not _is_about_roles(error):
                raise
            log.warning(pairs("nobody will watch the owner", cluster=cluster.name, error=error.message))
            self._watch = None
            await self._ensure_head()
            return
        self._guarded = False
        await self._ask(head, mark)

    async def _guard(self) -> None:
        """A head that serves is not to be evicted. Before that it has nothing to lose, and a budget would only stop
        whoever empties a node; and Kubernetes holds every budget of a namespace against every pod that starts there.
        Asked for before the cluster is told to be ready, so that whoever takes over a ready one need not ask again."""
        if self._guarded:
            return
        try:
            await self._apply(render.disruption_budget(self._cluster))
        except ApiError as error:
            self._refused(error)
        else:
            self._guarded = True

    async def _ensure_workers(self, group: Group, count: int) -> None:
        name = self._name(group, self._revision(group))
        live = self._deployment(name)
        counted = live is not None and live["spec"].get("replicas") == count
        key = (name, count, self._notes.head_changes)
        if counted and self._is_asked(name, self._marks.get(key, "")):
            return
        deployment = self._worker_deployment(group, count, name)
        mark = self._marks[key] = revision(deployment)
        if not (counted and self._is_asked(name, mark)):
            await self._ask(deployment, mark)

    def _worker_deployment(self, group: Group, count: int, name: str) -> Object:
        deployment = render.worker_deployment(self._cluster, group, count)
        labels = {names.REVISION: self._revision(group)}
        spec = deployment["spec"]
        spec["selector"]["matchLabels"] |= labels
        spec["template"]["metadata"]["labels"] |= labels
        deployment["metadata"]["labels"] = {**deployment["metadata"]["labels"], **_group_labels(group), **labels}
        # All at once: it happens only when the head was lost, and with it all that workers hold.
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}
        if self._notes.head_changes:
            spec["template"]["metadata"]["annotations"][names.HEAD_SEEN] = str(self._notes.head_changes)
        deployment["metadata"]["name"] = name
        return deployment

    def _name(self, group: Group, wanted: str) -> str:
        """The Deployment's: a group that is being replaced by another description of itself has two for a while."""
        base = names.workers(self._cluster.name, group.name)
        of_group = [d for d in self.deployments() if d["metadata"]["labels"].get(names.GROUP) == group.name]
        for deployment in of_group:
            if deployment["metadata"]["labels"].get(names.REVISION) == wanted:
                return str(deployment["metadata"]["name"])
        return f"{base}-{wanted[:5]}" if any(d["metadata"]["name"] == base for d in of_group) else base

    def _deployment(self, name: str) -> Object | None:
        return next((d for d in self.deployments() if d["metadata"]["name"] == name), None)

    def _is_asked(self, name: str, mark: str) -> bool:
        live = self._deployment(name)
        return bool(mark) and live is not None and _annotation(live, names.APPLIED) == mark

    async def _ask(self, deployment: Object, mark: str) -> None:
        annotations = deployment["metadata"].setdefault("annotations", {})
        annotations[names.APPLIED] = mark
        log.info(pairs("apply", deployment=deployment["metadata"]["name"], replicas=deployment["spec"]["replicas"]))
        self._deployments.note(await self._apply(deployment))

    async def _apply(self, obj: Object) -> Object:
        obj["metadata"]["ownerReferences"] = [self._setting.root.owner]
        return await self._client.apply(obj)

    async def _put_right(self) -> None:
        """Chosen pods that outlived the lowering of their Deployment go now, as do Deployments that stay empty."""
        for deployment in self.deployments():
            labels = deployment["metadata"]["labels"]
            if names.GROUP not in labels or deployment["metadata"].get("deletionTimestamp"):
                continue
            pods = [pod for pod in self.pods() if _is_of(pod, deployment)]
            if self._is_obsolete(deployment) and not any(map(observe.is_staying, pods)):
                await self._drop(deployment)
            elif _is_settled(deployment, pods):
                await self._delete([pod for pod in pods if _annotation(pod, names.GOING) and _is_up(pod)])

    def _is_obsolete(self, deployment: Object) -> bool:
        labels = deployment["metadata"]["labels"]
        return bool(self._revisions().get(labels[names.GROUP]) != labels.get(names.REVISION))

    # remove

    async def remove(self, desired: Desired, step: Remove) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in self.pods()}
        chosen = [pods[member] for member in step.members if member in pods]
        if step.grace == 0.0:
            await self._leave_behind(chosen)
            return
        waits = []
        for deployment in self.deployments():
            victims = [pod for pod in chosen if _is_of(pod, deployment)]
            if victims:
                waits += await self._lower(desired, deployment, victims)
        self._waits = tuple(waits)

    async def _leave_behind(self, lost: list[Object]) -> None:
        """Workers of a lost head are replaced by their Deployment, whose template has changed: what we delete now it
        would restore. One that is itself of an older description goes, and they with it."""
        for deployment in self.deployments():
            if any(_is_of(pod, deployment) for pod in lost) and self._is_obsolete(deployment):
                await self._drop(deployment)

    async def _drop(self, deployment: Object) -> None:
        await self._client.delete(DEPLOYMENT, deployment["metadata"]["name"], self._cluster.namespace)
        self._deployments.forget(deployment["metadata"]["uid"])

    async def _lower(self, desired: Desired, deployment: Object, victims: list[Object]) -> list[Cause]:
        """A ReplicaSet removes pods that are not ready before it looks at the cost, so the others must be."""
        going = {pod["metadata"]["name"] for pod in victims}
        others = [p for p in self.pods() if _is_of(p, deployment) and observe.is_staying(p)]
        unready = [p for p in others if p["metadata"]["name"] not in going and not observe.is_ready(p)]
        overdue = self._clock() - min(self._since(pod) for pod in victims) > desired.drain_seconds
        if unready and not overdue:
            name = unready[0]["metadata"]["name"]
            return [Cause("Draining", f"{sorted(going)[0]} goes as soon as {name} is ready.")]
        marks = {"metadata": {"annotations": {names.DELETION_COST: FIRST_TO_GO, names.GOING: "true"}}}
        namespace = self._cluster.namespace
        for answer in await asyncio.gather(*(self._client.patch(POD, n, namespace, marks) for n in sorted(going))):
            self._pods.note(answer)
        count = self._wanted(desired, deployment, going)
        name = deployment["metadata"]["name"]
        log.info(pairs("lower", deployment=name, replicas=count, victims=",".join(sorted(going))))
        current = {group.name: group for group in desired.shape.workers}
        if self._is_obsolete(deployment):
            body = {"spec": {"replicas": count}}
            self._deployments.note(await self._client.patch(DEPLOYMENT, name, namespace, body))
        else:
            await self._ensure_workers(current[deployment["metadata"]["labels"][names.GROUP]], count)
        return []

    def _since(self, pod: Object) -> float:
        state = self._notes.retiring.get(MemberId(pod["metadata"]["name"]))
        return state.since if state else self._clock()

    def _wanted(self, desired: Desired, deployment: Object, going: set[str]) -> int:
        """An absolute number, so that asking twice asks for the same."""
        labels = deployment["metadata"]["labels"]
        groups = {} if self._is_obsolete(deployment) else {group.name: group for group in desired.shape.workers}
        group = groups.get(labels[names.GROUP])
        mine = {pod["metadata"]["name"] for pod in self.pods() if _is_of(pod, deployment) and observe.is_staying(pod)}
        kept = {member for member in self._notes.retiring if member in mine and member not in going}
        if group is not None:
            return group.replicas + len(kept)
        return len(mine - going)

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

    async def know_token(self) -> None:
        """The helper's token, from the cluster's Secret, which is made if it is not there."""
        if render.needs_secret(self._cluster) and not self._token:
            self._token = await ensure_secret(self._client, self._cluster, self._setting.root.owner)

    def _head_pod(self, members: tuple[Member, ...]) -> str:
        head = next((member.incarnation for member in members if member.id == HEAD), "")
        return next((pod["metadata"]["name"] for pod in self.pods() if pod["metadata"]["uid"] == head), "")

    def logs(self, member: MemberId, *, follow: bool = False, tail: int | None = None) -> AsyncIterator[str]:
        members = observe.members(self.pods(), self._revisions())
        pod, container = (self._head_pod(members), "head") if member == HEAD else (member, "worker")
        return self._client.logs(pod, self._cluster.namespace, container=container, follow=follow, tail=tail)

    async def record(self, notes: Notes, status: Status | None = None, causes: tuple[Cause, ...] = ()) -> None:
        self._notes = notes
        shown = replace(status, mode=self._setting.mode, namespace=self._cluster.namespace) if status else None
        if status is not None and status.phase is Phase.READY:
            await self._guard()
        await self._setting.root.save(notes, shown, causes)

    async def close(self) -> None:
        await self._setting.reach.close()


def _files(objects: list[Object], cluster: Cluster) -> dict[str, str]:
    """The data of the cluster's ConfigMap among the objects, which is added if the engine itself needs none."""
    for obj in objects:
        if obj["kind"] == "ConfigMap":
            data: dict[str, str] = obj["data"]
            return data
    files = render.config_map(cluster)
    objects.append(files)
    return _files(objects, cluster)


def _is_about_roles(error: ApiError) -> bool:
    return str(error.status_details.get("group", "")) == "rbac.authorization.k8s.io"


def _group_labels(group: Group) -> Mapping[str, str]:
    return {names.GROUP: group.name, names.ROLE: group.role.value}


def _annotation(obj: Object, name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name, ""))


def _is_of(pod: Object, deployment: Object) -> bool:
    wanted = deployment["spec"]["selector"]["matchLabels"]
    labels = pod["metadata"]["labels"]
    return all(labels.get(name) == value for name, value in wanted.items())


def _is_up(pod: Object) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and observe.phase(pod) not in ("Failed", "Succeeded")


def _is_settled(deployment: Object, pods: list[Object]) -> bool:
    """Its controller has acted on what was last asked of it: no more pods are left than there shall be."""
    seen = deployment.get("status", {}).get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    return bool(seen) and len([pod for pod in pods if _is_up(pod)]) <= deployment["spec"].get("replicas", 1)


def unreachable(error: OarsError) -> Cause:
    return Cause("ApiServerUnreachable", f"The Kubernetes API server does not answer: {error.message}", error.hint)
