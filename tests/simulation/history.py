"""One history: users, faults and the real operator against a simulated Kubernetes, all drawn from one seed.

PYTHONHASHSEED=0 PYTHONPATH=tests/toy .venv/bin/python -m tests.simulation SEED    replays one
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from unittest import mock

from oars import engines
from oars.kube.client import Client
from oars.kube.kinds import Object
from oars.operator import NAME as OPERATOR
from oars.operator import RunOptions
from oars.operator.main import Operator
from oars.operator.resources import RESOURCE_KINDS, ResourceKind
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state.observe import annotation, deployment_of
from oars.places.kube.wire import KubeWire
from oars.plan.decide import SETTLED
from oars.spec.cluster import API_VERSION, KIND
from tests.simulation import virtual_time
from tests.simulation.api_server import ApiServer, Connection, Event, Faults, Key, Killed, Process, cluster_of
from tests.simulation.controllers import Kubernetes, is_head, is_running
from tests.simulation.engine import LIES, SimulatedEngine
from tests.simulation.virtual_time import Clock

NAMESPACE = "lab"
FRESH_SECONDS = 60.0  # longer than a Lease, and than nodes are away and processes paused
CONVERGE_SECONDS = 400.0  # schedule, crash back-off, the gate of a scale-down, and lease all end within this
ON_ITS_WAY = 2.0  # seconds that a request may take
REST_SECONDS = 40.0
NOTICE_SECONDS = 45.0  # after a change, until no loop acts as before; processes are paused for 40 s
CATCH_UP_SECONDS = 5.0
REASON_SECONDS = 90.0  # a worker that does not join is reported after 45 s, by an operator that leads


class Violation(AssertionError):
    """An invariant does not hold."""


async def live(process: Process, life: Coroutine[Any, Any, None]) -> None:
    """Run one life of a process, until it ends or is killed."""
    task = asyncio.create_task(life)
    process.on_death = task.cancel
    try:
        await task
    except (Killed, asyncio.CancelledError):
        if not process.dead:
            raise


async def until_one_ends(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raise what the first task to end raises. Then cancel the others."""
    try:
        for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class NullServer:
    async def start(self, *_: object) -> None:
        """No pages in a simulation."""

    async def close(self) -> None:
        """Nothing to close."""


@dataclass
class Replica:
    """One operator process, restarted when it was killed."""

    name: str
    history: History
    process: Process | None = None
    kills: list[int] = field(default_factory=list)  # numbers of writes after which it is killed, one per life
    kinds: Sequence[ResourceKind] = RESOURCE_KINDS
    trust_authors: bool = False

    async def run(self) -> None:
        while True:
            history = self.history
            self.process = process = Process(self.name, self.kills.pop(0) if self.kills else None)
            client = cast(Client, self.connect(process))
            options = RunOptions(
                namespaces=history.namespaces, lease_namespace=NAMESPACE, identity=self.name,
                trust_authors=self.trust_authors,
            )  # fmt: skip
            operator = Operator(client, options, self.kinds)
            operator._server = NullServer()  # type: ignore[assignment]
            await live(process, operator.run())
            await self.restart_later()

    def connect(self, process: Process) -> Connection:
        history = self.history
        return Connection(history.server, history.faults, history.log, process, wrote=history.check_writer)

    async def restart_later(self) -> None:
        await asyncio.sleep(self.history.random.uniform(0.5, 5.0))
        self.history.waiting_since.clear()  # the next one has to find out the reason
        self.history.log(f"{self.name}: started again")


