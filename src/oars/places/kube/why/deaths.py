"""Containers that died, or that run and fail their probes. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from oars.model import HEAD
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.state.observe import is_ready
from oars.places.kube.why.facts import (
    Finding,
    Severity,
    Snapshot,
    container_spec,
    container_statuses,
    container_suffix,
    events_of,
    group,
    is_disrupted,
    is_terminating,
    last_seen,
    name,
    role,
    seconds_between,
    spec_section,
    strip_period,
)
from oars.places.kube.why.logs import explain_pod_log
from oars.places.kube.why.start import NEVER_RAN
from oars.plan.decide import CRASH_LOOP
from oars.plan.why import LINES

READINESS_GRACE = 20.0  # seconds in which a starting member may fail its readiness probe
SAMPLES = 3  # logs read of containers that died the same way
MAX_LOGS = 12  # logs read at a time

_PROBE = re.compile(r"(Readiness|Liveness|Startup) probe (?:failed|errored)[^:]*: ?(.*)", re.DOTALL)
_CONTAINER = re.compile(r"\{(.+)\}$")  # in the fieldPath of an event: spec.containers{worker}
_NO_LOG = "unable to retrieve container logs"  # the kubelet's text in place of a deleted log


def containers_with_log(pod: Object) -> tuple[str, ...]:
    """Containers that died and whose log may explain it."""
    if is_terminating(pod) or is_disrupted(pod) or pod.get("status", {}).get("phase") == "Succeeded":
        return ()
    ends = [(each["name"], _last_end(each)) for each in container_statuses(pod)]
    return tuple(container for container, end in ends if end and end.get("reason") not in NEVER_RAN)


def logs_to_read(pods: Iterable[Object]) -> list[tuple[Object, str]]:
    """Pods and containers whose logs to read: up to SAMPLES of those that died the same way. Pods that are not ready
    come first, and the first sample of each kind comes before the second of any."""
    samples: dict[tuple[str, ...], list[tuple[Object, str]]] = {}
    for pod in sorted(pods, key=is_ready):
        wanted = containers_with_log(pod)
        for status in container_statuses(pod):
            if status["name"] in wanted:
                samples.setdefault(_death_key(pod, status), []).append((pod, status["name"]))
    rounds = [same[number] for number in range(SAMPLES) for same in samples.values() if number < len(same)]
    return rounds[:MAX_LOGS]


def share_log_tails(snapshot: Snapshot) -> Snapshot:
    """Give containers without log lines those of one that died the same way, so that both have the same cause."""
    if not snapshot.log_tails:
        return snapshot
    dead = [
        ((name(pod), str(status["name"])), _death_key(pod, status), _tail(snapshot, pod, status["name"]))
        for pod in snapshot.pods
        for status in container_statuses(pod)
        if _last_end(status)
    ]
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    for _, death, tail in dead:
        if tail:
            known.setdefault(death, tail)
    tails = {key: tail or known.get(death, ()) for key, death, tail in dead}
    return replace(snapshot, log_tails={**snapshot.log_tails, **tails})


def _death_key(pod: Object, status: Mapping[str, Any]) -> tuple[str, ...]:
    """Equal for containers that died the same way, as far as that is known without their logs."""
    end = _last_end(status)
    recovered = "recovered" if _has_recovered(pod, status) else ""
    return (role(pod), group(pod), str(status["name"]), str(end.get("reason", "")), _exit(end), recovered)


def _tail(snapshot: Snapshot, pod: Object, container: str) -> tuple[str, ...]:
    lines = snapshot.log_tails.get((name(pod), container), ())
    return tuple(line for line in lines if not line.startswith(_NO_LOG))


def _last_end(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last termination; empty if there is none, or if it was expected (an init container that succeeded)."""
    state, previous = status.get("state") or {}, status.get("lastState") or {}
    end: Mapping[str, Any] = state.get("terminated") or previous.get("terminated") or {}
    succeeded = "terminated" in state and end.get("exitCode") == 0 and status.get("ready", False)
    return {} if succeeded else end


def _has_recovered(pod: Object, status: Mapping[str, Any]) -> bool:
    return is_ready(pod) and bool(status.get("ready"))


def _exit(end: Mapping[str, Any]) -> str:
    """'killed by SIGKILL' or 'exit code 1'. Container runtimes report signals as exit codes above 128."""
    code = int(end.get("exitCode", 0))
    number = int(end.get("signal") or 0) or (code - 128 if 128 < code < 160 else 0)
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"exit code {code}"


def find(snapshot: Snapshot, pod: Object, namespace: str) -> Finding | None:
    probe = _failed_probe(snapshot, pod)
    if probe:
        return probe
    dead = [status for status in container_statuses(pod) if _last_end(status)]
    if dead:
        status = min(dead, key=lambda each: bool(each.get("ready")))  # prefer one that has not recovered
        tail = _tail(snapshot, pod, status["name"])
        if _last_end(status).get("reason") == "OOMKilled":
            return _out_of_memory(pod, status, tail)
        return _died(snapshot, pod, status, namespace)
    tail = _tail(snapshot, pod, role(pod))
    found = explain_pod_log(tail, snapshot.log_patterns, namespace)
    if found is None or not found.reason or is_ready(pod):
        return None
    text = f"is not ready: {found.meaning}" if role(pod) == HEAD else f"cannot join the head: {found.meaning}"
    return Finding(Severity.DEATH, found.reason, text, found.hint, tail[-LINES:])


