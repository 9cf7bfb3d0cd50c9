"""What the API server told us of a cluster, kept up to date by watches: looking costs no request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from oars.kube.kinds import Object

CATCH_UP = 5.0  # seconds; if a watch lags longer, what we asked for is asked for again


class Seen(Protocol):
    """The objects of one cluster, as last heard."""

    def pods(self) -> list[Object]: ...

    def deployments(self) -> list[Object]: ...

    def has(self, kind: str, name: str) -> bool | None:
        """Whether an object of the cluster is there. None: that kind is not watched."""


class ReadYourWrites:
    """Answers to our own writes, until the watches have caught up: we never act on a state from before our last act."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: dict[str, tuple[float, Object]] = {}

    def note(self, answer: Object) -> None:
        self._answers[answer["metadata"]["uid"]] = (self._clock(), answer)

    def newest(self, seen: list[Object]) -> list[Object]:
        """What was seen, with our answers in place of what is older."""
        if not self._answers:
            return seen
        known = {obj["metadata"]["uid"]: obj for obj in seen}
        for uid, (when, answer) in list(self._answers.items()):
            caught_up = uid in known and _version(known[uid]) >= _version(answer)
            if caught_up or self._clock() - when > CATCH_UP:
                del self._answers[uid]
            else:
                known[uid] = answer
        return list(known.values())

    def forget(self, uid: str) -> None:
        self._answers.pop(uid, None)


def _version(obj: Object) -> int:
    """Kubernetes says that these are opaque; in every server there is they are numbers that grow."""
    return int(obj["metadata"]["resourceVersion"])


_POD_FIELDS = ("nodeName", "nodeSelector", "tolerations", "overhead")
_CONTAINER_FIELDS = ("name", "image", "resources", "restartPolicy")  # the last makes an init container a sidecar


def trimmed_pod(pod: Object) -> Object:
    """All that is ever asked of a pod: a cache of thousands shall stay small. What why reads must be among it."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    kept: Object = {key: spec[key] for key in _POD_FIELDS if key in spec}
    kept["containers"] = _trimmed_containers(spec.get("containers"))
    if spec.get("initContainers"):
        kept["initContainers"] = _trimmed_containers(spec["initContainers"])
    if claims := _claims(spec.get("volumes")):
        kept["volumes"] = claims
    kept_status = {key: value for key, value in status.items() if key not in ("podIPs", "hostIPs", "qosClass")}
    return {"metadata": _trimmed_metadata(pod), "spec": kept, "status": kept_status}


def _trimmed_containers(containers: Iterable[Object] | None) -> list[Object]:
    return [{key: each[key] for key in _CONTAINER_FIELDS if key in each} for each in containers or ()]


def _claims(volumes: Iterable[Object] | None) -> list[Object]:
    """Volumes that somebody else has to provide, by name."""
    claims = [volume["persistentVolumeClaim"] for volume in volumes or () if "persistentVolumeClaim" in volume]
    return [{"persistentVolumeClaim": {"claimName": claim["claimName"]}} for claim in claims]


def trimmed_deployment(deployment: Object) -> Object:
    spec = deployment["spec"]
    kept = {"replicas": spec.get("replicas"), "selector": spec["selector"]}
    metadata = {**_trimmed_metadata(deployment), "ownerReferences": _owners(deployment)}
    return {"metadata": metadata, "spec": kept, "status": deployment.get("status", {})}


def trimmed_other(obj: Object) -> Object:
    """All that is asked of a Service, a policy and the like: that it is there, and whose it is."""
    return {"metadata": {**_trimmed_metadata(obj), "ownerReferences": _owners(obj)}}


def _owners(obj: Object) -> list[Object]:
    owners = obj["metadata"].get("ownerReferences") or ()
    return [{key: owner[key] for key in ("kind", "name", "uid")} for owner in owners]


def _trimmed_metadata(obj: Object) -> Object:
    kept = ("name", "namespace", "uid", "resourceVersion", "generation", "labels", "annotations", "creationTimestamp",
            "deletionTimestamp", "deletionGracePeriodSeconds")  # fmt: skip
    return {key: obj["metadata"][key] for key in kept if key in obj["metadata"]}
