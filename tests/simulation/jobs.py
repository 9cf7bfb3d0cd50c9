"""Histories of jobs: users and faults against the operator's real reconciler of ComputeJobs. Up to two operators are at
work at once, and none knows of a Lease: each is a zombie for the other."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from oars.control.runner import Runner
from oars.kube.client import Client
from oars.kube.informer import Informer
from oars.kube.kinds import Kind, Object
from oars.operator.index import Watches
from oars.operator.jobs import JobReconciler
from oars.operator.resources import Key as JobKey
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state import job_codec
from oars.spec.job_status import Attempt, JobState, JobStatus, Outcome
from tests.simulation import virtual_time
from tests.simulation.api_server import ApiServer, Connection, Event, Faults, Key, Process
from tests.simulation.batch import TICK, Batch, Driver
from tests.simulation.history import Violation, live, until_one_ends
from tests.simulation.virtual_time import Clock

NAMESPACE = "lab"
CONVERGE_SECONDS = 800.0
AWAY_SECONDS = 1.5 * CONVERGE_SECONDS  # a node that is away for so long is waited for only by jobs on a shared cluster
CLEANUP_SECONDS = 60.0
REST_SECONDS = 120.0
PASSES_AT_REST = 20  # per job: passes that look now and then
MOST_PASSES = 300  # per second
CLUSTER = {"engine": "dask", "image": "i:1"}
DEMO: Key = ("computeclusters", NAMESPACE, "demo")


@dataclass
class LogConnection(Connection):
    """A connection that reads the logs of simulated drivers, and whose requests to create a driver may be late."""

    batch: Batch = None  # type: ignore[assignment]

    async def create(self, obj: Object, kind: Kind | None = None) -> Object:
        if obj["kind"] == "Job" and self._faults.slowest_reply > 1.0 and self._server.random.random() < 0.5:
            await asyncio.sleep(self._server.random.uniform(1.0, 40.0))
        return await super().create(obj, kind)

    async def logs(self, name: str, namespace: str | None = None, **options: Any) -> AsyncIterator[str]:
        await self._travel()
        driver = self.batch.log_of(name, namespace or "")
        yield f"attempt {driver.n}"
        while options.get("follow") and driver.code is None:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(TICK)
        if driver.code is not None:
            yield f"exit {driver.code}"


@dataclass
class Replica:
    """One operator process, restarted when it was killed."""

    name: str
    history: JobHistory
    process: Process = field(default_factory=lambda: Process(""))
    passes: int = 0
    _recent: list[float] = field(default_factory=list)  # when the last passes were

    async def run(self) -> None:
        while True:
            history = self.history
            dies_after = history.random.choice((None, 3, 8, 20)) if history.is_troubled else None
            self.process = process = Process(self.name, dies_after)
            await live(process, self._live(process))
            await asyncio.sleep(history.random.uniform(0.5, 10.0))

    async def _live(self, process: Process) -> None:
        history = self.history
        client = LogConnection(
            history.server, history.faults, history.log, process, wrote=history.wrote, batch=history.batch
        )
        watches = SimpleNamespace(resources={}, on_resource=None)

        def on_cluster(_: object, old: Object | None, new: Object | None) -> None:
            metadata = (new or old or {})["metadata"]
            key = JobKey(COMPUTE_CLUSTER.kind, metadata["namespace"], metadata["name"])
            if new is None:
                watches.resources.pop(key, None)
            else:
                watches.resources[key] = new
            watches.on_resource(new or old)

        clusters = Informer(cast(Client, client), COMPUTE_CLUSTER, NAMESPACE, on_change=on_cluster)
        jobs = JobReconciler(
            cast(Client, client), (NAMESPACE,), cast(Watches, watches), lambda key, pause: runner.wake(key, pause)
        )
        jobs.informers.append(clusters)
        runner: Runner[JobKey] = Runner(jobs, workers=4, observe_pass=self._count)
        tasks = [asyncio.create_task(each) for each in (*(each.run() for each in jobs.informers), runner.run())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, jobs.close(), return_exceptions=True)

    def _count(self, seconds: float, failed: bool) -> None:
        self.passes += 1
        now = self.history.clock.now
        self._recent = [at for at in self._recent if at > now - 1.0] + [now]
        if len(self._recent) > MOST_PASSES:
            raise Violation(f"{len(self._recent)} passes within a second")


@dataclass
class JobHistory:
    seed: int
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random, self.clock, self.faults = random.Random(self.seed), Clock(), Faults()
        self.server = ApiServer(self.clock, self.random)
        self.batch = Batch(self.server, self.random, self.log, self._check_start)
        self.replicas = [Replica(f"operator-{n}", self) for n in range(self.random.choice((1, 2, 2)))]
        self.acts: Counter[str] = Counter()
        self.is_troubled = True
        self.problem = ""
        self.writes = 0
        self.statuses: dict[str, JobStatus] = {}  # by uid
        self.starts: Counter[tuple[str, int]] = Counter()
        self.own: dict[str, bool] = {}  # uid of a job → it has clusters of its own
        self.runs: Counter[tuple[str, str]] = (
            Counter()
        )  # uid of a schedule and name of a run → how often it was created
        self.has_schedules = self.seed % 3 == 0
        self.number = 0

    def log(self, text: str) -> None:
        self.lines.append(f"{self.clock.now:8.2f}  {text}")

    def wrote(self, name: str) -> None:
        self.writes += 1

    def run(self) -> None:
        """Raises Violation if an invariant does not hold."""
        virtual_time.run(self._run(), self.clock, self.seed)

    async def _run(self) -> None:
        self.server.listeners.append(self._check_status)
        runs = (self.batch.run(), *(each.run() for each in self.replicas), self._story())
        await until_one_ends([asyncio.create_task(each) for each in runs])

    async def _story(self) -> None:
        self.restore_cluster()
        self.submit()
        actions: list[Callable[[], None]] = [
            self.submit, self.submit, self.cancel, self.suspend, self.suspend_early, self.suspend_early, self.resume,
            self.break_spec, self.correct_spec,
            self.replace_job, self.take_name, self.kill_head, self.delete_cluster, self.restore_cluster,
            self.delete_pod, self.delete_driver, self.hold_drivers, self.release_drivers, self.cut_off_node,
            self.cut_off_node, self.bad_network, self.good_network, self.pause_process,
        ]  # fmt: skip
        if self.has_schedules:
            self.submit_schedule()
            actions += [self.submit_schedule, self.cancel, self.edit_schedule, self.good_network]
        for _ in range(self.random.randint(5, 20)):
            await asyncio.sleep(self.random.expovariate(1 / (25.0 if self.has_schedules else 6.0)))
            act = self.random.choice(actions)
            self.acts[act.__name__] += 1
            self.log(act.__name__)
            act()
            self._raise_problem()
        self.log("faults stop")
        self.is_troubled = False
        self.faults.stop()
        for replica in self.replicas:
            replica.process.dies_after, replica.process.paused_until = None, 0.0
        await self._converge()

    async def _converge(self) -> None:
        await self._until_over(lambda job: self.own[job["metadata"]["uid"]])
        while not all(node.is_up for node in self.batch.nodes):  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(2.0)
        await self._until_over(lambda job: True)
        await asyncio.sleep(CLEANUP_SECONDS)
        self._raise_problem()
        self._check_end()
        writes, passes = self.writes, sum(each.passes for each in self.replicas)
        await asyncio.sleep(REST_SECONDS)
        if self.writes != writes:
            raise Violation(f"{self.writes - writes} writes at rest")
        most = PASSES_AT_REST * len(self.replicas) * len(self.own)
        if (extra := sum(each.passes for each in self.replicas) - passes) > most:
            raise Violation(f"{extra} passes at rest")

    async def _until_over(self, is_due: Callable[[Object], bool]) -> None:
        deadline = self.clock.now + CONVERGE_SECONDS
        while left := [job for job in self._jobs() if is_due(job) and not self._status(job).state.is_final]:
            self._raise_problem()
            self.restore_cluster()
            self.resume()
            self.release_drivers()
            self.correct_spec()
            self.cancel_schedules()
            if self.clock.now > deadline:
                raise Violation(f"not over after {CONVERGE_SECONDS:.0f} s: {left[0]['metadata']['name']}")
            await asyncio.sleep(2.0)

    def _raise_problem(self) -> None:
        if self.problem:
            raise Violation(self.problem)

    # invariants

    def _check_start(self, driver: Driver) -> None:
        """A driver runs once, and alone: one that was cut off has lost its cluster, unless others use it too."""
        self.log(f"driver of attempt {driver.n} of {driver.job} starts on {driver.node.name}")
        self.starts[driver.job, driver.n] += 1
        if self.starts[driver.job, driver.n] > 1:
            self.problem = f"attempt {driver.n} of {driver.job} runs twice"
        others = [each for each in self.batch.running(driver.job) if each is not driver]
        if any(not each.was_cut_off or not self.own[driver.job] for each in others):
            self.problem = f"attempt {driver.n} of {driver.job} runs beside {others}"
        status = self.statuses[driver.job]
        if status.state.is_final or status.attempt != driver.n:
            self.problem = f"attempt {driver.n} of {driver.job} starts after its end: {status}"

    def _check_status(self, event: Event) -> None:
        plural, _, name = event.key
        if plural != "computejobs" or event.type == "DELETED":
            return
        uid, new = event.object["metadata"]["uid"], job_codec.load_status(event.object.get("status"))
        if event.type == "ADDED":
            self.own[uid] = "name" not in event.object["spec"]["cluster"]
            self._check_run(event.object)
        old = self.statuses.get(uid, JobStatus())
        self.statuses[uid] = new
        if new != old:
            self.log(f"{name}: {new.state} {new.reason} attempt {new.attempt}: {new.message}")
        if old.state.is_final and new != old:
            self.problem = f"the verdict of {name} changed"
        if new.attempt - old.attempt not in (0, 1):
            self.problem = f"{name} skipped an attempt"
        self._check_promise(uid, old, new)
        before = {attempt.n: attempt for attempt in old.attempts}
        for attempt in new.attempts:
            known = before.get(attempt.n)
            if known is not None and known.ended is not None and known != attempt:
                self.problem = f"attempt {attempt.n} of {name} changed after its end"
            elif known is not None and known.ended is None and attempt.ended is not None:
                self._check_verdict(uid, attempt)
        last = old.last
        if new.attempt > old.attempt and last is not None and (last.outcome is Outcome.SUCCEEDED or not last.reason):
            self.problem = f"{name} has no reason for attempt {new.attempt}"

    def _check_promise(self, uid: str, old: JobStatus, new: JobStatus) -> None:
        """A run that the status names is created, or counts as missed."""
        if old.schedule is None or new.schedule is None or new.state.is_final:
            return
        name = old.schedule.starting
        if name not in ("", new.schedule.starting) and not self.runs[uid, name]:
            if new.schedule.missed == old.schedule.missed:
                self.problem = f"run {name} is forgotten"

    def _check_run(self, run: Object) -> None:
        """A run is created once, and alone unless its schedule says Allow."""
        metadata = run["metadata"]
        for owner in metadata.get("ownerReferences") or ():
            template = self.server.objects.get(("computejobs", NAMESPACE, owner["name"]))
            if template is None or template["metadata"]["uid"] != owner["uid"]:
                continue  # Kubernetes deletes it
            self.log(f"run {metadata['name']} is created")
            self.runs[owner["uid"], metadata["name"]] += 1
            if self.runs[owner["uid"], metadata["name"]] > 1:
                self.problem = f"run {metadata['name']} is created twice"
            others = [each for each in self.server.owned("computejobs", owner["uid"]) if each["metadata"] != metadata]
            active = [each["metadata"]["name"] for each in others if not self._status(each).state.is_final]
            if active and template["spec"]["schedule"]["concurrency"] != "Allow":
                self.problem = f"run {metadata['name']} is created beside {active}"

    def _check_verdict(self, uid: str, attempt: Attempt) -> None:
        ran = [each for each in self.batch.drivers.values() if (each.job, each.n) == (uid, attempt.n)]
        if any(each.code is None and not each.was_cut_off for each in ran):
            self.problem = f"attempt {attempt.n} of {uid} was settled while its driver ran"
        if attempt.exit_code is not None and [each.code for each in ran] != [attempt.exit_code]:
            self.problem = f"attempt {attempt.n} of {uid} did not exit with {attempt.exit_code}: {ran}"
        if attempt.outcome is Outcome.SUCCEEDED and attempt.exit_code != 0:
            self.problem = f"attempt {attempt.n} of {uid} did not succeed"

    def _check_end(self) -> None:
        present = {each["metadata"]["uid"] for each in self._jobs()}
        if running := [each for each in self.batch.drivers.values() if each.code is None]:
            raise Violation(f"drivers run after the end: {running}")
        for cluster in self.server.find("computeclusters"):
            owners = [each["uid"] for each in cluster["metadata"].get("ownerReferences") or ()]
            if owners and owners[0] in present:
                raise Violation(f"cluster {cluster['metadata']['name']} was not removed")
        for job in self._jobs():
            status, name = self._status(job), job["metadata"]["name"]
            if status.state is JobState.SUCCEEDED and status.exit_code != 0:
                raise Violation(f"{name} succeeded with {status.exit_code}")

    # users and faults

    def _jobs(self) -> list[Object]:
        return list(self.server.find("computejobs"))

    def _status(self, job: Object) -> JobStatus:
        return job_codec.load_status(job.get("status"))

    def _any(self, plural: str, *, active: bool = False) -> Object | None:
        found = [each for each in self.server.find(plural) if not active or not self._status(each).state.is_final]
        return self.random.choice(found) if found else None

    def _patch_job(self, body: Object) -> None:
        if (job := self._any("computejobs", active=True)) is not None:
            self.server.patch(("computejobs", NAMESPACE, job["metadata"]["name"]), body)

    def submit(self, name: str = "", schedule: Object | None = None) -> None:
        pick, is_own = self.random.choice, self.random.random() < 0.5
        self.number += not name
        spec = {
            "cluster": CLUSTER if is_own else {"name": "demo"},
            "entrypoint": ["python", "train.py"],
            "retries": pick((0, 1, 3)),
            "recoveries": pick((0, 2, 5)),
            "backoff": {"first": pick((0.1, 5))},
            "deadline": pick((None, None, 60)),
            "attemptDeadline": pick((None, None, 20)),
            "startDeadline": pick((30, 3600)),
            "cleanup": {"policy": pick(("running", "all")), "after": {"failed": pick((0, 30))}},
            "schedule": schedule,
        }
        metadata = {"name": name or f"job{self.number}", "namespace": NAMESPACE}
        spec = {key: value for key, value in spec.items() if value is not None}
        self.server.create("computejobs", {"kind": "ComputeJob", "metadata": metadata, "spec": spec})

    def submit_schedule(self) -> None:
        self.submit(schedule={
            "cron": "* * * * *",
            "concurrency": self.random.choice(("Allow", "Forbid", "Replace")),
            "history": self.random.choice((0, 1, 3)),
        })  # fmt: skip

    def edit_schedule(self) -> None:
        for job in self._jobs():
            if "schedule" in job["spec"]:
                change = {"spec": {"schedule": {"cron": self.random.choice(("* * * * *", "*/2 * * * *"))}}}
                self.server.patch(("computejobs", NAMESPACE, job["metadata"]["name"]), change)

    def cancel_schedules(self) -> None:
        for job in self._jobs():
            if "schedule" in job["spec"] and not self._status(job).state.is_final:
                change = {"metadata": {"annotations": {names.CANCEL: "requested"}}}
                self.server.patch(("computejobs", NAMESPACE, job["metadata"]["name"]), change)

    def cancel(self) -> None:
        self._patch_job({"metadata": {"annotations": {names.CANCEL: "requested"}}})

    def suspend(self) -> None:
        self._patch_job({"spec": {"suspend": True}})

    def suspend_early(self) -> None:
        """Suspend a job whose driver is about to start, and resume it soon."""
        for job in self._jobs():
            if self._status(job).state is JobState.STARTING:
                self.server.patch(("computejobs", NAMESPACE, job["metadata"]["name"]), {"spec": {"suspend": True}})

    def resume(self) -> None:
        for job in self._jobs():
            if job["spec"].get("suspend"):
                self.server.patch(("computejobs", NAMESPACE, job["metadata"]["name"]), {"spec": {"suspend": False}})

    def break_spec(self) -> None:
        self._patch_job({"spec": {"retries": -1}})

    def correct_spec(self) -> None:
        for job in self._jobs():
            if job["spec"]["retries"] < 0:
                self.server.patch(("computejobs", NAMESPACE, job["metadata"]["name"]), {"spec": {"retries": 1}})

    def replace_job(self) -> None:
        """Delete a job and submit another one of the same name at once."""
        if (job := self._any("computejobs")) is not None:
            self.server.delete(("computejobs", NAMESPACE, job["metadata"]["name"]))
            self.submit(job["metadata"]["name"])

    def take_name(self) -> None:
        """Somebody has a cluster with the name that a job will need."""
        if (job := self._any("computejobs", active=True)) is None:
            return
        name = f"{job['metadata']['name']}-{self._status(job).attempt + 1}"
        if ("computeclusters", NAMESPACE, name) not in self.server.objects:
            self._create_cluster(name)

    def _create_cluster(self, name: str) -> None:
        metadata = {"name": name, "namespace": NAMESPACE}
        self.server.create("computeclusters", {"kind": "ComputeCluster", "metadata": metadata, "spec": CLUSTER})

    def restore_cluster(self) -> None:
        if DEMO not in self.server.objects:
            self._create_cluster("demo")

    def kill_head(self) -> None:
        if (cluster := self._any("computeclusters")) is not None:
            metadata = cluster["metadata"]
            key = ("computeclusters", NAMESPACE, metadata["name"])
            self.batch.set_head(key, metadata["uid"], f"{self.clock.now:.0f}")

    def delete_cluster(self) -> None:
        if (cluster := self._any("computeclusters")) is not None:
            self.server.delete(("computeclusters", NAMESPACE, cluster["metadata"]["name"]))

    def delete_pod(self) -> None:
        if (pod := self._any("pods")) is not None:
            self.server.delete(("pods", NAMESPACE, pod["metadata"]["name"]))

    def delete_driver(self) -> None:
        """Somebody deletes the batch/v1 Job of a driver that is known to run."""
        if (job := self._any("computejobs", active=True)) is not None:
            last = self._status(job).last
            key = ("jobs", NAMESPACE, f"{job['metadata']['name']}-{last.n if last is not None else 0}")
            if last is not None and last.started is not None and key in self.server.objects:
                self.server.delete(key)

    def hold_drivers(self) -> None:
        """Kueue manages all batch/v1 Jobs: it suspends those that are new."""
        for job in self.server.find("jobs"):
            key = ("jobs", NAMESPACE, job["metadata"]["name"])
            if self.batch.is_new(key):
                self.server.patch(key, {"spec": {"suspend": True}})

    def release_drivers(self) -> None:
        """Kueue resumes all Jobs, also those that the operator has stopped."""
        for job in self.server.find("jobs"):
            if job["spec"].get("suspend"):
                self.server.patch(("jobs", NAMESPACE, job["metadata"]["name"]), {"spec": {"suspend": False}})

    def cut_off_node(self) -> None:
        self.batch.cut_off(self.random.choice(self.batch.nodes), self.random.choice((10.0, 50.0, 200.0, AWAY_SECONDS)))

    def bad_network(self) -> None:
        pick = self.random.choice
        self.faults.lost_request, self.faults.lost_reply = pick((0.0, 0.2)), pick((0.0, 0.2))
        self.faults.server_error, self.faults.broken_watch = pick((0.0, 0.2)), pick((0.0, 0.1))
        self.faults.slowest_reply, self.faults.watch_lag = pick((0.02, 3.0, 10.0)), pick((0.05, 5.0, 20.0))

    def good_network(self) -> None:
        self.faults.stop()

    def pause_process(self) -> None:
        replica = self.random.choice(self.replicas)
        replica.process.paused_until = self.clock.now + self.random.choice((5.0, 40.0))
