"""Report: what the controller of a cluster publishes, its status and the causes."""

from __future__ import annotations

from dataclasses import dataclass

from oars.model import Cause
from oars.spec.status import Status


@dataclass(frozen=True)
class Report:
    status: Status
    causes: tuple[Cause, ...] = ()
