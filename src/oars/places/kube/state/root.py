"""The two kinds of roots: a custom resource, which the operator reconciles, or a ConfigMap, which a client reconciles
in direct mode."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from oars.base import codec
from oars.base.errors import Replaced
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import CONFIG_MAP, EVENT, Kind, Object
from oars.model import Cause, Desired, LoopState
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.state import status_codec
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
        self.state = status_codec.load_state(json.loads(config_map.get("data", {}).get(STATE, "null")))
        self._report = report_of(config_map)

    async def save(self, desired: Desired, state: LoopState, report: Report | None) -> None:
        data = {}
        shown = status_codec.dump_state(state)
        if shown != status_codec.dump_state(self.state):
            data[STATE] = json.dumps(shown)
        if report is not None and report != self._report:
            data[REPORT] = json.dumps(codec.dump(report))
        if data:
            await self._write(data)
        self.state, self._report = state, report or self._report  # only now, so that a failed write is retried

    async def _write(self, data: Mapping[str, str]) -> None:
        """Patch the ConfigMap. Raises Replaced if another cluster has its name now."""
        metadata = self._metadata
        body = {"metadata": {"uid": metadata["uid"]}, "data": data}
        try:
            await self._client.patch(CONFIG_MAP, metadata["name"], metadata["namespace"], body)
        except ApiError as error:
            if not is_uid_conflict(error):
                raise
            raise Replaced(str(metadata["labels"][names.CLUSTER])) from error


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
        self._last_event: tuple[str, str] = ("", "")
        self._status: Object = dict(resource.get("status") or {})
        self.owner = reference(kind, resource)
        self.state = codec.load_state(self._status)

    async def save(self, desired: Desired, state: LoopState, report: Report | None) -> None:
        """Write what changed. A change of worker counts alone may be delayed: otherwise a cluster of a thousand workers
        would cost a thousand writes."""
        fresh = dict(self._status)
        if report is not None or state.head_epoch or state.retiring:  # the first head is recorded with the first report
            fresh |= self._codec.dump_state(state)
        if report is not None:
            fresh.pop("causes", None)
            fresh |= self._codec.dump_report(report, self._status, now())
        self.state = state
        if fresh == self._status or (report is not None and self._may_wait(fresh)):
            return
        await self._write(fresh)
        if report is not None:
            await self._emit_event(report.causes)

    async def refuse(self, cause: Cause, generation: int) -> None:
        """Record that the cluster cannot be reconciled. Repeated failures of the same cause cost one write."""
        await self._fail(cause, None, generation)

    async def invalidate(self, cause: Cause, generation: int) -> None:
        """Record that the spec is invalid."""
        await self._fail(cause, Phase.FAILED, generation)

    async def _fail(self, cause: Cause, phase: Phase | None, generation: int) -> None:
        fresh = self._status | self._codec.dump_failure(cause, phase, generation, self._status, now())
        if fresh != self._status:
            await self._write(fresh)
            await self._emit_event((cause,))

    def _may_wait(self, fresh: Object) -> bool:
        """True if the status only shows progress: nobody acts on it, and a later pass writes it."""
        early = (Phase.PENDING.value, Phase.STARTING.value)
        if "observedGeneration" not in self._status:  # a cluster that becomes ready quickly gets a single write
            same = fresh["phase"] in early and not fresh["reason"]
        else:
            starting = {fresh["phase"], self._status.get("phase")} <= set(early)
            steady = ("reason", "observedGeneration", *(() if starting else ("phase", "head", "retiring", "endpoints")))
            same = all(fresh.get(key) == self._status.get(key) for key in steady)
        return same and self._clock() - self._written < PROGRESS_SECONDS

    async def _write(self, fresh: Object) -> None:
        # A merge patch keeps keys that it does not name; null removes them.
        metadata = self.resource["metadata"]
        changed = {key: value for key, value in fresh.items() if self._status.get(key) != value}
        changed |= dict.fromkeys(self._status.keys() - fresh.keys())
        if "retiring" in changed:
            gone = set(self._status.get("retiring") or ()) - set(changed["retiring"] or ())
            changed["retiring"] = {**(changed["retiring"] or {}), **dict.fromkeys(gone)}
        # The uid keeps it from being written to another resource that got the name.
        body = {"metadata": {"uid": metadata["uid"]}, "status": changed}
        try:
            await self._client.patch(self._kind, metadata["name"], metadata["namespace"], body, subresource="status")
        except ApiError as error:
            if is_not_found(error) or is_uid_conflict(error):
                return  # the resource was deleted, and its objects with it
            raise
        self._status, self._written = fresh, self._clock()

    async def _emit_event(self, causes: tuple[Cause, ...]) -> None:
        """Emit one Event per cause. A refused Event does not fail the pass."""
        grave = causes_that_matter(causes)
        first = (grave[0].reason, grave[0].message) if grave else ("", "")
        if first == self._last_event:
            return
        self._last_event = first
        if grave:
            try:
                await self._client.create(event(self._kind, self.resource, grave[0]))
            except ApiError as error:
                log.warning(pairs("event refused", cluster=self.resource["metadata"]["name"], error=error.message))


def now() -> str:
    """The current time in the format of Kubernetes."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(kind: Kind, resource: Object, cause: Cause) -> Object:
    metadata = resource["metadata"]
    moment = now()
    involved = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": "v1",
        "kind": EVENT.kind,
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": involved,
        "type": "Warning",
        "reason": cause.reason,
        "message": f"{cause.message} {cause.hint}".strip()[:1000],
        "source": {"component": "oars"},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
