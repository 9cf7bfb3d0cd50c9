"""Jobs without an operator: the loop runs in this process, in one event loop after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oars.base.errors import OarsError, UsageError
from oars.cli import errors
from oars.cli.main import call
from oars.client import direct_jobs
from oars.client.backend import Location
from oars.client.direct_jobs import DirectJob, Output, check_direct
from oars.client.jobs import AttachedJob
from oars.client.kube_jobs import KubeJobs
from oars.client.kubernetes import KubeBackend
from oars.control.jobs import reconcile_job
from oars.engines import get
from oars.kube.client import Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import JOB, Kind, Object, kind_of
from oars.places.kube import names
from oars.places.kube.render.defaults import DEFAULTS
from oars.plan.desired import build
from oars.service import jobs as service_jobs
from oars.spec.cluster import ClusterSpec
from oars.spec.job import JobSpec
from oars.spec.job_status import JobState, JobStatus
from oars.spec.status import Phase
from tests.simulation.api_server import merged

SPEC = {"cluster": {"engine": "dask", "place": "kubernetes"}, "entrypoint": ["python", "x.py"]}
SECONDS = 30.0


class World:
    """An API server in memory. Clusters are ready at once; the test ends the drivers."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.opened = 0
        self.reads_of_log = 0
        self.requested = asyncio.Event()
        self.response = asyncio.Event()  # to the creation of a cluster
        self.response.set()

    # as kube.Client

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        if (kind.plural, name) not in self.objects:
            raise ApiError(404, {})
        return self.objects[kind.plural, name]

    async def list(self, kind: Kind, namespace: str | None, labels: str = "") -> Listing:
        wanted = dict(each.split("=") for each in labels.split(",") if each)
        found = [obj for (plural, _), obj in self.objects.items() if plural == kind.plural]
        return Listing([each for each in found if wanted.items() <= each["metadata"]["labels"].items()], "1")

    async def create(self, obj: Object) -> Object:
        key = kind_of(obj).plural, obj["metadata"]["name"]
        if key in self.objects:
            raise ApiError(409, {"reason": "AlreadyExists"})
        self.objects[key] = merged(obj, {"metadata": {"uid": f"uid-{key[1]}"}})
        if key[0] == "jobs":
            self._start_pod(self.objects[key])
        return self.objects[key]

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object) -> Object:
        found = await self.get(kind, name, namespace)
        if body["metadata"].get("uid", found["metadata"]["uid"]) != found["metadata"]["uid"]:
            raise ApiError(409, {"reason": "Conflict"})
        self.objects[kind.plural, name] = merged(self.objects[kind.plural, name], body)
        if (body.get("spec") or {}).get("suspend"):
            self.end(f"{name}-pod", 143)
        return self.objects[kind.plural, name]

    async def delete(self, kind: Kind, name: str, namespace: str, uid: str) -> bool:
        if self.objects[kind.plural, name]["metadata"]["uid"] != uid:
            raise ApiError(409, {"reason": "Conflict"})
        del self.objects[kind.plural, name]
        self.objects.pop(("pods", f"{name}-pod"), None)
        return True

    async def logs(self, **options: Any) -> AsyncIterator[str]:
        self.reads_of_log += 1
        ended = self.objects["pods", options["name"]]["status"]["phase"] not in ("Running", "Pending")
        for second, line in enumerate(["one", "two"] if ended else ["one"]):
            yield f"2026-01-01T00:00:0{second}Z {line}" if options.get("timestamps") else line

    def _start_pod(self, job: Object) -> None:
        if job["spec"].get("suspend"):
            job["status"] = {"conditions": [{"type": "Suspended", "status": "True"}]}
            return
        name = f"{job['metadata']['name']}-pod"
        owner = {"kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        metadata = {"name": name, "namespace": "team", "uid": name, "labels": job["metadata"]["labels"]}
        metadata |= {"ownerReferences": [owner], "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.objects["pods", name] = {"metadata": metadata, "status": {"phase": "Running"}}

    def end(self, pod: str, code: int) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state = {"terminated": {"exitCode": code, "finishedAt": at}}
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [{"name": "driver", "state": state}]}
        self.objects["pods", pod]["status"] = status

    # as KubeBackend and KubeHandle

    def backend(self) -> KubeBackend:
        self.opened += 1

        async def nothing(*_: object) -> None:
            pass

        async def create(name: str, spec: ClusterSpec, options: Any) -> Any:
            assert options.tied
            metadata = {"name": names.root(name), "labels": {}, "annotations": {names.INSTANCE: options.job}}
            await self.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
            self.requested.set()
            await self.response.wait()
            return self.handle(name)

        members = SimpleNamespace(
            client=self, namespace="team", settings=None, environ={}, location=Location("kubernetes"),
            login=nothing, close=nothing, create=create, cluster=self.handle,
        )  # fmt: skip
        return cast(KubeBackend, members)

    def handle(self, name: str) -> Any:
        spec = JobSpec.model_validate(SPEC).cluster
        assert spec is not None
        status = SimpleNamespace(phase=Phase.READY, members=(), ready=1, wanted=1, message="")

        async def mode() -> str:
            return "direct"

        async def read_spec() -> ClusterSpec:
            return spec

        async def stop() -> None:
            del self.objects["configmaps", names.root(name)]

        def desired(given: ClusterSpec) -> Any:
            return build(name, given, get("dask"), DEFAULTS, namespace="team")

        return SimpleNamespace(
            last_report=lambda: SimpleNamespace(status=status), mode=mode, spec=read_spec, stop=stop, desired=desired
        )

    def kinds(self, plural: str) -> Sequence[str]:
        return sorted(name for kind, name in self.objects if kind == plural)

    def roots(self) -> Sequence[str]:
        """The clusters."""
        return [name for name in self.kinds("configmaps") if name.endswith(names.root(""))]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(direct_jobs, "KubeBackend", lambda *_: found.backend())
    monkeypatch.setattr(direct_jobs, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(direct_jobs, "PASS_SECONDS", 0.05)
    monkeypatch.setattr(DirectJob, "poll_seconds", 0.05)
    return found


def job(world: World, **fields: Any) -> DirectJob:
    spec = JobSpec.model_validate({**SPEC, "backoff": {"first": "0.1s"}, **fields})
    return DirectJob("train", spec, None, world.backend())


async def until_running(found: DirectJob, attempt: int = 1) -> None:
    async for info in found.watch():
        if info.status.state is JobState.RUNNING and info.status.attempt == attempt:
            return


async def to_the_end(found: DirectJob) -> JobStatus:
    status = JobStatus()
    async for info in found.watch():
        status = info.status
    return status


async def collected(found: DirectJob) -> list[str]:
    return [each.line async for each in found.logs(None, follow=True)]


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, SECONDS))


