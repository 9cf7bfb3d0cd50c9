"""why: from what is seen to a cause a person understands, and what to do about it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from oars.model import HEAD, Cause, Desired, Failure, MemberId, MemberState, Observed, Retiring, Role, View
from oars.plan.decide import CRASH_LOOP, ready

LINES = 8  # of a log, in an explanation

# What a line in a log means, and what to do; the first match wins.
_SIGNS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"ModuleNotFoundError: No module named '?([\w.]+)"), "a Python module is missing: {0}",
     "Add it with `packages` (or --set environment.packages=[…])."),
    (re.compile(r"(?i)no space left on device"), "the disk is full", "Free some space and try again."),
    (re.compile(r"(?i)address already in use"), "a port it needs is taken by another program",
     "It is tried again; stop the other program if this goes on."),
    (re.compile(r"(?i)\bMemoryError\b|cannot allocate memory|out of memory"), "it ran out of memory",
     "Give it more with --memory, or use fewer workers."),
    (re.compile(r"(?i)permission denied: '?([^'\s]+)?"), "it may not read or write {0}",
     "Check the rights of that path."),
    (re.compile(r"(?i)too many open files"), "it ran out of file handles", "Raise the limit with `ulimit -n`."),
)  # fmt: skip


def explain(desired: Desired, observed: Observed, view: View) -> tuple[Cause, ...]:
    """All causes, the gravest first, and remarks last; empty when everything is as wanted."""
    if not desired.running:
        return (Cause("Stopping", "It was asked to stop."),) if observed.members else ()
    return (
        *observed.causes,
        *(() if observed.heals else _deaths(observed, view)),  # the place has told of them, with more to go by
        *draining(desired.name, observed.notes.retiring),
        *_starting(observed, view),
        *observed.remarks,
    )


def _deaths(observed: Observed, view: View) -> Iterable[Cause]:
    wanted = {m.id for m in observed.members} - set(observed.notes.retiring)
    failures = [(m, f) for m, f in observed.notes.failures.items() if m in wanted]
    failures.sort(key=lambda item: (item[0] != HEAD, -item[1].count, item[0]))
    gone = [(m, f) for m, f in failures if not _serves(m, observed, view)]
    back = [(m, f) for m, f in failures if _serves(m, observed, view)]
    for member, failure in gone:
        yield _death(member, failure)
    for member, failure in back:
        what = _sign(failure)
        yield Cause(
            "Replaced",
            f"{member} {failure.reason}{_clause(what)} and was started again.",
            what[1],
            failure.tail[-LINES:],
        )


def _death(member: MemberId, failure: Failure) -> Cause:
    what = _sign(failure)
    if failure.count >= CRASH_LOOP:
        hint = what[1] or f"Read its log: `oars logs NAME {member}`."
        message = f"{member} dies again and again ({failure.count} times; {failure.reason}){_clause(what)}."
        return Cause("CrashLoop", message, hint, failure.tail[-LINES:])
    reason = "HeadLost" if member == HEAD else "WorkerLost"
    message = f"{member} {failure.reason}{_clause(what)}; it is being started again."
    return Cause(reason, message, what[1], failure.tail[-LINES:])


def _clause(sign: tuple[str, str]) -> str:
    return f": {sign[0]}" if sign[0] else ""


def _sign(failure: Failure) -> tuple[str, str]:
    for line in reversed(failure.tail):
        for pattern, meaning, hint in _SIGNS:
            match = pattern.search(line)
            if match:
                return meaning.format(*(group or "a path" for group in match.groups())), hint
    return "", ""


def _serves(member: MemberId, observed: Observed, view: View) -> bool:
    found = observed.member(member)
    return found is not None and ready(found, observed, view)


def draining(cluster: str, retiring: Mapping[MemberId, Retiring]) -> Iterable[Cause]:
    """What workers on their way out wait for."""
    for member, state in sorted(retiring.items()):
        if state.waits_for:
            hint = f"It goes when that is done; `oars scale {cluster} … --force` removes it and loses what it holds."
            yield Cause("Draining", f"{member} is kept until it is safe to remove: {state.waits_for}.", hint)
        else:
            yield Cause("Draining", f"{member} hands over what it holds before it goes.")


def _starting(observed: Observed, view: View) -> Iterable[Cause]:
    loading = [m for m in observed.members if m.state is MemberState.WAITING]
    if loading:
        yield Cause("Loading", f"Starting {_listed([m.id for m in loading])}: {loading[0].reason}.")
    head = observed.member(HEAD)
    if head is not None and head.state is MemberState.RUNNING and not view.up:
        yield Cause("HeadStarting", "The head runs but does not answer yet.", "", tuple(filter(None, [view.message])))
        return
    waiting = [
        m for m in observed.members
        if m.role is Role.WORKER and m.state is MemberState.RUNNING and not ready(m, observed, view)
        and m.id not in observed.notes.retiring
    ]  # fmt: skip
    if waiting:
        yield Cause("WorkersStarting", f"Waiting for {_listed([m.id for m in waiting])} to join the head.")


def _listed(members: list[MemberId]) -> str:
    return ", ".join(members[:5]) + (", …" if len(members) > 5 else "")
