"""When a head gets its budget (PodDisruptionBudget), which keeps it from being evicted.

One that does not serve has nothing to lose, and a budget would only stop whoever empties a node. Nor does it come at
once then: Kubernetes holds every budget of a namespace against every pod that starts there, which is much of its work
when many clusters start together.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from oars.kube.kinds import POD_DISRUPTION_BUDGET
from oars.places.kube import names
from oars.places.kube.state.owned_objects import OwnedObjects

GUARD_AFTER = 15.0  # seconds of being ready while not many others start
GUARD_LATEST = 120.0  # seconds of being ready, whatever others do


class BudgetTimer:
    """Of one cluster. `told`: watches will tell if its budget is not there; without them it is asked for once more by
    whoever takes over."""

    def __init__(
        self,
        cluster: str,
        around: OwnedObjects,
        clock: Callable[[], float],
        *,
        told: bool,
        ready: bool,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._budget = (POD_DISRUPTION_BUDGET.kind, names.head(cluster))
        self._around = around
        self._clock = clock
        self._is_busy = is_busy
        self._asked = told
        self._ready_since = 0.0 if ready else math.inf
        self._busy = 0.0  # when many were last seen to start

    def is_due(self, *, ready: bool) -> bool:
        """Whether to ask for the budget now."""
        now = self._clock()
        self._ready_since = min(self._ready_since, now) if ready else math.inf
        if self._is_busy():
            self._busy = now
        there = self._asked and not self._around.is_lost(self._budget)
        return not there and self.is_calm

    @property
    def is_calm(self) -> bool:
        """It has been ready for so long that what could wait need not wait any longer."""
        now = self._clock()
        return now >= min(max(self._ready_since, self._busy) + GUARD_AFTER, self._ready_since + GUARD_LATEST)

    def asked(self) -> None:
        self._asked = True

    def renew(self) -> None:
        """The description has changed."""
        self._asked = False
