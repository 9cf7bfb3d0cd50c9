"""lifetime: when a cluster ends by itself (`spec.lifetime`), and when that is announced. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from oars.model import Desired, Lifetime, View
from oars.spec.resources import show_duration
from oars.spec.status import Expires, Gone

IDLE, NO_CLIENT, MAX, OWNER_GONE = "Idle", "NoClient", "MaxLifetime", "OwnerGone"
NOTICE_SECONDS = 60.0  # before its end, at most, an Event announces it
LOOK_SECONDS = 1.0  # between two looks at least
JITTER_SECONDS = 2.0  # by which the engine's figures of one idle period may differ from look to look
KEEP_SECONDS = 86400.0  # for which it stays known why a cluster is gone


@dataclass(frozen=True)
class Outlook:
    """When the cluster is going to end, if that is to be shown; whether the end is so near that it is announced, or due
    now; when to look again, in seconds."""

    expires: Expires | None = None
    is_near: bool = False
    is_due: bool = False
    pause: float = math.inf


@dataclass(frozen=True)
class Rule:
    """The cluster ends when a figure (idle, no_client or age) has reached so many seconds."""

    reason: str
    figure: str
    seconds: float
    message: str


def rules(lifetime: Lifetime) -> tuple[Rule, ...]:
    idle, no_client = map(show_duration, (lifetime.idle, lifetime.no_client))
    found = (
        Rule(MAX, "age", lifetime.max, max_rule(lifetime.max)),
        Rule(IDLE, "idle", lifetime.idle, f"{idle} without work (lifetime.idle)"),
        Rule(NO_CLIENT, "no_client", lifetime.no_client, f"{no_client} without a client (lifetime.noClient)"),
    )
    return tuple(rule for rule in found if rule.seconds)


def max_rule(seconds: float) -> str:
    return f"{show_duration(seconds)} after its creation (lifetime.max)"


def outlook(desired: Desired, view: View, before: Expires | None, now: float) -> Outlook:
    """`before`: what was shown last; it stays as long as it is right, so that the status does not change all the time.

    While the head does not answer, neither idle nor noClient counts: it is not known whether the cluster is used."""
    age = now - desired.created_at if desired.created_at else None
    figures = {"age": age, "idle": view.idle if view.up else None, "no_client": view.no_client if view.up else None}
    counting = [(rule.seconds - spent, rule) for rule in rules(desired.lifetime) if (spent := figures[rule.figure])]
    if not counting or not desired.running:
        return Outlook()
    counting.sort(key=lambda each: each[0])
    pause = max(LOOK_SECONDS, counting[0][0])
    left, rule = next((each for each in counting if _is_shown(*each)), (0.0, None))
    if rule is None:
        return Outlook(pause=pause)
    expires = Expires(float(math.ceil(now + left)), rule.reason, rule.message)
    if (
        before is not None
        and replace(before, at=expires.at) == expires
        and abs(before.at - expires.at) <= JITTER_SECONDS
    ):
        expires = before
    return Outlook(expires, is_near=left <= min(NOTICE_SECONDS, rule.seconds / 2), is_due=left <= 0, pause=pause)


def _is_shown(left: float, rule: Rule) -> bool:
    """Pauses between two pieces of work are no news, and each would cost a write of the status."""
    return rule.reason == MAX or left <= rule.seconds / 2


def ended(desired: Desired, reason: str, message: str, now: float) -> Gone:
    return Gone(desired.name, desired.engine, desired.place, now, reason, message, desired.mode, desired.namespace)
