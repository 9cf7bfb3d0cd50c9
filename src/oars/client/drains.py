"""Requests to drain workers, and the wait for their end: the same on every place."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from oars.base.errors import ClusterLost, TimedOut, UsageError
from oars.base.text import command, join_names
from oars.client.backend import ClusterHandle, Progress, check_member, ignore
from oars.model import HEAD, DrainRequest, MemberId, Role
from oars.places.intent import Intent
from oars.places.report import Report
from oars.spec.status import Phase, Status


def check_workers(name: str, chosen: Sequence[str], known: Collection[str], namespace: str = "") -> None:
    """Raise UsageError or NotFound unless all of them are workers of the cluster."""
    if not chosen:
        raise UsageError("No worker is named.", f"`{command('status', name, namespace=namespace)}` lists them.")
    for member in chosen:
        if member == HEAD:
            raise UsageError("The head cannot be drained: it cannot hand over what it knows.", "Name workers only.")
        check_member(name, member, sorted(known))


def with_drains(intent: Intent, chosen: Mapping[str, str], present: Mapping[str, str], *, force: bool) -> Intent:
    """The intent with requests for the chosen workers. Both mappings: worker → incarnation, empty where the name alone
    identifies it. Requests for workers that are gone are dropped."""
    kept = {m: r for m, r in intent.drain.items() if m in present and r.incarnation in ("", present[m])}
    fresh = {MemberId(member): DrainRequest(incarnation, force) for member, incarnation in chosen.items()}
    return intent.changed(drain={**kept, **fresh})


async def drain_workers(
    handle: ClusterHandle, members: Sequence[str], seconds: float, *, force: bool = False, progress: Progress = ignore
) -> Status:
    """Drain these workers and replace them. Returns when they are gone and their successors are ready. Raises TimedOut;
    the request stays."""
    await handle.drain(members, force=force)
    last: Report | None = None
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            async for report in handle.watch():
                last = report
                left = _left(report, members)
                if not left and report.status.phase is Phase.READY:
                    return report.status
                progress(f"{handle.name}: {_progress(report, left)}")
    except TimeoutError:
        left = _left(last, members) if last is not None else list(members)
        force_command = command("drain", handle.name, *left, "--force", namespace=handle.namespace)
        hint = f"The request stays. `{force_command}` discards what they hold."
        reason = _progress(last, left) if last is not None else "the cluster has not reported its status"
        raise TimedOut(
            f"Timed out after {seconds:.0f} s draining workers of {handle.name!r}: {reason}.",
            hint if left else f"Run `{command('why', handle.name, namespace=handle.namespace)}`.",
        ) from None
    raise ClusterLost(f"Cluster {handle.name!r} was stopped while its workers were drained.")


def _left(report: Report, members: Collection[str]) -> list[str]:
    return [member.id for member in report.status.members if member.id in members]


def _progress(report: Report, left: Sequence[str]) -> str:
    if not left:
        return f"{report.status.ready} of {report.status.wanted} workers ready"
    waits = [f"{each.id} waits for {each.reason}" for each in report.status.members if each.id in left and each.reason]
    return "; ".join(waits) or f"draining {join_names(left)}"


async def finish_work(handle: ClusterHandle, seconds: float, progress: Progress = ignore) -> None:
    """Wait until the cluster has no work, and its workers hold nothing and have left. Raises TimedOut; then the cluster
    continues as before."""
    await handle.drain_all(True)
    last: Report | None = None
    is_empty = False
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            async for last in handle.watch():
                workers = [member.id for member in last.status.members if member.role == Role.WORKER]
                if not workers and last.status.wanted == 0:
                    is_empty = True
                    return
                progress(f"{handle.name}: {_remaining(last, workers)}")
    except TimeoutError:
        workers = [member.id for member in last.status.members if member.role == Role.WORKER] if last else []
        reason = _remaining(last, workers) if last is not None else "the cluster has not reported its status"
        stop = command("down", handle.name, namespace=handle.namespace)
        message = f"Timed out after {seconds:.0f} s waiting for the work of {handle.name!r}: {reason}."
        raise TimedOut(message, f"It continues to run. `{stop}` stops it now and discards its data.") from None
    finally:
        if not is_empty:
            await asyncio.shield(handle.drain_all(False))


def _remaining(report: Report, workers: Sequence[str]) -> str:
    finishing = [cause.message for cause in report.causes if cause.reason == "Finishing"]
    return finishing[0].rstrip(".") if finishing else _progress(report, workers)