def _out_of_memory(pod: Object, status: Mapping[str, Any], tail: tuple[str, ...]) -> Finding:
    recovered = _has_recovered(pod, status)
    limits = (container_spec(pod, status["name"]).get("resources") or {}).get("limits") or {}
    limit = f"the limit is {limits['memory']}" if "memory" in limits else ""
    text = f"ran out of memory{_details(pod, status, limit)}{' and restarted' if recovered else ''}"
    hint = f"Give {_more_memory(pod, status['name'])}, or process less data at a time."
    return Finding(Severity.PAST if recovered else Severity.DEATH, "OOMKilled", text, hint, tail[-LINES:])


def _more_memory(pod: Object, container: str) -> str:
    if container == role(pod):
        return f"{spec_section(pod)} more `memory`"
    return f"container {container} more memory in `pod` of {spec_section(pod)}"


def _died(snapshot: Snapshot, pod: Object, status: Mapping[str, Any], namespace: str) -> Finding:
    tail = _tail(snapshot, pod, status["name"])
    how, lines = _exit(_last_end(status)), tail[-LINES:]
    found = explain_pod_log(tail, snapshot.log_patterns, namespace)
    because = f": {found.meaning}" if found else ""
    if _has_recovered(pod, status):
        text = f"died{_details(pod, status, how)}{because} and restarted"
        return Finding(Severity.PAST, "Replaced", text, found.hint if found else "", lines)
    hint = found.hint if found else _read_log(pod, status["name"])
    if how.endswith("SIGKILL") and not found:  # the kernel may have killed a child for memory, and the parent with it
        hint += f" If it happens again, give {_more_memory(pod, status['name'])}."
    state = status.get("state") or {}
    deaths = status.get("restartCount", 0) + ("running" not in state)
    if deaths >= CRASH_LOOP or (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff":
        reason, text = "CrashLoop", f"died repeatedly{_details(pod, status, f'{deaths} times', how)}{because}"
    else:
        reason = "HeadLost" if role(pod) == HEAD else "WorkerLost"
        text = f"died{_details(pod, status, how)}{because}"
    reason = found.reason if found and found.reason else reason
    return Finding(Severity.DEATH, reason, text, hint, lines, merge_key=f"{status['name']} {how}{because}")


def _details(pod: Object, status: Mapping[str, Any], *details: str) -> str:
    """' (container fetch; exit code 4)'; the engine's container is not named."""
    container = "" if status["name"] == role(pod) else f"container {status['name']}"
    known = [detail for detail in (container, *details) if detail]
    return f" ({'; '.join(known)})" if known else ""


def _read_log(pod: Object, container: str) -> str:
    member = HEAD if role(pod) == HEAD else name(pod)
    option = "" if container == role(pod) else f" -c {container}"
    return f"Read its log: `oars logs {pod['metadata']['labels'][names.CLUSTER]} {member}{option}`."


def _failed_probe(snapshot: Snapshot, pod: Object) -> Finding | None:
    """The newest probe failure that still matters. A failed liveness or startup probe restarts the container."""
    for event in reversed(events_of(snapshot, pod, "Unhealthy")):
        match = _PROBE.match(str(event.get("message", "")))
        path = _CONTAINER.search(str((event.get("involvedObject") or {}).get("fieldPath", "")))
        container = path[1] if path else role(pod)
        status = next((each for each in container_statuses(pod) if each["name"] == container), {"name": container})
        if match is None or not _still_matters(pod, status, match[1], last_seen(event)):
            continue
        kind, error = match[1].lower(), strip_period(" ".join(match[2].split())) or "no answer"
        restarted = "" if kind == "readiness" else " and restarted"
        text = f"failed the {kind} probe{container_suffix(pod, container)}{restarted}: {error}"
        hint, lines = _read_log(pod, container), _tail(snapshot, pod, container)[-LINES:]
        severity, reason = (Severity.PAST, "Replaced") if is_ready(pod) else (Severity.PROBE, "ProbeFails")
        return Finding(severity, reason, text, hint, lines, merge_key=f"{container} {kind}")
    return None


def _still_matters(pod: Object, status: Mapping[str, Any], kind: str, time: str) -> bool:
    """False for failures of an earlier run of the container, and of a container that is ready while the pod is not."""
    end, ready = _last_end(status), bool(status.get("ready"))
    if time < end.get("startedAt", ""):
        return False
    if kind == "Readiness":
        started = str(((status.get("state") or {}).get("running") or {}).get("startedAt", ""))
        return not ready and seconds_between(started, time) >= READINESS_GRACE
    return bool(end) and (is_ready(pod) or not ready)  # without an end the failure had no consequences yet
