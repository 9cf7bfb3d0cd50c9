"""What a driver's pod and its batch/v1 Job say about the driver. Pure.

The pod decides, as its phase is known before the Job's. The Job decides when there is no pod: it keeps the name of the
attempt, and one that we have stopped starts no pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from oars.places.kube.names import Object
from oars.places.kube.render.driver import CONTAINER, STOPPED
from oars.plan.jobs import DEADLINE, NODE_LOST, DriverSeen, DriverState
from oars.spec.job_status import Attempt

LOST_SECONDS = 30.0  # a pod that is still there so long after its grace period is on a node that does not answer
_DELETED = "The driver's pod was deleted."
_SUSPENDED = (
    "The driver's Job is suspended, but not by Oars: the driver starts when the Job is resumed. If Kueue suspended it, "
    "see the section on queues of the page on jobs."
)
_ORDER = (DriverState.RUNNING, DriverState.STARTING, DriverState.UNREACHABLE)  # of several pods the first one decides


def see_driver(pods: Sequence[Object], job: Object | None, attempt: Attempt, now: float) -> DriverSeen:
    """The driver of an attempt. pods, job: those that belong to it."""
    newest_first = sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)
    found = [see_pod(pod, now) for pod in newest_first if not _is_dropped(pod) and not _is_removed(pod, attempt)]
    if found:
        seen = min(found, key=lambda each: _ORDER.index(each.state) if each.state in _ORDER else len(_ORDER))
    elif job is None or attempt.ended is not None:
        return DriverSeen()  # not there yet, or removed after its end
    else:
        seen = _see_job(job, attempt, len(pods))
    if seen.state in (DriverState.ENDED, DriverState.LOST) and job is not None and _is_late(job):
        return replace(seen, reason=DEADLINE)
    return seen


def see_pod(pod: Object, now: float) -> DriverSeen:
    status, metadata = pod.get("status") or {}, pod["metadata"]
    phase = status.get("phase")
    started = next((_seconds(state["startedAt"]) for state in _states(status, "running")), None)
    if phase in ("Succeeded", "Failed"):
        return _see_ended(status)
    due = _seconds(metadata.get("deletionTimestamp"))
    if due is not None and now > due + LOST_SECONDS:
        node = (pod.get("spec") or {}).get("nodeName", "unknown")
        message = f"Node {node} does not answer: the driver's pod should have ended {now - due:.0f} s ago."
        return DriverSeen(DriverState.UNREACHABLE, ended=due, reason=NODE_LOST, message=message)
    if phase == "Running":
        return DriverSeen(DriverState.RUNNING, started=started)
    waiting = [
        f"{state.get('reason', '')}: {state.get('message', '')}".strip(": ") for state in _states(status, "waiting")
    ]
    unscheduled = [each.get("message", "") for each in _conditions(pod) if each.get("reason") == "Unschedulable"]
    message = next(filter(None, [*unscheduled, *waiting]), "")
    return DriverSeen(DriverState.STARTING, message=f"The driver's pod waits. {message}".strip())


def is_stopped(job: Object) -> bool:
    """True if we have stopped it, so that it starts no pod any more."""
    return all(job["spec"].get(field) == value for field, value in STOPPED.items())


def _is_dropped(pod: Object) -> bool:
    """True if no node ever gets the pod: a pod that is being deleted is not scheduled any more."""
    return "deletionTimestamp" in pod["metadata"] and not (pod.get("spec") or {}).get("nodeName")


def _is_removed(pod: Object, attempt: Attempt) -> bool:
    """True if the pod has ended and is being deleted, after the attempt's end: nothing is left to do."""
    has_ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return attempt.ended is not None and has_ended and "deletionTimestamp" in pod["metadata"]


def _see_job(job: Object, attempt: Attempt, dropped: int) -> DriverSeen:
    """A driver that has no pod besides those that no node gets."""
    if (complete := _condition(job, "Complete")) is not None:
        return DriverSeen(DriverState.ENDED, 0, _end_of_second(complete.get("lastTransitionTime")))
    if (failed := _condition(job, "Failed")) is not None:
        return DriverSeen(DriverState.LOST, ended=_seconds(failed.get("lastTransitionTime")), message=_DELETED)
    status = job.get("status") or {}
    has_pods = status.get("active", 0) + status.get("terminating", 0) > dropped
    if job["spec"].get("suspend") and _condition(job, "Suspended") is not None and not has_pods:
        has_run = attempt.started is not None
        if not is_stopped(job):  # somebody else may resume it: a driver that has run must be stopped for good
            return DriverSeen() if has_run else DriverSeen(DriverState.STARTING, message=_SUSPENDED)
        return DriverSeen(DriverState.LOST if has_run else DriverState.CLOSED, message=_DELETED if has_run else "")
    return DriverSeen(DriverState.STARTING, message="The driver's pod is being created.")


def _see_ended(status: Object) -> DriverSeen:
    disrupted = [each for each in status.get("conditions") or () if each["type"] == "DisruptionTarget"]
    last = next(_states(status, "terminated"), {})
    started, ended = _seconds(last.get("startedAt")), _end_of_second(last.get("finishedAt"))
    code = last.get("exitCode") if last else (0 if status["phase"] == "Succeeded" else None)
    if code != 0 and (disrupted or status.get("reason") == "Evicted"):
        message = (disrupted[0].get("message") if disrupted else status.get("message")) or "The driver was evicted."
        return DriverSeen(DriverState.LOST, ended=ended, reason="Evicted", message=message, started=started)
    if code is None:
        return DriverSeen(DriverState.LOST, ended=ended, message=status.get("message", ""), started=started)
    is_out_of_memory = last.get("reason") == "OOMKilled"
    reason = "OutOfMemory" if is_out_of_memory else ""
    message = "The driver used more memory than driver.memory allows." if is_out_of_memory else ""
    return DriverSeen(DriverState.ENDED, code, ended, reason, message, started)


def _is_late(job: Object) -> bool:
    """True if Kubernetes stopped the driver because of activeDeadlineSeconds."""
    found = [_condition(job, "Failed"), _condition(job, "FailureTarget")]
    return any(each is not None and each.get("reason") == DEADLINE for each in found)


def _states(status: Object, kind: str) -> Iterator[Object]:
    """The state of the driver's container, if it is of that kind."""
    for each in status.get("containerStatuses") or ():
        if each["name"] == CONTAINER and kind in (each.get("state") or {}):
            yield each["state"][kind]


def _condition(obj: Object, kind: str) -> Object | None:
    """The condition of that type, if it is true."""
    return next((each for each in _conditions(obj) if each["type"] == kind and each["status"] == "True"), None)


def _conditions(obj: Object) -> Sequence[Object]:
    return (obj.get("status") or {}).get("conditions") or ()


def _seconds(stamp: str | None) -> float | None:
    return None if stamp is None else datetime.fromisoformat(stamp).timestamp()


def _end_of_second(stamp: str | None) -> float | None:
    """Kubernetes has whole seconds only. A driver ended at the end of that second, so that a request to stop it in the
    same second does not lose."""
    seconds = _seconds(stamp)
    return None if seconds is None else seconds + 0.999
