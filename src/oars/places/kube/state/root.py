"""The two kinds of roots: a custom resource, which the operator reconciles, or a ConfigMap, which a client reconciles
in direct mode."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property

from oars.base import codec
from oars.base.errors import Replaced
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import CONFIG_MAP, EVENT, Kind, Object
from oars.model import Cause, LoopState
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.state.status_codec import StatusCodec, causes_that_matter
from oars.places.report import Report
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
    """The intent of a cluster in direct mode."""
    return codec.load(Intent, json.loads(config_map["data"][INTENT]))


def dump_intent(intent: Intent) -> dict[str, str]:
    return {INTENT: json.dumps(codec.dump(intent))}


def report_of(config_map: Object) -> Report | None:
    """The last report that a leader published; None if there is none."""
    text = config_map.get("data", {}).get(REPORT)
    return codec.load(Report, json.loads(text)) if text else None


def is_uid_conflict(error: ApiError) -> bool:
    """True if a patch that named a uid was refused because the object has another one. API servers report a conflict,
    or an attempt to change an immutable field."""
    causes = error.status_details.get("causes") or ()
    return error.status == 409 or (error.status == 422 and any(each.get("field") == "metadata.uid" for each in causes))


class ConfigMapRoot:
    """Direct mode: a ConfigMap that stores the intent, the loop state and the report."""

    def __init__(self, client: Client, config_map: Object) -> None:
        self._client = client
        self._metadata = config_map["metadata"]
        self.owner = reference(CONFIG_MAP, config_map)
        self.state = LoopState()
        self._report: Report | None = None
        try:
            self.state = codec.load(LoopState, json.loads(config_map.get("data", {}).get(STATE, "{}")))
            self._report = report_of(config_map)
        except ValueError as error:  # damaged, or of another version; the place restores what the loop needs
            log.warning(pairs("stored state ignored", cluster=self._metadata["name"], error=error))

    async def save(self, state: LoopState, report: Report | None) -> None:
        """Write what changed. Raises Replaced if another cluster has the name now."""
        data = {}
        if state != self.state:
            data[STATE] = json.dumps(codec.dump(state))
        if report is not None and report != self._report:
            data[REPORT] = json.dumps(codec.dump(report))
        if data:
            metadata = self._metadata
            body = {"metadata": {"uid": metadata["uid"]}, "data": data}
            try:
                await self._client.patch(CONFIG_MAP, metadata["name"], metadata["namespace"], body)
            except ApiError as error:
                if not is_uid_conflict(error):
                    raise
                raise Replaced(str(metadata["labels"][names.CLUSTER])) from error
        self.state, self._report = state, report or self._report  # only now, so that a failed write is retried


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
        self._kind = kind
        self._codec = codec
        self.resource = resource
        self._clock = clock
        self._written = clock()
        self._status: Object = dict(resource.get("status") or {})
        self._cause: Cause | None = None  # the first of those that were last written
        self._published: Cause | None = None
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
        if await self._write(fresh) and report is not None:
            self._cause = next(iter(causes_that_matter(report.causes)), None)

    async def refuse(self, cause: Cause, generation: int, phase: Phase | None = None) -> None:
        """Record that the cluster cannot be reconciled; Phase.FAILED: because its spec is invalid. Repeated failures of
        the same cause cost one write."""
        if await self._write(self._merged(self._codec.dump_failure(cause, phase, generation, self._status, now()))):
            self._cause = next(iter(causes_that_matter((cause,))), None)

    async def publish(self) -> None:
        """Create an Event for the first cause that the status shows, unless it is that of the last Event. A refused
        Event does not fail the pass."""
        cause, before = self._cause, self._published
        self._published = cause
        if cause is None or (before is not None and (before.reason, before.message) == (cause.reason, cause.message)):
            return
        metadata, moment = self.resource["metadata"], now()
        involved = {key: self.owner[key] for key in ("apiVersion", "kind", "name", "uid")}
        event = {
            "apiVersion": "v1",
            "kind": EVENT.kind,
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {**involved, "namespace": metadata["namespace"]},
            "type": "Warning",
            "reason": cause.reason,
            "message": f"{cause.message} {cause.hint}".strip()[:1000],
            "source": {"component": "oars"},
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        try:
            await self._client.create(event)
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
            await self._client.patch(self._kind, metadata["name"], metadata["namespace"], body, subresource="status")
        except ApiError as error:
            if is_not_found(error) or is_uid_conflict(error):
                return False
            raise
        self._status, self._written = fresh, self._clock()
        return True


def merge_patch(before: Object, after: Object) -> Object:
    """The JSON merge patch (RFC 7386) from one object to the other: it keeps keys that it does not name, and null
    removes one."""
    patch: Object = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            if old != value:
                patch[key] = merge_patch(old, value)
        elif old != value:
            patch[key] = value
    return patch


def now() -> str:
    """The current time in the format of Kubernetes."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
