"""Containers that died, or that run and fail their probes. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oars.base.text import command
from oars.model import HEAD, LogPattern, Role
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.state.observe import group_name, is_ready, phase, role
from oars.places.kube.why import facts
from oars.places.kube.why.facts import (
    Finding,
    Severity,
    Snapshot,
    container_statuses,
    container_suffix,
    name,
    spec_section,
)
from oars.places.kube.why.start import NEVER_RAN
from oars.plan.decide import CRASH_LOOP
from oars.plan.logs import LogMeaning, explain_log, pattern_text, telling_lines
from oars.spec.resources import show_memory

READINESS_GRACE = 20.0  # seconds in which a starting member may fail its readiness probe
SAMPLES = 3  # logs read of containers that died the same way
MAX_LOGS = 12  # logs read at a time

_PROBE = re.compile(r"(Readiness|Liveness|Startup) probe (?:failed|errored)[^:]*: ?(.*)", re.DOTALL)
_CONTAINER = re.compile(r"\{(.+)\}$")  # in the fieldPath of an event: spec.containers{worker}
_NO_LOG = "unable to retrieve container logs"  # the kubelet's text in place of a deleted log
_DNS = re.compile(
    r"Name or service not known|Temporary failure in name resolution|No address associated with hostname|"
    r"Name does not resolve|DNS resolution failed|Could not resolve host|no such host"
)
_HOST = re.compile(r"(?<=\w)://([A-Za-z][\w.-]*)|DNS resolution failed for ([\w.-]+)")

# logs


def containers_with_log(pod: Object) -> tuple[str, ...]:
    """Containers that died and whose log may explain it."""
    if facts.is_terminating(pod) or facts.is_disrupted(pod) or phase(pod) == "Succeeded":
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
    return group_name(pod), status["name"], end.get("reason", ""), _exit(end), str(_has_recovered(pod, status))


def _tail(snapshot: Snapshot, pod: Object, container: str) -> tuple[str, ...]:
    lines = snapshot.log_tails.get((name(pod), container), ())
    return tuple(line for line in lines if not line.startswith(_NO_LOG))


def explain_pod_log(lines: Sequence[str], patterns: Sequence[LogPattern], namespace: str) -> LogMeaning | None:
    """The meaning of a log's last lines, by the engine's patterns, general ones, and failed DNS lookups."""
    meaning, text = explain_log(lines, patterns), pattern_text(lines)
    if (meaning and meaning.reason) or not _DNS.search(text):
        return meaning
    host = next((found[1] or found[2] for found in _HOST.finditer(text)), "of the head")
    hint = (
        "Check that the cluster's DNS runs (`kubectl get pods -n kube-system -l k8s-app=kube-dns`) "
        f"and that the Service exists (`kubectl get service -n {namespace}`)."
    )
    return LogMeaning(f"DNS cannot resolve the name {host}", hint, "NoDns")


# deaths


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
    if probe := _failed_probe(snapshot, pod, namespace):
        return probe
    dead = [
        status for status in container_statuses(pod) if _last_end(status) and not _ended_with_head(snapshot, status)
    ]
    if dead:
        status = min(dead, key=lambda each: bool(each.get("ready")))  # prefer one that has not recovered
        oom = _last_end(status).get("reason") == "OOMKilled"
        return _out_of_memory(snapshot, pod, status) if oom else _died(snapshot, pod, status, namespace)
    tail = _tail(snapshot, pod, role(pod))
    found = explain_pod_log(tail, snapshot.log_patterns, namespace)
    if found is None or not found.reason or is_ready(pod):
        return None
    problem = "is not ready" if role(pod) is Role.HEAD else "cannot join the head"
    return Finding(Severity.DEATH, found.reason, f"{problem}: {found.meaning}", found.hint, telling_lines(tail))


def _ended_with_head(snapshot: Snapshot, status: Mapping[str, Any]) -> bool:
    """True for a worker that has ended normally while there is no head: it does so when its head is replaced."""
    has_head = any(role(pod) is Role.HEAD and is_ready(pod) for pod in snapshot.pods)
    return status["name"] == Role.WORKER and not has_head and _last_end(status).get("exitCode") == 0


def _out_of_memory(snapshot: Snapshot, pod: Object, status: Mapping[str, Any]) -> Finding:
    container, recovered = status["name"], _has_recovered(pod, status)
    limits = (facts.container_spec(pod, container).get("resources") or {}).get("limits") or {}
    limit = str(limits.get("memory", ""))
    limit = show_memory(int(limit)) if limit.isdigit() else limit
    known = [f"the limit is {limit}"] if limit else []
    text = f"ran out of memory{container_suffix(pod, container, *known)}{' and restarted' if recovered else ''}"
    text += _cost(pod, container)
    than = f" than {limit}" if limit and container == role(pod) else ""
    hint = f"Give {_more_memory(pod, container)}{than}, or process less data at a time."
    severity = Severity.PAST if recovered else Severity.DEATH
    return Finding(severity, "OOMKilled", text, hint, telling_lines(_tail(snapshot, pod, container)))


def _died(snapshot: Snapshot, pod: Object, status: Mapping[str, Any], namespace: str) -> Finding:
    container, state = status["name"], status.get("state") or {}
    tail, how = _tail(snapshot, pod, container), _exit(_last_end(status))
    found = explain_pod_log(tail, snapshot.log_patterns, namespace)
    because = f": {found.meaning}" if found else ""
    if _has_recovered(pod, status):
        text = f"died{container_suffix(pod, container, how)}{because} and restarted{_cost(pod, container)}"
        hint = found.hint if found else _read_log(pod, container, namespace)
        return Finding(Severity.PAST, "Replaced", text, hint, telling_lines(tail))
    hint = found.hint if found else _read_log(pod, container, namespace)
    if how.endswith("SIGKILL") and not found:  # the kernel may have killed a child for memory, and the parent with it
        hint += f" If it happens again, give {_more_memory(pod, container)}."
    deaths = status.get("restartCount", 0) + ("running" not in state)
    if deaths >= CRASH_LOOP or (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff":
        reason, text = (
            "CrashLoop",
            f"died repeatedly{container_suffix(pod, container, f'{deaths} times', how)}{because}",
        )
    else:
        reason = "HeadLost" if role(pod) is Role.HEAD else "WorkerLost"
        text = f"died{container_suffix(pod, container, how)}{because}{_cost(pod, container)}"
    reason = found.reason if found and found.reason else reason
    return Finding(Severity.DEATH, reason, text, hint, telling_lines(tail), merge_key=f"{container} {how}{because}")


def _cost(pod: Object, container: str) -> str:
    """What a death of the head costs."""
    is_head = role(pod) is Role.HEAD and container == role(pod)
    return "; all results of the cluster are lost" if is_head else ""


def _more_memory(pod: Object, container: str) -> str:
    if container == role(pod):
        return f"{spec_section(pod)} more `memory`"
    return f"container {container} more memory in `pod` of {spec_section(pod)}"


def _read_log(pod: Object, container: str, namespace: str) -> str:
    cluster, member = pod["metadata"]["labels"][names.CLUSTER], HEAD if role(pod) is Role.HEAD else name(pod)
    option = () if container == role(pod) else ("-c", container)
    return f"Read its log: `{command('logs', cluster, member, *option, namespace=namespace)}`."


# probes


def _failed_probe(snapshot: Snapshot, pod: Object, namespace: str) -> Finding | None:
    """The newest probe failure that still matters. A failed liveness or startup probe restarts the container."""
    for event in reversed(facts.events_of(snapshot, pod, "Unhealthy")):
        match = _PROBE.match(str(event.get("message", "")))
        path = _CONTAINER.search(str((event.get("involvedObject") or {}).get("fieldPath", "")))
        container = path[1] if path else role(pod).value
        status = next((each for each in container_statuses(pod) if each["name"] == container), {})
        if match is None or not _still_matters(pod, status, match[1], facts.last_seen(event)):
            continue
        kind, error = match[1].lower(), facts.strip_period(" ".join(match[2].split())) or "no answer"
        restarted = "" if kind == "readiness" else " and restarted"
        text = f"failed the {kind} probe{container_suffix(pod, container)}{restarted}: {error}"
        hint, lines = _read_log(pod, container, namespace), telling_lines(_tail(snapshot, pod, container))
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
        return not ready and facts.seconds_between(started, time) >= READINESS_GRACE
    return bool(end) and (is_ready(pod) or not ready)  # without an end the failure had no consequences yet
