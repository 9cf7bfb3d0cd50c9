"""Other clients see a job without an operator, and can stop it, while its command runs."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from oars.base import codec
from oars.base.errors import NotFound, OarsError, UsageError
from oars.client.direct_jobs import DirectJob
from oars.client.job import wait_final
from oars.client.job_record import DATA, DirectRecord, record_info
from oars.client.jobs import JobHandle
from oars.client.kube_jobs import KubeJobs
from oars.kube.errors import ApiError
from oars.kube.kinds import CONFIG_MAP, Object
from oars.places.kube import names
from oars.places.kube.state.renewal import renewal
from oars.service.jobs import explain_job
from oars.spec.job_status import COMMAND_LOST, JobState, JobStatus
from tests.unit.client.test_direct_jobs import World, job, run, to_the_end, until_running, world

__all__ = ["world"]
RECORD = names.job_record("train")
DAY = 24 * 3600.0


def others(world: World) -> KubeJobs:
    """As another client."""
    jobs = KubeJobs.__new__(KubeJobs)
    jobs.backend, jobs.mode = world.backend(), None
    return jobs


async def output(handle: JobHandle, *, follow: bool = False) -> list[str]:
    return [each.line async for each in handle.logs(None, follow=follow)]


def put_record(world: World, status: JobStatus, renewed: float, name: str = "train") -> None:
    """Of an earlier command."""
    labels = {names.JOB: name, names.JOB_RECORD: "direct"}
    annotations = {names.INSTANCE: "earlier", names.OWNER: renewal(renewed, 60.0)}
    metadata = {"name": names.job_record(name), "namespace": "team", "labels": labels, "annotations": annotations}
    data = {DATA: json.dumps(codec.dump(DirectRecord(status, 1.0)))}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    run(world.create(body))


def put_root(world: World, mark: str) -> None:
    metadata = {"name": names.root("train-1"), "labels": {}, "annotations": {names.INSTANCE: mark}}
    run(world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))


def test_other_clients_follow_a_job_and_read_its_last_state_and_output(world: World) -> None:
    found, handle = job(world, deadline="1h"), others(world).job("train")

    async def work() -> tuple[list[str], JobStatus]:
        await until_running(found)
        async for info in handle.watch():
            if info.status.state is JobState.RUNNING:
                break
        following = asyncio.create_task(output(handle, follow=True))
        await until(lambda: world.reads_of_log >= 2)  # the command reads it too
        world.end("train-1-pod", 3)
        return await following, await to_the_end(found)

    lines, status = run(work())
    assert (lines, status.exit_code) == (["one", "two"], 3)
    listed = run(others(world).list())
    assert [(each.name, each.status, each.deadline) for each in listed] == [("train", status, 3600.0)]
    assert run(wait_final(others(world).job("train"))) == status
    del world.objects["pods", "train-1-pod"]  # with its cluster
    assert run(output(others(world).job("train"))) == ["one", "two"]
    run(others(world).job("train").delete(5))
    assert RECORD not in world.kinds("configmaps")
    with pytest.raises(NotFound, match="There is no job 'train'"):
        run(others(world).job("train").info())


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_job_is_cancelled_by_another_client(world: World, verb: str) -> None:
    found, handle = job(world), others(world).job("train")

    async def work() -> JobStatus:
        await until_running(found)
        ending = asyncio.create_task(to_the_end(found))
        await (handle.cancel() if verb == "cancel" else handle.delete(10))
        return await ending

    assert run(work()).state is JobState.CANCELLED
    assert world.roots() == []
    assert (RECORD in world.kinds("configmaps")) is (verb == "cancel")


def test_job_whose_record_is_deleted_is_cancelled(world: World) -> None:
    found = job(world)

    async def work() -> JobStatus:
        await until_running(found)
        del world.objects["configmaps", RECORD]
        return await to_the_end(found)

    assert run(work()).state is JobState.CANCELLED
    assert RECORD not in world.kinds("configmaps"), "it is not created again"


def test_job_without_an_operator_cannot_be_suspended(world: World) -> None:
    put_record(world, JobStatus(JobState.RUNNING, attempt=1), time.time())
    with pytest.raises(UsageError, match="cannot be suspended"):
        run(others(world).job("train").suspend(suspended=True))


def test_job_whose_command_is_gone_is_not_waited_for_and_can_be_removed(world: World) -> None:
    put_record(world, JobStatus(JobState.RUNNING, cluster="train-1", attempt=1), time.time() - 61)
    put_root(world, "earlier")
    handle = others(world).job("train")
    status = run(handle.info()).status
    assert (status.state, status.reason) == (JobState.RUNNING, COMMAND_LOST)
    assert run(output(handle, follow=True)) == []
    for verb in (wait_final(handle), handle.cancel()):
        with pytest.raises(OarsError, match="has not renewed its record for 60 s") as caught:
            run(verb)
        assert caught.value.hint == "Remove it with `oars jobs rm train -n team`."
    cause = explain_job(status, [], job="train", cluster="train-1")[0]
    assert (cause.reason, cause.hint) == (COMMAND_LOST, "Run `oars jobs rm train`.")
    run(handle.delete(5))
    assert world.kinds("configmaps") == []


def test_cluster_of_another_job_stays_when_the_record_is_removed(world: World) -> None:
    put_record(world, JobStatus(JobState.RUNNING, cluster="train-1", attempt=1), 0.0)
    put_root(world, "another")
    run(others(world).job("train").delete(5))
    assert world.kinds("configmaps") == [names.root("train-1")]


def test_record_of_an_earlier_job_is_replaced_and_old_ones_are_removed(world: World) -> None:
    put_record(world, JobStatus(JobState.SUCCEEDED, ended=time.time()), time.time())
    put_record(world, JobStatus(JobState.FAILED, ended=time.time() - DAY - 1), 0.0, "old")
    put_record(world, JobStatus(JobState.RUNNING), time.time() - DAY - 61, "lost")
    put_record(world, JobStatus(JobState.RUNNING), time.time(), "live")
    log = {"name": names.job_log("train", 1), "labels": {}, "annotations": {names.INSTANCE: "earlier"}}
    run(world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": log}))
    found = job(world)

    async def work() -> JobStatus:
        await until_running(found)
        world.end("train-1-pod", 0)
        return await to_the_end(found)

    assert run(work()).state is JobState.SUCCEEDED
    assert sorted(each.name for each in run(others(world).list())) == ["live", "train"]
    assert run(output(others(world).job("train"))) == ["one", "two"]


def test_record_is_renewed_and_shows_a_failed_pass(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "owner_interval", lambda limit: 0.05)
    found = job(world)

    def renewed() -> Any:
        return world.objects["configmaps", RECORD]["metadata"]["annotations"][names.OWNER]

    async def work() -> str:
        await until_running(found)
        await until(lambda: RECORD in world.kinds("configmaps"))
        first = renewed()
        await until(lambda: renewed() != first)

        async def broken(*_: object) -> None:
            raise OSError("no network")

        monkeypatch.setattr(found, "observe", broken)
        await until(lambda: record_info(world.objects["configmaps", RECORD], 0.0).status.reason == "PassFailed")
        return record_info(world.objects["configmaps", RECORD], 0.0).status.message

    assert "no network" in run(work())


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_job_runs_though_its_record_cannot_be_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    create = world.create

    async def refused(obj: Object) -> Object:
        if obj["kind"] == CONFIG_MAP.kind and obj["metadata"]["name"] == RECORD:
            raise ApiError(403, {"message": "refused"})
        return await create(obj)

    monkeypatch.setattr(world, "create", refused)
    found: DirectJob = job(world)

    async def work() -> JobStatus:
        await until_running(found)
        world.end("train-1-pod", 0)
        return await to_the_end(found)

    assert run(work()).state is JobState.SUCCEEDED


def test_damaged_record_is_listed_and_can_be_removed(world: World) -> None:
    put_record(world, JobStatus(), time.time())
    world.objects["configmaps", RECORD]["data"] = {DATA: "{"}
    world.objects["configmaps", RECORD]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    assert "damaged" in run(others(world).list())[0].status.message
    world.objects["configmaps", RECORD]["metadata"]["annotations"].pop(names.OWNER)
    run(others(world).job("train").delete(5))
    assert world.kinds("configmaps") == []
