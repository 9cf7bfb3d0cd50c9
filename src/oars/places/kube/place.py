"""The Kubernetes place: members are pods of Deployments, which replace failed pods themselves."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from oars.base.log import get_logger, pairs
from oars.base.text import join_names
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import DEPLOYMENT, INGRESS, POD, POD_DISRUPTION_BUDGET, SERVICE, Object
from oars.model import HEAD, Cause, Desired, Ensure, Group, LoopState, MemberState, Observed, Pace, Remove, Role
from oars.places.base import PlaceError
from oars.places.kube import aliases, names
from oars.places.kube.evidence import Evidence, SharedLists
from oars.places.kube.render import objects, sidecar
from oars.places.kube.render.fingerprint import Fingerprint
from oars.places.kube.replicas import OtherWriters, mark
from oars.places.kube.scale_down import ScaleDownGate
from oars.places.kube.state import observe
from oars.places.kube.state.cache import ClusterCache, ReadYourWrites
from oars.places.kube.state.nodes import Nodes, departing
from oars.places.kube.state.owned_objects import OwnedObjects
from oars.places.kube.state.secrets import ClusterSecret
from oars.places.kube.why import update
from oars.places.kube.why.api_errors import explained, is_about_rbac
from oars.places.kube.why.start import VOLUME_FAILS
from oars.places.kube.wire import KubeWire, Reach
from oars.places.report import Report
from oars.plan.desired import digest
from oars.plan.why import HEAD_REPLACING

EARLY_SECONDS = 60.0  # for which the Service publishes a head that may not be ready
CHECK_SECONDS = 30.0  # between two looks for what is not watched, such as the Secret
REMOVE_FIRST = "-1000"  # pod deletion cost of a drained worker
# Watches report changes of pods. Only the engine, and the causes of missing members, must be polled.
PACE = Pace(soon=0.5, waiting=2.0, resting=10.0)
SOON = Pace(soon=0.5, waiting=0.5, resting=0.5)  # while an announced change waits for its pass

log = get_logger(__name__)


class Root(Protocol):
    """The object that owns all others. It stores the loop state and publishes the report."""

    @property
    def owner(self) -> Object:
        """An owner reference to it."""

    @property
    def state(self) -> LoopState: ...

    async def save(self, state: LoopState, report: Report | None) -> None:
        """Writes only what changed."""


@dataclass(frozen=True)
class Setting:
    """The dependencies of a place."""

    client: Client
    cache: ClusterCache
    root: Root
    reach: Reach
    lists: SharedLists | None = None  # shared by the clusters of an operator
    nodes: Nodes = field(default_factory=dict)  # those that are about to end, by name


class KubePlace:
    """One cluster's members in one namespace."""

    def __init__(
        self,
        setting: Setting,
        namespace: str,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._cache = setting.client, setting.cache
        self._root, self._reach, self._nodes = setting.root, setting.reach, setting.nodes
        self._namespace = namespace
        self._clock, self._monotonic = clock, monotonic
        self._pods, self._deployments = ReadYourWrites(), ReadYourWrites()
        self._evidence = Evidence(setting.client, namespace, setting.lists or SharedLists(setting.client))
        self._gate = ScaleDownGate(monotonic)
        self._other_writers = OtherWriters(monotonic)
        self._state = setting.root.state
        self._may_watch_owner = True  # False: we may not grant the helper the rights it needs for that
        self._budget_applied = False
        self._service_applied = False
        self._head_age: float | None = None  # seconds since its start, if it is ready
        self._may_have_surplus = True
        self._known_deployments: set[str] = set()
        self._serving: set[str] = set()  # workers that must run, as the present pass has it
        self._running: set[str] = set()  # members that ran when it began
        self._owned = OwnedObjects(setting.client, setting.cache, setting.root.owner, monotonic)
        self._secret = ClusterSecret(setting.client, self._owned, clock)
        self._checked_at = -math.inf
        # Cache of what the desired state renders to: rendering in every pass is too slow.
        self._rendered_from: Desired | None = None
        self._rendered_head: Fingerprint | None = None
        self._rendered_workers: dict[str, tuple[tuple[int, int], Fingerprint]] = {}  # Deployment → replicas, epoch
        self._revision_of: dict[str, str] = {}
        self._former: Desired | None = None  # what the pods of a cluster that is held back were rendered from
        self._is_held = False  # a change that replaces the head waits
        self._announced = ""  # hash of the spec of the last change that was announced

    # observe

    async def observe(self, desired: Desired) -> Observed:
        self._use(desired)
        self._serving.clear()
        pods, head = self.pods(), self._deployment(names.head(desired.name))
        self._hold(desired, head, pods)
        revisions = self._revisions(desired)
        members = departing(observe.members(pods, revisions), pods, self._nodes)
        self._running = {member.id for member in members if member.state is MemberState.RUNNING}
        answering = Counter(member.group for member in members if member.probe_ready)
        serving = (desired.shape.head, *desired.shape.workers)
        is_complete = all(answering[group.name] >= group.replicas for group in serving)
        if head is not None:
            await self._check(desired)
            if self._is_outdated(desired, head):
                is_complete = False
                members = tuple(observe.replaced(each) if each.id == HEAD else each for each in members)
        up = next((each for each in members if each.id == HEAD and each.probe_ready), None)
        self._head_age = abs(self._clock() - up.started_at) if up is not None else None  # clocks may differ
        causes: tuple[Cause, ...] = ()
        if is_complete:
            self._evidence.forget()
        else:
            causes = await self._evidence.causes(pods, self.deployments(), desired.shape.log_patterns)
            if any(cause.reason == VOLUME_FAILS for cause in causes):
                self._checked_at -= CHECK_SECONDS
        members = tuple(replace(m, is_node_coming=m.id in self._evidence.awaiting_node) for m in members)
        is_leaving = self._is_held and not desired.keeps_head
        announced = [update.replacing(self._former, desired)] if is_leaving else []
        causes = (*announced, *self._secret.causes(desired), *causes)
        remarks = self._remarks(desired)
        # If the root has lost the loop state, the worker Deployments show the head epoch.
        epochs = [Fingerprint.of(deployment).epoch for deployment in self._worker_deployments()]
        state = replace(self._state, head_epoch=max([self._state.head_epoch, *epochs]))
        deaths = observe.deaths(pods, self._clock())
        return Observed(
            members, state, deaths, SOON if is_leaving else PACE, causes, remarks,
            observe.refused(self._worker_deployments()), is_head_leaving=is_leaving,
            has_head_room=(pod := observe.head_pod(pods)) is not None and observe.has_room(pod),
        )  # fmt: skip

    def _hold(self, desired: Desired, deployment: Object | None, pods: list[Object]) -> None:
        """Hold a change back that would replace a head that runs, and so discard all data: until it was announced, or
        with `keeps_head` until that head is gone. Changes of worker pods wait too."""
        is_changed, waits = False, desired.keeps_head
        if deployment is not None:
            applied, wanted = Fingerprint.of(deployment), self._head_fingerprint(desired)
            is_changed = not applied.covers(wanted) and applied.spec != wanted.spec
            waits = waits or self._announced != wanted.spec
        heads = [each for each in observe.members(pods, {}) if each.id == HEAD and each.state is MemberState.RUNNING]
        # Without a head but with an epoch, the loop has recorded already that this one is lost.
        first = not self._state.head and not self._state.head_epoch
        holds_data = any(first or each.incarnation == self._state.head for each in heads)
        is_held = desired.running and is_changed and holds_data and waits
        if is_held != self._is_held:
            self._is_held = is_held
            self._revision_of.clear()
            self._rendered_workers.clear()

    def _remarks(self, desired: Desired) -> tuple[Cause, ...]:
        kept = [update.outdated(self._former, desired)] if self._is_held and desired.keeps_head else []
        is_unwatched = sidecar.is_watched(desired) and not self._may_watch_owner
        unwatched = [sidecar.unwatched(desired)] if is_unwatched else []
        others = self._other_writers.remarks(desired, self._worker_deployments())
        return (*kept, *unwatched, *self._secret.remarks(desired), *others)

    async def _check(self, desired: Desired) -> None:
        """Look for what is not watched: once after the start of this process, then now and then, and if a pod cannot
        mount its files."""
        if desired.running and self._monotonic() - self._checked_at >= CHECK_SECONDS:
            await asyncio.gather(self._secret.read(desired), self._owned.check(desired.namespace))
            self._checked_at = self._monotonic()

    def _use(self, desired: Desired) -> None:
        """Drop cached renderings of an older spec. The head epoch, the generation and requests do not affect them."""
        same = replace(desired, head_epoch=0, force=False, generation=0, drain={}, drain_all=False)
        if same != self._rendered_from:
            if not self._is_held:
                self._former = self._rendered_from
            self._rendered_from = same
            self._rendered_head = None
            self._rendered_workers.clear()
            self._revision_of.clear()
            self._may_have_surplus = True
            self._budget_applied = False

    def _is_outdated(self, desired: Desired, head: Object) -> bool:
        """True if the head pod is about to be replaced: we will apply a change, or its Deployment rolls one out."""
        return self._is_change_pending(desired, head) or not observe.is_rolled_out(head)

    def _is_change_pending(self, desired: Desired, head: Object) -> bool:
        """True if a change that replaces the head has yet to be applied."""
        applied, wanted = Fingerprint.of(head), self._head_fingerprint(desired)
        is_new_spec = applied.spec != wanted.spec and not self._is_held
        return not applied.covers(wanted) and (is_new_spec or applied.epoch != wanted.epoch)

    def pods(self) -> list[Object]:
        """The pods of this cluster's Deployments, also of those that we have deleted: anybody can label a pod like
        them."""
        self._known_deployments.update(str(each["metadata"]["name"]) for each in self.deployments())
        pods = self._pods.newest(self._cache.pods())
        return [pod for pod in pods if observe.deployment_of(pod) in self._known_deployments]

    def deployments(self) -> list[Object]:
        return self._deployments.newest(self._cache.deployments())

    def _deployment(self, name: str) -> Object | None:
        return next((d for d in self.deployments() if d["metadata"]["name"] == name), None)

    def _worker_deployments(self) -> list[Object]:
        return [d for d in self.deployments() if d["metadata"]["labels"].get(names.GROUP, HEAD) != HEAD]

    def _deployments_of(self, group: str) -> list[Object]:
        return [d for d in self.deployments() if d["metadata"]["labels"].get(names.GROUP) == group]

    def _revisions(self, desired: Desired) -> dict[str, str]:
        """The desired revision of each worker group. If another version of Oars rendered the live Deployment from the
        same spec, its revision is kept: an upgrade of Oars must not replace pods. So is that of a group whose change
        is held back."""
        for group in desired.shape.workers:
            if group.name not in self._revision_of:
                wanted, live = Fingerprint("", group.fingerprint), self._deployments_of(group.name)
                older = [d for d in live if self._is_held or Fingerprint.of(d).same_spec_older_oars(wanted)]
                found = older[0]["metadata"]["labels"][names.REVISION] if older else objects.revision_of(desired, group)
                self._revision_of[group.name] = str(found)
        return self._revision_of

    # ensure

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        self._use(desired)
        if step.group.role is Role.DRIVER:
            message = f"Drivers cannot run as pods yet ({step.group.name})."
            raise PlaceError(Cause("DriverNotSupported", message, "Run the program with `oars run` instead."))
        with explained():
            if step.group.role is Role.HEAD:
                await self._ensure_head(desired)
                if step.settled or self._has_head_started(desired):
                    await self._ensure_service(desired)
                if step.settled:
                    await self._ensure_budget(desired)
            else:
                self._serving.update(step.members)
                # Only `remove` and `collect` scale down: a lagging watch may show too few pods. A Deployment that gets
                # a template for another head replaces all its pods anyway.
                _, _, live = self._target(desired, step.group)
                now = int(live["spec"].get("replicas", 1)) if live is not None and self._stays(desired, live) else 0
                await self._ensure_workers(desired, step.group, max(now, len(step.members)))
                await self._ensure_protection(step)
                await aliases.number(self._client, self._pods, step.group, self.pods())

    async def _ensure_head(self, desired: Desired) -> None:
        """Apply everything but the workers. The Deployment's fingerprint shows whether all of it was applied, the cache
        whether it still exists."""
        live = self._deployment(names.head(desired.name))
        found = Fingerprint.of(live)
        if live is not None:
            await self._secret.ensure(desired, found.epoch, lambda: self._running_wire(desired))
        wanted = self._head_fingerprint(desired)
        applied = live is not None and (self._is_held or found.covers(wanted))
        exposed = found.network == wanted.network
        if applied and exposed and self._owned.is_complete():
            return
        owned, head = sidecar.head_and_owned(desired, self._watches_owner(desired), self._secret.epoch)
        if live is None and not self._cache.has(POD_DISRUPTION_BUDGET.kind, names.head(desired.name)):
            key = SERVICE.kind, names.head(desired.name)
            owned = [objects.published_early(each) if names.kind_and_name(each) == key else each for each in owned]
            self._service_applied = False
        budgets = [each for each in objects.disruption_budgets(desired) if self._cache.has(*names.kind_and_name(each))]
        changed = set() if exposed else set(map(names.kind_and_name, [*objects.network_objects(desired), *budgets]))
        missing = [
            obj
            for obj in (*owned, *budgets)
            if not applied or (key := names.kind_and_name(obj)) in changed or self._owned.is_missing(key)
        ]
        try:
            for account in [obj for obj in missing if obj["kind"] == "ServiceAccount"]:
                missing.remove(account)
                await self._owned.apply(account)  # first: no pod is admitted without it
            secret = [self._secret.ensure(desired)] if live is None else []
            await asyncio.gather(*secret, *map(self._owned.apply, missing))
        except ApiError as error:
            if error.status != 403 or not self._watches_owner(desired) or not is_about_rbac(error):
                raise
            log.warning(pairs("owner will not be watched", cluster=desired.name, error=error.message))
            self._may_watch_owner = False
            self._rendered_head = None
            await self._ensure_head(desired)
            return
        if self._secret.epoch != wanted.epoch:  # an earlier head left the Secret
            await self._ensure_head(desired)
        elif not applied:
            self._checked_at = self._monotonic()  # all of it exists now
            await self._apply_deployment(head, wanted)
        elif not exposed:  # another version of Oars created the head, which stays
            await self._annotate(names.head(desired.name), {names.APPLIED: str(replace(found, network=wanted.network))})

    def _watches_owner(self, desired: Desired) -> bool:
        return sidecar.is_watched(desired) and self._may_watch_owner

    def _head_fingerprint(self, desired: Desired) -> Fingerprint:
        if self._rendered_head is None or self._rendered_head.epoch != self._secret.epoch:
            watched = self._watches_owner(desired)
            owned, wanted = self._render_head(desired, watched=watched)
            if watched:
                others, unwatched = self._render_head(desired, watched=False)
                live = self._deployment(names.head(desired.name))
                if live is not None and Fingerprint.of(live).rendered == unwatched.rendered:
                    # A client without the rights to watch it created this head. Replacing it would lose all data.
                    self._may_watch_owner, owned, wanted = False, others, unwatched
            self._owned.expect(owned)
            self._rendered_head = wanted
        return self._rendered_head

    def _render_head(self, desired: Desired, *, watched: bool) -> tuple[list[Object], Fingerprint]:
        owned, head = sidecar.head_and_owned(desired, watched, self._secret.epoch)
        rendered = digest({"around": owned, "head": head})
        network = digest({"network": [*objects.network_objects(desired), *objects.disruption_budgets(desired)]})
        return owned, Fingerprint(rendered, desired.shape.head.fingerprint, self._secret.epoch, network=network)

    def _running_wire(self, desired: Desired) -> KubeWire | None:
        """The wire to the head, if it runs."""
        members = observe.members(self.pods(), self._revisions(desired))
        is_running = any(each.id == HEAD and each.state is MemberState.RUNNING for each in members)
        return self.wire(desired) if is_running else None

    def _has_head_started(self, desired: Desired) -> bool:
        """True if no worker waits for the first head any more. A client in direct mode may end when the cluster is
        ready. An operator waits, because it may have to start many clusters first."""
        age = self._head_age
        is_up = age is not None and (desired.mode == "direct" or age > EARLY_SECONDS)
        return is_up or desired.head_epoch > 0

    async def _ensure_service(self, desired: Desired) -> None:
        """Let the Service publish only a head that is ready. The budget, which comes later, shows that this was
        done."""
        if not self._service_applied and not self._cache.has(POD_DISRUPTION_BUDGET.kind, names.head(desired.name)):
            await self._owned.apply(objects.service(desired))
        self._service_applied = True

    async def _ensure_budget(self, desired: Desired) -> None:
        """Apply the PodDisruptionBudget that protects the head from eviction. Only once the head serves: before that it
        has no data, and Kubernetes checks every budget of a namespace for every pod that starts there."""
        for budget in objects.disruption_budgets(desired):
            key = names.kind_and_name(budget)
            if not self._cache.has(*key) and (not self._budget_applied or self._owned.is_missing(key)):
                await self._owned.apply(budget)
                self._budget_applied = True

    def _target(self, desired: Desired, group: Group) -> tuple[str, str, Object | None]:
        """Name and revision of the group's Deployment, and the live one. A group that is being replaced by another
        revision has two Deployments for a while."""
        revision, of_group = self._revisions(desired)[group.name], self._deployments_of(group.name)
        for live in of_group:
            if live["metadata"]["labels"].get(names.REVISION) == revision:
                return str(live["metadata"]["name"]), revision, live
        base = names.workers(desired.name, group.name)
        is_taken = any(each["metadata"]["name"] == base for each in of_group)
        return names.workers(desired.name, group.name, revision) if is_taken else base, revision, None

    async def _ensure_workers(self, desired: Desired, group: Group, count: int) -> None:
        name, revision, live = self._target(desired, group)
        if live is not None and self._followers(live):
            desired = replace(desired, head_epoch=Fingerprint.of(live).epoch)  # a new template would replace them
        if live is not None and self._is_held:
            if live["spec"].get("replicas") != count:
                await self._set_replicas(name, count)
            return
        applied = Fingerprint.of(live) if live is not None and live["spec"].get("replicas") == count else None
        number, rendered = (count, desired.head_epoch), self._rendered_workers.get(name)
        if applied is not None and rendered is not None and rendered[0] == number and applied.covers(rendered[1]):
            return
        deployment = objects.managed_worker_deployment(desired, group, count, name, revision)
        wanted = Fingerprint(digest(deployment), group.fingerprint, desired.head_epoch)
        self._rendered_workers[name] = number, wanted
        if applied is not None and applied.covers(wanted):
            return
        before = Fingerprint.of(live) if live is not None else None
        if before is not None and before.same_spec_older_oars(wanted) and before.epoch == wanted.epoch:
            await self._set_replicas(name, count)
        else:
            await self._apply_deployment(deployment, wanted)

    def _stays(self, desired: Desired, deployment: Object) -> bool:
        """True if the Deployment keeps its pods: they serve the present head."""
        return Fingerprint.of(deployment).epoch == desired.head_epoch or bool(self._followers(deployment))

    def _followers(self, deployment: Object) -> set[str]:
        """Workers from the Deployment's present template that serve the present head."""
        epoch = Fingerprint.of(deployment).epoch
        pods = [pod for pod in self.pods() if observe.is_of(pod, deployment) and observe.head_epoch(pod) == epoch]
        return {pod["metadata"]["name"] for pod in filter(observe.is_staying, pods)} & self._serving

    async def _ensure_protection(self, step: Ensure) -> None:
        """Annotate pods that hold data, so that node autoscalers spare them, and remove that from those that do not.
        Annotations of the user stay, and those of pods of which nothing is known."""
        for pod in [pod for pod in self.pods() if observe.group_name(pod) == step.group.name and observe.is_up(pod)]:
            name, annotations = pod["metadata"]["name"], pod["metadata"].get("annotations") or {}
            is_ours = names.PROTECTED in annotations
            holds, is_theirs = step.holding.get(name), not is_ours and annotations.keys() & names.PROTECTION.keys()
            if holds is None or holds is is_ours or is_theirs:
                continue
            marks = {names.PROTECTED: "true", **names.PROTECTION}
            body = {"metadata": {"annotations": dict.fromkeys(marks) if is_ours else marks}}
            try:
                self._pods.note(await self._client.patch(POD, name, self._namespace, body))
            except ApiError as error:
                if not is_not_found(error):  # it is gone already
                    raise

    async def _apply_deployment(self, deployment: Object, wanted: Fingerprint) -> None:
        name = deployment["metadata"]["name"]
        live = self._deployment(name)
        # Otherwise the Deployment controller sets the rollout revision with an extra write.
        rollout = (live and observe.annotation(live, names.ROLLOUT)) or "1"
        count = deployment["spec"]["replicas"]
        ours = {names.APPLIED: str(wanted), names.ROLLOUT: rollout, **mark(count)}
        deployment["metadata"]["annotations"] = {**deployment["metadata"].get("annotations", {}), **ours}
        log.info(pairs("apply", deployment=name, replicas=count))
        self._deployments.note(await self._owned.apply(deployment))

    async def _annotate(self, deployment: str, annotations: dict[str, str]) -> None:
        body = {"metadata": {"annotations": annotations}}
        self._deployments.note(await self._client.patch(DEPLOYMENT, deployment, self._namespace, body))

    async def _set_replicas(self, name: str, count: int) -> None:
        body = {"metadata": {"annotations": mark(count)}, "spec": {"replicas": count}}
        self._deployments.note(await self._client.patch(DEPLOYMENT, name, self._namespace, body))

    # remove

    async def remove(self, desired: Desired, step: Remove) -> Sequence[Cause]:
        self._use(desired)
        pods = {pod["metadata"]["name"]: pod for pod in self.pods()}
        chosen = [pods[member] for member in step.members if member in pods]
        waits: list[Cause] = []
        live = self._deployment(names.head(desired.name)) if desired.running and step.grace == 0.0 else None
        if live is not None and self._is_change_pending(desired, live):
            return waits  # the change could not be applied: these workers still serve the head that runs
        with explained():
            if HEAD in step.members and (head := self._deployment(names.head(desired.name))) is not None:
                await self._delete_deployment(head)
            for deployment in self._worker_deployments():
                victims = {pod["metadata"]["name"] for pod in chosen if observe.is_of(pod, deployment)}
                is_obsolete = self._group_of(desired, deployment) is None
                if victims and (not desired.running or (step.grace == 0.0 and is_obsolete)):
                    await self._delete_deployment(deployment)
                    continue
                if step.grace == 0.0 and victims and self._is_head_blocked():  # no successors until it has its room
                    await self._set_replicas(deployment["metadata"]["name"], 0)
                    continue
                if step.grace == 0.0:  # a Deployment replaces pods of an earlier head epoch itself, and restores others
                    earlier = {name for name in victims if observe.head_epoch(pods[name]) != desired.head_epoch}
                    if followers := self._followers(deployment):  # it will not: its template stays
                        stale = sorted((earlier - followers) & self._running)
                        await asyncio.gather(*map(self._delete_pod, stale))
                    victims -= earlier
                if not victims:
                    continue
                if wait := self._gate.cause(desired, deployment, self.pods(), victims):
                    waits.append(wait)
                else:
                    await self._scale_down(desired, deployment, victims)
        return waits

    def _is_head_blocked(self) -> bool:
        head = observe.head_pod(self.pods())
        return head is not None and bool(observe.blocked(head))

    def _group_of(self, desired: Desired, deployment: Object) -> Group | None:
        """The worker group whose desired revision the Deployment has. None: it is obsolete."""
        labels = deployment["metadata"]["labels"]
        group = next((each for each in desired.shape.workers if each.name == labels[names.GROUP]), None)
        is_current = group is not None and self._revisions(desired)[group.name] == labels.get(names.REVISION)
        return group if is_current else None

    async def _delete_deployment(self, deployment: Object) -> None:
        metadata = deployment["metadata"]
        await self._client.delete(DEPLOYMENT, metadata["name"], self._namespace, uid=metadata["uid"])
        self._deployments.forget(metadata["uid"])

    async def _delete_pod(self, name: str) -> None:
        await self._client.delete(POD, name, self._namespace)

    async def _scale_down(self, desired: Desired, deployment: Object, victims: set[str]) -> None:
        """Mark the victims as the first to be deleted, then lower the number of replicas."""
        marks = {"metadata": {"annotations": {names.DELETION_COST: REMOVE_FIRST, names.LEAVING: "true"}}}

        async def mark(name: str) -> None:
            try:
                self._pods.note(await self._client.patch(POD, name, self._namespace, marks))
            except ApiError as error:
                if not is_not_found(error):
                    raise
                self._pods.note_deleted(uids[name])  # it is gone already, though the watch still shows it

        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()}
        await asyncio.gather(*map(mark, sorted(victims)))
        group, name = self._group_of(desired, deployment), deployment["metadata"]["name"]
        staying = {p["metadata"]["name"] for p in self.pods() if observe.is_of(p, deployment) and observe.is_staying(p)}
        # An absolute number makes a repeated request idempotent.
        left = [pod for pod in self.pods() if pod["metadata"]["name"] in staying - victims]
        count = len(left) if group is None else self._size(group, left)
        log.info(pairs("scale down", deployment=name, replicas=count, victims=join_names(sorted(victims))))
        if group is None:
            await self._set_replicas(name, count)
        else:
            await self._ensure_workers(desired, group, count)

    def _size(self, group: Group, pods: Sequence[Object]) -> int:
        """The replicas that the group's Deployment needs until those of these pods that retire are drained."""
        staying = (pod["metadata"]["name"] for pod in pods if observe.is_staying(pod))
        return group.replicas + sum(name in self._state.retiring for name in staying)

    # collect

    async def collect(self, desired: Desired) -> None:
        """Delete what an earlier cluster of this name left behind, objects that the spec no longer has, empty obsolete
        Deployments, and all Deployments of a stopped cluster: `remove` finds only those that have pods. Finish
        interrupted scale-downs."""
        self._use(desired)
        with explained():
            await self._owned.collect_left()
            if desired.running and self._may_have_surplus:
                await self._withdraw(desired)
                self._may_have_surplus = False
            for deployment in self._worker_deployments() if desired.running else self.deployments():
                if deployment["metadata"].get("deletionTimestamp"):
                    continue
                pods = [pod for pod in self.pods() if observe.is_of(pod, deployment)]
                staying = sum(map(observe.is_staying, pods))
                group = self._group_of(desired, deployment) if desired.running else None
                if group is None and not staying:
                    await self._delete_deployment(deployment)
                elif group is not None and deployment["spec"].get("replicas", 1) > self._size(group, pods) >= staying:
                    await self._finish_scale_down(desired, group, deployment, pods)
                elif group is not None and deployment["spec"].get("replicas", 1) > self._size(group, pods):
                    continue  # Kubernetes would replace a deleted pod; `remove` lowers the number first
                elif (left := _leaving(pods)) and observe.is_settled(deployment, pods):
                    log.info(pairs("delete", pods=join_names(left)))
                    await asyncio.gather(*map(self._delete_pod, left))

    async def _withdraw(self, desired: Desired) -> None:
        """Delete an Ingress or a PodDisruptionBudget that the spec no longer has."""
        needed = {INGRESS: bool(desired.expose.host), POD_DISRUPTION_BUDGET: not desired.is_head_evictable}
        for kind in (kind for kind, is_needed in needed.items() if not is_needed):
            await self._owned.withdraw(kind, names.head(desired.name), desired.namespace)
        await aliases.withdraw(self._owned, self._cache, desired)

    async def _finish_scale_down(self, desired: Desired, group: Group, deployment: Object, pods: list[Object]) -> None:
        """Lower the number of replicas to what it should be: a scale-down was interrupted between its two writes, or
        somebody raised the number. Successors of retiring workers are not surplus. As in `remove`, wait for pods that
        the watch has not shown and for staying pods."""
        leaving = set(_leaving(pods))
        is_waiting = leaving and self._gate.cause(desired, deployment, pods, leaving)
        if not is_waiting and not observe.has_unseen(deployment, pods):
            await self._ensure_workers(desired, group, self._size(group, pods))

    # wire, record

    def wire(self, desired: Desired) -> KubeWire:
        self._use(desired)
        pods = self.pods()
        members = observe.members(pods, self._revisions(desired))
        head, ending = observe.head_pod(pods), observe.being_deleted(pods)
        head_name = "" if head is None else str(head["metadata"]["name"])
        return KubeWire(desired, members, head_name, self._reach, self._secret.files, ending)

    async def record(self, desired: Desired, state: LoopState, report: Report | None = None) -> None:
        self._state = state
        await self._root.save(state, report)
        if report is not None and any(cause.reason == HEAD_REPLACING for cause in report.causes):
            self._announced = self._head_fingerprint(desired).spec

    async def close(self) -> None:
        await self._reach.close()


def _leaving(pods: Sequence[Object]) -> list[str]:
    """Names of drained pods whose Deployment has been scaled down, and that still run."""
    up = [pod for pod in pods if observe.is_up(pod) and observe.annotation(pod, names.LEAVING)]
    return [str(pod["metadata"]["name"]) for pod in up]
