"""The two kinds of roots: a custom resource, which the operator reconciles, or a ConfigMap, which a client reconciles
in direct mode."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from oars.base import codec
from oars.base.errors import OarsError, Replaced
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import CONFIG_MAP, Kind, Object
from oars.kube.merge_patch import merge_patch
from oars.model import Cause, LoopState
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.state.bounds import bounded_report, bounded_state, is_progress
from oars.places.kube.state.events import event
from oars.places.kube.state.observe import timestamp
from oars.places.kube.state.status_codec import StatusCodec, causes_that_matter
from oars.places.report import Report
from oars.plan.why import ROUTINE
from oars.spec.status import Phase

INTENT, REPORT, STATE = "cluster.json", "report.json", "state.json"
PROGRESS_SECONDS = 2.0  # between two status writes that only show progress

log = get_logger(__name__)


def reference(kind: Kind, obj: Object) -> Object:
    """An owner reference. A foreground deletion of a custom resource waits for all owned objects (blockOwnerDeletion).
    In direct mode the flag may need a right that the client does not have."""
    metadata = obj["metadata"]
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": kind is not CONFIG_MAP,
    }


def read_intent(config_map: Object) -> Intent:
    """The intent of a cluster in direct mode. Raises OarsError if somebody has damaged it."""
    try:
        return codec.load(Intent, json.loads(config_map["data"][INTENT]))
    except (KeyError, TypeError, ValueError) as error:
        name, namespace = config_map["metadata"]["name"], config_map["metadata"]["namespace"]
        hint = f"Correct its key {INTENT}: `kubectl edit configmap {name} -n {namespace}`."
        raise OarsError(f"The ConfigMap {name} cannot be read: {type(error).__name__}: {error}.", hint) from error


def dump_intent(intent: Intent) -> dict[str, str]:
    return {INTENT: json.dumps(codec.dump(intent))}


def report_of(config_map: Object) -> Report | None:
    """The last report that a leader published; None if there is none that can be read."""
    text = (config_map.get("data") or {}).get(REPORT)
    try:
        return codec.load(Report, json.loads(text)) if text else None
    except ValueError as error:
        log.warning(pairs("stored report ignored", cluster=config_map["metadata"]["name"], error=error))
        return None


def is_uid_conflict(error: ApiError) -> bool:
    """True if a patch that named a uid was refused because the object has another one. API servers report a conflict,
    or an attempt to change an immutable field."""
    causes = error.status_details.get("causes") or ()
    return error.status == 409 or (error.status == 422 and any(each.get("field") == "metadata.uid" for each in causes))


class ConfigMapRoot:
    """Direct mode: a ConfigMap that stores the intent, the loop state and the report."""

    def __init__(self, client: Client, config_map: Object, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._metadata = config_map["metadata"]
        self._clock = clock
        self._written = -math.inf
        self.owner = reference(CONFIG_MAP, config_map)
        self.state = LoopState()
        self._stored_state = self.state
        self._report: Report | None = None
        try:
            self.state = codec.load(LoopState, json.loads((config_map.get("data") or {}).get(STATE, "{}")))
            self._stored_state = self.state
            self._report = report_of(config_map)
        except ValueError as error:  # damaged, or of another version; the place restores what the loop needs
            log.warning(pairs("stored state ignored", cluster=self._metadata["name"], error=error))

    async def save(self, state: LoopState, report: Report | None) -> None:
        """Write what changed, as far as it fits. A change that only shows progress may be delayed, and a later pass
        writes it. Raises Replaced if another cluster has the name now."""
        data = {}
        stored = bounded_state(state)
        if stored != self._stored_state:
            data[STATE] = json.dumps(codec.dump(stored), ensure_ascii=False)
        fresh = None if report is None else bounded_report(report)
        is_recent = self._clock() - self._written < PROGRESS_SECONDS
        if fresh is not None and self._report is not None and is_recent and is_progress(self._report, fresh):
            fresh = None
        if fresh is not None and fresh != self._report:
            data[REPORT] = json.dumps(codec.dump(fresh), ensure_ascii=False)
        if data:
            metadata = self._metadata
            body = {"metadata": {"uid": metadata["uid"]}, "data": data}
            try:
                await self._client.patch(CONFIG_MAP, metadata["name"], metadata["namespace"], body)
            except ApiError as error:
                if not is_uid_conflict(error):
                    raise
                raise Replaced(str(metadata["labels"][names.CLUSTER])) from error
        # Only now, so that a failed write is retried.
        self.state, self._stored_state, self._report = state, stored, fresh or self._report
        if REPORT in data:
            self._written = self._clock()


class ResourceRoot:
    """Operator mode: a custom resource, whose status shows the report and stores the loop state."""

    def __init__(
        self,
        client: Client,
        kind: Kind,
        resource: Object,
        codec: StatusCodec,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The caller must keep `resource` current."""
        self._client = client
        self.kind = kind
        self._codec = codec
        self.resource = resource
        self._clock = clock
        self._written = clock()
        self._status: Object = dict(resource.get("status") or {})
        self._cause: Cause | None = None  # the first of those that were last written
        self._published: Cause | None = None
        self._announced: Cause | None = None
        self._transitions: list[Cause] = []  # to publish
        self.owner = reference(kind, resource)

    @cached_property
    def state(self) -> LoopState:
        """Read when it is needed: a failure can be reported even if the stored state is damaged."""
        return self._codec.load_state(self._status)

    async def save(self, state: LoopState, report: Report | None) -> None:
        """Write what changed. A change that only shows progress may be delayed, and a later pass writes it: otherwise a
        cluster of a thousand workers would cost a thousand writes."""
        changed: Object = {}
        if report is not None or state.head_epoch or state.retiring:  # the first head is recorded with the first report
            changed = self._codec.dump_state(state)
        if report is not None:
            changed |= self._codec.dump_report(report, self._status, now())
        self.state = state
        fresh = self._merged(changed)
        is_progress = report is not None and self._codec.is_progress(self._status, fresh)
        if is_progress and self._clock() - self._written < PROGRESS_SECONDS:
            return
        before = self._status
        if await self._write(fresh) and report is not None:
            self._transitions += self._codec.transitions(before, fresh)
            self._cause = next(iter(causes_that_matter(report.causes)), None)

    async def refuse(self, cause: Cause, generation: int, phase: Phase | None = None) -> None:
        """Record that the cluster cannot be reconciled; Phase.FAILED: because its spec is invalid. Repeated failures of
        the same cause cost one write."""
        if await self._write(self._merged(self._codec.dump_failure(cause, phase, generation, self._status, now()))):
            self._cause = next(iter(causes_that_matter((cause,))), None)

    @property
    def status(self) -> Object:
        """As last written."""
        return self._status

    async def amend(self, changed: Mapping[str, Any], happened: Sequence[Cause] = ()) -> None:
        """Write further fields of the status, and publish with it what has happened."""
        if await self._write(self._merged(dict(changed))):
            self._transitions += happened

    async def publish(self) -> None:
        """Create Normal Events for what has happened, and one for the first cause that the status shows, unless it is
        that of the last Event: a Warning, unless the cause is routine. A refused Event does not fail the pass."""
        happened, self._transitions = self._transitions, []
        for each in happened:
            await self._create_event("Normal", each)
        cause, before = self._cause, self._published
        self._published = cause
        is_old = before is not None and cause is not None and _same(before, cause)
        if cause is not None and not is_old:
            await self._create_event("Normal" if cause.reason in ROUTINE else "Warning", cause)

    async def announce(self, cause: Cause) -> None:
        """Create an Event about the end of the cluster, unless it is that of the last call."""
        if self._announced is None or not _same(self._announced, cause):
            self._announced = cause
            await self._create_event("Normal", cause)

    async def _create_event(self, event_type: str, cause: Cause) -> None:
        metadata = self.resource["metadata"]
        about = {key: self.owner[key] for key in ("apiVersion", "kind", "name", "uid")}
        about["namespace"] = metadata["namespace"]
        message = f"{cause.message} {cause.hint}".strip()[:1000]
        made = event(about, cause.reason, message, event_type=event_type, source="oars", moment=now())
        try:
            await self._client.create(made)
        except ApiError as error:
            log.warning(pairs("event refused", cluster=metadata["name"], error=error.message))

    def _merged(self, changed: Object) -> Object:
        return {key: value for key, value in (self._status | changed).items() if value is not None}

    async def _write(self, fresh: Object) -> bool:
        """Write the status; False if it is unchanged, or if the resource was deleted, and its objects with it."""
        if fresh == self._status:
            return False
        metadata = self.resource["metadata"]
        # The uid keeps it from being written to another resource that got the name.
        body = {"metadata": {"uid": metadata["uid"]}, "status": merge_patch(self._status, fresh)}
        try:
            await self._client.patch(self.kind, metadata["name"], metadata["namespace"], body, subresource="status")
        except ApiError as error:
            if is_not_found(error) or is_uid_conflict(error):
                return False
            raise
        self._status, self._written = fresh, self._clock()
        return True


def _same(one: Cause, other: Cause) -> bool:
    return (one.reason, one.message) == (other.reason, other.message)


def now() -> str:
    """The current time in the format of Kubernetes."""
    return timestamp(time.time())
