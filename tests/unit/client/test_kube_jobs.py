"""Submitting jobs to Kubernetes: files are sent once, and kept output is read."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oars.base.errors import OarsError, SpecError, UsageError
from oars.client import kube_jobs, pod_logs
from oars.client.archive import Archive, pack
from oars.client.kube_jobs import KubeJobHandle, KubeJobs, lines_after
from oars.client.kubernetes import KubeBackend
from oars.kube.client import Listing
from oars.kube.errors import ApiError, Unreachable
from oars.kube.kinds import Kind, Object, kind_of
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_JOB
from oars.places.kube.state import job_codec
from oars.plan.jobs import JobPolicy
from oars.spec.job import JobSpec, WorkingDir
from oars.spec.job_status import Attempt, JobState, JobStatus
from oars.spec.load_job import JobMetadata
from tests.simulation.api_server import merged

METADATA = {"name": "nightly", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"}
SPEC = {"cluster": {"engine": "dask"}, "entrypoint": ["python", "x.py"]}


class Api:
    """Objects in memory, and the size of what was sent."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.sent = 0
        self.conflicts = 0  # so many patches find that the object has changed

    async def login(self) -> None:
        pass

    async def list(self, kind: Kind, namespace: str, **options: Any) -> Listing:
        return Listing([], "1")

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        if (kind.plural, name) not in self.objects:
            raise ApiError(404, {})
        return self.objects[kind.plural, name]

    async def get_metadata(self, kind: Kind, name: str, namespace: str) -> Object:
        metadata: Object = (await self.get(kind, name, namespace))["metadata"]
        return metadata

    async def create(self, obj: Object) -> Object:
        self.sent += len(str(obj))
        key = kind_of(obj).plural, obj["metadata"]["name"]
        if key in self.objects:
            raise ApiError(409, {"reason": "AlreadyExists"})
        metadata = {**obj["metadata"], "uid": f"uid-{key[1]}", "resourceVersion": "1"}
        self.objects[key] = {**obj, "metadata": metadata}
        return self.objects[key]

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object) -> Object:
        if self.conflicts:
            self.conflicts -= 1
            raise ApiError(409, {"reason": "Conflict"})
        self.objects[kind.plural, name] = merged(self.objects[kind.plural, name], body)
        return self.objects[kind.plural, name]

    async def delete(self, kind: Kind, name: str, namespace: str, *, uid: str, **options: Any) -> bool:
        if self.objects[kind.plural, name]["metadata"]["uid"] != uid:
            raise ApiError(409, {"reason": "Conflict"})
        del self.objects[kind.plural, name]
        return True

    def owners(self) -> Sequence[Sequence[str]]:
        found = [obj for (plural, _), obj in self.objects.items() if plural == "configmaps"]
        return [[owner["name"] for owner in obj["metadata"]["ownerReferences"]] for obj in found]


@pytest.fixture
def api() -> Api:
    return Api()


def jobs_of(api: Api) -> KubeJobs:
    found = KubeJobs.__new__(KubeJobs)
    found.backend = cast(KubeBackend, SimpleNamespace(client=api, namespace="team", login=api.login))
    found.mode = "operator"
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    (tmp_path / "data").write_bytes(bytes(range(256)) * 8)
    return pack(tmp_path)


def submit(api: Api, name: str, archive: Archive) -> None:
    spec = JobSpec.model_validate(SPEC)
    files = WorkingDir(archive=archive.hash, size=len(archive.data))
    asyncio.run(jobs_of(api).submit(name, spec.model_copy(update={"working_dir": files}), archive))


def test_jobs_with_equal_files_share_them_and_send_them_once(api: Api, archive: Archive) -> None:
    submit(api, "first", archive)
    sent = api.sent
    api.conflicts = 1
    submit(api, "second", archive)
    assert api.owners() == [["first", "second"]]
    assert api.sent - sent < len(archive.data)


