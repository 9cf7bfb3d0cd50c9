"""What the watches of the whole operator saw, by cluster. One watch per kind serves all clusters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from oars.kube.client import Client
from oars.kube.informer import Informer
from oars.kube.kinds import (
    COMPUTE_CLUSTER,
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
from oars.places.kube import names
from oars.places.kube.state import observe, ownership
from oars.places.kube.state.cache import trimmed_deployment, trimmed_other, trimmed_pod
from oars.places.kube.why.evidence import is_refused, is_troubled

Key = tuple[str, str]  # namespace, cluster
Change = tuple[Key, Object | None, Object | None]  # what was, and what is

# Beside the members; what somebody deletes comes back. Not ConfigMaps and Secrets: whoever may watch them may read all.
SURROUNDINGS = (SERVICE, SERVICE_ACCOUNT, NETWORK_POLICY, POD_DISRUPTION_BUDGET, INGRESS)


@dataclass(frozen=True)
class Due:
    """How long after a change to look at its cluster: in seconds, and at the latest where many are on their way."""

    after: float
    latest: float

    def pause(self, turn: float) -> float:
        """`turn`: in how many seconds each of those that are on their way is looked at once anyway."""
        return max(self.after, min(turn, self.latest))


AT_ONCE = Due(0.0, 0.0)
TOGETHER = Due(0.1, 0.1)  # pods of a cluster change together, and one pass serves all their changes
TROUBLE = Due(1.0, 4.0)  # what explains one is told within five seconds
COURSE = Due(1.0, math.inf)  # it goes on as it should

Wake = Callable[[Key, Due], None]
When = Callable[[Key, Object | None, Object | None], Due | None]  # None: it is no news


class Index:
    """Objects of one kind, by the cluster they belong to. Whoever may label an object can give it a cluster's name:
    `belongs` says which are meant."""

    def __init__(self, belongs: Callable[[Object], bool]) -> None:
        self._belongs = belongs
        self._by_cluster: dict[Key, dict[str, Object]] = {}

    def change(self, old: Object | None, new: Object | None) -> list[Change]:
        """Take over a change; returns what it is to each cluster. What goes over from one to another is gone for the
        one and new for the other."""
        before, after = self._key(old), self._key(new)
        parts = [(before, old, new)] if before == after else [(before, old, None), (after, None, new)]
        told = [(key, was, now) for key, was, now in parts if key is not None]
        for key, was, now in told:
            self._put(key, was, now)
        return told

    def _key(self, obj: Object | None) -> Key | None:
        if obj is None or not self._belongs(obj):
            return None
        metadata = obj["metadata"]
        return str(metadata["namespace"]), str(metadata["labels"][names.CLUSTER])

    def _put(self, key: Key, old: Object | None, new: Object | None) -> None:
        mine = self._by_cluster.setdefault(key, {})
        if new is not None:
            mine[new["metadata"]["name"]] = new
        elif old is not None:
            mine.pop(old["metadata"]["name"], None)
        if not mine:
            del self._by_cluster[key]

    def of(self, key: Key) -> list[Object]:
        return list(self._by_cluster.get(key, {}).values())

    def has(self, key: Key, name: str) -> bool:
        return name in self._by_cluster.get(key, {})


class Pods(Index):
    """Also knows which clusters wait for pods that are not ready."""

    def __init__(self) -> None:
        super().__init__(observe.is_member)
        self._unready: dict[Key, set[str]] = {}

    def _put(self, key: Key, old: Object | None, new: Object | None) -> None:
        super()._put(key, old, new)
        unready = self._unready.setdefault(key, set())
        if new is not None and not observe.is_ready(new):
            unready.add(new["metadata"]["name"])
        elif (pod := new or old) is not None:
            unready.discard(pod["metadata"]["name"])
        if not unready:
            del self._unready[key]

    def due(self, key: Key, old: Object | None, new: Object | None) -> Due:
        """A worker that comes up is urgent if it is the last that was waited for. A head always is: workers may have to
        be replaced for it."""
        if old is None or observe.outline(old) == (observe.outline(new) if new else ()):
            return _course(new, is_troubled)
        if new is None or key not in self._unready or observe.role(new) is not Role.WORKER:
            return TOGETHER
        return _course(new, is_troubled) if observe.is_starting(old, new) else TOGETHER


class Watches:
    """All that an operator watches, in all namespaces or in some. `wake` hears which cluster to look at, and when."""

    def __init__(self, client: Client, namespaces: tuple[str, ...], wake: Wake) -> None:
        self._wake = wake
        self._pods = Pods()
        self._others = {kind.kind: Index(ownership.is_operated) for kind in (DEPLOYMENT, *SURROUNDINGS)}
        self.clusters: dict[Key, Object] = {}
        self.informers: list[Informer] = []
        for namespace in namespaces or (None,):
            self.informers += [
                Informer(client, COMPUTE_CLUSTER, namespace, changed=self._on_cluster),
                self._labelled(client, POD, namespace, self._pods, trimmed_pod, self._pods.due),
                self._labelled(
                    client,
                    DEPLOYMENT,
                    namespace,
                    self._others[DEPLOYMENT.kind],
                    trimmed_deployment,
                    _sooner_if_edited,
                ),
                *(
                    self._labelled(client, kind, namespace, self._others[kind.kind], trimmed_other, _if_gone)
                    for kind in SURROUNDINGS
                ),
            ]

    def _labelled(
        self,
        client: Client,
        kind: Kind,
        namespace: str | None,
        index: Index,
        keep: Callable[[Object], Object],
        when: When,
    ) -> Informer:
        def changed(_: Key, old: Object | None, new: Object | None) -> None:
            for key, was, now in index.change(old, new):
                due = when(key, was, now)
                if key in self.clusters and due is not None:
                    self._wake(key, due)

        return Informer(client, kind, namespace, labels=names.CLUSTER, keep=keep, changed=changed)

    def _on_cluster(self, key: Key, old: Object | None, new: Object | None) -> None:
        """Our own writes of the status are no news."""
        if new is None:
            self.clusters.pop(key, None)
        else:
            self.clusters[key] = new
        if old is None or new is None or _asked(old) != _asked(new):
            self._wake(key, AT_ONCE)

    def seen(self, key: Key) -> Seen:
        return Seen(self._pods, self._others, key)

    def __iter__(self) -> Iterator[Informer]:
        return iter(self.informers)


class Seen:
    """See places.kube.seen.Seen: the part of the watches that is one cluster's."""

    def __init__(self, pods: Index, others: Mapping[str, Index], key: Key) -> None:
        self._pods, self._others, self._key = pods, others, key

    def pods(self) -> list[Object]:
        return self._pods.of(self._key)

    def deployments(self) -> list[Object]:
        return self._others[DEPLOYMENT.kind].of(self._key)

    def has(self, kind: str, name: str) -> bool | None:
        return self._others[kind].has(self._key, name) if kind in self._others else None


def _sooner_if_edited(_: Key, old: Object | None, new: Object | None) -> Due:
    """What it shall be has changed, whoever changed it, or has been carried out. What else it does about it is seen by
    its pods."""
    if old is not None and (new is None or _edition(old) != _edition(new)):
        return TOGETHER
    return _course(new, is_refused)


def _edition(deployment: Object) -> tuple[object, bool]:
    return deployment["metadata"]["generation"], observe.is_rolled_out(deployment)


def _course(new: Object | None, is_wrong: Callable[[Object], bool]) -> Due:
    return TROUBLE if new is not None and is_wrong(new) else COURSE


def _if_gone(_key: Key, _: Object | None, new: Object | None) -> Due | None:
    return TOGETHER if new is None else None


def _asked(resource: Object) -> tuple[object, ...]:
    metadata = resource["metadata"]
    return metadata.get("generation"), metadata.get("annotations"), metadata.get("deletionTimestamp")
