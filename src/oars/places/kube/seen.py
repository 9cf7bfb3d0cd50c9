"""What the API server told us of a cluster, kept up to date by watches: looking costs no request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from oars.kube.kinds import Object

CATCH_UP = 5.0  # seconds; a watch that lags longer is renewed, and what we asked for is asked for again


class Seen(Protocol):
    """The objects of one cluster, as last heard."""

    def pods(self) -> list[Object]: ...

    def deployments(self) -> list[Object]: ...


class Fresh:
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


def trimmed_pod(pod: Object) -> Object:
    """All that is ever asked of a pod: a cache of thousands shall stay small."""
    spec, status = pod.get("spec", {}), pod.get("status", {})
    containers = [
        {key: container[key] for key in ("name", "image", "resources") if key in container}
        for container in spec.get("containers", ())
    ]
    kept_spec = {key: spec[key] for key in ("nodeName", "nodeSelector", "tolerations", "affinity") if key in spec}
    kept_status = {key: value for key, value in status.items() if key not in ("podIPs", "hostIPs", "qosClass")}
    return {
        "metadata": _trimmed_metadata(pod),
        "spec": {**kept_spec, "containers": containers},
        "status": kept_status,
    }


def trimmed_deployment(deployment: Object) -> Object:
    spec = deployment["spec"]
    return {
        "metadata": _trimmed_metadata(deployment),
        "spec": {"replicas": spec.get("replicas"), "selector": spec["selector"]},
        "status": deployment.get("status", {}),
    }


def _trimmed_metadata(obj: Object) -> Object:
    kept = ("name", "namespace", "uid", "resourceVersion", "generation", "labels", "annotations", "creationTimestamp",
            "deletionTimestamp", "deletionGracePeriodSeconds")  # fmt: skip
    return {key: obj["metadata"][key] for key in kept if key in obj["metadata"]}
