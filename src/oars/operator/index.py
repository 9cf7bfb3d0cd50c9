"""What the watches of the whole operator saw, by cluster. One watch per kind serves all clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oars.kube.client import Client
from oars.kube.informer import Informer
from oars.kube.kinds import COMPUTE_CLUSTER, DEPLOYMENT, POD, Kind, Object
from oars.places.kube import names, observe
from oars.places.kube.seen import trimmed_deployment, trimmed_pod

Key = tuple[str, str]  # namespace, cluster
Wake = Callable[[Key, float], None]

TOGETHER = 0.1  # seconds; pods of a cluster change together, and one pass serves all their changes
LATER = 1.0  # the same for what only an explanation might be made of


class Index:
    """Objects of one kind, by the cluster they belong to."""

    def __init__(self) -> None:
        self._by_cluster: dict[Key, dict[str, Object]] = {}

    def change(self, old: Object | None, new: Object | None) -> Key | None:
        """Take over a change; returns the cluster it is about."""
        obj = new or old
        if obj is None:
            return None
        metadata = obj["metadata"]
        key = (str(metadata["namespace"]), str(metadata["labels"][names.CLUSTER]))
        mine = self._by_cluster.setdefault(key, {})
        if new is None:
            mine.pop(metadata["name"], None)
            if not mine:
                del self._by_cluster[key]
        else:
            mine[metadata["name"]] = new
        return key

    def of(self, key: Key) -> list[Object]:
        return list(self._by_cluster.get(key, {}).values())


class Watches:
    """All that an operator watches, in all namespaces or in some. `wake` hears which cluster to look at, and when."""

    def __init__(self, client: Client, namespaces: tuple[str, ...], wake: Wake) -> None:
        self._wake = wake
        self._pods, self._deployments = Index(), Index()
        self.clusters: dict[Key, Object] = {}
        self.informers: list[Informer] = []
        for namespace in namespaces or (None,):
            self.informers += [
                Informer(client, COMPUTE_CLUSTER, namespace, changed=self._on_cluster),
                self._labelled(client, POD, namespace, self._pods, trimmed_pod, _is_another_member),
                self._labelled(client, DEPLOYMENT, namespace, self._deployments, trimmed_deployment, _is_edited),
            ]

    def _labelled(
        self,
        client: Client,
        kind: Kind,
        namespace: str | None,
        index: Index,
        keep: Callable[[Object], Object],
        matters: Callable[[Object, Object | None], bool],
    ) -> Informer:
        def changed(_: Key, old: Object | None, new: Object | None) -> None:
            key = index.change(old, new)
            if key is not None and key in self.clusters:
                self._wake(key, TOGETHER if old is not None and matters(old, new) else LATER)

        return Informer(client, kind, namespace, labels=names.CLUSTER, keep=keep, changed=changed)

    def _on_cluster(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Our own writes of the status are no news."""
        if new is None:
            self.clusters.pop(key, None)
        else:
            self.clusters[key] = new
        if old is None or new is None or _asked(old) != _asked(new):
            self._wake(key, 0.0)

    def seen(self, key: Key) -> Seen:
        return Seen(self._pods, self._deployments, key)

    def __iter__(self) -> Iterator[Informer]:
        return iter(self.informers)


class Seen:
    """See places.kube.seen.Seen: the part of the watches that is one cluster's."""

    def __init__(self, pods: Index, deployments: Index, key: Key) -> None:
        self._pods, self._deployments, self._key = pods, deployments, key

    def pods(self) -> list[Object]:
        return self._pods.of(self._key)

    def deployments(self) -> list[Object]:
        return self._deployments.of(self._key)


def _is_another_member(old: Object, new: Object | None) -> bool:
    return observe.members([old], {}) != observe.members([new] if new else [], {})


def _is_edited(old: Object, new: Object | None) -> bool:
    """What it shall be has changed, whoever changed it. What it does about it is seen by its pods."""
    return new is None or bool(old["metadata"]["generation"] != new["metadata"]["generation"])


def _asked(resource: Object) -> tuple[object, ...]:
    metadata = resource["metadata"]
    return metadata.get("generation"), metadata.get("annotations"), metadata.get("deletionTimestamp")
