"""JSON merge patches (RFC 7386)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oars.kube.kinds import Object


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """The patch that turns `before` into `after`. It keeps keys that it does not name; null removes one."""
    patch: Object = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            if changed := merge_patch(old, value):
                patch[key] = changed
        elif old != value or key not in before:
            patch[key] = value
    return patch
