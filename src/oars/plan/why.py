"""why: from what is observed to causes that a person understands, with what to do about each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oars.base.errors import OarsError
from oars.base.text import command
from oars.model import (
    HEAD,
    OUT_OF_MEMORY,
    Cause,
    Desired,
    Failure,
    Member,
    MemberId,
    MemberState,
    Observed,
    Retiring,
    Role,
    View,
)
from oars.plan.decide import CRASH_LOOP, has_finished, is_ready
from oars.plan.logs import explain_log, telling_lines
from oars.spec.resources import show_memory

OOM_KILLED = "OOMKilled"  # as Kubernetes calls it
HEAD_REPLACING = "HeadReplacing"
HEAD_OUTDATED = "HeadOutdated"
# Reasons of what happens in good order, as opposed to trouble.
HEAD_REPLACED = "HeadReplaced"
ROUTINE = frozenset(
    {"Loading", "HeadStarting", "WorkersStarting", "Draining", HEAD_REPLACING, HEAD_OUTDATED, HEAD_REPLACED}
)
CONNECT_AGAIN = "Connect your clients again and repeat the work."
LATE_SECONDS = 45.0  # after which a running worker that has not joined the head is reported

# What the death of a member costs.
_COSTS = {
    Role.HEAD: "; all results of the cluster are lost",
    Role.WORKER: "; results that only it held are lost or computed again",
    Role.DRIVER: "",
}
_REASONS = {Role.HEAD: "HeadLost", Role.WORKER: "WorkerLost", Role.DRIVER: "DriverFailed"}


def explain(desired: Desired, observed: Observed, view: View) -> tuple[Cause, ...]:
    """All causes, the gravest first, and remarks last; empty when everything is ready."""
    if not desired.running:
        return (Cause("Stopping", "The cluster is being stopped."),) if observed.members else ()
    workers = sum(group.replicas for group in desired.shape.workers[:1])
    return (
        *observed.causes,
        *_deaths(desired, observed, view),
        *_head_replaced(observed, view),
        *draining(desired.name, desired.namespace, workers, observed.state.retiring),
        *_unlisted(desired, observed, view),
        *_no_workers(desired, observed, view),
        *_starting(desired, observed, view),
        *observed.remarks,
    )


def pass_failure(error: Exception, log: str = "the log", what: str = "cluster") -> Cause:
    """The cause for a pass that raised an error that the place does not explain; `log` is where its traceback is, and
    `what` was reconciled."""
    if isinstance(error, OarsError | OSError):  # TimeoutError is an OSError
        text, hint = (error.message, error.hint) if isinstance(error, OarsError) else (str(error), "")
        detail = (text or type(error).__name__).rstrip(".")
        return Cause("PassFailed", f"Could not reconcile the {what}: {detail}. Oars retries.", hint)
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
        meaning, hint, reason = _meaning(desired, member, failure)
        hint = hint or _read_log(desired, member.id)
        message = f"{member.id} {failure.reason}{_clause(meaning)} and is not started again."
        yield Cause(reason or _REASONS[member.role], message, hint, telling_lines(failure.tail), (member.id,))
    for member, failure in recovered:
        meaning, hint, reason = _meaning(desired, member, failure)
        message = f"{member.id} {failure.reason}{_clause(meaning)} and was started again{_COSTS[member.role]}."
        hint = _advice(desired, member, hint)
        yield Cause(reason or "Replaced", message, hint, telling_lines(failure.tail), (member.id,))


def _head_replaced(observed: Observed, view: View) -> Iterable[Cause]:
    """A head that was lost with its pod or machine has left no death to explain."""
    head, state = observed.member(HEAD), observed.state
    if state.head_lost_at is None or HEAD in state.failures or head is None or not is_ready(head, observed, view):
        return
    message = f"The head was replaced{_COSTS[Role.HEAD]}."
    yield Cause(HEAD_REPLACED, message, CONNECT_AGAIN, (), (HEAD,))


def _death(desired: Desired, member: Member, failure: Failure) -> Cause:
    meaning, hint, reason = _meaning(desired, member, failure)
    name, lines = member.id, telling_lines(failure.tail)
    if failure.count >= CRASH_LOOP:
        message = f"{name} keeps dying ({failure.count} times; {failure.reason}){_clause(meaning)}."
        return Cause(reason or "CrashLoop", message, hint or _read_log(desired, name), lines, (name,))
    message = f"{name} {failure.reason}{_clause(meaning)}; it is being restarted{_COSTS[member.role]}."
    return Cause(reason or _REASONS[member.role], message, _advice(desired, member, hint), lines, (name,))


def _advice(desired: Desired, member: Member, hint: str) -> str:
    repeat = CONNECT_AGAIN if member.role is Role.HEAD else ""
    return " ".join(filter(None, [repeat, hint or _read_log(desired, member.id)]))


def _read_log(desired: Desired, member: MemberId) -> str:
    return f"Read its log: `{command('logs', desired.name, member, namespace=desired.namespace)}`."


def _clause(meaning: str) -> str:
    return f": {meaning}" if meaning else ""


def _meaning(desired: Desired, member: Member, failure: Failure) -> tuple[str, str, str]:
    """What its last log lines mean, what to do, and the reason of the cause if it is a special one."""
    found = explain_log(failure.tail, desired.shape.log_patterns)
    meaning, hint = (found.meaning, found.hint) if found else ("", "")
    if OUT_OF_MEMORY not in failure.reason + meaning:
        return meaning, hint, ""
    group = next((group for group in desired.groups if group.name == member.group), None)
    if group is not None and group.resources.memory is not None:
        hint = _raise_memory(member, group.resources.memory)
    return "" if OUT_OF_MEMORY in failure.reason else meaning, hint, OOM_KILLED


def memory_kills(member: Member, count: int, limit: int) -> Cause:
    """The kernel killed processes of a member that goes on without them."""
    processes = "a process" if count == 1 else f"{count} processes"
    message = f"{member.id} ran out of memory (the limit is {show_memory(limit)}): the kernel killed {processes} of it."
    message += " Their tasks failed or run again."
    return Cause(OOM_KILLED, message, _raise_memory(member, limit), (), (member.id,))


def _raise_memory(member: Member, limit: int) -> str:
    field = "head.memory" if member.role is Role.HEAD else f"workers[{member.group}].memory"
    return f"Raise {field}, which is {show_memory(limit)}, or process less data at a time."


def draining(name: str, namespace: str, workers: int, retiring: Mapping[MemberId, Retiring]) -> Iterable[Cause]:
    """What retiring workers wait for. `workers`: the number in the first group. Scaling to it with --force applies to
    all groups."""
    for member, state in sorted(retiring.items()):
        because = f" because {state.reason}" if state.reason else ""
        if state.waits_for:
            words = ("drain", name, member) if state.reason else ("scale", name, str(workers))
            force = command(*words, "--force", namespace=namespace)
            hint = f"It is removed when that is done. `{force}` removes it now, with its data."
            leaves = f"{member} is replaced{because}, and" if because else member
            message = f"{leaves} is kept until it is safe to remove: {state.waits_for}."
            yield Cause("Draining", message, hint, (), (member,))
        else:
            yield Cause("Draining", f"{member} hands over its data before it is removed{because}.", members=(member,))


def _unlisted(desired: Desired, observed: Observed, view: View) -> Iterable[Cause]:
    """Workers that have run for long without joining the head."""
    late = sorted(
        m for m, seconds in view.unlisted.items() if seconds > LATE_SECONDS and m not in observed.state.retiring
    )
    if late:
        log = command("logs", desired.name, late[0], namespace=desired.namespace)
        message = f"Running, but not joined to the head: {_listed(late)}. Oars replaces them if they do not join."
        yield Cause("NotJoined", message, f"See what it does: `{log}`.", (), tuple(late))


def _no_workers(desired: Desired, observed: Observed, view: View) -> Iterable[Cause]:
    """Work waits, and no worker exists or will by itself. A head that takes tasks itself has some that run."""
    groups = desired.shape.workers
    if desired.drain_all or any(group.replicas or group.max is not None for group in groups):
        return
    if not view.up or any(member.role is Role.WORKER for member in observed.members):
        return
    work = [each for each in view.demand or () if not each.floor]
    waiting = sum(each.count for each in work)
    if waiting and not any(each.running for each in work):
        tasks = "1 task waits" if waiting == 1 else f"{waiting} tasks wait"
        scale = command("scale", desired.name, "1", namespace=desired.namespace)
        yield Cause("NoWorkers", f"{tasks}, and the cluster has no workers.", f"Add some, for example: `{scale}`.")


def _starting(desired: Desired, observed: Observed, view: View) -> Iterable[Cause]:
    loading = [m for m in observed.members if m.state is MemberState.WAITING]
    if loading:
        who = f"{len(loading)} members are" if len(loading) > 1 else f"{loading[0].id} is"
        yield Cause("Loading", f"{who} being started: {loading[0].reason}.")
    head = observed.member(HEAD)
    if head is not None and head.state is MemberState.RUNNING and not view.up:
        lines = (view.message,) if view.message else ()
        if view.has_answered:
            log = command("logs", desired.name, HEAD, namespace=desired.namespace)
            hint = f"It has the cluster's state, so Oars waits for it. See what it does: `{log}`."
            yield Cause("HeadSilent", "The head runs but does not answer any more.", hint, lines)
        else:
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