def test_job_runs_to_its_end_and_its_output_is_complete(world: World) -> None:
    found = job(world)
    assert isinstance(found, AttachedJob)

    async def work() -> tuple[JobStatus, list[str]]:
        await until_running(found)
        lines = asyncio.create_task(collected(found))
        world.end("train-1-pod", 0)
        return await to_the_end(found), await lines

    status, lines = run(work())
    assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0)
    assert lines == ["one", "two"]
    assert world.roots() == [], "its cluster is gone when the command ends"
    assert world.objects["jobs", "train-1"]["metadata"]["ownerReferences"][0]["uid"] == "uid-train-1-oars"


def test_job_continues_in_the_next_event_loop(world: World) -> None:
    found = job(world)

    async def first_line() -> str:
        async for each in found.logs(None, follow=True):
            return each.line
        return ""

    assert run(first_line()) == "one"
    world.end("train-1-pod", 3)

    async def rest() -> tuple[list[str], JobStatus]:
        lines = [each.line async for each in found.logs(None, follow=True)]
        return lines, await to_the_end(found)

    lines, status = run(rest())
    assert (lines, status.exit_code) == (["one", "two"], 3)
    assert world.kinds("jobs") == ["train-1"]
    assert world.opened == 3, "one connection for the submission, and one per event loop"


def test_bad_exit_is_retried_on_a_new_cluster(world: World) -> None:
    found = job(world, retries=1)

    async def work() -> JobStatus:
        await until_running(found)
        world.end("train-1-pod", 1)
        await until_running(found, 2)
        world.end("train-2-pod", 0)
        return await to_the_end(found)

    status = run(work())
    assert [(each.n, each.exit_code) for each in status.attempts] == [(1, 1), (2, 0)]


def test_cancel_stops_the_driver_and_removes_the_cluster(world: World) -> None:
    found = job(world)
    run(until_running(found))

    async def cancel() -> JobStatus:
        await found.cancel()
        return await to_the_end(found)

    assert run(cancel()).state is JobState.CANCELLED
    assert world.roots() == []


