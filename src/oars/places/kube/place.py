"""The Kubernetes place: members are pods of Deployments, which replace failed pods themselves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from oars.base.log import get_logger, pairs
from oars.base.text import join_names
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import DEPLOYMENT, INGRESS, POD, POD_DISRUPTION_BUDGET, Object
from oars.model import HEAD, Cause, Desired, Ensure, Group, LoopState, Observed, Pace, Remove, Role
from oars.places.base import PlaceError
from oars.places.kube import names
from oars.places.kube.evidence import Evidence, SharedLists
from oars.places.kube.render import objects, sidecar
from oars.places.kube.render.fingerprint import Fingerprint
from oars.places.kube.scale_down import ScaleDownGate
from oars.places.kube.state import observe
from oars.places.kube.state.cache import ClusterCache, ReadYourWrites
from oars.places.kube.state.owned_objects import OwnedObjects
from oars.places.kube.state.secrets import ensure_secret, read_helper_token
from oars.places.kube.why.api_errors import NameConflict, cause_of, is_about_rbac
from oars.places.kube.wire import KubeWire, Reach
from oars.places.report import Report
from oars.plan.desired import digest

REMOVE_FIRST = "-1000"  # pod deletion cost of a drained worker
# Watches report changes of pods. Only the engine, and the causes of missing members, must be polled.
PACE = Pace(soon=0.5, waiting=2.0, resting=10.0)

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


class KubePlace:
    """One cluster's members in one namespace."""

    def __init__(self, setting: Setting, namespace: str, clock: Callable[[], float] = time.time) -> None:
        self._client, self._cache = setting.client, setting.cache
        self._root, self._reach = setting.root, setting.reach
        self._namespace = namespace
        self._clock = clock
        self._pods, self._deployments = ReadYourWrites(), ReadYourWrites()
        self._evidence = Evidence(setting.client, namespace, setting.lists or SharedLists(setting.client))
        self._gate = ScaleDownGate(clock)
        self._state = setting.root.state
        self._may_watch_owner = True  # False: we may not grant the helper the rights it needs for that
        self._token = ""
        self._budget_applied = False
        self._may_have_ingress = True
        self._known_deployments: set[str] = set()
        self._owned = OwnedObjects(setting.client, setting.cache, setting.root.owner, clock)
        # Cache of what the desired state renders to: rendering in every pass is too slow.
        self._rendered_from: Desired | None = None
        self._rendered: dict[object, Fingerprint] = {}
        self._revision_of: dict[str, str] = {}

    # observe

    async def observe(self, desired: Desired) -> Observed:
        self._use(desired)
        pods, revisions = self.pods(), self._revisions(desired)
        members = observe.members(pods, revisions)
        head = self._deployment(names.head(desired.name))
        if head is not None:
            if desired.helper and not self._token:  # another process may have created the cluster's Secret
                self._token = await read_helper_token(self._client, desired.name, desired.namespace, self._root.owner)
            if self._is_outdated(desired, head):
                members = tuple(observe.replaced(each) if each.id == HEAD else each for each in members)
        causes: tuple[Cause, ...] = ()
        answering = Counter(member.group for member in members if member.probe_ready)
        if any(answering[group.name] < group.replicas for group in (desired.shape.head, *desired.shape.workers)):
            causes = await self._evidence.causes(pods, self.deployments(), desired.shape.log_patterns)
        else:
            self._evidence.forget()
        remarks = (sidecar.unwatched(desired),) if desired.tied and not self._may_watch_owner else ()
        # If the root has lost the loop state, the worker Deployments show the head epoch.
        epochs = [Fingerprint.of(deployment).epoch for deployment in self._worker_deployments()]
        state = replace(self._state, head_epoch=max([self._state.head_epoch, *epochs]))
        return Observed(members, state, observe.deaths(pods, self._clock()), PACE, causes, remarks)

    def _use(self, desired: Desired) -> None:
        """Drop cached renderings of an older spec. The head epoch, `force` and the generation do not affect them."""
        same = replace(desired, head_epoch=0, force=False, generation=0)
        if same != self._rendered_from:
            self._rendered_from = same
            self._rendered.clear()
            self._revision_of.clear()
            self._may_have_ingress = True

    def _is_outdated(self, desired: Desired, head: Object) -> bool:
        """True if the head pod is about to be replaced: we will apply a change, or its Deployment rolls one out."""
        applied, wanted = Fingerprint.of(head), self._head_fingerprint(desired)
        changed = not applied.covers(wanted) and applied.spec != wanted.spec
        return changed or not observe.is_rolled_out(head)

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
        same spec, its revision is kept: an upgrade of Oars must not replace pods."""
        for group in desired.shape.workers:
            if group.name not in self._revision_of:
                wanted = Fingerprint("", group.fingerprint)
                older = [d for d in self._deployments_of(group.name) if Fingerprint.of(d).same_spec_older_oars(wanted)]
                found = older[0]["metadata"]["labels"][names.REVISION] if older else objects.revision_of(desired, group)
                self._revision_of[group.name] = str(found)
        return self._revision_of

    # ensure

    async def ensure(self, desired: Desired, step: Ensure) -> None:
        self._use(desired)
        if step.group.role is Role.DRIVER:
            message = f"Drivers cannot run as pods yet ({step.group.name})."
            raise PlaceError(Cause("DriverNotSupported", message, "Run the program with `oars run` instead."))
        with _explained():
            if step.group.role is Role.HEAD:
                await self._ensure_head(desired)
                if step.settled:
                    await self._ensure_budget(desired)
            else:
                # Only `remove` and `collect` scale down. A lagging watch may show too few pods.
                _, _, live = self._target(desired, step.group)
                now = int(live["spec"].get("replicas", 1)) if live is not None else 0
                await self._ensure_workers(desired, step.group, max(now, len(step.members)))

    async def _ensure_head(self, desired: Desired) -> None:
        """Apply everything but the workers. The Deployment's fingerprint shows whether all of it was applied, the cache
        whether it still exists."""
        wanted = self._head_fingerprint(desired)
        live = self._deployment(names.head(desired.name))
        found = Fingerprint.of(live)
        applied, exposed = live is not None and found.covers(wanted), found.network == wanted.network
        if applied and exposed and self._owned.is_complete():
            return
        owned, head = sidecar.head_and_owned(desired, self._watches_owner(desired))
        changed = set() if exposed else set(map(names.kind_and_name, objects.network_objects(desired)))
        missing = [
            obj
            for obj in owned
            if not applied or (key := names.kind_and_name(obj)) in changed or self._owned.is_missing(key)
        ]
        try:
            for account in [obj for obj in missing if obj["kind"] == "ServiceAccount"]:
                missing.remove(account)
                await self._owned.apply(account)  # first: no pod is admitted without it
            await asyncio.gather(self._ensure_secret(desired), *map(self._owned.apply, missing))
        except ApiError as error:
            if error.status != 403 or not self._watches_owner(desired) or not is_about_rbac(error):
                raise
            log.warning(pairs("owner will not be watched", cluster=desired.name, error=error.message))
            self._may_watch_owner = False
            self._rendered.pop(HEAD, None)
            await self._ensure_head(desired)
            return
        if not applied:
            self._budget_applied = False
            await self._apply_deployment(head, wanted)
        elif not exposed:  # another version of Oars created the head, which stays
            await self._annotate(names.head(desired.name), {names.APPLIED: str(replace(found, network=wanted.network))})

    def _watches_owner(self, desired: Desired) -> bool:
        return desired.tied and self._may_watch_owner

    def _head_fingerprint(self, desired: Desired) -> Fingerprint:
        if HEAD not in self._rendered:
            watched = self._watches_owner(desired)
            owned, wanted = self._render_head(desired, watched=watched)
            if watched:
                others, unwatched = self._render_head(desired, watched=False)
                live = self._deployment(names.head(desired.name))
                if live is not None and Fingerprint.of(live).rendered == unwatched.rendered:
                    # A client without the rights to watch it created this head. Replacing it would lose all data.
                    self._may_watch_owner, owned, wanted = False, others, unwatched
            self._owned.expect(owned)
            self._rendered[HEAD] = wanted
        return self._rendered[HEAD]

    def _render_head(self, desired: Desired, *, watched: bool) -> tuple[list[Object], Fingerprint]:
        owned, head = sidecar.head_and_owned(desired, watched)
        rendered = digest({"around": owned, "head": head})
        network = digest({"network": objects.network_objects(desired)})
        return owned, Fingerprint(rendered, desired.shape.head.fingerprint, network=network)

    async def _ensure_secret(self, desired: Desired) -> None:
        if objects.needs_secret(desired) and not self._token:
            self._token = await ensure_secret(self._client, desired, self._owned)

    async def _ensure_budget(self, desired: Desired) -> None:
        """Apply the PodDisruptionBudget that protects the head from eviction. Only once the head serves: before that it
        has no data, and Kubernetes checks every budget of a namespace for every pod that starts there."""
        budget = (POD_DISRUPTION_BUDGET.kind, names.head(desired.name))
        exists = self._cache.has(*budget)
        if exists or (self._budget_applied and not self._owned.is_missing(budget)):
            return
        await self._owned.apply(objects.disruption_budget(desired))
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
        return f"{base}-{revision[:5]}" if is_taken else base, revision, None

    async def _ensure_workers(self, desired: Desired, group: Group, count: int) -> None:
        name, revision, live = self._target(desired, group)
        applied = Fingerprint.of(live) if live is not None and live["spec"].get("replicas") == count else None
        key = (name, count, desired.head_epoch)
        if applied is not None and key in self._rendered and applied.covers(self._rendered[key]):
            return
        deployment = objects.managed_worker_deployment(desired, group, count, name, revision)
        wanted = Fingerprint(digest(deployment), group.fingerprint, desired.head_epoch)
        self._rendered[key] = wanted
        if applied is not None and applied.covers(wanted):
            return
        before = Fingerprint.of(live) if live is not None else None
        if before is not None and before.same_spec_older_oars(wanted) and before.epoch == wanted.epoch:
            await self._set_replicas(name, count)
        else:
            await self._apply_deployment(deployment, wanted)

    async def _apply_deployment(self, deployment: Object, wanted: Fingerprint) -> None:
        name = deployment["metadata"]["name"]
        live = self._deployment(name)
        # Otherwise the Deployment controller sets the rollout revision with an extra write.
        rollout = (live and observe.annotation(live, names.ROLLOUT)) or "1"
        deployment["metadata"]["annotations"] = {names.APPLIED: str(wanted), names.ROLLOUT: rollout}
        log.info(pairs("apply", deployment=name, replicas=deployment["spec"]["replicas"]))
        self._deployments.note(await self._owned.apply(deployment))

    async def _annotate(self, deployment: str, annotations: dict[str, str]) -> None:
        body = {"metadata": {"annotations": annotations}}
        self._deployments.note(await self._client.patch(DEPLOYMENT, deployment, self._namespace, body))

    async def _set_replicas(self, name: str, count: int) -> None:
        body = {"spec": {"replicas": count}}
        self._deployments.note(await self._client.patch(DEPLOYMENT, name, self._namespace, body))

    # remove

    async def remove(self, desired: Desired, step: Remove) -> Sequence[Cause]:
        self._use(desired)
        pods = {pod["metadata"]["name"]: pod for pod in self.pods()}
        chosen = [pods[member] for member in step.members if member in pods]
        waits: list[Cause] = []
        with _explained():
            if HEAD in step.members and (head := self._deployment(names.head(desired.name))) is not None:
                await self._delete_deployment(head)
            for deployment in self._worker_deployments():
                victims = {pod["metadata"]["name"] for pod in chosen if observe.is_of(pod, deployment)}
                is_obsolete = self._group_of(desired, deployment) is None
                if victims and (not desired.running or (step.grace == 0.0 and is_obsolete)):
                    await self._delete_deployment(deployment)
                    continue
                if step.grace == 0.0:  # a Deployment replaces pods of an earlier head epoch itself, and restores others
                    victims = {name for name in victims if observe.head_epoch(pods[name]) == desired.head_epoch}
                if not victims:
                    continue
                if wait := self._gate.cause(desired, deployment, self.pods(), victims):
                    waits.append(wait)
                else:
                    await self._scale_down(desired, deployment, victims)
        return waits

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

    async def _scale_down(self, desired: Desired, deployment: Object, victims: set[str]) -> None:
        """Mark the victims as the first to be deleted, then lower the number of replicas."""
        marks = {"metadata": {"annotations": {names.DELETION_COST: REMOVE_FIRST, names.LEAVING: "true"}}}

        async def mark(name: str) -> None:
            try:
                self._pods.note(await self._client.patch(POD, name, self._namespace, marks))
            except ApiError as error:
                if not is_not_found(error):  # it is gone already
                    raise

        await asyncio.gather(*map(mark, sorted(victims)))
        group, name = self._group_of(desired, deployment), deployment["metadata"]["name"]
        staying = {p["metadata"]["name"] for p in self.pods() if observe.is_of(p, deployment) and observe.is_staying(p)}
        # An absolute number makes a repeated request idempotent.
        retiring = [member for member in self._state.retiring if member in staying and member not in victims]
        count = len(staying - victims) if group is None else group.replicas + len(retiring)
        log.info(pairs("scale down", deployment=name, replicas=count, victims=join_names(sorted(victims))))
        if group is None:
            await self._set_replicas(name, count)
        else:
            await self._ensure_workers(desired, group, count)

    # collect

    async def collect(self, desired: Desired) -> None:
        """Delete what an earlier cluster of this name left behind, an Ingress that the spec no longer has, empty
        obsolete Deployments, and all Deployments of a stopped cluster: `remove` finds only those that have pods. Finish
        interrupted scale-downs."""
        self._use(desired)
        with _explained():
            await self._owned.collect_left()
            if desired.running and not desired.expose.host and self._may_have_ingress:
                await self._owned.withdraw(INGRESS, names.head(desired.name), desired.namespace)
                self._may_have_ingress = False
            for deployment in self._worker_deployments() if desired.running else self.deployments():
                if deployment["metadata"].get("deletionTimestamp"):
                    continue
                pods = [pod for pod in self.pods() if observe.is_of(pod, deployment)]
                staying = sum(map(observe.is_staying, pods))
                group = self._group_of(desired, deployment) if desired.running else None
                if group is None and not staying:
                    await self._delete_deployment(deployment)
                elif group is not None and deployment["spec"].get("replicas", 1) > group.replicas >= staying:
                    await self._finish_scale_down(desired, group, deployment, pods)
                elif (left := _leaving(pods)) and observe.is_settled(deployment, pods):
                    log.info(pairs("delete", pods=join_names(left)))
                    await asyncio.gather(*(self._client.delete(POD, name, self._namespace) for name in left))

    async def _finish_scale_down(self, desired: Desired, group: Group, deployment: Object, pods: list[Object]) -> None:
        """Lower the number of replicas to that of the group: a scale-down was interrupted between its two writes, or
        somebody raised the number. As in `remove`, wait for pods that the watch has not shown and for staying pods."""
        leaving = set(_leaving(pods))
        is_waiting = leaving and self._gate.cause(desired, deployment, pods, leaving)
        if not is_waiting and not observe.has_unseen(deployment, pods):
            await self._ensure_workers(desired, group, group.replicas)

    # wire, record

    def wire(self, desired: Desired) -> KubeWire:
        self._use(desired)
        pods = self.pods()
        members = observe.members(pods, self._revisions(desired))
        return KubeWire(desired, members, observe.head_pod(pods), self._reach, self._token)

    async def record(self, desired: Desired, state: LoopState, report: Report | None = None) -> None:
        self._state = state
        await self._root.save(state, report)

    async def close(self) -> None:
        await self._reach.close()


def _leaving(pods: Sequence[Object]) -> list[str]:
    """Names of drained pods whose Deployment has been scaled down, and that still run."""
    up = [pod for pod in pods if observe.is_up(pod) and observe.annotation(pod, names.LEAVING)]
    return [str(pod["metadata"]["name"]) for pod in up]


@contextmanager
def _explained() -> Iterator[None]:
    """Turn an error of the API server into a PlaceError with a cause that users understand."""
    try:
        yield
    except (ApiError, NameConflict) as error:
        raise PlaceError(cause_of(error)) from error
