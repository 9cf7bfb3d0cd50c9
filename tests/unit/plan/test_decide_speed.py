"""decide and status take time in proportion to the number of workers."""

from __future__ import annotations

from dataclasses import replace

from bench.decide import decide_once, rollout, status_once

from oars.model import Drain, Failure


def test_decide_over_ten_thousand_workers_is_fast() -> None:
    """Generous bounds, for a busy machine: quadratic code needs minutes. `python -m bench decide` has the figure."""
    desired, observed, view = rollout(10_000)
    passes = [decide_once(desired, observed, view) for _ in range(3)]
    decision = passes[0][1]
    assert len(decision.state.retiring) == 5_000
    assert isinstance(decision.steps[-1], Drain) and len(decision.steps[-1].members) == 5_000
    assert min(seconds for seconds, _ in passes) < 1.0
    assert min(status_once(desired, observed, view, decision) for _ in range(3)) < 1.0


def test_status_of_thousands_of_failures_is_fast() -> None:
    desired, observed, view = rollout(5_000)
    failures = {member.id: Failure(3, 999.0, 999.0, "x", "exited with code 1") for member in observed.members}
    failing = replace(observed, state=replace(observed.state, failures=failures))
    seconds, decision = decide_once(desired, failing, view)
    assert seconds < 1.0
    assert min(status_once(desired, failing, view, decision) for _ in range(3)) < 2.0
