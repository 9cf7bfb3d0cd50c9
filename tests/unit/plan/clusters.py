"""Small clusters to think about."""

from __future__ import annotations

from oars.model import (
    HEAD,
    Desired,
    Group,
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


def desired(workers: int = 3, **groups: int) -> Desired:
    sizes = {"default": workers, **groups}
    shape = Shape(
        head=Group("head", Role.HEAD, 1, Process(("head",))),
        workers=tuple(Group(name, Role.WORKER, size, Process(("worker",))) for name, size in sizes.items()),
        endpoints={"client": "toy://$(head.host)"},
    )
    return Desired("demo", "toy", "local", shape)


def head(state: MemberState = MemberState.RUNNING) -> Member:
    return Member(HEAD, Role.HEAD, "head", state, "1", "1", NOW - 100, 1)


def worker(
    number: int, state: MemberState = MemberState.RUNNING, *, reason: str = "", tail: tuple[str, ...] = ()
) -> Member:
    name = MemberId(f"worker-{number}")
    incarnation = str(number + 2)
    return Member(name, Role.WORKER, "default", state, incarnation, "1", NOW - 100, 10 + number, "", reason, tail)


def view_of(observed: Observed) -> View:
    """An engine that lists everyone who runs and was not emptied."""
    running = [m for m in observed.members if m.role is Role.WORKER and m.state is MemberState.RUNNING]
    emptied = {member for member, state in observed.notes.retiring.items() if state.drained}
    return View(up=True, members={m.id: MemberView(True) for m in running if m.id not in emptied})
