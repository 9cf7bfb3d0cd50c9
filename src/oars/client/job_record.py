"""The record of a job without an operator: a ConfigMap. The command that runs the job writes it, so that other clients
can list, follow and cancel the job while the command runs, and read its last state afterwards. It is the lock of the
name, too: the command creates it before anything else."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from oars.base import codec
from oars.base.errors import OarsError
from oars.client.jobs import JobInfo
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_not_found
from oars.kube.kinds import CONFIG_MAP, Object
from oars.places.kube import names
from oars.places.kube.render.driver import job_labels
from oars.places.kube.state.job_log import log_object
from oars.places.kube.state.renewal import renewal, value_of
from oars.places.kube.state.root import reference
from oars.spec.job_status import COMMAND_LOST, JobStatus

LIMIT = 60.0  # seconds: a command that does not renew the record of its job for so long is gone
KEEP_SECONDS = 24 * 3600.0  # a record stays for so long after the end of its job
DATA = "job.json"
SELECTOR = names.selector({names.JOB_RECORD: "direct"})
GONE = (
    f"The command that runs the job has not renewed its record for {LIMIT:.0f} s. "
    "Its cluster ends after lifetime.orphaned."
)


class NameTaken(OarsError):
    """A job of that name runs."""


@dataclass(frozen=True)
class DirectRecord:
    """What other clients know of a job. Times in seconds since the epoch."""

    status: JobStatus
    created: float
    deadline: float | None = None


class RecordWriter:
    """Writes the record of one job. mark: distinguishes the job from others of its name."""

    def __init__(self, job: str, namespace: str, mark: str) -> None:
        self._job, self._namespace, self._mark = job, namespace, mark
        self._name = names.job_record(job)
        self._uid = ""  # of the ConfigMap, once it exists
        self._written: DirectRecord | None = None
        self._renewed = 0.0

    @property
    def is_held(self) -> bool:
        """True if the record was created: no other command runs a job of the name."""
        return bool(self._uid)

    async def write(self, client: Client, record: DirectRecord) -> bool:
        """Store the record if it has changed or is due for a renewal. True: another client has cancelled the job or
        removed its record. Raises NameTaken if another command runs a job of the name."""
        now = time.time()
        if not self._uid:
            found: Object | None = await self._create(client, self._body(record, now))
        elif record == self._written and 0 <= now - self._renewed < names.owner_interval(LIMIT):
            found = await find_record(client, self._job, self._namespace)
            return found is None or found["metadata"]["uid"] != self._uid or names.CANCEL in _annotations(found)
        else:
            found = await self._change(client, self._body(record, now))
        if found is None:
            return True
        self._uid, self._written, self._renewed = str(found["metadata"]["uid"]), record, now
        return names.CANCEL in _annotations(found)

    async def _change(self, client: Client, body: Object) -> Object | None:
        """None: the record was removed."""
        metadata = {"uid": self._uid, "annotations": body["metadata"]["annotations"]}
        change = {"metadata": metadata, "data": body["data"]}
        try:
            return await client.patch(CONFIG_MAP, self._name, self._namespace, change)
        except ApiError as error:
            if not (is_not_found(error) or is_conflict(error)):
                raise
            return None

    def _body(self, record: DirectRecord, now: float) -> Object:
        annotations = {names.INSTANCE: self._mark, names.OWNER: renewal(now, LIMIT)}
        metadata = {"name": self._name, "namespace": self._namespace, "annotations": annotations}
        metadata |= {"labels": {**job_labels(self._job), names.JOB_RECORD: "direct"}}
        data = {DATA: json.dumps(codec.dump(record))}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    async def _create(self, client: Client, body: Object) -> Object:
        """Create the record, in place of that of an earlier job of the name. Raises NameTaken if such a job runs."""
        await remove_old(client, self._namespace)
        try:
            return await client.create(body)
        except ApiError as error:
            if not is_conflict(error):
                raise
        found = await find_record(client, self._job, self._namespace)
        if found is not None and _annotations(found).get(names.INSTANCE) == self._mark:
            return found  # an earlier response did not arrive
        await free_record(client, self._job, self._namespace)
        return await client.create(body)

    async def write_log(self, client: Client, n: int, text: bytes, keep: int) -> None:
        """Keep the output of an attempt as long as the record."""
        if not self._uid:
            return
        name = names.job_log(self._job, n)
        owner = reference(CONFIG_MAP, {"metadata": {"name": self._name, "uid": self._uid}})
        metadata: Object = {"name": name, "namespace": self._namespace, "labels": job_labels(self._job, n)}
        metadata |= {"annotations": {names.INSTANCE: self._mark}, "ownerReferences": [owner]}
        body = log_object(metadata, text, keep)
        try:
            await client.create(body)
            return
        except ApiError as error:
            if not is_conflict(error):
                raise
        found = (await client.get(CONFIG_MAP, name, self._namespace))["metadata"]
        mark = (found.get("annotations") or {}).get(names.INSTANCE)
        if mark not in (None, self._mark):  # of an earlier job of the name
            await client.delete(CONFIG_MAP, name, self._namespace, uid=found["uid"])
            await client.create(body)


async def find_record(client: Client, job: str, namespace: str) -> Object | None:
    try:
        found: Object = await client.get(CONFIG_MAP, names.job_record(job), namespace)
    except ApiError as error:
        if not is_not_found(error):
            raise
        return None
    return found if is_record(found) else None


def is_record(config_map: Object) -> bool:
    return names.JOB_RECORD in (config_map["metadata"].get("labels") or {})


async def free_record(client: Client, job: str, namespace: str) -> None:
    """Delete the record of an earlier job of that name. Raises NameTaken if that job runs."""
    found = await find_record(client, job, namespace)
    if found is None:
        return
    if not is_over(record_info(found, time.time()).status):
        hint = f"Choose another name, or run `oars jobs rm {job} -n {namespace}`."
        raise NameTaken(f"Job {job!r} exists already in namespace {namespace!r}.", hint)
    await client.delete(CONFIG_MAP, found["metadata"]["name"], namespace, uid=found["metadata"]["uid"])


async def remove_old(client: Client, namespace: str) -> None:
    """Delete records of jobs that ended, or whose command was lost, long ago. Nobody else does that."""
    now = time.time()
    for each in (await client.list(CONFIG_MAP, namespace, labels=SELECTOR)).items:
        status = record_info(each, now).status
        seen = status.ended if status.state.is_final else _renewed(each)
        if is_over(status) and seen is not None and now - seen > KEEP_SECONDS:
            metadata = each["metadata"]
            await client.delete(CONFIG_MAP, metadata["name"], namespace, uid=metadata["uid"])


def record_info(config_map: Object, now: float) -> JobInfo:
    """The job of a record. If its command is gone, the reason in its status is COMMAND_LOST."""
    metadata = config_map["metadata"]
    text = (config_map.get("data") or {}).get(DATA, "")
    try:
        record = codec.load(DirectRecord, json.loads(text))
    except ValueError as error:
        created = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
        record = DirectRecord(JobStatus(message=f"Its record is damaged: {error}"), created)
    status, renewed = record.status, _renewed(config_map)
    if not status.state.is_final and (renewed is None or now - renewed > LIMIT):
        status = replace(status, reason=COMMAND_LOST, message=GONE)
    return JobInfo(
        metadata["labels"].get(names.JOB, metadata["name"]),
        "kubernetes",
        record.created,
        status,
        namespace=metadata["namespace"],
        deadline=record.deadline,
    )


def is_over(status: JobStatus) -> bool:
    """True if no command runs the job any more."""
    return status.state.is_final or status.is_abandoned


def _renewed(config_map: Object) -> float | None:
    try:
        return float((value_of(config_map["metadata"]) or "").partition("/")[0])
    except ValueError:
        return None


def mark_of(config_map: Object) -> str:
    return str(_annotations(config_map).get(names.INSTANCE, ""))


def _annotations(config_map: Object) -> Mapping[str, str]:
    return config_map["metadata"].get("annotations") or {}
