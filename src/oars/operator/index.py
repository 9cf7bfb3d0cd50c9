"""The operator's caches, indexed by cluster. One informer per kind and namespace serves all clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from oars.control.runner import NOW
from oars.kube.client import Client
from oars.kube.informer import Informer
from oars.kube.kinds import (
    DEPLOYMENT,
    INGRESS,
    NETWORK_POLICY,
    POD,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Object,
)
from oars.model import Pause, Role
from oars.operator.resources import Key, ResourceKind
from oars.places.kube import names
from oars.places.kube.evidence import has_replica_failure, is_failing
from oars.places.kube.state import observe, ownership
from oars.places.kube.state.cache import trimmed_deployment, trimmed_other, trimmed_pod
from oars.places.kube.state.nodes import NodeWatch

Cluster = tuple[str, str]  # namespace, name
Change = tuple[Cluster, Object | None, Object | None]  # before and after

# Owned objects that are restored when somebody deletes them. ConfigMaps and Secrets are not watched: that would require
# permission to read all of them. The place looks for them now and then.
OWNED_KINDS = (SERVICE, SERVICE_ACCOUNT, NETWORK_POLICY, POD_DISRUPTION_BUDGET, INGRESS)


# How soon a change needs a pass. `python -m bench pacing` shows what each of them saves.
BATCHED = Pause(0.1)  # pods of a cluster change together: one pass handles all changes
FAILURE = Pause(1.0)
PROGRESS = Pause(1.0, limited=True)

Wake = Callable[[Key, Pause], None]
When = Callable[[Cluster, Object | None, Object | None], Pause | None]  # None: no pass


class Index:
    """Objects of one kind by cluster. Anybody can label an object with a cluster's name, so `belongs` checks it."""

    def __init__(self, belongs: Callable[[Object], bool]) -> None:
        self._belongs = belongs
        self._by_cluster: dict[Cluster, dict[str, Object]] = {}

    def change(self, old: Object | None, new: Object | None) -> list[Change]:
        """Apply a change, and return it per cluster. An object whose label changes is deleted from one cluster and
        created in the other."""
        before, after = self._cluster(old), self._cluster(new)
        parts = [(before, old, new)] if before == after else [(before, old, None), (after, None, new)]
        changes = [(cluster, was, now) for cluster, was, now in parts if cluster is not None]
        for cluster, was, now in changes:
            self._put(cluster, was, now)
        return changes

    def _cluster(self, obj: Object | None) -> Cluster | None:
        if obj is None or not self._belongs(obj):
            return None
        metadata = obj["metadata"]
        return str(metadata["namespace"]), str(metadata["labels"][names.CLUSTER])

    def _put(self, cluster: Cluster, old: Object | None, new: Object | None) -> None:
        objects = self._by_cluster.setdefault(cluster, {})
        if new is not None:
            objects[new["metadata"]["name"]] = new
        elif old is not None:
            objects.pop(old["metadata"]["name"], None)
        if not objects:
            del self._by_cluster[cluster]

    def objects(self, cluster: Cluster) -> list[Object]:
        return list(self._by_cluster.get(cluster, {}).values())

    def get(self, cluster: Cluster, name: str) -> Object | None:
        return self._by_cluster.get(cluster, {}).get(name)


class Pods(Index):
    """Pods by cluster; also tracks which clusters have unready pods."""

    def __init__(self) -> None:
        super().__init__(observe.is_member)
        self._unready: dict[Cluster, set[str]] = {}

    def _put(self, cluster: Cluster, old: Object | None, new: Object | None) -> None:
        super()._put(cluster, old, new)
        unready = self._unready.setdefault(cluster, set())
        if new is not None and not observe.is_ready(new):
            unready.add(new["metadata"]["name"])
        elif (pod := new or old) is not None:
            unready.discard(pod["metadata"]["name"])
        if not unready:
            del self._unready[cluster]

    def on_node(self, node: str) -> list[Cluster]:
        """The clusters with pods on a node."""
        found = self._by_cluster.items()
        return [each for each, pods in found if any(p["spec"].get("nodeName") == node for p in pods.values())]

    def due(self, cluster: Cluster, old: Object | None, new: Object | None) -> Pause:
        """A worker that becomes ready is urgent if it is the last unready pod. A head always is: its workers may have
        to be replaced."""
        if old is None or observe.outline(old) == (observe.outline(new) if new else ()):
            return _failure_or_progress(new, is_failing)
        if new is None or cluster not in self._unready or observe.role(new) is not Role.WORKER:
            return BATCHED
        return _failure_or_progress(new, is_failing) if observe.is_starting(old, new) else BATCHED


