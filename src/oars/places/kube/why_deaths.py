"""Containers that ran and died, or run and do not answer their probes. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from typing import Any

from oars.places.kube.names import Object
from oars.places.kube.why_facts import (
    HEAD,
    Finding,
    Grade,
    Snapshot,
    events_of,
    is_leaving,
    is_ready,
    name,
    role,
    seconds_between,
    sentence_end,
    when,
    whose,
)
from oars.places.kube.why_logs import Sign, sign
from oars.places.kube.why_start import all_statuses
from oars.plan.decide import CRASH_LOOP
from oars.plan.why import LINES

PATIENCE = 20.0  # seconds: a member that starts fails its readiness probe for a while, and nobody wants to hear of it

_PROBE = re.compile(r"(Readiness|Liveness|Startup) probe (?:failed|errored)[^:]*: ?(.*)", re.DOTALL)
_NO_LOG = "unable to retrieve container logs"  # the kubelet's, in place of a log that is gone
_NEVER_RAN = {"StartError", "ContainerCannotRun"}  # there is no log


def needs_log(pod: Object) -> bool:
    """Its container died, and its last lines would help."""
    status = pod.get("status", {})
    if is_leaving(pod) or status.get("phase") == "Succeeded" or status.get("reason"):  # a reason: the node's doing
        return False
    deaths = [_death(container) for container in all_statuses(pod)]
    return any(death and death.get("reason") not in _NEVER_RAN for death in deaths)


def findings(snapshot: Snapshot, pod: Object, namespace: str) -> Iterable[Finding]:
    tail = [line for line in snapshot.log_tails.get(name(pod), ()) if not line.startswith(_NO_LOG)]
    lines, meaning = tuple(tail[-LINES:]), sign(tail, namespace)
    probe = _probe(snapshot, pod, lines)
    if probe:
        yield probe
        return
    for status in all_statuses(pod):
        death = _death(status)
        if death:
            out_of_memory = death.get("reason") == "OOMKilled"
            yield _out_of_memory(pod, status, lines) if out_of_memory else _died(pod, status, meaning, lines)
            return
    if meaning and meaning.reason and not is_ready(pod):
        text = f"is not ready: {meaning.meaning}" if role(pod) == HEAD else f"cannot join the head: {meaning.meaning}"
        yield Finding(Grade.DEATH, meaning.reason, text, meaning.todo, lines)


def _death(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How it ended last; empty if it never did, or was meant to (an init container)."""
    state, before = status.get("state") or {}, status.get("lastState") or {}
    found: Mapping[str, Any] = state.get("terminated") or before.get("terminated") or {}
    is_done = "terminated" in state and found.get("exitCode") == 0 and status.get("ready", False)
    return {} if is_done else found


def _is_back(pod: Object, status: Mapping[str, Any]) -> bool:
    return is_ready(pod) and bool(status.get("ready"))


def _out_of_memory(pod: Object, status: Mapping[str, Any], lines: tuple[str, ...]) -> Finding:
    is_back, limit = _is_back(pod, status), _memory_limit(pod, status["name"])
    facts = _facts(pod, status, f"the limit is {limit}" if limit else "")
    text = f"ran out of memory{facts}{' and came back' if is_back else ''}"
    todo = f"Give {whose(pod)} more `memory`, or less work at a time."
    return Finding(Grade.PAST if is_back else Grade.DEATH, "OOMKilled", text, todo, lines)


def _died(pod: Object, status: Mapping[str, Any], meaning: Sign | None, lines: tuple[str, ...]) -> Finding:
    how = _how(_death(status))
    because = f": {meaning.meaning}" if meaning else ""
    if _is_back(pod, status):
        text = f"died{_facts(pod, status, how)}{because} and came back"
        return Finding(Grade.PAST, "Replaced", text, meaning.todo if meaning else "", lines)
    todo = meaning.todo if meaning else f"Read its log: `oars logs NAME {_member(pod)}`."
    if how.endswith("SIGKILL") and not meaning:  # a child that was killed for memory takes its parent along
        todo += f" If it goes on, try more `memory` for {whose(pod)}."
    deaths = status.get("restartCount", 0) + ("running" not in (status.get("state") or {}))
    if deaths >= CRASH_LOOP or _waits(status) == "CrashLoopBackOff":
        reason, text = "CrashLoop", f"died again and again{_facts(pod, status, f'{deaths} times', how)}{because}"
    else:
        reason = "HeadLost" if role(pod) == HEAD else "WorkerLost"
        text = f"died{_facts(pod, status, how)}{because}"
    reason = meaning.reason if meaning and meaning.reason else reason
    return Finding(Grade.DEATH, reason, text, todo, lines, alike=f"{status['name']} {how}{because}")


def _facts(pod: Object, status: Mapping[str, Any], *facts: str) -> str:
    """In brackets; the container only where it is not the member's own."""
    container = "" if status["name"] == role(pod) else f"container {status['name']}"
    known = [fact for fact in (container, *facts) if fact]
    return f" ({'; '.join(known)})" if known else ""


def _waits(status: Mapping[str, Any]) -> str:
    return str(((status.get("state") or {}).get("waiting") or {}).get("reason", ""))


def _member(pod: Object) -> str:
    return HEAD if role(pod) == HEAD else name(pod)


def _memory_limit(pod: Object, container: str) -> str:
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    mine: Object = next((c for c in containers if c["name"] == container), {})
    return str(((mine.get("resources") or {}).get("limits") or {}).get("memory", ""))


def _how(death: Mapping[str, Any]) -> str:
    """Exit codes above 128 are signals, as shells and container runtimes count."""
    code = int(death.get("exitCode", 0))
    number = int(death.get("signal") or 0) or (code - 128 if 128 < code < 160 else 0)
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"exit code {code}"


# probes


def _probe(snapshot: Snapshot, pod: Object, lines: tuple[str, ...]) -> Finding | None:
    """A liveness or startup probe that fails has its container killed; a readiness probe only says not yet."""
    for event in reversed(events_of(snapshot, pod, "Unhealthy")):
        match = _PROBE.match(str(event.get("message", "")))
        if match is None or not _is_new(pod, event):
            continue
        kind, words = match[1].lower(), sentence_end(" ".join(match[2].split())) or "no answer"
        if kind == "readiness":
            if is_ready(pod) or seconds_between(_started(pod), when(event)) < PATIENCE:
                continue
        elif not any(map(_death, all_statuses(pod))):
            continue  # it has not had consequences yet
        also = "" if kind == "readiness" else ", and had to be started again"
        text = f"did not pass the {kind} probe{also}: {words}"
        todo = f"Read its log: `oars logs NAME {_member(pod)}`."
        if is_ready(pod):
            return Finding(Grade.PAST, "Replaced", text, todo, lines, alike=kind)
        return Finding(Grade.PROBE, "ProbeFails", text, todo, lines, alike=kind)
    return None


def _is_new(pod: Object, event: Object) -> bool:
    """Of this life of the container, or of the one that it ended; older ones are history."""
    last = [_death(status).get("startedAt", "") for status in all_statuses(pod)]
    return when(event) >= max([moment for moment in last if moment], default="")


def _started(pod: Object) -> str:
    """When the member's own container began to run; empty if it does not."""
    for status in all_statuses(pod):
        if status["name"] == role(pod):
            return str(((status.get("state") or {}).get("running") or {}).get("startedAt", ""))
    return ""
