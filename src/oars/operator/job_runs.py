"""The runs of a ComputeJob that has a schedule: ComputeJobs that it owns. See control.schedule.Runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_not_found
from oars.kube.kinds import Object
from oars.operator.resources import Key
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_JOB
from oars.places.kube.state import job_codec, ownership
from oars.plan.schedule import RunSeen
from oars.spec.job_status import JobStatus
from oars.spec.load_job import LAST_APPLIED, RESERVED


class KubeRuns:
    def __init__(
        self,
        client: Client,
        jobs: Mapping[Key, Object],
        template: Object,
        write: Callable[[JobStatus], Awaitable[None]],
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._spec = template["spec"]
        self._metadata = metadata = template["metadata"]
        self._name, self._namespace, self._uid = metadata["name"], metadata["namespace"], str(metadata["uid"])
        self._write = write

    async def list(self) -> Sequence[RunSeen]:
        found = [
            each
            for each in self._jobs.values()
            if (each["metadata"].get("labels") or {}).get(names.SCHEDULE) == self._name
            and each["metadata"]["namespace"] == self._namespace
            and ownership.has_owner(each, self._uid)
        ]
        return [
            RunSeen(
                each["metadata"]["name"],
                datetime.fromisoformat(each["metadata"]["creationTimestamp"]).timestamp(),
                job_codec.load_status(each.get("status")).state.is_final,
                str(each["metadata"]["uid"]),
            )
            for each in found
        ]

    async def start(self, name: str) -> None:
        owner = {
            "apiVersion": COMPUTE_JOB.api_version,
            "kind": COMPUTE_JOB.kind,
            "name": self._name,
            "uid": self._uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {**self._copied("labels"), "app.kubernetes.io/managed-by": "oars", names.SCHEDULE: self._name},
            "annotations": self._copied("annotations"),
            "ownerReferences": [owner],
        }
        spec = {key: value for key, value in self._spec.items() if key not in ("schedule", "suspend")}
        body = {"apiVersion": COMPUTE_JOB.api_version, "kind": COMPUTE_JOB.kind, "metadata": metadata, "spec": spec}
        try:
            await self._client.create(body)
        except ApiError as error:
            if not is_conflict(error):
                raise
            if not ownership.has_owner(await self._client.get(COMPUTE_JOB, name, self._namespace), self._uid):
                raise OarsError(f"Job {name!r} exists and is not a run of schedule {self._name!r}.") from error

    def _copied(self, field: str) -> dict[str, str]:
        """What other programs read of each job, such as the name of a queue."""
        found = (self._metadata.get(field) or {}).items()
        return {key: value for key, value in found if key != LAST_APPLIED and not key.startswith(RESERVED)}

    async def cancel(self, name: str) -> None:
        """The run is read if the watch lags behind. Another job may have its name by now: that is a conflict."""
        try:
            found = self._jobs.get(Key(COMPUTE_JOB.kind, self._namespace, name))
            found = found or await self._client.get(COMPUTE_JOB, name, self._namespace)
            if not ownership.has_owner(found, self._uid):
                return
            body = {"metadata": {"uid": found["metadata"]["uid"], "annotations": {names.CANCEL: "requested"}}}
            await self._client.patch(COMPUTE_JOB, name, self._namespace, body)
        except ApiError as error:
            if not is_not_found(error) and not is_conflict(error):
                raise

    async def remove(self, run: RunSeen) -> None:
        try:
            await self._client.delete(COMPUTE_JOB, run.name, self._namespace, uid=run.uid)
        except ApiError as error:
            if not is_conflict(error):  # another job has its name
                raise

    async def record(self, status: JobStatus) -> None:
        await self._write(status)