class Refusing(Api):
    """Answers the request to store files with an error, or not at all: the user then presses Ctrl-C."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def create(self, obj: Object) -> Object:
        if obj["kind"] == "ConfigMap":
            raise self.error
        return await super().create(obj)


@pytest.mark.parametrize(
    "error",
    [
        ApiError(403, {"message": "exceeded quota: files"}),
        ApiError(413, {}),
        Unreachable("The connection was cut."),
        asyncio.CancelledError(),
    ],
)
def test_job_whose_files_cannot_be_sent_is_deleted(error: BaseException, archive: Archive) -> None:
    api = Refusing(error)
    with pytest.raises((OarsError, asyncio.CancelledError)):
        submit(api, "train", archive)
    assert not api.objects


def test_another_job_that_has_taken_the_name_stays(archive: Archive) -> None:
    class Replacing(Refusing):
        async def create(self, obj: Object) -> Object:
            if obj["kind"] == "ConfigMap":
                self.objects["computejobs", "train"] = {"metadata": {"uid": "of another job"}}
            return await super().create(obj)

    api = Replacing(Unreachable("The connection was cut."))
    with pytest.raises(Unreachable):
        submit(api, "train", archive)
    assert list(api.objects) == [("computejobs", "train")]


def test_packed_files_that_are_too_large_are_named(api: Api, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_jobs, "MAX_ARCHIVE", 10)
    with pytest.raises(UsageError, match=r"biggest entries.*data"):
        submit(api, "large", archive)
    assert not api.objects


def test_packages_without_an_image_are_refused_before_anything_is_sent(api: Api) -> None:
    cluster = {"engine": "dask", "environment": {"packages": ["pandas"]}}
    with pytest.raises(SpecError, match="nobody installs packages"):
        asyncio.run(jobs_of(api).submit("x", JobSpec.model_validate({**SPEC, "cluster": cluster}), None))
    assert not api.objects


def test_kept_output_is_read_when_the_pod_is_gone(api: Api) -> None:
    packed = base64.b64encode(gzip.compress(b"one\ntwo\n")).decode()
    api.objects["configmaps", "train-1-log"] = {"binaryData": {"log.gz": packed}}

    async def read() -> list[str]:
        handle = KubeJobHandle(jobs_of(api), "train", "team")
        return [line async for line in handle._attempt_lines(1, follow=False)]

    assert asyncio.run(read()) == ["one", "two"]


class Broken(Api):
    """A driver with LINES lines whose log is cut off after each line that `cuts` lists. With the last cut the driver
    ends, and the operator stores the verdict."""

    def __init__(self, *cuts: int, leaves_pod: bool) -> None:
        super().__init__()
        self.cuts, self.leaves_pod, self.is_over = list(cuts), leaves_pod, False
        packed = base64.b64encode(gzip.compress("".join(f"line {n}\n" for n in range(LINES)).encode())).decode()
        self.objects["configmaps", "train-1-log"] = {"binaryData": {"log.gz": packed}}

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        if kind is not COMPUTE_JOB:
            return await super().get(kind, name, namespace)
        attempt = Attempt(1, "train-1", 1.0, ended=9.0 if self.is_over else None, exit_code=0)
        state = JobState.SUCCEEDED if self.is_over else JobState.RUNNING
        status = job_codec.dump_status(JobStatus(state, attempt=1, attempts=(attempt,)), 1, JobPolicy())
        metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
        return {"metadata": metadata, "spec": {}, "status": status}

    async def list(self, kind: Kind, namespace: str, **options: Any) -> Listing:
        pod = {"metadata": {"uid": "p", "name": "train-1-x", "namespace": namespace}, "status": {"phase": "Running"}}
        return Listing([] if self.is_over and not self.leaves_pod else [pod], "1")

    async def logs(self, name: str, namespace: str, *, since: str = "", **options: Any) -> AsyncIterator[str]:
        for number in range(LINES):
            stamp = f"2026-01-01T00:00:{number:02}Z"
            if stamp >= since:
                yield f"{stamp} line {number}"
            if self.cuts and number == self.cuts[0]:
                self.cuts.pop(0)
                self.is_over = not self.cuts
                raise Unreachable("The connection was cut.")


LINES = 30


@pytest.mark.parametrize("leaves_pod", [True, False])
@pytest.mark.parametrize("cuts", [(3,), (0, 0, 5, 5, 11, 29), tuple(range(20))])
def test_followed_output_is_complete_if_the_driver_ends_while_the_connection_is_cut(
    cuts: tuple[int, ...], leaves_pod: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_logs, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(kube_jobs, "POLL_SECONDS", 0.0)

    async def read() -> list[str]:
        handle = KubeJobHandle(jobs_of(Broken(*cuts, leaves_pod=leaves_pod)), "train", "team")
        return [each.line async for each in handle.logs(None, follow=True)]

    assert asyncio.run(read()) == [f"line {number}" for number in range(LINES)]


@pytest.mark.parametrize(
    ("kept", "count", "last", "rest"),
    [
        (["a", "b", "c"], 2, ["a", "b"], ["c"]),
        (["a", "a", "a"], 2, ["a", "a"], ["a"]),
        (["ial", "c", "d"], 3, ["b", "c"], ["ial", "c", "d"]),  # not found: all
        (["ial", "b", "c", "d"], 9, ["b", "c"], ["d"]),
        (["a"], 0, [], ["a"]),
        ([], 2, ["a", "b"], []),
    ],
)
def test_kept_lines_after_those_that_were_read(kept: list[str], count: int, last: list[str], rest: list[str]) -> None:
    assert lines_after(kept, count, last) == rest


@pytest.mark.parametrize("spec", [{"schedule": {"cron": "@daily", "suspend": True}}, {}])
def test_resume_also_resumes_the_schedule(api: Api, spec: Object) -> None:
    api.objects["computejobs", "nightly"] = {"metadata": METADATA, "spec": {"suspend": True, **spec}}
    asyncio.run(KubeJobHandle(jobs_of(api), "nightly", "team").suspend(suspended=False))
    resumed = {"schedule": {"cron": "@daily", "suspend": False}} if spec else {}
    assert api.objects["computejobs", "nightly"]["spec"] == {"suspend": False, **resumed}


@pytest.mark.parametrize("suspended", [True, False])
def test_job_that_has_ended_is_neither_suspended_nor_resumed(api: Api, suspended: bool) -> None:
    status = job_codec.dump_status(JobStatus(JobState.FAILED), 1, JobPolicy())
    api.objects["computejobs", "nightly"] = {"metadata": METADATA, "spec": {}, "status": status}
    with pytest.raises(OarsError, match="'nightly' has ended: Failed"):
        asyncio.run(KubeJobHandle(jobs_of(api), "nightly", "team").suspend(suspended=suspended))
    assert api.objects["computejobs", "nightly"]["spec"] == {}


def test_labels_are_sent(api: Api) -> None:
    metadata = JobMetadata({"kueue.x-k8s.io/queue-name": "team-a"}, {"note": "1"})
    asyncio.run(jobs_of(api).submit("queued", JobSpec.model_validate(SPEC), None, metadata=metadata))
    sent = api.objects["computejobs", "queued"]["metadata"]
    assert (sent["labels"], sent["annotations"]) == (metadata.labels, metadata.annotations)


def test_run_names_its_schedule(api: Api) -> None:
    metadata: Object = {"name": "nightly-5", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"}
    metadata |= {"labels": {names.SCHEDULE: "nightly"}}
    api.objects["computejobs", "nightly-5"] = {"metadata": metadata, "spec": {}}
    found = asyncio.run(jobs_of(api).job("nightly-5").info())
    assert (found.run_of, found.to_dict()["run_of"]) == ("nightly", "nightly")
