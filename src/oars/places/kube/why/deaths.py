"""Containers that ran and died, or run and do not answer their probes. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from oars.places.kube.names import Object
from oars.places.kube.why.facts import (
    HEAD,
    Finding,
    Grade,
    Snapshot,
    events_of,
    group,
    is_leaving,
    is_ready,
    name,
    role,
    seconds_between,
    sentence_end,
    when,
    whose,
)
from oars.places.kube.why.logs import sign
from oars.places.kube.why.start import all_statuses, which
from oars.plan.decide import CRASH_LOOP
from oars.plan.why import LINES

PATIENCE = 20.0  # seconds: a member that starts fails its readiness probe for a while, and nobody wants to hear of it
SAMPLES = 3  # logs that are read of containers that died alike
MOST_LOGS = 12  # that are read at a time, however many ways to die there are

_PROBE = re.compile(r"(Readiness|Liveness|Startup) probe (?:failed|errored)[^:]*: ?(.*)", re.DOTALL)
_CONTAINER = re.compile(r"\{(.+)\}$")  # in the field that an event is about: spec.containers{worker}
_NO_LOG = "unable to retrieve container logs"  # the kubelet's, in place of a log that is gone
_NEVER_RAN = {"StartError", "ContainerCannotRun"}  # there is no log


def logs_needed(pod: Object) -> tuple[str, ...]:
    """Its containers that died, and whose last lines would help."""
    status = pod.get("status", {})
    if is_leaving(pod) or status.get("phase") == "Succeeded" or status.get("reason"):  # a reason: the node's doing
        return ()
    died = [each for each in all_statuses(pod) if _death(each)]
    return tuple(each["name"] for each in died if _death(each).get("reason") not in _NEVER_RAN)


def logs_to_read(pods: Iterable[Object]) -> list[tuple[Object, str]]:
    """Pods and containers: a few of those that died alike, as the others would say the same. Pods that are not ready
    come first, and one of each kind before a second of any."""
    alike: dict[tuple[str, ...], list[tuple[Object, str]]] = {}
    for pod in sorted(pods, key=is_ready):
        needed = logs_needed(pod)
        for status in all_statuses(pod):
            if status["name"] in needed:
                alike.setdefault(_likeness(pod, status), []).append((pod, status["name"]))
    turns = [found[turn] for turn in range(SAMPLES) for found in alike.values() if turn < len(found)]
    return turns[:MOST_LOGS]


def with_lent_tails(snapshot: Snapshot) -> Snapshot:
    """Whoever died and was not read, or wrote nothing, has the last lines of one that died alike, so that both are told
    as one."""
    if not snapshot.log_tails:
        return snapshot
    died = [
        ((name(pod), str(status["name"])), _likeness(pod, status), _tail(snapshot, pod, status["name"]))
        for pod in snapshot.pods
        for status in all_statuses(pod)
        if _death(status)
    ]
    lent: dict[tuple[str, ...], tuple[str, ...]] = {}
    for _, alike, tail in died:
        if tail:
            lent.setdefault(alike, tail)
    tails = {key: tail or lent.get(alike, ()) for key, alike, tail in died}
    return replace(snapshot, log_tails={**snapshot.log_tails, **tails})


def _likeness(pod: Object, status: Mapping[str, Any]) -> tuple[str, ...]:
    """The same for containers whose deaths are told alike, as far as that can be known without their logs."""
    death = _death(status)
    is_back = "back" if _is_back(pod, status) else ""
    return (role(pod), group(pod), str(status["name"]), str(death.get("reason", "")), _how(death), is_back)


def findings(snapshot: Snapshot, pod: Object, namespace: str) -> Iterable[Finding]:
    probe = _probe(snapshot, pod)
    if probe:
        yield probe
        return
    died = [status for status in all_statuses(pod) if _death(status)]
    if died:
        status = min(died, key=lambda each: bool(each.get("ready")))  # of several, one that is not back
        tail = _tail(snapshot, pod, status["name"])
        out_of_memory = _death(status).get("reason") == "OOMKilled"
        yield _out_of_memory(pod, status, tail) if out_of_memory else _died(pod, status, tail, namespace)
        return
    tail = _tail(snapshot, pod, role(pod))
    meaning = sign(tail, namespace)
    if meaning and meaning.reason and not is_ready(pod):
        text = f"is not ready: {meaning.meaning}" if role(pod) == HEAD else f"cannot join the head: {meaning.meaning}"
        yield Finding(Grade.DEATH, meaning.reason, text, meaning.hint, tail[-LINES:])


def _tail(snapshot: Snapshot, pod: Object, container: str) -> tuple[str, ...]:
    known = snapshot.log_tails.get((name(pod), container), ())
    return tuple(line for line in known if not line.startswith(_NO_LOG))


def _death(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How it ended last; empty if it never did, or was meant to (an init container)."""
    state, before = status.get("state") or {}, status.get("lastState") or {}
    found: Mapping[str, Any] = state.get("terminated") or before.get("terminated") or {}
    is_done = "terminated" in state and found.get("exitCode") == 0 and status.get("ready", False)
    return {} if is_done else found


