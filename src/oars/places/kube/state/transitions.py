"""What happened between two versions of a ComputeCluster's status, as Normal events. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oars.base.text import join_names
from oars.model import Cause
from oars.spec.status import Phase


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Cause, ...]:
    return (*_phase(before, after), *_scaled(before, after), *_drained(before, after))


def _phase(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Cause]:
    was, now = before.get("phase"), after.get("phase")
    if now == Phase.READY and was != Phase.READY:
        yield Cause("Ready", f"The head and {after['ready']} workers are ready.")
    elif now in (Phase.PENDING, Phase.STARTING) and "observedGeneration" not in before:
        yield Cause("Starting", f"Starting the head and {sum(_wanted(after).values())} workers.")


def _scaled(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Cause]:
    was, now = _wanted(before), _wanted(after)
    for group in now:
        if group in was and was[group] != now[group]:
            yield Cause("Scaled", f"Group {group}: from {was[group]} to {now[group]} workers.")


def _drained(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Cause]:
    is_drained = [name for name, each in (before.get("retiring") or {}).items() if each.get("drained")]
    gone = sorted(set(is_drained) - (after.get("retiring") or {}).keys())
    if gone:
        yield Cause("Drained", f"Removed {join_names(gone)} after handing over the data.")


def _wanted(status: Mapping[str, Any]) -> dict[str, int]:
    return {str(group["name"]): int(group["wanted"]) for group in status.get("groups") or ()}
