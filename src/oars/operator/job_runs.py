"""The runs of a job that has a schedule: resources of the same kind that it owns. See control.schedule.Runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_not_found
from oars.kube.kinds import Kind, Object
from oars.operator.resources import Key
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_JOB
from oars.places.kube.state import job_codec, ownership
from oars.places.kube.state.root import reference
from oars.plan.schedule import RunSeen
from oars.spec.job_status import JobStatus
from oars.spec.load_job import LAST_APPLIED, RESERVED


class OwnedRuns:
    """Lists, starts and removes them. A kind says what a run's spec is, when it is final, and how it is cancelled."""

    def __init__(self, client: Client, kind: Kind, resources: Mapping[Key, Object], template: Object) -> None:
        self._client = client
        self._kind = kind
        self._resources = resources
        self._spec = template["spec"]
        self._metadata = metadata = template["metadata"]
        self._name, self._namespace, self._uid = metadata["name"], metadata["namespace"], str(metadata["uid"])
        self._owner = reference(kind, template)
        self._labels: dict[str, str] = {}  # of each run

    def _run_spec(self) -> Object:
        raise NotImplementedError

    def _is_final(self, run: Object) -> bool:
        raise NotImplementedError

    async def list(self) -> Sequence[RunSeen]:
        """Only this job owns them, so that they are of its kind."""
        found = [
            each
            for each in self._resources.values()
            if (each["metadata"].get("labels") or {}).get(names.SCHEDULE) == self._name
            and each["metadata"]["namespace"] == self._namespace
            and ownership.has_owner(each, self._uid)
        ]
        return [
            RunSeen(
                each["metadata"]["name"],
                datetime.fromisoformat(each["metadata"]["creationTimestamp"]).timestamp(),
                self._is_final(each),
                str(each["metadata"]["uid"]),
            )
            for each in found
        ]

    async def start(self, name: str) -> None:
        own = {"app.kubernetes.io/managed-by": "oars", names.SCHEDULE: self._name, **self._labels}
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "labels": {**self._copied("labels"), **own},
            "annotations": self._copied("annotations"),
            "ownerReferences": [self._owner],
        }
        kind = self._kind
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": self._run_spec()}
        try:
            await self._client.create(body)
        except ApiError as error:
            if not is_conflict(error):
                raise
            if not ownership.has_owner(await self._client.get(kind, name, self._namespace), self._uid):
                raise OarsError(f"Job {name!r} exists and is not a run of schedule {self._name!r}.") from error

    def _copied(self, field: str) -> dict[str, str]:
        """What other programs read of each job, such as the name of a queue."""
        found = (self._metadata.get(field) or {}).items()
        return {key: value for key, value in found if key != LAST_APPLIED and not key.startswith(RESERVED)}

    async def _find(self, name: str) -> Object | None:
        """The run, which is read if the watch lags behind."""
        found = next((each for key, each in self._resources.items() if self._is_called(key, each, name)), None)
        try:
            found = found or await self._client.get(self._kind, name, self._namespace)
        except ApiError as error:
            if is_not_found(error):
                return None
            raise
        return found if ownership.has_owner(found, self._uid) else None

    def _is_called(self, key: Key, resource: Object, name: str) -> bool:
        return (key.namespace, key.name) == (self._namespace, name) and ownership.has_owner(resource, self._uid)

    async def remove(self, run: RunSeen) -> None:
        try:
            await self._client.delete(self._kind, run.name, self._namespace, uid=run.uid)
        except ApiError as error:
            if not is_conflict(error):  # another job has its name
                raise


class KubeRuns(OwnedRuns):
    """The runs of a ComputeJob."""

    def __init__(
        self,
        client: Client,
        jobs: Mapping[Key, Object],
        template: Object,
        write: Callable[[JobStatus], Awaitable[None]],
    ) -> None:
        super().__init__(client, COMPUTE_JOB, jobs, template)
        self._write = write

    def _run_spec(self) -> Object:
        return {key: value for key, value in self._spec.items() if key not in ("schedule", "suspend")}

    def _is_final(self, run: Object) -> bool:
        return job_codec.load_status(run.get("status")).state.is_final

    async def cancel(self, name: str) -> None:
        """Another job may have its name by now: that is a conflict."""
        if (found := await self._find(name)) is None:
            return
        body = {"metadata": {"uid": found["metadata"]["uid"], "annotations": {names.CANCEL: "requested"}}}
        try:
            await self._client.patch(COMPUTE_JOB, name, self._namespace, body)
        except ApiError as error:
            if not is_not_found(error) and not is_conflict(error):
                raise

    async def record(self, status: JobStatus) -> None:
        await self._write(status)