def _is_back(pod: Object, status: Mapping[str, Any]) -> bool:
    return is_ready(pod) and bool(status.get("ready"))


def _out_of_memory(pod: Object, status: Mapping[str, Any], tail: tuple[str, ...]) -> Finding:
    is_back, limit = _is_back(pod, status), _memory_limit(pod, status["name"])
    facts = _facts(pod, status, f"the limit is {limit}" if limit else "")
    text = f"ran out of memory{facts}{' and came back' if is_back else ''}"
    hint = f"Give {_which_memory(pod, status['name'])}, or less work at a time."
    return Finding(Grade.PAST if is_back else Grade.DEATH, "OOMKilled", text, hint, tail[-LINES:])


def _which_memory(pod: Object, container: str) -> str:
    """The description's own field is for the member; the others have theirs in the overlay."""
    if container == role(pod):
        return f"{whose(pod)} more `memory`"
    return f"container {container} more memory in `pod` of {whose(pod)}"


def _died(pod: Object, status: Mapping[str, Any], tail: tuple[str, ...], namespace: str) -> Finding:
    how, meaning, lines = _how(_death(status)), sign(tail, namespace), tail[-LINES:]
    because = f": {meaning.meaning}" if meaning else ""
    if _is_back(pod, status):
        text = f"died{_facts(pod, status, how)}{because} and came back"
        return Finding(Grade.PAST, "Replaced", text, meaning.hint if meaning else "", lines)
    hint = meaning.hint if meaning else _read_log(pod, status["name"])
    if how.endswith("SIGKILL") and not meaning:  # a child that was killed for memory takes its parent along
        hint += f" If it goes on, give {_which_memory(pod, status['name'])}."
    deaths = status.get("restartCount", 0) + ("running" not in (status.get("state") or {}))
    if deaths >= CRASH_LOOP or _waits(status) == "CrashLoopBackOff":
        reason, text = "CrashLoop", f"died again and again{_facts(pod, status, f'{deaths} times', how)}{because}"
    else:
        reason = "HeadLost" if role(pod) == HEAD else "WorkerLost"
        text = f"died{_facts(pod, status, how)}{because}"
    reason = meaning.reason if meaning and meaning.reason else reason
    return Finding(Grade.DEATH, reason, text, hint, lines, alike=f"{status['name']} {how}{because}")


def _facts(pod: Object, status: Mapping[str, Any], *facts: str) -> str:
    """In brackets; the container only where it is not the member's own."""
    container = "" if status["name"] == role(pod) else f"container {status['name']}"
    known = [fact for fact in (container, *facts) if fact]
    return f" ({'; '.join(known)})" if known else ""


def _waits(status: Mapping[str, Any]) -> str:
    return str(((status.get("state") or {}).get("waiting") or {}).get("reason", ""))


def _read_log(pod: Object, container: str) -> str:
    member = HEAD if role(pod) == HEAD else name(pod)
    return f"Read its log: `oars logs NAME {member}{'' if container == role(pod) else f' -c {container}'}`."


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


def _probe(snapshot: Snapshot, pod: Object) -> Finding | None:
    """A liveness or startup probe that fails has its container killed; a readiness probe only says not yet."""
    for event in reversed(events_of(snapshot, pod, "Unhealthy")):
        match = _PROBE.match(str(event.get("message", "")))
        status = _status_of(pod, event)
        if match is None or not _still_matters(pod, status, match[1], when(event)):
            continue
        kind, words = match[1].lower(), sentence_end(" ".join(match[2].split())) or "no answer"
        container = str(status["name"])
        also = "" if kind == "readiness" else ", and had to be started again"
        text = f"did not pass the {kind} probe{which(pod, container)}{also}: {words}"
        hint, lines = _read_log(pod, container), _tail(snapshot, pod, container)[-LINES:]
        grade, reason = (Grade.PAST, "Replaced") if is_ready(pod) else (Grade.PROBE, "ProbeFails")
        return Finding(grade, reason, text, hint, lines, alike=f"{container} {kind}")
    return None


def _still_matters(pod: Object, status: Mapping[str, Any], kind: str, moment: str) -> bool:
    """Of this life of the container or of the one that it ended, and not over while something else is wrong."""
    death, is_back = _death(status), bool(status.get("ready"))
    if moment < death.get("startedAt", ""):
        return False
    if kind == "Readiness":
        return not is_back and seconds_between(_started(status), moment) >= PATIENCE
    return bool(death) and (is_ready(pod) or not is_back)  # without a death it has had no consequences yet


def _status_of(pod: Object, event: Object) -> Mapping[str, Any]:
    """Of the container that an event is about; where it does not say, of the member's own."""
    about = _CONTAINER.search(str((event.get("involvedObject") or {}).get("fieldPath", "")))
    container = about[1] if about else role(pod)
    return next((each for each in all_statuses(pod) if each["name"] == container), {"name": container})


def _started(status: Mapping[str, Any]) -> str:
    """When it began to run; empty if it does not."""
    return str(((status.get("state") or {}).get("running") or {}).get("startedAt", ""))
