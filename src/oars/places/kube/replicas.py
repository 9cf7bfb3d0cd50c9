"""Notices other writers of the replicas of worker Deployments, such as `kubectl scale deployment` or a
HorizontalPodAutoscaler. Oars sets the number of its spec again; what they should write to is the spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oars.base.text import command
from oars.model import Cause, Desired
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.state import observe

REMARK_SECONDS = 600.0  # for which such a write is reported


def mark(count: int) -> dict[str, str]:
    """The annotation that goes with each write of the number."""
    return {names.REPLICAS: str(count)}


class OtherWriters:
    """The writes of others to the Deployments of one cluster, as far as this process has seen them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, int, str]] = {}  # Deployment → when, the number, the group

    def remarks(self, desired: Desired, deployments: Iterable[Object]) -> tuple[Cause, ...]:
        now = self._clock()
        for each in deployments:
            found, ours = int(each["spec"].get("replicas", 1)), observe.annotation(each, names.REPLICAS)
            if ours and int(ours) != found:
                self._seen[each["metadata"]["name"]] = now, found, observe.group_name(each)
        self._seen = {name: seen for name, seen in self._seen.items() if now - seen[0] < REMARK_SECONDS}
        return tuple(_remark(desired, name, found, group) for name, (_, found, group) in sorted(self._seen.items()))


def _remark(desired: Desired, deployment: str, found: int, group: str) -> Cause:
    chosen = [] if len(desired.shape.workers) < 2 else ["--group", group]
    scale = command("scale", desired.name, str(found), *chosen, namespace=desired.namespace)
    target = f", and an autoscaler on computecluster/{desired.name}" if desired.mode == "operator" else ""
    return Cause(
        "ReplicasOverwritten",
        f"Something other than Oars set the replicas of the Deployment {deployment} to {found}. "
        "Oars sets the number of the cluster's spec again.",
        f"Use `{scale}` instead{target}.",
    )