def test_cluster_whose_creation_was_interrupted_is_removed(world: World) -> None:
    found = job(world)
    world.response.clear()

    async def interrupted() -> None:
        await found.attach()
        await world.requested.wait()

    run(interrupted())
    run(found.delete(SECONDS))
    assert world.roots() == []


def test_cluster_of_somebody_else_is_left_alone(world: World) -> None:
    metadata = {"name": names.root("train-1"), "labels": {}}
    run(world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))
    found = job(world)

    async def work() -> None:
        async for info in found.watch():
            if info.status.attempt == 1:
                break
        await found.delete(SECONDS)

    run(work())
    assert world.roots() == [names.root("train-1")]


def test_time_limit_of_a_caller_does_not_end_the_clean_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found, may_stop, make = job(world), asyncio.Event(), world.handle

    def with_slow_stop(name: str) -> Any:
        handle = make(name)
        stop = handle.stop

        async def wait_and_stop() -> None:
            await may_stop.wait()
            await stop()

        handle.stop = wait_and_stop
        return handle

    monkeypatch.setattr(world, "handle", with_slow_stop)

    async def work() -> None:
        await until_running(found)
        world.end("train-1-pod", 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(to_the_end(found), 2)
        assert world.roots() == [names.root("train-1")]
        may_stop.set()
        assert (await to_the_end(found)).state is JobState.SUCCEEDED
        await found.close()

    run(work())
    assert world.roots() == []


@pytest.mark.parametrize("error", [KeyError("x"), TimeoutError(), OSError("broken"), ApiError(500, {})], ids=repr)
def test_job_continues_after_a_pass_that_failed(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Its status shows the failure, and it can be cancelled."""
    found, is_broken = job(world), True

    async def broken(*arguments: Any) -> Any:
        if is_broken:
            raise error
        return await reconcile_job(*arguments)

    monkeypatch.setattr(direct_jobs, "reconcile_job", broken)

    async def failed() -> JobStatus:
        async for info in found.watch():
            if info.status.reason == "PassFailed":
                return info.status
        return JobStatus()

    assert "Oars retries" in run(failed()).message
    assert "pass failed" in caplog.text
    run(failed())  # in another event loop
    is_broken = False
    run(until_running(found))
    is_broken = True
    run(found.cancel())

    async def cancelled() -> JobStatus:
        nonlocal is_broken
        await found.cancel()
        is_broken = False
        return await to_the_end(found)

    assert run(cancelled()).state is JobState.CANCELLED
    assert world.roots() == []


def test_job_whose_login_fails_runs_when_it_works_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found, failures = job(world), [OSError("no network"), KeyError("token")]

    async def login() -> None:
        if failures:
            raise failures.pop()

    backend = world.backend
    monkeypatch.setattr(world, "backend", lambda: SimpleNamespace(**{**vars(backend()), "login": login}))
    run(until_running(found))
    assert not failures


def test_loop_of_a_job_that_was_cancelled_starts_again(world: World) -> None:
    found = job(world)

    async def work() -> None:
        await until_running(found)
        for task in asyncio.all_tasks():
            if task.get_name() == "oars job train":
                task.cancel()
                await asyncio.wait([task])
        await found.close()

    run(work())
    assert world.roots() == []


@pytest.mark.parametrize("policy", ["running", "all"])
def test_driver_of_somebody_else_is_left_alone(world: World, policy: str) -> None:
    run(world.create(foreign_driver()))
    found = job(world, cleanup={"policy": policy})

    async def work() -> JobStatus:
        async for info in found.watch():
            if "'train-1' exists already" in info.status.message:
                break
        await found.cancel()
        return await to_the_end(found)

    assert run(work()).state is JobState.CANCELLED
    assert world.kinds("jobs") == ["train-1"]
    assert world.roots() == []


def foreign_driver() -> Object:
    metadata = {"name": "train-1", "labels": {}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {}}


def jobs_of(world: World) -> KubeJobs:
    jobs = KubeJobs.__new__(KubeJobs)
    jobs.backend, jobs.mode = world.backend(), "direct"
    return jobs


def submitted(world: World) -> DirectJob:
    """A job on the existing cluster `demo`."""
    spec = JobSpec.model_validate({"cluster": {"name": "demo"}, "entrypoint": ["python", "x.py"]})
    return cast(DirectJob, run(jobs_of(world).submit("train", spec, None)))


def put_demo(world: World) -> None:
    metadata = {"name": names.root("demo"), "labels": {}}
    run(world.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}))


async def run_driver(world: World, found: DirectJob) -> JobStatus:
    await until_running(found)
    world.end("train-1-pod", 0)
    return await to_the_end(found)


def test_job_of_the_same_name_runs_after_the_first_has_ended(world: World) -> None:
    put_demo(world)
    assert run(run_driver(world, submitted(world))).state is JobState.SUCCEEDED
    assert world.kinds("jobs") == ["train-1"], "Kubernetes deletes it later"
    assert run(run_driver(world, submitted(world))).state is JobState.SUCCEEDED


def test_job_of_the_same_name_is_refused_while_the_first_runs(world: World) -> None:
    put_demo(world)
    first = submitted(world)
    run(until_running(first))
    with pytest.raises(OarsError, match="Job 'train' exists already in namespace 'team'") as caught:
        submitted(world)
    assert "`oars jobs rm train -n team`" in caught.value.hint
    record = world.objects.pop(("configmaps", names.job_record("train")))
    with pytest.raises(OarsError, match="'train-1' exists already in namespace 'team'") as caught:
        submitted(world)
    assert "Choose another name" in caught.value.hint
    world.objects["configmaps", names.job_record("train")] = record
    assert run(run_driver(world, first)).state is JobState.SUCCEEDED


@pytest.mark.parametrize("fields", [{}, {"cluster": {"name": "demo"}}])
def test_one_of_two_commands_that_start_a_job_of_a_name_at_once_runs_it(world: World, fields: dict[str, Any]) -> None:
    put_demo(world)
    spec = JobSpec.model_validate({**SPEC, **fields})

    async def work() -> list[Any]:
        two = [await jobs_of(world).submit("train", spec, None) for _ in range(2)]
        ends = [asyncio.create_task(to_the_end(cast(DirectJob, each))) for each in two]
        while ("pods", "train-1-pod") not in world.objects:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        world.end("train-1-pod", 0)
        return await asyncio.gather(*ends, return_exceptions=True)

    status, refusal = sorted(run(work()), key=lambda each: isinstance(each, Exception))
    assert status.state is JobState.SUCCEEDED
    assert str(refusal).startswith("Job 'train' exists already in namespace 'team'.")
    assert world.kinds("jobs") == ["train-1"] and world.roots() == [names.root("demo")]


def test_refused_job_stays_refused_and_has_nothing_to_close(world: World) -> None:
    put_demo(world)
    first, second = submitted(world), submitted(world)
    run(until_running(first))

    async def refused(work: Any) -> None:
        with pytest.raises(OarsError, match="exists already"):
            await work

    run(refused(to_the_end(second)))
    assert run(run_driver(world, first)).state is JobState.SUCCEEDED
    run(second.close())
    run(refused(second.info()))


def test_driver_of_another_command_stays_while_no_record_can_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = world.create

    async def without_records(obj: Object) -> Object:
        if obj["metadata"]["name"] == names.job_record("train"):
            raise ApiError(403, {"message": "no"})
        return await create(obj)

    put_demo(world)
    monkeypatch.setattr(world, "create", without_records)
    first, second = submitted(world), submitted(world)

    async def work() -> JobStatus:
        await until_running(first)
        world.end("train-1-pod", 0)
        ended = await to_the_end(first)
        async for info in second.watch():
            if "'train-1' exists already" in info.status.message:
                break
        await second.cancel()
        assert (await to_the_end(second)).state is JobState.CANCELLED
        return ended

    assert run(work()).state is JobState.SUCCEEDED
    assert world.objects["pods", "train-1-pod"]["status"]["phase"] == "Succeeded"


def test_driver_of_a_later_attempt_of_an_earlier_job_is_replaced(world: World) -> None:
    earlier = job(world, retries=1)

    async def work(found: DirectJob) -> JobStatus:
        await until_running(found)
        world.end("train-1-pod", 1)
        await until_running(found, 2)
        world.end("train-2-pod", 0)
        return await to_the_end(found)

    run(work(earlier))
    run(world.delete(JOB, "train-1", "team", "uid-train-1"))  # as Kubernetes after its ttl
    assert run(work(job(world, retries=1))).state is JobState.SUCCEEDED


def test_cleanup_of_everything_removes_the_driver(world: World) -> None:
    assert run(run_driver(world, job(world, cleanup={"policy": "all"}))).state is JobState.SUCCEEDED
    assert world.kinds("jobs") == []


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"schedule": {"cron": "0 3 * * *"}}, "schedule"),
        ({"suspend": True}, "suspend"),
        ({"ttlAfterFinished": "1h"}, "ttlAfterFinished"),
        ({"cleanup": {"policy": "none"}}, "cleanup.policy"),
        ({"cleanup": {"after": {"failed": "1m"}}}, "cleanup.after"),
    ],
)
def test_what_outlives_the_command_is_refused(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        check_direct(JobSpec.model_validate({**SPEC, **fields}), {}, "team")
    with pytest.raises(UsageError, match="label kueue"):
        check_direct(JobSpec.model_validate(SPEC), {names.KUEUE_QUEUE: "team-a"}, "team")


@pytest.mark.parametrize("namespace", [{"create": True}, {"name": "other"}, {"name": "team", "create": True}])
def test_cluster_in_another_namespace_is_refused(namespace: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"cluster\.namespace") as caught:
        check_direct(with_namespace(namespace), {}, "team")
    assert f"`oars submit -n {namespace.get('name', 'team')}`" in caught.value.hint


def test_cluster_in_the_namespace_of_the_job_is_accepted() -> None:
    check_direct(with_namespace({"name": "team"}), {}, "team")


def with_namespace(namespace: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate({**SPEC, "cluster": {"engine": "dask", "namespace": namespace}})


def test_lines_that_a_reader_missed_are_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{number:0100000}" for number in range(100)]

    async def many(**options: Any) -> AsyncIterator[str]:
        for number, line in enumerate(lines):
            yield f"2026-01-01T00:00:00.{number:09}Z {line}" if options.get("timestamps") else line

    monkeypatch.setattr(world, "logs", many)
    found = job(world, logs={"keep": "1Mi"})

    async def work() -> list[str]:
        await until_running(found)
        world.end("train-1-pod", 0)
        return await collected(found)

    assert run(work()) == ["(90 lines are not shown: logs.keep is 1 MiB)", *lines[-10:]]


@pytest.mark.parametrize("in_another_loop", [False, True])
def test_output_is_complete_though_the_kubelet_rotates_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch, in_another_loop: bool
) -> None:
    lines = ["one", "two"]  # those that the kubelet still has

    async def rotated(**options: Any) -> AsyncIterator[str]:
        world.reads_of_log += 1
        for line in lines:
            at = ["one", "two", "three", "four"].index(line)
            yield f"2026-01-01T00:00:0{at}Z {line}" if options.get("timestamps") else line

    monkeypatch.setattr(world, "logs", rotated)
    found = job(world)

    async def read_two() -> None:
        async for each in found.logs(None, follow=True):
            if each.line == "two":
                return

    async def rest() -> list[str]:
        lines[:] = ["three", "four"]
        world.end("train-1-pod", 0)
        return await collected(found)

    async def both() -> list[str]:
        await read_two()
        return await rest()

    if in_another_loop:
        run(read_two())
        assert run(rest()) == ["one", "two", "three", "four"]
    else:
        assert run(both()) == ["one", "two", "three", "four"]


def test_output_keeps_its_end() -> None:
    output = Output(2**20)
    lines = [str(number) * 2**19 for number in range(10)]
    for line in lines:
        output.add(line)
    assert (output.after(0), output.count) == (["(9 lines are not shown: logs.keep is 1 MiB)", lines[9]], 10)
    assert output.after(8) == ["(1 line is not shown: logs.keep is 1 MiB)", lines[9]]
    assert output.after(9) == [lines[9]]
    assert output.after(10) == []


NOTE = "its driver runs to its own end on cluster 'demo'"


@pytest.mark.parametrize(
    ("options", "is_noted"),
    [
        (["--cluster", "demo"], True),
        (["--cluster", "demo", "-q"], False),
        (["--cluster", "demo", "--deadline", "8h"], False),
        (["--cluster", "demo", "--set", "attemptDeadline=8h"], False),
        (["--engine", "dask"], False),
    ],
)
def test_driver_that_nothing_limits_is_noted(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: Sequence[str],
    is_noted: bool,
) -> None:
    def start_and_end(driver: Object) -> None:
        World._start_pod(world, driver)
        world.end(f"{driver['metadata']['name']}-pod", 0)

    put_demo(world)
    monkeypatch.setattr(world, "_start_pod", start_and_end)
    monkeypatch.setattr(service_jobs, "job_backend", lambda *_: jobs_of(world))
    words = ("submit", *options, "--place", "kubernetes", "--working-dir", "", "--", "python", "x.py")
    assert errors.guard(lambda: call(words)) == 0
    assert (NOTE in capsys.readouterr().err) is is_noted
