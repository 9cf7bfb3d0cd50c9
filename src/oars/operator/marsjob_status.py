"""The status of a MarsJob, in the words of KubeDL: it follows the job's pods. Pure.

The scheduler of Mars is a server, so no driver decides. The job runs as soon as its scheduler and a worker do. It ends
when the scheduler ends (unless that is restarted), when members died too often, or when its time is over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oars.convert.mars import ROLES
from oars.model import HEAD, Cause, LoopState
from oars.operator.resources import Course
from oars.places.kube.names import Object
from oars.places.kube.state import observe, status_codec
from oars.places.report import Report
from oars.spec.status import Phase

SCHEDULER, WEB, WORKER = ROLES
CREATED, QUEUING, RUNNING, RESTARTING = "Created", "Queuing", "Running", "Restarting"
SUCCEEDED, FAILED = "Succeeded", "Failed"
RESTARTS = ("Always", "OnFailure")  # policies with which a scheduler that ended is started again
# With the policy ExitCode, how a worker ended that KubeDL starts again.
RETRYABLE_CODES = (130, 137, 138, 143)
RETRYABLE_REASONS = ("OOMKilled", "Killed", "Evicted", "UnexpectedAdmissionError")
LOST_WORKERS = "lostWorkers"  # field of the status: name → group of the workers that are not replaced
LOOP = "loop"  # field of the status: LoopState
WAITING = "queueMessage"  # field of the status: why the job waits for its queue
KEEP = "None"  # the cleanPodPolicy with which the pods stay
HEAD_SLACK = 30.0  # seconds after the start of a new head in which workers end because of the former one
MAX_MESSAGE = 1000


@dataclass(frozen=True)
class Policy:
    """What of the spec decides how the job ends. Times in seconds; None: no limit."""

    restart: str = "Never"  # of the scheduler
    worker_restart: str = "ExitCode"
    backoff_limit: int | None = None
    deadline: int | None = None
    ttl: int | None = None


def policy_of(spec: Mapping[str, Any]) -> Policy:
    """A job with a cronPolicy has no `ttl`: its runs would be deleted with it."""
    roles = {str(name).lower(): role for name, role in spec["marsReplicaSpecs"].items()}
    scheduler, worker = roles.get(SCHEDULER.lower()) or {}, roles.get(WORKER.lower()) or {}
    return Policy(
        restart=scheduler.get("restartPolicy") or "Never",
        worker_restart=worker.get("restartPolicy") or "ExitCode",
        backoff_limit=spec.get("backoffLimit"),
        deadline=spec.get("activeDeadlineSeconds"),
        ttl=None if spec.get("cronPolicy") else spec.get("ttlSecondsAfterFinished"),
    )


def is_ended(status: Mapping[str, Any]) -> bool:
    return bool(status.get("completionTime"))


def has_begun(status: Mapping[str, Any]) -> bool:
    """True if Oars started the job's pods, and no queue has taken that back: the job does not enter a queue any more.
    KubeDL may have written the conditions, but not the state of the loop."""
    types = {each["type"] for each in status.get("conditions") or ()}
    return not status.get(WAITING) and LOOP in status and not types.isdisjoint((CREATED, RUNNING, RESTARTING))


def keeps_pods(spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """True if the scheduler has ended the job and its pods stay. Those of a job whose time or restarts are used up are
    stopped in any case."""
    by_scheduler = is_ended(status) and status["conditions"][-1].get("reason") in (f"Job{SUCCEEDED}", f"Job{FAILED}")
    return by_scheduler and (spec.get("cleanPodPolicy") or KEEP) == KEEP


@dataclass(frozen=True)
class Verdict:
    """How the job ended."""

    state: str
    reason: str
    message: str


@dataclass(frozen=True)
class Members:
    """The pods of a job that are not being deleted."""

    heads: Sequence[Object]
    workers: Sequence[Object]

    @classmethod
    def of(cls, pods: Sequence[Object]) -> Members:
        present = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        heads = [pod for pod in present if observe.group_name(pod) == HEAD]
        return cls(heads, [pod for pod in present if observe.group_name(pod) != HEAD])

    def runs(self) -> bool:
        """As in KubeDL: the scheduler runs, and a worker exists that has not ended."""
        return any(map(observe.is_running, self.heads)) and any(map(observe.is_up, self.workers))

    def restarting(self, lost: Mapping[str, str]) -> Object | None:
        """A member that died and does not run again yet, though it will."""
        staying = [pod for pod in (*self.heads, *self.workers) if pod["metadata"]["name"] not in lost]
        return next((pod for pod in staying if ending(pod) and not observe.is_running(pod)), None)

    def lost(self, policy: str) -> dict[str, str]:
        """The workers that ended and are not replaced with this policy, with their group. While no head runs, nothing
        is lost: workers end with their head."""
        head = next((pod for pod in self.heads if observe.is_running(pod)), None)
        if head is None:
            return {}
        ended = [pod for pod in self.workers if ending(pod) and not _ended_with_head(pod, head)]
        return {
            pod["metadata"]["name"]: observe.group_name(pod) for pod in ended if not is_replaced(policy, ending(pod))
        }

    def restarts(self) -> int:
        return sum(int(container(pod).get("restartCount", 0)) for pod in (*self.heads, *self.workers))


def container(pod: Object) -> Mapping[str, Any]:
    """The status of the container that runs Mars."""
    found = pod.get("status", {}).get("containerStatuses") or ()
    return next((each for each in found if each["name"] == observe.role(pod).value), {})


def ending(pod: Object) -> Mapping[str, Any]:
    """How the container ended, now or the last time; empty if it has not. A pod that ended as a whole, such as an
    evicted one, says so itself."""
    state, last = container(pod).get("state", {}), container(pod).get("lastState", {})
    found: Mapping[str, Any] = state.get("terminated") or last.get("terminated") or {}
    if not found and observe.phase(pod) == FAILED:
        status = pod["status"]
        return {"reason": status.get("reason", FAILED), "message": status.get("message", "")}
    return found


def is_replaced(policy: str, ended: Mapping[str, Any]) -> bool:
    """Whether KubeDL starts a worker again that ended so."""
    code = ended.get("exitCode")
    if policy == "ExitCode":
        return code in RETRYABLE_CODES or ended.get("reason") in RETRYABLE_REASONS
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def _ended_with_head(worker: Object, head: Object) -> bool:
    """True if the worker ended because a former head did."""
    is_first = not container(head).get("restartCount") and _created(head) <= _created(worker)
    started = observe.seconds(container(head)["state"]["running"].get("startedAt"))
    return not is_first and observe.seconds(ending(worker).get("finishedAt")) <= started + HEAD_SLACK


def _created(pod: Object) -> float:
    return observe.seconds(pod["metadata"].get("creationTimestamp"))


def follow(
    resource: Object, status: Mapping[str, Any], pods: Sequence[Object], causes: Sequence[Cause], now: float
) -> Course:
    """What becomes of the job (see operator.resources.Follow)."""
    policy, members = policy_of(resource["spec"]), Members.of(pods)
    name, stamp = resource["metadata"]["name"], observe.timestamp(now)
    if is_ended(status):
        left = math.inf if policy.ttl is None else observe.seconds(status["completionTime"]) + policy.ttl - now
        changes = _touched({"replicaStatuses": _replica_statuses(members, status)}, status, stamp)
        return Course(changes, is_over=left <= 0, pause=max(0.0, left))
    waits = bool(status.get(WAITING))  # what an earlier run left counts no more
    started = (0.0 if waits else observe.seconds(status.get("startTime"))) or now
    left = math.inf if policy.deadline is None else started + policy.deadline - now
    verdict = _verdict(policy, members, left)
    fresh = members.lost(policy.worker_restart) if verdict is None else {}
    lost = {} if waits else {**(status.get(LOST_WORKERS) or {}), **fresh}
    if verdict is not None:
        state, reason, message = verdict.state, verdict.reason, verdict.message
    else:
        state, reason, message = _state(name, status, members, lost)
        message = " ".join([message, *(f"{each.message} {each.hint}".strip() for each in causes[:1])])
    changes = {
        "conditions": conditions(status.get("conditions") or (), state, (reason, message[:MAX_MESSAGE]), stamp),
        "replicaStatuses": _replica_statuses(members, {**status, LOST_WORKERS: lost}, verdict),
        "startTime": None if waits else observe.timestamp(started),
        **({LOST_WORKERS: lost or None} if lost or status.get(LOST_WORKERS) else {}),
        **({"completionTime": stamp} if verdict is not None else {}),
    }
    events = (Cause(reason, message),) if state != last_type(status) else ()
    return Course(_touched(changes, status, stamp), events, pause=max(0.0, left))


def _verdict(policy: Policy, members: Members, left: float) -> Verdict | None:
    for pod in members.heads:
        ended = ending(pod)
        is_good = ended.get("exitCode") == 0
        if ended and (policy.restart not in RESTARTS or (policy.restart == "OnFailure" and is_good)):
            how = observe.ending(ended) if "exitCode" in ended else f"ended: {ended.get('reason')}"
            state = SUCCEEDED if is_good else FAILED
            return Verdict(state, f"Job{state}", f"The scheduler {how}. {ended.get('message') or ''}".strip())
    restarts = members.restarts()
    if policy.backoff_limit is not None and restarts > policy.backoff_limit:
        message = f"Members of the job were restarted {restarts} times; spec.backoffLimit is {policy.backoff_limit}."
        return Verdict(FAILED, "BackoffLimitExceeded", message)
    if left <= 0:
        message = f"The job ran for {policy.deadline} s, its spec.activeDeadlineSeconds. Its pods are stopped."
        return Verdict(FAILED, "DeadlineExceeded", message)
    return None


def _state(name: str, status: Mapping[str, Any], members: Members, lost: Mapping[str, str]) -> tuple[str, str, str]:
    """State, reason and message of a job that has not ended. A job that has run stays Running while its pods are
    replaced, as in KubeDL."""
    has_run = last_type(status) in (RUNNING, RESTARTING)
    if waiting := status.get(WAITING):
        return QUEUING, "JobQueuing", str(waiting)
    pod = members.restarting(lost)
    if pod is not None and has_run:
        how = observe.ending(ending(pod))
        return RESTARTING, "JobRestarting", f"MarsJob {name} restarts {pod['metadata']['name']}, which {how}."
    if has_run or members.runs():
        return RUNNING, "JobRunning", f"MarsJob {name} is running."
    return CREATED, "JobCreated", f"MarsJob {name} is created."


def last_type(status: Mapping[str, Any]) -> str:
    """The state: the type of the last condition."""
    found = status.get("conditions") or ()
    return str(found[-1]["type"]) if found else ""


def conditions(
    before: Sequence[Mapping[str, Any]], state: str, why: tuple[str, str], stamp: str
) -> list[Mapping[str, Any]]:
    """KubeDL's list: the last one is the state. Running and Restarting replace each other; a job that ended no longer
    runs."""
    reason, message = why
    last = before[-1] if before else {}
    if last.get("type") == state:
        if (last.get("reason"), last.get("message")) == why:
            return list(before)
        return [*before[:-1], {**last, "reason": reason, "message": message, "lastUpdateTime": stamp}]
    passing = (QUEUING, RUNNING, RESTARTING)
    replaced = {state, *(passing if state in passing else (FAILED,))}
    kept = [each for each in before if each["type"] not in replaced]
    if state in (SUCCEEDED, FAILED):
        kept = [
            {**each, "status": "False", "lastUpdateTime": stamp, "lastTransitionTime": stamp}
            if each["type"] == RUNNING
            else each
            for each in kept
        ]
    fresh = {"type": state, "status": "True", "reason": reason, "message": message}
    return [*kept, {**fresh, "lastUpdateTime": stamp, "lastTransitionTime": stamp}]


def _replica_statuses(members: Members, status: Mapping[str, Any], verdict: Verdict | None = None) -> Object:
    """The head is the scheduler and the web service. How the scheduler ended stays known when its pod is gone."""
    head = {"active": sum(map(observe.is_up, members.heads))}
    scheduler = dict(head)
    if verdict is not None and verdict.reason.startswith("Job"):
        scheduler = {"active": 0, verdict.state.lower(): 1}
    elif is_ended(status):
        known = (status.get("replicaStatuses") or {}).get(SCHEDULER) or {}
        scheduler |= {key: known[key] for key in ("succeeded", "failed") if key in known}
    workers = {"active": sum(map(observe.is_up, members.workers))}
    ended = {pod["metadata"]["name"] for pod in members.workers if observe.phase(pod) == FAILED}
    if failed := ended | (status.get(LOST_WORKERS) or {}).keys():
        workers["failed"] = len(failed)
    return {SCHEDULER: scheduler, WEB: head, WORKER: workers}


def _touched(changes: Object, status: Mapping[str, Any], stamp: str) -> Object:
    """The changes with the time of this pass, if there are any."""
    is_same = all(status.get(key) == value for key, value in changes.items())
    return changes if is_same else {**changes, "lastReconcileTime": stamp}


class MarsJobStatus:
    """The part of the status that is not KubeDL's: the state of the loop, and why a job cannot run (see
    places.kube.state.status_codec.StatusCodec)."""

    def load_state(self, status: Mapping[str, Any]) -> LoopState:
        return status_codec.load_state(status.get(LOOP))

    def dump_state(self, state: LoopState) -> Object:
        return {LOOP: {key: value for key, value in status_codec.dump_state(state).items() if value is not None}}

    def dump_report(self, report: Report, before: Mapping[str, Any], now: str) -> Object:
        return {"observedGeneration": report.status.generation}

    def dump_failure(
        self, cause: Cause, phase: Phase | None, generation: int, before: Mapping[str, Any], now: str
    ) -> Object:
        """A job whose spec is refused has failed until that is corrected."""
        if phase is not Phase.FAILED or is_ended(before):
            return {"observedGeneration": generation}
        why = cause.reason, f"{cause.message} {cause.hint}".strip()[:MAX_MESSAGE]
        return {
            "observedGeneration": generation,
            "conditions": conditions(before.get("conditions") or (), FAILED, why, now),
        }

    def is_progress(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
        return False

    def transitions(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Sequence[Cause]:
        return ()