@dataclass
class History:
    seed: int
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = Clock()
        self.namespaces: tuple[str, ...] = (NAMESPACE,)
        self.server = ApiServer(self.clock, self.random)
        self.faults = Faults()
        self.kubernetes = Kubernetes(self.server, self.random, self.log)
        self.engine = SimulatedEngine(self.kubernetes, self.random, self.log)
        self.server.listeners.append(self._check_surplus)
        self.replicas = self.make_replicas()
        self.wanted: dict[str, list[tuple[float, int]]] = {}  # cluster → since when, how many workers were desired
        self.sizes: dict[str, int] = {}  # uid of a Deployment → its replicas
        self.waiting_since: dict[str, float] = {}
        self.lease: Key = ("leases", NAMESPACE, OPERATOR)
        self.holder = ("", 0.0)  # of the Lease, and since when
        self.problem = ""
        self.only: tuple[str, ...] = ()  # if given, the only things that users do and that go wrong
        self.acts: Counter[str] = Counter()  # what users did and which faults there were

    def make_replicas(self) -> list[Replica]:
        return [Replica(f"operator-{number}", self) for number in range(self.random.choice((1, 1, 2)))]

    def log(self, text: str) -> None:
        self.lines.append(f"{self.clock.now:8.2f}  {text}")

    # Run

    def run(self) -> None:
        """Raises Violation if an invariant does not hold."""
        engine = self.engine

        async def ask(wire: KubeWire, *words: object, **options: object) -> Object:
            return await engine.send_secrets(wire, *words, **options)

        with (
            mock.patch.object(engines, "get", lambda name: engine),
            mock.patch.object(engines, "names", lambda: [engine.name]),  # it reads the file system each time
            mock.patch.object(KubeWire, "ask", ask),
        ):
            virtual_time.run(self._run(), self.clock, self.seed)

    async def _run(self) -> None:
        runs = (self.kubernetes.run(), self._use(), self._story())
        tasks = [asyncio.create_task(each) for each in runs]
        for replica in self.replicas:
            if self.random.random() < 0.6:
                replica.kills = [self.random.randint(1, 25) for _ in range(self.random.randint(1, 3))]
            tasks.append(asyncio.create_task(replica.run()))
        await until_one_ends(tasks)

    async def _story(self) -> None:
        await self._cause_trouble()
        await self._converge()
        await self._rest()

    async def _use(self) -> None:
        """Users compute all the time; the invariants hold all the time."""
        while True:
            await asyncio.sleep(self.random.uniform(0.2, 0.6) if self.engine.in_use else 2.0)
            for cluster in self._clusters():
                self.engine.submit(cluster["metadata"]["name"])
            self.engine.account()
            self._check_always()

    async def _cause_trouble(self) -> None:
        self._create("demo")
        actions: list[Callable[[], Awaitable[None] | None]] = [
            self.scale, self.scale, self.scale, self.change_workers, self.change_head, self.force, self.recreate,
            self.delete_pod, self.delete_head, self.restart_worker, self.restart_head, self.lose_node, self.bad_network,
            self.bad_engine, self.step_clock, self.scale_deployment, self.delete_object, self.second_cluster,
            self.unready_worker, self.pause_process, self.evict, self.drain_node, self.break_spec,
            self.scale_while_busy, self.request_drain, self.interrupt_scale_down,
        ]  # fmt: skip
        actions = [act for act in actions if not self.only or act.__name__ in self.only]
        for _ in range(self.random.randint(4, 12)):
            await asyncio.sleep(self.random.expovariate(1 / 5.0))
            act = self.random.choice(actions)
            self.acts[act.__name__] += 1
            if (waits := act()) is not None:
                await waits
        await asyncio.sleep(self.random.uniform(0, 10))
        self.log("faults stop")
        self.faults.stop()
        self.engine.misbehaviour.stop()
        self.engine.release()
        for replica in self.replicas:
            replica.kills.clear()
            if replica.process is not None:
                replica.process.dies_after = None
                replica.process.paused_until = 0.0

    async def _converge(self) -> None:
        """The status may be that of before the last faults, until a leader has been elected and has seen them."""
        await asyncio.sleep(FRESH_SECONDS)
        deadline = self.clock.now + CONVERGE_SECONDS
        while problem := self._not_converged():
            if self.clock.now > deadline:
                raise Violation(f"not converged after {CONVERGE_SECONDS:.0f} s: {problem}")
            await asyncio.sleep(1.0)
        self.log("converged")

    async def _rest(self) -> None:
        """Nothing but Leases is written at rest. What only protects a settled cluster may come first."""
        await asyncio.sleep(2 * SETTLED)
        before = len(self.lines)
        await asyncio.sleep(REST_SECONDS)
        lines = [line for line in self.lines[before:] if "leases" not in line and not line.endswith("started again")]
        writes = [line for line in lines if any(f"  {each.name}: " in line for each in self.replicas)]
        if writes:
            raise Violation(f"writes at rest: {writes[:5]}")
        if problem := self._not_converged():
            raise Violation(f"it did not stay so: {problem}")

    # Invariants

    def _clusters(self) -> list[Object]:
        return list(self.server.find("computeclusters"))

    def _pods_of(self, cluster: str, *, head: bool) -> list[Object]:
        return [pod for pod in self.kubernetes.members(cluster) if is_head(pod) == head]

    def _worker_deployments(self, cluster: str) -> list[Object]:
        """All clusters have one worker group."""
        found = [obj for obj in self.server.find("deployments") if cluster_of(obj) == cluster]
        return [obj for obj in found if obj["metadata"]["labels"][names.GROUP] != "head"]

    def _check_always(self) -> None:
        if self.problem:
            raise Violation(self.problem)
        if self.engine.lost:
            raise Violation(f"acknowledged results were lost: {self.engine.lost}")
        for cluster in self._clusters():
            name = cluster["metadata"]["name"]
            heads = [pod for pod in self._pods_of(name, head=True) if is_running(pod)]
            if len(heads) > 1:
                raise Violation(f"two heads serve {name}: {[pod['metadata']['name'] for pod in heads]}")
            self._check_reason(cluster)

    def _check_surplus(self, event: Event) -> None:
        """A Deployment does not grow beyond what is desired, or was within the time that a loop may need to notice, and
        the workers that retire. A rolling change starts a second Deployment beside the first; all together have at most
        twice as many. Garbage does not count: Kubernetes will delete it."""
        if event.key[0] != "deployments" or event.type == "DELETED":
            return
        metadata, size, now = event.object["metadata"], event.object["spec"]["replicas"], self.clock.now
        is_garbage = self.server.is_garbage
        before, self.sizes[metadata["uid"]] = self.sizes.get(metadata["uid"], 0), size
        found = [each for each in self._clusters() if each["metadata"]["name"] == cluster_of(event.object)]
        if metadata["labels"].get(names.GROUP) == "head" or size <= before or not found or is_garbage(event.object):
            return
        history = self.wanted.get(cluster_of(event.object)) or [(now, self._replicas(found[0]))]
        ends = [*(since for since, _ in history[1:]), now]
        recent = [count for (_, count), end in zip(history, ends, strict=True) if end > now - NOTICE_SECONDS]
        most = max(recent) + len((found[0].get("status") or {}).get("retiring") or ())
        if size > most:
            self.problem = f"{metadata['name']} has {size} replicas, but at most {most} are desired"
        owned = [each for each in self._worker_deployments(cluster_of(event.object)) if not is_garbage(each)]
        total = sum(min(each["spec"]["replicas"], most) for each in owned)
        if total > most + max(recent):
            self.problem = f"{total} replicas, but at most {max(recent)} and a surge of as many are desired"

    def check_writer(self, name: str) -> None:
        """Two leaders never both write. A request that was on its way when the Lease changed hands is excused."""
        lease = self.server.objects.get(self.lease)
        holder = str((lease or {}).get("spec", {}).get("holderIdentity") or "")
        if holder != self.holder[0]:
            self.holder = holder, self.clock.now
        is_other = holder and holder != name and not holder.startswith(f"{name}-")
        if is_other and self.clock.now - self.holder[1] > ON_ITS_WAY:
            self.problem = f"{name} wrote, but {holder} holds the Lease"

    def _check_reason(self, cluster: Object) -> None:
        """A cluster that has not been ready for long says why."""
        name, status = cluster["metadata"]["uid"], cluster.get("status") or {}
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
        if ready or status.get("message"):
            self.waiting_since.pop(name, None)
        elif self.clock.now - self.waiting_since.setdefault(name, self.clock.now) > REASON_SECONDS:
            raise Violation(f"{cluster['metadata']['name']} waits without a reason: {status}")

    @staticmethod
    def _replicas(cluster: Object) -> int:
        return int(cluster["spec"].get("replicas", 0))

    def _not_converged(self) -> str:
        clusters = {cluster["metadata"]["name"]: cluster for cluster in self._clusters()}
        for name, cluster in clusters.items():
            status, wanted = cluster.get("status") or {}, self._replicas(cluster)
            conditions = {each["type"]: each for each in status.get("conditions") or ()}
            ready = conditions.get("Ready", {})
            if ready.get("status") != "True" or ready.get("observedGeneration") != cluster["metadata"]["generation"]:
                return f"{name} is not Ready: {status}"
            workers, heads = self._pods_of(name, head=False), self._pods_of(name, head=True)
            if len(workers) != wanted or len(heads) != 1:
                return f"{name} has {len(heads)} heads and {len(workers)} of {wanted} workers"
            if obsolete := self._worker_deployments(name)[1:]:
                return f"{name} has a Deployment too many: {[each['metadata']['name'] for each in obsolete]}"
            image = cluster["spec"].get("env", {}).get("VERSION")
            for pod in [*workers, *heads]:
                container = pod["spec"]["containers"][0]
                env = {each["name"]: each.get("value") for each in container.get("env") or ()}
                if env.get("VERSION") != image:
                    return f"{pod['metadata']['name']} has an old revision"
        for (plural, _, name), obj in self.server.objects.items():
            if names.CLUSTER in (obj["metadata"].get("labels") or {}) and cluster_of(obj) not in clusters:
                return f"orphaned: {plural} {name}"
        return ""

    # What users do

    def _create(self, name: str) -> None:
        workers = self.random.randint(0, 4)
        self.log(f"user: create {name} with {workers} workers")
        self._allow(name, workers)
        self.server.create(
            COMPUTE_CLUSTER.plural,
            {
                "apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"engine": "simulated", "replicas": workers, "workers": [{"cpu": 1}]},
            },
        )  # fmt: skip

    def _any_cluster(self) -> Object | None:
        clusters = self._clusters()
        return self.random.choice(clusters) if clusters else None

    def _patch(self, cluster: Object, body: Object) -> None:
        self.server.patch((COMPUTE_CLUSTER.plural, NAMESPACE, cluster["metadata"]["name"]), body)

    def scale(self) -> None:
        if cluster := self._any_cluster():
            workers = self.random.randint(0, 5)
            self.log(f"user: scale {cluster['metadata']['name']} to {workers}")
            self._allow(cluster["metadata"]["name"], workers)
            self._patch(cluster, {"spec": {"replicas": workers}})

    def _allow(self, name: str, workers: int) -> None:
        """From now on so many are desired."""
        self.wanted.setdefault(name, []).append((self.clock.now, workers))

    def force(self) -> None:
        if cluster := self._any_cluster():
            self.log(f"user: force {cluster['metadata']['name']}")
            generation = str(cluster["metadata"]["generation"])
            self._patch(cluster, {"metadata": {"annotations": {names.FORCE: generation}}})

    def request_drain(self) -> None:
        """A user wants a worker drained and replaced."""
        if (cluster := self._any_cluster()) and (pods := self._pods_of(cluster["metadata"]["name"], head=False)):
            pod = self.random.choice(pods)["metadata"]["name"]
            self.log(f"user: drain {pod}")
            self._annotate(cluster, {names.DRAIN: pod})

    def _annotate(self, cluster: Object, annotations: Object) -> None:
        self._patch(cluster, {"metadata": {"annotations": annotations}})

    def change_workers(self) -> None:
        if cluster := self._any_cluster():
            self.log(f"user: change the workers of {cluster['metadata']['name']}")
            self._patch(cluster, {"spec": {"workers": [{"cpu": self.random.randint(1, 3)}]}})

    def change_head(self) -> None:
        if cluster := self._any_cluster():
            self.log(f"user: change all members of {cluster['metadata']['name']}")
            self._patch(cluster, {"spec": {"env": {"VERSION": str(self.random.randint(1, 9))}}})

    def recreate(self) -> None:
        if cluster := self._any_cluster():
            name = cluster["metadata"]["name"]
            self.log(f"user: delete {name}")
            self._delete(name)
            if self.random.random() < 0.7:
                self._create(name)

    def _delete(self, name: str) -> None:
        self.server.delete((COMPUTE_CLUSTER.plural, NAMESPACE, name))

    async def break_spec(self) -> None:
        """A spec that the engine refuses, corrected after a while."""
        if cluster := self._any_cluster():
            key = (COMPUTE_CLUSTER.plural, NAMESPACE, cluster["metadata"]["name"])
            self.log(f"user: break the spec of {key[2]}")
            self._patch(cluster, {"spec": {"options": {"wrong": True}}})
            await asyncio.sleep(self.random.uniform(1, 15))
            if key in self.server.objects:
                self.log(f"user: correct the spec of {key[2]}")
                self.server.patch(key, {"spec": {"options": None}})

    def second_cluster(self) -> None:
        if not any(cluster["metadata"]["name"] == "other" for cluster in self._clusters()):
            self._create("other")

    def scale_deployment(self) -> None:
        if found := [d for d in self.server.find("deployments") if not d["metadata"]["name"].endswith("-head")]:
            deployment = self.random.choice(found)
            count = deployment["spec"]["replicas"] + self.random.choice((1, 2))
            self.log(f"user: scale Deployment {deployment['metadata']['name']} to {count}")
            self.sizes[deployment["metadata"]["uid"]] = count
            key = ("deployments", NAMESPACE, deployment["metadata"]["name"])
            self.server.patch(key, {"spec": {"replicas": count}})

    def delete_object(self) -> None:
        plural = self.random.choice(self.deletable())
        if found := list(self.server.find(plural)):
            name = self.random.choice(found)["metadata"]["name"]
            self.log(f"user: delete {plural} {name}")
            self.server.remove((plural, NAMESPACE, name))

    def deletable(self) -> tuple[str, ...]:
        return ("services", "serviceaccounts", "networkpolicies", "configmaps", "secrets")

    # Faults

    def pause_process(self) -> None:
        """The process is suspended: its requests and events wait. Its Lease may expire meanwhile. Between two pauses it
        has the time to notice changes."""
        processes = [each.process for each in self.replicas if each.process is not None]
        if running := [each for each in processes if each.paused_until + CATCH_UP_SECONDS < self.clock.now]:
            process, seconds = self.random.choice(running), self.random.uniform(2, 40)
            self.log(f"fault: {process.name} is paused for {seconds:.0f} s")
            process.paused_until = self.clock.now + seconds

    def evict(self) -> None:
        """A budget protects a head."""
        pods = list(self.kubernetes.pods())
        if pods:
            self._evict(self.random.choice(pods))

    def _evict(self, pod: Object) -> None:
        budgets = {budget["metadata"]["name"] for budget in self.server.find("poddisruptionbudgets", NAMESPACE)}
        if is_head(pod) and deployment_of(pod) in budgets:
            self.log(f"fault: the eviction of {pod['metadata']['name']} is refused")
        else:
            self.kubernetes.delete_pod(pod, "fault: evicted")

    def drain_node(self) -> None:
        node = self.random.choice(self.kubernetes.nodes)
        self.log(f"fault: node {node.name} is drained")
        for pod in list(self.kubernetes.pods()):
            if pod["spec"].get("nodeName") == node.name:
                self._evict(pod)

    def _any_pod(self, *, head: bool) -> Object | None:
        pods = [pod for pod in self.kubernetes.pods() if is_head(pod) == head]
        return self.random.choice(pods) if pods else None

    def delete_pod(self) -> None:
        if pod := self._any_pod(head=False):
            self.kubernetes.delete_pod(pod)

    def delete_head(self) -> None:
        if pod := self._any_pod(head=True):
            self.kubernetes.delete_pod(pod)

    def restart_worker(self) -> None:
        if pod := self._any_pod(head=False):
            self.engine.leave(pod["metadata"]["uid"])
            self.kubernetes.restart_container(pod)

    def restart_head(self) -> None:
        if pod := self._any_pod(head=True):
            self.kubernetes.restart_container(pod)

    def unready_worker(self) -> None:
        """A worker that is too busy for its probe."""
        if pod := self._any_pod(head=False):
            self._make_unready(pod)

    def _make_unready(self, pod: Object) -> None:
        self.log(f"fault: {pod['metadata']['name']} is not ready for a while")
        self.kubernetes.set_ready(pod, False)
        self.kubernetes.unready_since[pod["metadata"]["uid"]] = self.clock.now
        self.kubernetes.later(
            pod, "busy", self.random.uniform(5, 40), lambda each: self.kubernetes.set_ready(each, True)
        )

    async def scale_while_busy(self) -> None:
        """A worker with results is not ready while others leave."""
        if (cluster := self._any_cluster()) and self._replicas(cluster) > 1:
            workers = [pod for pod in self._pods_of(cluster["metadata"]["name"], head=False) if is_running(pod)]
            if len(workers) > 1:
                self._make_unready(self.random.choice(workers))
                await asyncio.sleep(1.5)
                self._scale_down_by_one(cluster)

    def _scale_down_by_one(self, cluster: Object) -> None:
        name, workers = cluster["metadata"]["name"], self._replicas(cluster) - 1
        self.log(f"user: scale {name} down by one")
        self._allow(name, workers)
        self._patch(cluster, {"spec": {"replicas": workers}})

    async def interrupt_scale_down(self) -> None:
        """The API server fails as soon as a pod is marked as leaving. A worker that stays is busy when it is back."""
        cluster = self._any_cluster()
        if cluster is None or self._replicas(cluster) < 2:
            return
        marked = asyncio.Event()

        def fail(event: Event) -> None:
            if event.key[0] == "pods" and annotation(event.object, names.LEAVING):
                self.faults.server_error = 1.0
                marked.set()

        self.server.listeners.append(fail)
        self._scale_down_by_one(cluster)
        try:
            async with asyncio.timeout(15):
                await marked.wait()
        except TimeoutError:
            return
        finally:
            self.server.listeners.remove(fail)
        self.log("fault: the API server fails")
        workers = self._pods_of(cluster["metadata"]["name"], head=False)
        staying = [pod for pod in workers if is_running(pod) and not annotation(pod, names.LEAVING)]
        if staying:
            self._make_unready(self.random.choice(staying))
        await asyncio.sleep(self.random.uniform(1.5, 4.0))
        self.faults.stop()
        self.log("fault: the API server is well")

    def lose_node(self) -> None:
        up = [node for node in self.kubernetes.nodes if node.is_up]
        if len(up) > 1:
            self.kubernetes.lose_node(self.random.choice(up), self.random.uniform(5, 60))

    async def bad_network(self) -> None:
        self.log("fault: bad network")
        faults, rng = self.faults, self.random
        faults.lost_request, faults.lost_reply = rng.uniform(0, 0.2), rng.uniform(0, 0.2)
        faults.server_error, faults.broken_watch = rng.uniform(0, 0.2), rng.uniform(0, 0.3)
        faults.expired_watch, faults.watch_lag = rng.uniform(0, 0.15), rng.choice((0.05, 1.0, 5.0))
        faults.slowest_reply = rng.choice((0.02, 0.5))
        await asyncio.sleep(rng.uniform(2, 20))
        faults.stop()
        self.log("fault: the network is well")

    async def bad_engine(self) -> None:
        self.log("fault: bad engine")
        bad, rng = self.engine.misbehaviour, self.random
        bad.silent, bad.refuse = rng.choice((0.0, 0.3, 1.0)), rng.choice((0.0, 0.5))
        bad.hang, bad.error = rng.choice((0.0, 0.3)), rng.choice((0.0, 0.2))
        bad.lie = rng.choice(("", "", *LIES))
        await asyncio.sleep(rng.uniform(2, 20))
        bad.stop()
        self.log("fault: the engine is well")

    def step_clock(self) -> None:
        seconds = self.random.choice((-3600.0, -30.0, 30.0, 3600.0))
        self.log(f"fault: the clock steps by {seconds:.0f} s")
        self.clock.step += seconds
