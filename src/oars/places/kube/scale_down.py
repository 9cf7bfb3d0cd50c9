"""Decides when the Deployment of drained workers may be scaled down. A ReplicaSet removes unready pods first, so the
pods that stay must be ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from oars.base.text import command
from oars.model import Cause, Desired
from oars.places.kube.names import Object
from oars.places.kube.state import observe

UNREADY_SECONDS = 60.0  # how long to wait for a staying pod that does not start


class ScaleDownGate:
    """The pending scale-downs of one cluster. After a restart of the loop a wait begins again, which costs time but no
    data."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waits: dict[str, tuple[float, frozenset[str]]] = {}

    def cause(self, desired: Desired, deployment: Object, pods: Sequence[Object], victims: Set[str]) -> Cause | None:
        """What the scale-down waits for; None: it may proceed. It waits at most UNREADY_SECONDS for a staying pod that
        does not start. A running pod may hold results and be too busy for its probe, so the wait for it has no limit,
        unless `force` is set."""
        name, first = deployment["metadata"]["name"], sorted(victims)[0]
        if observe.has_unseen(deployment, pods) and not desired.force:
            message = f"{first} is removed as soon as all pods of {name} have been observed."
            return Cause("Draining", message, members=(first,))
        staying = [pod for pod in pods if observe.is_of(pod, deployment) and observe.is_staying(pod)]
        unready = [pod for pod in staying if pod["metadata"]["name"] not in victims and not observe.is_ready(pod)]
        late = bool(unready) and self._seconds(name, victims) > UNREADY_SECONDS
        awaited = unready if not late else [pod for pod in unready if observe.is_running(pod) and not desired.force]
        if not awaited:
            self._waits.pop(name, None)
            return None
        other = awaited[0]["metadata"]["name"]
        log = command("logs", desired.name, other, namespace=desired.namespace)
        hint = f"See what keeps it busy: `{log}`." if late else ""
        return Cause("Draining", f"{first} is removed as soon as {other} is ready.", hint, (), (first,))

    def _seconds(self, deployment: str, victims: Set[str]) -> float:
        """Seconds waited so far. With entirely different victims the wait starts again."""
        now = self._clock()
        since, before = self._waits.get(deployment, (now, frozenset()))
        since = since if before & victims else now
        self._waits[deployment] = since, frozenset(victims)
        return now - since
