"""What whoever looks after a cluster says of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from oars.model import Cause
from oars.spec.status import Status


@dataclass(frozen=True)
class Report:
    """What is, as the keeper writes it."""

    status: Status
    causes: tuple[Cause, ...] = ()

    def to_json(self) -> dict[str, Any]:
        status = {**self.status.to_dict(), "generation": self.status.generation}
        return {"status": status, "causes": [asdict(cause) for cause in self.causes]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        causes = tuple(Cause(**{**cause, "lines": tuple(cause["lines"])}) for cause in data["causes"])
        return cls(Status.from_dict(data["status"]), causes)
