"""The Events that Oars creates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oars.kube.kinds import EVENT, Object


def event(about: Mapping[str, Any], reason: str, message: str, *, event_type: str, source: str, moment: str) -> Object:
    """An Event. `about`: apiVersion, kind, name and namespace of its object. `event_type`: Normal or Warning."""
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"generateName": f"{about['name']}.", "namespace": about["namespace"]},
        "involvedObject": dict(about),
        "type": event_type,
        "reason": reason,
        "message": message,
        "source": {"component": source},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
