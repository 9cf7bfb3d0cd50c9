"""The two kinds of roots: a ComputeCluster, looked after by the operator, or a ConfigMap, by the client itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from oars.base.errors import Replaced
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import COMPUTE_CLUSTER, CONFIG_MAP, EVENT, Kind, Object
from oars.model import Cause, LoopState
from oars.places.kube import names
from oars.places.kube.state import replicas, status_codec
from oars.places.report import Report
from oars.spec.status import Phase, Status

INTENT, STATUS, NOTES = "cluster.json", "status.json", "notes.json"
FORCE = "oars.dev/force-generation"  # annotation: this generation's workers may go with what they hold
COUNT_SECONDS = 2.0  # between two writes that tell of nothing but a start that goes on, or more workers being ready

log = get_logger(__name__)


def reference(kind: Kind, obj: Object) -> Object:
    """An owner reference. Whoever deletes a ComputeCluster in the foreground waits for all that hangs on it; where a
    client made the root itself, saying so may take a right that nobody has."""
    metadata = obj["metadata"]
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": kind is COMPUTE_CLUSTER,
    }


@dataclass(frozen=True)
class Intent:
    """What shall be, as the client that made the cluster keeps it in the root ConfigMap."""

    spec: dict[str, Any]
    generation: int = 1
    force: bool = False
    tied: bool = False

    @classmethod
    def of(cls, config_map: Object) -> Intent:
        return cls(**json.loads(config_map["data"][INTENT]))

    def data(self) -> dict[str, str]:
        return {INTENT: json.dumps(asdict(self))}


def report_of(config_map: Object) -> Report | None:
    """As last told by whoever looks after it."""
    text = config_map.get("data", {}).get(STATUS)
    return Report.from_json(json.loads(text)) if text else None


def is_for_another(error: ApiError) -> bool:
    """Whether a patch that named a uid was refused because the object has another: servers take that for a conflict, or
    for the wish to change what never changes. What else is wrong with a patch is no such case."""
    causes = error.status_details.get("causes") or ()
    return error.status == 409 or (error.status == 422 and any(each.get("field") == "metadata.uid" for each in causes))


class ConfigMapRoot:
    """Direct mode."""

    def __init__(self, client: Client, config_map: Object) -> None:
        self._client = client
        self._metadata = config_map["metadata"]
        self.owner = reference(CONFIG_MAP, config_map)
        self.notes: LoopState = status_codec.load_notes(json.loads(config_map.get("data", {}).get(NOTES, "null")))
        self._report = report_of(config_map)

    @property
    def report(self) -> Report | None:
        return self._report

    @property
    def was_ready(self) -> bool:
        return self._report is not None and self._report.status.phase is Phase.READY

    async def save(self, notes: LoopState, status: Status | None, causes: tuple[Cause, ...]) -> None:
        data = {}
        if status_codec.dump_notes(notes) != status_codec.dump_notes(self.notes):
            data[NOTES] = json.dumps(status_codec.dump_notes(notes))
        report = self._report if status is None else Report(status, causes)
        if report is not None and report != self._report:
            data[STATUS] = json.dumps(report.to_json())
        if data:
            await self._write(data)
        self.notes, self._report = notes, report  # only now: what could not be written is tried again

    async def _write(self, data: Mapping[str, str]) -> None:
        """To that very object. Raises Replaced if another cluster has its name."""
        metadata = self._metadata
        body = {"metadata": {"uid": metadata["uid"]}, "data": data}
        try:
            await self._client.patch(CONFIG_MAP, metadata["name"], metadata["namespace"], body)
        except ApiError as error:
            if not is_for_another(error):
                raise
            raise Replaced(str(metadata["labels"][names.CLUSTER])) from error

    async def settle(self) -> None:
        """There is nothing to add."""


class ClusterRoot:
    """Operator mode: the ComputeCluster's status keeps it all."""

    def __init__(
        self,
        client: Client,
        resource: Object,
        clock: Callable[[], float] = time.monotonic,
        may_tell: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_tell`: whether a mere step forward may be told now; with many clusters on their way it is not always.
        `resource` is to be kept current."""
        self._client = client
        self.resource = resource
        self._clock = clock
        self._may_tell = may_tell
        self._written = clock()
        self._told: tuple[str, str] = ("", "")
        self._settled = ""  # the version that we last brought to agree with itself
        self._status: Object = dict(resource.get("status") or {})
        self.owner = reference(COMPUTE_CLUSTER, resource)
        self.notes: LoopState = status_codec.load_notes(self._status.get("notes"))

    @property
    def was_ready(self) -> bool:
        return bool(self._status.get("phase") == Phase.READY.value)

    async def save(self, notes: LoopState, status: Status | None, causes: tuple[Cause, ...]) -> None:
        """A change that only counts workers may wait: a cluster of a thousand would be written a thousand times."""
        fresh = dict(self._status)
        if notes.head_changes + len(notes.retiring):  # without either there is nothing that must be remembered
            fresh["notes"] = status_codec.dump_notes(notes)
        if status is not None:
            fresh.pop("causes", None)
            fresh |= self._shown(status, causes)
            fresh["notes"] = status_codec.dump_notes(notes)
        self.notes = notes
        if fresh == self._status or (status is not None and self._is_hurried(fresh)):
            return
        await self._write(fresh)
        if status is not None:
            await self._tell(causes)

    async def settle(self) -> None:
        """See `counted`: from now on autoscalers find the number. Nobody needs it while the cluster starts, and a write
        for each of many would be felt then."""
        metadata, agreement = self.resource["metadata"], replicas.agreement(self.resource)
        if agreement is None or metadata["resourceVersion"] == self._settled:
            return
        try:
            await self._client.patch(COMPUTE_CLUSTER, metadata["name"], metadata["namespace"], agreement)
        except ApiError as error:
            if error.status not in (404, 409):  # 409: somebody wrote to it just now; there will be another pass
                raise
        else:
            self._settled = metadata["resourceVersion"]

    async def refuse(self, cause: Cause, generation: int) -> None:
        """The API server does not let us look after it: said once, however often we try."""
        fresh = self._status | status_codec.refused_status(cause, generation, self._status, now())
        if fresh != self._status:
            await self._write(fresh)
            await self._tell((cause,))

    def _shown(self, status: Status, causes: tuple[Cause, ...]) -> Object:
        first = status.groups[0].name if status.groups else "default"
        selector = names.selector(names.pod_labels(status.name, first))
        grave = causes_that_matter(causes)
        if status.phase in (Phase.PENDING, Phase.STARTING) and not grave:
            status = replace(status, reason="", message="")  # that it takes its course is not worth a write each time
        return {**status_codec.cr_status(status, grave, self._status, now()), "selector": selector}

    def _is_hurried(self, fresh: Object) -> bool:
        """It can wait for the next pass: nobody acts on it, and by then there will be more to tell."""
        early = (Phase.PENDING.value, Phase.STARTING.value)
        if "observedGeneration" not in self._status:  # one that is ready soon is told of once: writes are dear
            same = fresh["phase"] in early and not fresh["reason"]
        else:
            starting = {fresh["phase"], self._status.get("phase")} <= set(early)
            steady = ("reason", "observedGeneration", *(() if starting else ("phase", "notes", "endpoints")))
            same = all(fresh.get(key) == self._status.get(key) for key in steady)
        return same and (self._clock() - self._written < COUNT_SECONDS or not self._may_tell())

    async def _write(self, fresh: Object) -> None:
        # A merge would keep what is gone from a map: it is replaced by null.
        metadata = self.resource["metadata"]
        changed = {key: value for key, value in fresh.items() if self._status.get(key) != value}
        changed |= dict.fromkeys(self._status.keys() - fresh.keys())
        if "notes" in changed:
            gone = set((self._status.get("notes") or {}).get("retiring") or ()) - set(changed["notes"]["retiring"])
            changed["notes"] = {**changed["notes"], "retiring": {**changed["notes"]["retiring"], **dict.fromkeys(gone)}}
        body = {"status": changed}
        try:
            await self._client.patch(
                COMPUTE_CLUSTER, metadata["name"], metadata["namespace"], body, subresource="status"
            )
        except ApiError as error:
            if is_not_found(error):
                return  # it was deleted meanwhile, and all goes with it
            raise
        self._status, self._written = fresh, self._clock()

    async def _tell(self, causes: tuple[Cause, ...]) -> None:
        """What a person should hear of is also an Event; one that is refused is not worth the pass."""
        grave = causes_that_matter(causes)
        said = (grave[0].reason, grave[0].message) if grave else ("", "")
        if said == self._told:
            return
        self._told = said
        if grave:
            try:
                await self._client.create(event(self.resource, grave[0]))
            except ApiError as error:
                log.warning(pairs("no event", cluster=self.resource["metadata"]["name"], error=error.message))


def now() -> str:
    """As Kubernetes writes a time."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def causes_that_matter(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """Without those that only say that things take their course."""
    return tuple(cause for cause in causes if cause.hint or cause.lines)


def event(resource: Object, cause: Cause) -> Object:
    metadata = resource["metadata"]
    moment = now()
    involved = {
        "apiVersion": COMPUTE_CLUSTER.api_version,
        "kind": COMPUTE_CLUSTER.kind,
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