class Watches:
    """The informers of an operator, for all or for some namespaces. Calls `wake` for each key that needs a pass."""

    def __init__(self, client: Client, namespaces: tuple[str, ...], kinds: Sequence[ResourceKind], wake: Wake) -> None:
        self._wake = wake
        self.on_resource: Callable[[Object], None] = lambda resource: None  # at every change, also of the status
        self.kinds = [each.name for each in kinds]
        owners = {each.kind.kind for each in kinds}
        self.pods = Pods()
        self.owned = {
            kind.kind: Index(lambda obj: bool(ownership.owner_kind(obj, owners))) for kind in (DEPLOYMENT, *OWNED_KINDS)
        }
        self.resources: dict[Key, Object] = {}
        self.nodes = NodeWatch(client, self.wake_node)
        self.informers: list[Informer] = []
        deployments = self.owned[DEPLOYMENT.kind]
        for namespace in namespaces or (None,):
            for each in kinds:
                self.informers.append(Informer(client, each.kind, namespace, on_change=self._on_resource(each.name)))
            self._add(client, POD, namespace, self.pods, trimmed_pod, self.pods.due)
            self._add(client, DEPLOYMENT, namespace, deployments, trimmed_deployment, _deployment_due)
            for kind in OWNED_KINDS:
                self._add(client, kind, namespace, self.owned[kind.kind], trimmed_other, _on_deletion)

    def _add(
        self,
        client: Client,
        kind: Kind,
        namespace: str | None,
        index: Index,
        keep: Callable[[Object], Object],
        when: When,
    ) -> None:
        def changed(_: object, old: Object | None, new: Object | None) -> None:
            for cluster, was, now in index.change(old, new):
                due = when(cluster, was, now)
                for key in (Key(each, *cluster) for each in self.kinds):
                    if due is not None and key in self.resources:
                        self._wake(key, due)

        self.informers.append(
            Informer(client, kind, namespace, labels=names.CLUSTER, transform=keep, on_change=changed)
        )

    def _on_resource(self, kind: str) -> Callable[[object, Object | None, Object | None], None]:
        def changed(_: object, old: Object | None, new: Object | None) -> None:
            metadata = (new or old or {})["metadata"]
            key = Key(kind, str(metadata["namespace"]), str(metadata["name"]))
            if new is None:
                self.resources.pop(key, None)
            else:
                self.resources[key] = new
            self.on_resource(new or old or {})
            schedule = Key(kind, key.namespace, str((metadata.get("labels") or {}).get(names.SCHEDULE, "")))
            if schedule in self.resources:
                self._wake(schedule, PROGRESS)  # one of its runs may have ended
            # A change of the status alone needs no pass: the operator wrote it.
            if old is None or new is None or _spec_version(old) != _spec_version(new):
                self._wake(key, NOW)

        return changed

    def wake_node(self, node: str) -> None:
        """Wake the clusters with pods on a node."""
        for cluster in self.pods.on_node(node):
            for key in (Key(each, *cluster) for each in self.kinds):
                if key in self.resources:
                    self._wake(key, BATCHED)

    def cluster(self, key: Key, uid: str) -> CachedCluster:
        """The cached objects of the resource with this uid."""
        return CachedCluster(self, (key.namespace, key.name), uid)

    def __iter__(self) -> Iterator[Informer]:
        return iter(self.informers)


class CachedCluster:
    """The cached objects of one cluster (see places.kube.state.cache.ClusterCache). `uid` is that of its resource: an
    earlier one of the same name may have left objects behind, and one of another kind may have the same name."""

    def __init__(self, watches: Watches, cluster: Cluster, uid: str) -> None:
        self._watches, self._cluster, self._uid = watches, cluster, uid

    def pods(self) -> list[Object]:
        return self._watches.pods.objects(self._cluster)

    def deployments(self) -> list[Object]:
        return [each for each in self._watches.owned[DEPLOYMENT.kind].objects(self._cluster) if self._belongs(each)]

    def has(self, kind: str, name: str) -> bool | None:
        if kind not in self._watches.owned:
            return None
        found = self._watches.owned[kind].get(self._cluster, name)
        return found is not None and self._belongs(found)

    def _belongs(self, obj: Object) -> bool:
        return ownership.has_owner(obj, self._uid)


def _on_deletion(_: Cluster, old: Object | None, new: Object | None) -> Pause | None:
    return BATCHED if new is None else None


def _deployment_due(_: Cluster, old: Object | None, new: Object | None) -> Pause:
    """Batched if the spec changed or was rolled out; other changes show in the pods."""
    if old is not None and (new is None or _rollout(old) != _rollout(new)):
        return BATCHED
    return _failure_or_progress(new, has_replica_failure)


def _rollout(deployment: Object) -> tuple[object, bool]:
    return deployment["metadata"]["generation"], observe.is_rolled_out(deployment)


def _failure_or_progress(new: Object | None, has_failed: Callable[[Object], bool]) -> Pause:
    return FAILURE if new is not None and has_failed(new) else PROGRESS


def _spec_version(resource: Object) -> tuple[object, ...]:
    metadata = resource["metadata"]
    return tuple(metadata.get(field) for field in ("uid", "generation", "annotations", "deletionTimestamp"))
