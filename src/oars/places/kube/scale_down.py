"""What drained workers still wait for before their Deployment can be lowered: that its other pods are ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from oars.model import Cause, Desired
from oars.places.kube.names import Object
from oars.places.kube.state import observe


class Waiting:
    """The waits of one place. They begin when they are first seen here, not when a worker was chosen to go: draining it
    may have taken long. After a restart of ours they begin anew, which costs time and no data."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, frozenset[str]]] = {}

    def cause(self, desired: Desired, deployment: Object, pods: Sequence[Object], going: Set[str]) -> Cause | None:
        """A ReplicaSet removes pods that are not ready before it looks at the cost, so the others must be. One that
        does not start is not waited for longer than a drain may take. One that runs may hold results, though it is too
        busy to say that it is ready: it is waited for, unless by force."""
        name = deployment["metadata"]["name"]
        if observe.has_unseen(deployment, pods) and not desired.force:
            return Cause("Draining", f"{sorted(going)[0]} goes as soon as all pods of {name} have been seen.")
        others = [pod for pod in pods if observe.is_of(pod, deployment) and observe.is_staying(pod)]
        unready = [pod for pod in others if pod["metadata"]["name"] not in going and not observe.is_ready(pod)]
        late = bool(unready) and self._seconds(name, going) > desired.drain_seconds
        awaited = unready if not late else [pod for pod in unready if observe.is_running(pod) and not desired.force]
        if not awaited:
            self._known.pop(name, None)
            return None
        other = awaited[0]["metadata"]["name"]
        hint = f"See what keeps it busy (`oars logs {desired.name} {other}`), or scale with --force." if late else ""
        return Cause("Draining", f"{sorted(going)[0]} goes as soon as {other} is ready.", hint)

    def _seconds(self, deployment: str, going: Set[str]) -> float:
        """Up to now; with others that are to go it is another wait."""
        now = self._clock()
        since, before = self._known.get(deployment, (now, frozenset()))
        since = since if before & going else now
        self._known[deployment] = since, frozenset(going)
        return now - since
