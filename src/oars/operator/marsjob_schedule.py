"""The `cronPolicy` of a MarsJob: besides the job itself, which runs at once, further MarsJobs at the policy's times.

They are named as KubeDL names them, NAME-SECONDS, and belong to the MarsJob that has the policy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from oars.base import codec
from oars.base.log import get_logger, pairs
from oars.control.schedule import Template, reconcile_schedule
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_permanent
from oars.kube.kinds import Object
from oars.model import Cause
from oars.operator.job_runs import OwnedRuns
from oars.operator.marsjob_status import is_ended
from oars.operator.resources import Key
from oars.places.kube import names
from oars.places.kube.state.observe import seconds
from oars.places.kube.state.root import ResourceRoot
from oars.plan.schedule import RunSeen
from oars.spec.cron import find_zone, parse_cron
from oars.spec.job import Schedule
from oars.spec.job_status import JobStatus, ScheduleStatus

CRON_NAME = "kubedl.io/cron-name"  # KubeDL's label of a run
STATE = "schedule"  # field of the status: ScheduleStatus
MOST_KEPT = 100  # ended runs, without `historyLimit`
LONGEST_NAME = 49 - len("-1234567890")  # the definition of MarsJob allows 49 letters
REFUSED_SECONDS = 60.0  # until a run is tried again that Kubernetes refused
_ZONE = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(\S.*)")

log = get_logger(__name__)


def problem(resource: Object) -> str:
    """Why the policy has no effect; empty: it has."""
    policy, name = resource["spec"].get("cronPolicy") or {}, resource["metadata"]["name"]
    try:
        _schedule(policy)
    except ValueError as error:
        return str(error)
    if len(name) > LONGEST_NAME:
        return f"{name!r} is too long for the names of runs, which add 11 characters; use at most {LONGEST_NAME}"
    return ""


def _schedule(policy: Mapping[str, Any]) -> Schedule:
    """Raises ValueError."""
    zone, cron = "UTC", str(policy.get("schedule", ""))
    if match := _ZONE.fullmatch(cron):
        zone, cron = match.groups()
    parse_cron(cron)
    find_zone(zone)
    limit = policy.get("historyLimit")
    return Schedule(
        cron=cron,
        time_zone=zone,
        concurrency=policy.get("concurrencyPolicy") or "Allow",
        suspend=bool(policy.get("suspend")),
        history=MOST_KEPT if limit is None else min(max(limit, 0), MOST_KEPT),
    )


def run_name(job: str, at: float) -> str:
    return f"{job}-{int(at)}"


def is_over(policy: Mapping[str, Any], now: float) -> bool:
    """True after `deadline`: no run starts any more."""
    deadline = policy.get("deadline")
    return bool(deadline) and now >= seconds(deadline)


class MarsRuns(OwnedRuns):
    """The runs of one MarsJob."""

    def __init__(self, client: Client, resources: Mapping[Key, Object], root: ResourceRoot) -> None:
        super().__init__(client, root.kind, resources, root.resource)
        self._root = root
        self._labels = {CRON_NAME: self._name}

    def _copied(self, field: str) -> dict[str, str]:
        """With the annotation of the web service, which belongs to Oars."""
        found = self._metadata.get(field) or {}
        return {**super()._copied(field), **{key: found[key] for key in (names.WEB_AUTH,) if key in found}}

    def _run_spec(self) -> Object:
        return {key: value for key, value in self._spec.items() if key != "cronPolicy"}

    def _is_final(self, run: Object) -> bool:
        return is_ended(run.get("status") or {})

    async def cancel(self, name: str) -> None:
        """As in KubeDL, a run that is replaced is deleted."""
        if (found := await self._find(name)) is not None:
            await self.remove(RunSeen(name, 0.0, uid=str(found["metadata"]["uid"])))

    async def record(self, status: JobStatus) -> None:
        await self._root.amend({STATE: codec.dump(status.schedule)})


async def run_due(
    client: Client, root: ResourceRoot, resources: Mapping[Key, Object], clock: Callable[[], float]
) -> float:
    """Start and remove runs. Returns the seconds until the next look."""
    resource = root.resource
    policy, metadata, now = resource["spec"].get("cronPolicy"), resource["metadata"], clock()
    if not policy or problem(resource):
        return math.inf
    schedule, was_over = _schedule(policy), is_over(policy, now)
    stored = root.status.get(STATE)
    status = JobStatus(schedule=codec.load(ScheduleStatus, stored) if stored else None)
    template = Template(
        metadata["name"], schedule, seconds(metadata["creationTimestamp"]), is_suspended=was_over, name_run=run_name
    )
    try:
        _, pause = await reconcile_schedule(template, status, MarsRuns(client, resources, root), lambda: now)
    except ApiError as error:
        if not is_permanent(error):
            raise
        log.warning(pairs("run refused", job=metadata["name"], namespace=metadata["namespace"], error=error.message))
        await root.announce(Cause("FailedCreate", f"Kubernetes refuses a run of spec.cronPolicy: {error.message}"))
        return REFUSED_SECONDS
    return math.inf if pause is None else pause
