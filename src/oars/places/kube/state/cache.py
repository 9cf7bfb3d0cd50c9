"""Cache of a cluster's objects, kept up to date by watches: reading it costs no request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from oars.kube.kinds import Object

CATCH_UP = 5.0  # seconds; if a watch lags longer, we repeat the write


class ClusterCache(Protocol):
    """The objects of one cluster, as the watches last reported them."""

    def pods(self) -> list[Object]: ...

    def deployments(self) -> list[Object]: ...

    def has(self, kind: str, name: str) -> bool | None:
        """True if the cluster has that object. None: the kind is not watched."""


class ReadYourWrites:
    """Keeps the responses to our own writes until the watches have caught up, so that we never act on a state from
    before our last write."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._written: dict[str, tuple[float, Object]] = {}
        self._gone: dict[str, float] = {}  # uids of objects that do not exist any more

    def note(self, obj: Object) -> None:
        self._written[obj["metadata"]["uid"]] = (self._clock(), obj)

    def newest(self, cached: list[Object]) -> list[Object]:
        """The cached objects, with our own writes in place of older versions."""
        if not self._written and not self._gone:
            return cached
        self._gone = {uid: when for uid, when in self._gone.items() if self._clock() - when <= CATCH_UP}
        known = {uid: obj for obj in cached if (uid := obj["metadata"]["uid"]) not in self._gone}
        for uid, (when, written) in list(self._written.items()):
            caught_up = uid in known and _version(known[uid]) >= _version(written)
            if caught_up or self._clock() - when > CATCH_UP:
                del self._written[uid]
            else:
                known[uid] = written
        return list(known.values())

    def forget(self, uid: str) -> None:
        self._written.pop(uid, None)

    def note_deleted(self, uid: str) -> None:
        """The API server does not know the object any more."""
        self.forget(uid)
        self._gone[uid] = self._clock()


def _version(obj: Object) -> int:
    """The resource version as a number. It is opaque by contract, but all API servers use increasing numbers."""
    return int(obj["metadata"]["resourceVersion"])


_POD_FIELDS = ("nodeName", "nodeSelector", "tolerations", "overhead")
_CONTAINER_FIELDS = ("name", "image", "resources", "restartPolicy")  # the last makes an init container a sidecar


def trimmed_pod(pod: Object) -> Object:
    """The pod with only the fields that Oars reads, `places.kube.why` included: a cache of thousands of pods must stay
    small."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    kept: Object = {key: spec[key] for key in _POD_FIELDS if key in spec}
    for kind in ("containers", "initContainers"):
        if kind == "containers" or spec.get(kind):
            kept[kind] = [{key: each[key] for key in _CONTAINER_FIELDS if key in each} for each in spec.get(kind) or ()]
    claims = [each["persistentVolumeClaim"] for each in spec.get("volumes") or () if "persistentVolumeClaim" in each]
    if claims:
        kept["volumes"] = [{"persistentVolumeClaim": {"claimName": claim["claimName"]}} for claim in claims]
    kept_status = {key: value for key, value in status.items() if key not in ("podIPs", "hostIPs", "qosClass")}
    return {"metadata": _trimmed_metadata(pod), "spec": kept, "status": kept_status}


def trimmed_deployment(deployment: Object) -> Object:
    kept = {"replicas": deployment["spec"].get("replicas")}
    return {"metadata": _trimmed_metadata(deployment), "spec": kept, "status": deployment.get("status", {})}


def trimmed_other(obj: Object) -> Object:
    """A Service, NetworkPolicy or the like with only its metadata: Oars checks that it exists and who owns it."""
    return {"metadata": _trimmed_metadata(obj)}


def _trimmed_metadata(obj: Object) -> Object:
    kept = ("name", "namespace", "uid", "resourceVersion", "generation", "generateName", "labels", "annotations",
            "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")  # fmt: skip
    metadata = {key: obj["metadata"][key] for key in kept if key in obj["metadata"]}
    owners = obj["metadata"].get("ownerReferences") or ()
    metadata["ownerReferences"] = [
        {key: owner[key] for key in ("kind", "name", "uid", "controller") if key in owner} for owner in owners
    ]
    return metadata
