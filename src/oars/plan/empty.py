"""empty: lets a cluster finish its work before it ends (`oars down --drain`). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from oars.base.text import command
from oars.model import Cause, Desired, View

QUIET_SECONDS = 2.0  # without work, after which all of it counts as done; engines' reports are up to a second old
LOOK_SECONDS = 1.0  # between two looks at the work


@dataclass(frozen=True)
class Emptying:
    """The desired state without workers, once the work is done; what it waits for; when to look again, in seconds."""

    desired: Desired
    causes: tuple[Cause, ...] = ()
    pause: float = math.inf


def is_quiet(view: View) -> bool:
    """True if the engine has no work that runs or waits, or cannot tell: then draining waits for what runs."""
    return view.up and not any(each.count for each in view.demand or () if not each.floor)


def empty(desired: Desired, view: View, quiet_for: float) -> Emptying:
    """All workers leave when the engine has had no work for a while. Each is drained: it stays while it holds results
    that somebody refers to. New work before that cancels it."""
    if not desired.drain_all or not desired.running:
        return Emptying(desired)
    if quiet_for >= QUIET_SECONDS:
        workers = tuple(replace(group, replicas=0, min=None, max=None) for group in desired.shape.workers)
        return Emptying(replace(desired, shape=replace(desired.shape, workers=workers)), (), LOOK_SECONDS)
    count = sum(each.count for each in view.demand or () if not each.floor)
    if count:
        message = f"The cluster ends when its work is done: {count} {'task' if count == 1 else 'tasks'} run or wait."
    else:
        message = "The cluster ends when its work is done."
    stop = command("down", desired.name, namespace=desired.namespace)
    cause = Cause("Finishing", message, f"`{stop}` ends it now, with its data.")
    return Emptying(desired, (cause,), LOOK_SECONDS)
