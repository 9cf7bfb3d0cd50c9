"""why: from what is observed to causes that a person understands, with what to do about each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oars.base.errors import OarsError
from oars.base.text import command
from oars.model import HEAD, Cause, Desired, Failure, Member, MemberId, MemberState, Observed, Retiring, Role, View
from oars.plan.decide import CRASH_LOOP, has_finished, is_ready
from oars.plan.logs import explain_log

LINES = 8  # of a log, in an explanation
LATE_SECONDS = 45.0  # after which a running worker that has not joined the head is reported

_REASONS = {Role.HEAD: "HeadLost", Role.WORKER: "WorkerLost", Role.DRIVER: "DriverFailed"}


def explain(desired: Desired, observed: Observed, view: View) -> tuple[Cause, ...]:
    """All causes, the gravest first, and remarks last; empty when everything is ready."""
    if not desired.running:
        return (Cause("Stopping", "The cluster is being stopped."),) if observed.members else ()
    workers = sum(group.replicas for group in desired.shape.workers[:1])
    return (
        *observed.causes,
        *_deaths(desired, observed, view),
        *draining(desired.name, desired.namespace, workers, observed.state.retiring),
        *_unlisted(desired, observed, view),
        *_starting(observed, view),
        *observed.remarks,
    )


def pass_failure(error: Exception, log: str = "the log") -> Cause:
    """The cause for a pass that raised an error that the place does not explain; `log` is where its traceback is."""
    if isinstance(error, OarsError | OSError):  # TimeoutError is an OSError
        text, hint = (error.message, error.hint) if isinstance(error, OarsError) else (str(error), "")
        detail = (text or type(error).__name__).rstrip(".")
        return Cause("PassFailed", f"Could not reconcile the cluster: {detail}. Oars retries.", hint)
    message = f"Unexpected error while reconciling: {type(error).__name__}: {error}. Oars retries."
    return Cause("InternalError", message, f"This is a bug in Oars. Please report it, with {log}.")


def _deaths(desired: Desired, observed: Observed, view: View) -> Iterable[Cause]:
    """Those that the place has not explained already."""
    explained = {member for cause in observed.causes for member in cause.members}
    open_to_us = {m.id: m for m in observed.members if m.id not in observed.state.retiring and m.id not in explained}
    failures = [(open_to_us[m], f) for m, f in observed.state.failures.items() if m in open_to_us]
    failures.sort(key=lambda item: (item[0].id != HEAD, -item[1].count, item[0].id))
    groups = {group.name: group for group in desired.groups}
    recovered, finished = [], []
    for member, failure in failures:
        group = groups.get(member.group)
        if is_ready(member, observed, view):
            recovered.append((member, failure))
        elif group is not None and has_finished(member, group, observed.state):
            finished.append((member, failure))
        else:
            yield _death(desired, member, failure)
    for member, failure in finished:
        meaning, hint = _meaning(desired, failure)
        hint = hint or _read_log(desired, member.id)
        message = f"{member.id} {failure.reason}{_clause(meaning)} and is not started again."
        yield Cause(_REASONS[member.role], message, hint, failure.tail[-LINES:], (member.id,))
    for member, failure in recovered:
        meaning, hint = _meaning(desired, failure)
        message = f"{member.id} {failure.reason}{_clause(meaning)} and was started again."
        yield Cause("Replaced", message, hint, failure.tail[-LINES:], (member.id,))


def _death(desired: Desired, member: Member, failure: Failure) -> Cause:
    meaning, hint = _meaning(desired, failure)
    name, lines = member.id, failure.tail[-LINES:]
    if failure.count >= CRASH_LOOP:
        message = f"{name} keeps dying ({failure.count} times; {failure.reason}){_clause(meaning)}."
        return Cause("CrashLoop", message, hint or _read_log(desired, name), lines, (name,))
    message = f"{name} {failure.reason}{_clause(meaning)}; it is being restarted."
    return Cause(_REASONS[member.role], message, hint, lines, (name,))


def _read_log(desired: Desired, member: MemberId) -> str:
    return f"Read its log: `{command('logs', desired.name, member, namespace=desired.namespace)}`."


def _clause(meaning: str) -> str:
    return f": {meaning}" if meaning else ""


def _meaning(desired: Desired, failure: Failure) -> tuple[str, str]:
    """What its last log lines mean, and what to do."""
    found = explain_log(failure.tail, desired.shape.log_patterns)
    return (found.meaning, found.hint) if found else ("", "")


def draining(name: str, namespace: str, workers: int, retiring: Mapping[MemberId, Retiring]) -> Iterable[Cause]:
    """What retiring workers wait for. `workers`: the number in the first group. Scaling to it with --force applies to
    all groups."""
    for member, state in sorted(retiring.items()):
        if state.waits_for:
            force = command("scale", name, str(workers), "--force", namespace=namespace)
            hint = f"It is removed when that is done. `{force}` removes it now, with its data."
            yield Cause(
                "Draining", f"{member} is kept until it is safe to remove: {state.waits_for}.", hint, (), (member,)
            )
        else:
            yield Cause("Draining", f"{member} hands over its data before it is removed.", members=(member,))


def _unlisted(desired: Desired, observed: Observed, view: View) -> Iterable[Cause]:
    """Workers that have run for long without joining the head."""
    late = sorted(
        m for m, seconds in view.unlisted.items() if seconds > LATE_SECONDS and m not in observed.state.retiring
    )
    if late:
        log = command("logs", desired.name, late[0], namespace=desired.namespace)
        message = f"Running, but not joined to the head: {_listed(late)}. Oars replaces them if they do not join."
        yield Cause("NotJoined", message, f"See what it does: `{log}`.", (), tuple(late))


def _starting(observed: Observed, view: View) -> Iterable[Cause]:
    loading = [m for m in observed.members if m.state is MemberState.WAITING]
    if loading:
        yield Cause("Loading", f"Starting {_listed([m.id for m in loading])}: {loading[0].reason}.")
    head = observed.member(HEAD)
    if head is not None and head.state is MemberState.RUNNING and not view.up:
        lines = (view.message,) if view.message else ()
        yield Cause("HeadStarting", "The head is running but does not answer yet.", "", lines)
        return
    waiting = [
        m.id
        for m in observed.members
        if m.role is Role.WORKER
        and m.state is MemberState.RUNNING
        and m.id not in observed.state.retiring
        and not is_ready(m, observed, view)
    ]
    if waiting:
        yield Cause("WorkersStarting", f"Waiting for {_listed(waiting)} to join the head.")


def _listed(members: list[MemberId]) -> str:
    return ", ".join(members[:5]) + (", …" if len(members) > 5 else "")
