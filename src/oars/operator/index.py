"""The operator's caches, indexed by cluster. One informer per kind and namespace serves all clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from oars.model import Role
from oars.operator.resources import Key, ResourceKind
from oars.places.kube import names
from oars.places.kube.state import observe, ownership
from oars.places.kube.state.cache import trimmed_deployment, trimmed_other, trimmed_pod
from oars.places.kube.why.evidence import has_replica_failure, is_failing

Cluster = tuple[str, str]  # namespace, name
Change = tuple[Cluster, Object | None, Object | None]  # before and after

# Owned objects that are restored when somebody deletes them. ConfigMaps and Secrets are not watched: that would require
# permission to read all of them.
OWNED_KINDS = (SERVICE, SERVICE_ACCOUNT, NETWORK_POLICY, POD_DISRUPTION_BUDGET, INGRESS)


@dataclass(frozen=True)
class Due:
    """How soon a change needs a pass. `limited`: the shared rate limiter may delay it further."""

    after: float
    limited: bool = False


NOW = Due(0.0)
BATCHED = Due(0.1)  # pods of a cluster change together: one pass handles all changes
FAILURE = Due(1.0)
PROGRESS = Due(1.0, limited=True)

Wake = Callable[[Key, Due], None]
When = Callable[[Cluster, Object | None, Object | None], Due | None]  # None: no pass


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

    def due(self, cluster: Cluster, old: Object | None, new: Object | None) -> Due:
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
        self._kinds = [each.kind.kind for each in kinds]
        self._pods = Pods()
        self._owned = {
            kind.kind: Index(lambda obj: bool(ownership.owner_kind(obj, self._kinds)))
            for kind in (DEPLOYMENT, *OWNED_KINDS)
        }
        self.resources: dict[Key, Object] = {}
        self.informers: list[Informer] = []
        deployments = self._owned[DEPLOYMENT.kind]
        for namespace in namespaces or (None,):
            for each in kinds:
                self.informers.append(
                    Informer(client, each.kind, namespace, on_change=self._on_resource(each.kind.kind))
                )
            self._add(client, POD, namespace, self._pods, trimmed_pod, self._pods.due)
            self._add(client, DEPLOYMENT, namespace, deployments, trimmed_deployment, _deployment_due)
            for kind in OWNED_KINDS:
                self._add(client, kind, namespace, self._owned[kind.kind], trimmed_other, _owned_object_due)

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
                for key in (Key(each, *cluster) for each in self._kinds):
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
            # A change of the status alone needs no pass: the operator wrote it.
            if old is None or new is None or _spec_version(old) != _spec_version(new):
                self._wake(key, NOW)

        return changed

    def cluster(self, key: Key) -> CachedCluster:
        return CachedCluster(self._pods, self._owned, key, lambda: self._has_namesake(key))

    def _has_namesake(self, key: Key) -> bool:
        return any(replace(key, kind=kind) in self.resources for kind in self._kinds if kind != key.kind)

    def __iter__(self) -> Iterator[Informer]:
        return iter(self.informers)


class CachedCluster:
    """The cached objects of one cluster (see places.kube.state.cache.ClusterCache)."""

    def __init__(self, pods: Index, owned: Mapping[str, Index], key: Key, has_namesake: Callable[[], bool]) -> None:
        self._pods, self._owned, self._key, self._has_namesake = pods, owned, key, has_namesake
        self._cluster = (key.namespace, key.name)

    def pods(self) -> list[Object]:
        """A resource of another kind with the same name has pods with the same labels: those belong to its
        Deployments."""
        pods = self._pods.objects(self._cluster)
        if not self._has_namesake():
            return pods
        mine = self.deployments()
        return [pod for pod in pods if any(observe.is_of(pod, deployment) for deployment in mine)]

    def deployments(self) -> list[Object]:
        return [each for each in self._owned[DEPLOYMENT.kind].objects(self._cluster) if self._belongs(each)]

    def has(self, kind: str, name: str) -> bool | None:
        if kind not in self._owned:
            return None
        found = self._owned[kind].get(self._cluster, name)
        return found is not None and self._belongs(found)

    def _belongs(self, obj: Object) -> bool:
        return ownership.is_owned_by(obj, self._key.kind, self._key.name)


def _deployment_due(_: Cluster, old: Object | None, new: Object | None) -> Due:
    """Batched if the spec changed or was rolled out; other changes show in the pods."""
    if old is not None and (new is None or _rollout(old) != _rollout(new)):
        return BATCHED
    return _failure_or_progress(new, has_replica_failure)


def _rollout(deployment: Object) -> tuple[object, bool]:
    return deployment["metadata"]["generation"], observe.is_rolled_out(deployment)


def _failure_or_progress(new: Object | None, has_failed: Callable[[Object], bool]) -> Due:
    return FAILURE if new is not None and has_failed(new) else PROGRESS


def _owned_object_due(_cluster: Cluster, _: Object | None, new: Object | None) -> Due | None:
    return BATCHED if new is None else None


def _spec_version(resource: Object) -> tuple[object, ...]:
    metadata = resource["metadata"]
    return metadata.get("generation"), metadata.get("annotations"), metadata.get("deletionTimestamp")
