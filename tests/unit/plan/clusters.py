"""Small clusters for tests of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from oars.model import (
    HEAD,
    Death,
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

NOW = 1000.0
STEADY = LoopState(head="1")  # of a loop that has seen the head


def desired(workers: int = 3, **groups: int) -> Desired:
    sizes = {"default": workers, **groups}
    shape = Shape(
        head=Group("head", Role.HEAD, 1, Process(("head",))),
        workers=tuple(Group(name, Role.WORKER, size, Process(("worker",))) for name, size in sizes.items()),
        endpoints={"client": "toy://$(head.host)"},
    )
    return Desired("demo", "toy", "local", shape)


def head(state: MemberState = MemberState.RUNNING) -> Member:
    return Member(HEAD, Role.HEAD, "head", state, "1", started_at=NOW - 100, pid=1)


def worker(
    number: int, state: MemberState = MemberState.RUNNING, *, reason: str = "", tail: tuple[str, ...] = ()
) -> Member:
    return Member(
        MemberId(f"worker-{number}"),
        Role.WORKER,
        "default",
        state,
        incarnation=str(number + 2),
        started_at=NOW - 100,
        pid=10 + number,
        reason=reason,
        tail=tail,
    )


def observe(*members: Member, state: LoopState = STEADY, now: float = NOW) -> Observed:
    """A place that does not replace dead members: each has just died."""
    dead = [m for m in members if m.state is MemberState.EXITED]
    deaths = {m.id: Death(m.incarnation, now, m.started_at, m.reason, m.tail) for m in dead}
    return Observed(members, state, deaths)


def view_of(observed: Observed) -> View:
    """An engine that lists every worker that runs and is not drained."""
    running = [m for m in observed.members if m.role is Role.WORKER and m.state is MemberState.RUNNING]
    drained = {member for member, state in observed.state.retiring.items() if state.drained}
    return View(up=True, members={m.id: MemberView(True) for m in running if m.id not in drained})


def with_replicas(desired: Desired, replicas: Mapping[str, int]) -> Desired:
    """The same cluster with other numbers of workers, by group."""

    def changed(group: Group) -> Group:
        return replace(group, replicas=replicas.get(group.name, group.replicas))

    shape = replace(desired.shape, workers=tuple(changed(group) for group in desired.shape.workers))
    return replace(desired, shape=shape)
