"""One pass of `decide` over 10,000 workers, half of them of an older revision. Pure: no engine, no place."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

from oars.model import (
    HEAD,
    Decision,
    Desired,
    Group,
    LoopState,
    Member,
    MemberId,
    MemberState,
    MemberView,
    Observed,
    Process,
    Role,
    Shape,
    View,
)
from oars.plan.decide import decide
from oars.plan.status import status
from oars.plan.why import explain

WORKERS = 10_000
ROUNDS = 5
LIMIT = 0.2
NOW = 1000.0


def rollout(workers: int) -> tuple[Desired, Observed, View]:
    """A rollout half way: half of the workers are of the desired revision and ready, half of an older one."""
    new, old = workers // 2, workers - workers // 2
    shape = Shape(
        Group("head", Role.HEAD, 1, Process(())), (Group("default", Role.WORKER, new, Process(())),), endpoints={}
    )
    head = Member(HEAD, Role.HEAD, "head", MemberState.RUNNING, "1")
    members = [_worker(f"new-{number:05}", "default") for number in range(new)]
    members += [_worker(f"old-{number:05}", "default@old") for number in range(old)]
    view = View(up=True, members={member.id: MemberView(True, idle=1.0) for member in members})
    return Desired("bench", "dask", "kubernetes", shape), Observed((head, *members), LoopState(head="1")), view


def _worker(name: str, group: str) -> Member:
    return Member(MemberId(name), Role.WORKER, group, MemberState.RUNNING, name)


def decide_once(desired: Desired, observed: Observed, view: View) -> tuple[float, Decision]:
    """CPU seconds, and what was decided. A fresh Observed: a place builds one in every pass."""
    observed = replace(observed)
    start = time.process_time()
    decision = decide(desired, observed, view, NOW)
    return time.process_time() - start, decision


def status_once(desired: Desired, observed: Observed, view: View, decision: Decision) -> float:
    """CPU seconds for the causes and the status that follow the decision."""
    observed = replace(observed, state=decision.state)
    start = time.process_time()
    status(desired, observed, view, explain(desired, observed, view), {})
    return time.process_time() - start


def bench_decide() -> list[dict[str, Any]]:
    desired, observed, view = rollout(WORKERS)
    passes = [decide_once(desired, observed, view) for _ in range(ROUNDS)]
    shown = [status_once(desired, observed, view, decision) for _, decision in passes]
    return [
        _row(f"decide: {WORKERS} workers, half of an older revision, CPU s", [seconds for seconds, _ in passes]),
        _row("its causes and status, CPU s", shown),
    ]


def _row(name: str, seconds: list[float]) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {"name": name, "ours": median, "limit": LIMIT, "ok": median <= LIMIT, "runs": {"ours": seconds}}
