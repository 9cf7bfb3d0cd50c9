"""Bounds what direct mode stores in a ConfigMap, which holds at most 1 MiB, however many workers there are. Pure."""

from __future__ import annotations

from dataclasses import replace

from oars.model import HEAD, Failure, LoopState, MemberId, Retiring
from oars.places.kube.state.status_codec import MAX_LINE_LENGTH, MAX_LINES
from oars.places.report import Report
from oars.spec.status import MemberStatus, Phase

MAX_MEMBERS = 500
MAX_RETIRING = 1000
MAX_FAILURES = 200
MAX_CAUSES = 20
TAIL_LINES = 3
MAX_TEXT = 150  # of a reason
MAX_NAMES = 20  # of members in one cause


def bounded_state(state: LoopState) -> LoopState:
    """Keep the workers that are drained already, and the latest failures. A loop that takes over restores the rest:
    workers that were drained are not ready and retire first, and the kubelet counts deaths."""
    retiring, failures = state.retiring, state.failures
    if len(retiring) > MAX_RETIRING:
        retiring = dict(sorted(retiring.items(), key=_is_not_drained)[:MAX_RETIRING])
    if len(failures) > MAX_FAILURES:
        failures = dict(sorted(failures.items(), key=_age)[:MAX_FAILURES])
    short = {name: replace(each, waits_for=each.waits_for[:MAX_TEXT]) for name, each in retiring.items()}
    return replace(state, retiring=short, failures={name: _short(each) for name, each in failures.items()})


def bounded_report(report: Report) -> Report:
    """Keep the head and the members that are not ready rather than others; `groups` counts all. Numbers of tasks would
    cost a write every few seconds: only the client that runs the loop shows them."""
    members = report.status.members
    if len(members) > MAX_MEMBERS:
        kept = {member.id for member in sorted(members, key=_interest)[:MAX_MEMBERS]}
        members = tuple(member for member in members if member.id in kept)
    members = tuple(replace(member, reason=member.reason[:MAX_TEXT], tasks=None) for member in members)
    causes = tuple(
        replace(cause, lines=_lines(cause.lines, MAX_LINES), members=cause.members[:MAX_NAMES])
        for cause in report.causes[:MAX_CAUSES]
    )
    return Report(replace(report.status, members=members), causes)


def is_progress(before: Report, after: Report) -> bool:
    """True if the change only shows progress: nobody acts on it, so its write may be delayed."""
    return _summary(before) == _summary(after)


def _summary(report: Report) -> object:
    status = report.status
    reasons = [cause.reason for cause in report.causes]
    return status.phase, status.reason, status.generation, status.endpoints, status.expires, reasons


def _is_not_drained(item: tuple[MemberId, Retiring]) -> bool:
    return not item[1].drained


def _age(item: tuple[MemberId, Failure]) -> float:
    return -item[1].last


def _interest(member: MemberStatus) -> int:
    return 0 if member.id == HEAD else 2 if member.phase is Phase.READY else 1


def _short(failure: Failure) -> Failure:
    return replace(failure, reason=failure.reason[:MAX_TEXT], tail=_lines(failure.tail, TAIL_LINES))


def _lines(lines: tuple[str, ...], count: int) -> tuple[str, ...]:
    return tuple(line[:MAX_LINE_LENGTH] for line in lines[-count:])
