"""Intent: what a client asks for, as it is stored beside the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from oars.model import Desired, DrainRequest, MemberId


@dataclass(frozen=True)
class Intent:
    spec: Mapping[str, Any] = field(default_factory=dict)  # as the spec models dump it
    generation: int = 1
    running: bool = True
    force: bool = False
    tied: bool = False
    drain: Mapping[MemberId, DrainRequest] = field(default_factory=dict)
    drain_all: bool = False

    def changed(self, **changes: Any) -> Intent:
        """Another intent of the next generation."""
        return replace(self, generation=self.generation + 1, **changes)

    def applied_to(self, desired: Desired) -> Desired:
        """The desired state of the spec, with what the intent says beside it."""
        return replace(
            desired,
            running=self.running,
            force=self.force,
            generation=self.generation,
            drain=self.drain,
            drain_all=self.drain_all,
        )
