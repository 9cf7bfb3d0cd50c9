"""When a cluster ends by itself, and when that is announced."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oars.model import Desired, Lifetime, View
from oars.plan.lifetime import JITTER_SECONDS, LOOK_SECONDS, NOTICE_SECONDS, Outlook, ended, outlook, rules
from oars.spec.status import Expires, Gone
from tests.unit.plan.clusters import desired

NOW = 1_000_000.0
LIMITS = Lifetime(idle=1800.0, no_client=300.0, max=28800.0)


def cluster(lifetime: Lifetime = LIMITS, *, age: float = 100.0, running: bool = True) -> Desired:
    return replace(desired(2), lifetime=lifetime, created_at=NOW - age, running=running)


def seen(idle: float | None = 0.0, no_client: float | None = 0.0, *, up: bool = True) -> View:
    return View(up=up, idle=idle, no_client=no_client)


@pytest.mark.parametrize(
    ("wanted", "view", "shown", "in_seconds", "is_near", "is_due"),
    [
        pytest.param(cluster(Lifetime()), seen(9e9, 9e9), None, None, False, False, id="without limits it stays"),
        pytest.param(cluster(), seen(), "MaxLifetime", 28700, False, False, id="max is shown from the start"),
        pytest.param(cluster(age=28750), seen(), "MaxLifetime", 50, True, False, id="a minute before its end"),
        pytest.param(cluster(age=28800), seen(), "MaxLifetime", 0, True, True, id="max is over"),
        pytest.param(cluster(age=28800), seen(up=False), "MaxLifetime", 0, True, True, id="max needs no head"),
        pytest.param(cluster(), seen(899), "MaxLifetime", 28700, False, False, id="a short idle time is no news"),
        pytest.param(cluster(), seen(900), "Idle", 900, False, False, id="half of the idle time is"),
        pytest.param(cluster(), seen(1800), "Idle", 0, True, True, id="idle for too long"),
        pytest.param(cluster(), seen(900, 200), "NoClient", 100, False, False, id="the first of several"),
        pytest.param(cluster(), seen(1790, 100), "Idle", 10, True, False, id="what is not shown does not hide others"),
        pytest.param(cluster(), seen(0, 300), "NoClient", 0, True, True, id="no client, though it works"),
        pytest.param(cluster(), seen(9e9, 9e9, up=False), "MaxLifetime", 28700, False, False, id="an old view is none"),
        pytest.param(cluster(), seen(None, None), "MaxLifetime", 28700, False, False, id="the engine cannot tell"),
        pytest.param(cluster(age=9e9, running=False), seen(9e9, 9e9), None, None, False, False, id="it ends already"),
        pytest.param(cluster(Lifetime(idle=4.0)), seen(2.5), "Idle", 2, True, False, id="short limits: half of them"),
        pytest.param(cluster(Lifetime(idle=4.0)), seen(1.0), None, None, False, False, id="and not before"),
    ],
)
def test_the_first_limit_counts(
    wanted: Desired, view: View, shown: str | None, in_seconds: float | None, is_near: bool, is_due: bool
) -> None:
    found = outlook(wanted, view, None, NOW)
    assert (found.is_near, found.is_due) == (is_near, is_due)
    assert (found.expires.reason if found.expires else None) == shown
    assert (found.expires.at - NOW if found.expires else None) == in_seconds


def test_messages_name_the_field_and_its_value() -> None:
    assert [rule.message for rule in rules(LIMITS)] == [
        "8h after its creation (lifetime.max)",
        "30m without work (lifetime.idle)",
        "5m without a client (lifetime.noClient)",
    ]
    found = ended(cluster(), "Idle", "30m without work (lifetime.idle)", NOW)
    assert found == Gone("demo", "toy", "local", NOW, "Idle", "30m without work (lifetime.idle)")


def test_unknown_age_does_not_count() -> None:
    assert outlook(replace(cluster(), created_at=0.0), seen(), None, NOW) == Outlook()


def test_what_is_shown_is_steady_during_one_idle_period() -> None:
    """The engine's figures are rounded and come late; each change would cost a write of the status."""
    before, writes = None, set()
    for second in range(905, 1800, 5):
        late = second % 7 / 10
        found = outlook(cluster(), seen(second - late), before, NOW + second)
        before = found.expires
        writes.add(before)
    assert len(writes) == 1 and before is not None
    assert abs(before.at - (NOW + 1800)) <= JITTER_SECONDS
    moved = outlook(cluster(), seen(900), before, NOW + 1800)
    assert moved.expires is not None and moved.expires.at == NOW + 2700


limits = st.floats(0.0, 100_000.0).map(lambda seconds: 0.0 if seconds < 1 else seconds)
figures = st.none() | st.floats(0.0, 200_000.0)


@given(st.builds(Lifetime, limits, limits, limits), figures, figures, st.floats(1.0, 200_000.0), st.booleans())
def test_it_ends_only_if_a_limit_is_over_and_is_announced_before(
    lifetime: Lifetime, idle: float | None, no_client: float | None, age: float, up: bool
) -> None:
    found = outlook(cluster(lifetime, age=age), seen(idle, no_client, up=up), None, NOW)
    pairs = [(lifetime.max, NOW - (NOW - age))]
    if up:
        pairs += [(lifetime.idle, idle or 0.0), (lifetime.no_client, no_client or 0.0)]
    assert found.is_due == any(limit and spent >= limit for limit, spent in pairs)
    assert not found.is_due or found.is_near
    assert not found.is_near or found.expires is not None
    assert found.pause >= LOOK_SECONDS
    if found.expires is not None and not found.is_due:
        left = found.expires.at - NOW
        assert 0 <= left and (found.is_near or left >= 1)
        assert not found.is_near or left <= NOTICE_SECONDS + 1
    if math.isfinite(found.pause) and not found.is_due:  # it is looked at when the first limit is over
        soonest = min(limit - spent for limit, spent in pairs if limit and spent)
        assert found.pause == max(LOOK_SECONDS, soonest)


@given(st.floats(1.0, 1e5), st.floats(0.0, 1e5), st.floats(-5.0, 5.0))
def test_what_was_shown_stays_only_if_it_is_right(limit: float, idle: float, off: float) -> None:
    wanted = cluster(Lifetime(idle=limit))
    fresh = outlook(wanted, seen(idle), None, NOW)
    if fresh.expires is None:
        return
    before = Expires(fresh.expires.at + off, fresh.expires.reason, fresh.expires.message)
    again = outlook(wanted, seen(idle), before, NOW)
    assert again.expires == (before if abs(off) <= JITTER_SECONDS else fresh.expires)
    assert (again.is_due, again.is_near, again.pause) == (fresh.is_due, fresh.is_near, fresh.pause)
    other = Expires(before.at, "NoClient", "another rule")
    assert outlook(wanted, seen(idle), other, NOW).expires == fresh.expires
