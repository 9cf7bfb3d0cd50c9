"""One history: users, faults and the real operator against a simulated Kubernetes, all drawn from one seed.

PYTHONHASHSEED=0 PYTHONPATH=tests/toy .venv/bin/python -m tests.simulation.history SEED    replays one
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast
from unittest import mock

from oars import engines
from oars.kube.client import Client
from oars.kube.kinds import Object
from oars.operator import RunOptions
from oars.operator.main import Operator
from oars.operator.resources import RESOURCE_KINDS
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.spec.cluster import API_VERSION, KIND
from tests.simulation import virtual_time
from tests.simulation.api_server import ApiServer, Connection, Faults, Killed, Process
from tests.simulation.controllers import Kubernetes, is_head, is_running
from tests.simulation.engine import SimulatedEngine
from tests.simulation.virtual_time import Clock

NAMESPACE = "lab"
CONVERGE_SECONDS = 400.0  # schedule, crash back-off, the gate of a scale-down, and lease all end within this
REST_SECONDS = 40.0


class Violation(AssertionError):
    """An invariant does not hold."""


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

    async def run(self) -> None:
        while True:
            history = self.history
            self.process = process = Process(self.name, self.kills.pop(0) if self.kills else None)
            client = cast(Client, Connection(history.server, history.faults, history.log, process))
            options = RunOptions(namespaces=(NAMESPACE,), lease_namespace=NAMESPACE, identity=self.name)
            operator = Operator(client, options, RESOURCE_KINDS)
            operator._server = NullServer()  # type: ignore[assignment]
            life = asyncio.create_task(operator.run())
            process.on_death = life.cancel
            try:
                await life
            except (Killed, asyncio.CancelledError):
                if not process.dead:
                    raise
            await asyncio.sleep(history.random.uniform(0.5, 5.0))
            history.log(f"{self.name}: started again")


@dataclass
class History:
    seed: int
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = Clock()
        self.server = ApiServer(self.clock, self.random)
        self.faults = Faults()
        self.kubernetes = Kubernetes(self.server, self.random, self.log)
        self.engine = SimulatedEngine(self.kubernetes, self.random, self.log)
        self.replicas = [Replica(f"operator-{number}", self) for number in range(self.random.choice((1, 1, 2)))]
        self.largest: dict[str, int] = {}  # cluster → most workers desired so far
        self.waiting_since: dict[str, float] = {}

    def log(self, text: str) -> None:
        self.lines.append(f"{self.clock.now:8.2f}  {text}")

    # Run

    def run(self) -> None:
        """Raises Violation if an invariant does not hold."""
        with mock.patch.object(engines, "get", lambda name: self.engine):
            virtual_time.run(self._run(), self.clock, self.seed)

    async def _run(self) -> None:
        tasks = [asyncio.create_task(self.kubernetes.run()), asyncio.create_task(self._use())]
        story = asyncio.create_task(self._story())
        for replica in self.replicas:
            if self.random.random() < 0.6:
                replica.kills = [self.random.randint(1, 25) for _ in range(self.random.randint(1, 3))]
            tasks.append(asyncio.create_task(replica.run()))
        try:
            done, _ = await asyncio.wait([story, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (story, *tasks):
                task.cancel()
            await asyncio.gather(story, *tasks, return_exceptions=True)

    async def _story(self) -> None:
        await self._cause_trouble()
        await self._converge()
        await self._rest()

    async def _use(self) -> None:
        """Users compute all the time; the invariants hold all the time."""
        while True:
            await asyncio.sleep(self.random.uniform(0.2, 0.6))
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
            self.unready_worker,
        ]  # fmt: skip
        for _ in range(self.random.randint(4, 12)):
            await asyncio.sleep(self.random.expovariate(1 / 5.0))
            act = self.random.choice(actions)
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

    async def _converge(self) -> None:
        deadline = self.clock.now + CONVERGE_SECONDS
        while problem := self._not_converged():
            if self.clock.now > deadline:
                raise Violation(f"not converged after {CONVERGE_SECONDS:.0f} s: {problem}")
            await asyncio.sleep(1.0)
        self.log("converged")

    async def _rest(self) -> None:
        """Nothing but Leases is written at rest. What only protects a settled cluster may come first."""
        await asyncio.sleep(60.0)
        before = len(self.lines)
        await asyncio.sleep(REST_SECONDS)
        writes = [line for line in self.lines[before:] if "operator-" in line and "leases" not in line]
        if writes:
            raise Violation(f"writes at rest: {writes[:5]}")
        if problem := self._not_converged():
            raise Violation(f"it did not stay so: {problem}")

    # Invariants

    def _clusters(self) -> list[Object]:
        return list(self.server.find("computeclusters"))

    def _pods_of(self, cluster: str, *, head: bool) -> list[Object]:
        return [pod for pod in self.kubernetes.members(cluster) if is_head(pod) == head]

    def _check_always(self) -> None:
        if self.engine.lost:
            raise Violation(f"acknowledged results were lost: {self.engine.lost}")
        for cluster in self._clusters():
            name = cluster["metadata"]["name"]
            heads = [pod for pod in self._pods_of(name, head=True) if is_running(pod)]
            if len(heads) > 1:
                raise Violation(f"two heads serve {name}: {[pod['metadata']['name'] for pod in heads]}")
            most, workers = self.largest[name], self._pods_of(name, head=False)
            if len(workers) > 2 * most:  # a rolling change starts the new ones beside the old ones
                raise Violation(f"{len(workers)} workers of {name}, but at most {most} were desired")
            self._check_reason(cluster)

    def _check_reason(self, cluster: Object) -> None:
        """A cluster that has not been ready for long says why."""
        name, status = cluster["metadata"]["uid"], cluster.get("status") or {}
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
        if ready or status.get("message") or not status:
            self.waiting_since.pop(name, None)
        elif self.clock.now - self.waiting_since.setdefault(name, self.clock.now) > 60:
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
            image = cluster["spec"].get("env", {}).get("VERSION")
            for pod in [*workers, *heads]:
                container = pod["spec"]["containers"][0]
                env = {each["name"]: each.get("value") for each in container.get("env") or ()}
                if env.get("VERSION") != image:
                    return f"{pod['metadata']['name']} has an old revision"
        for plural in ("deployments", "replicasets", "pods", "services"):
            for obj in self.server.find(plural):
                if obj["metadata"].get("labels", {}).get(names.CLUSTER) not in clusters:
                    return f"orphaned: {plural} {obj['metadata']['name']}"
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
                "spec": {"engine": "played", "replicas": workers, "workers": [{"cpu": 1}]},
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
        self.largest[name] = max(self.largest.get(name, 0), workers)

    def force(self) -> None:
        if cluster := self._any_cluster():
            self.log(f"user: force {cluster['metadata']['name']}")
            generation = str(cluster["metadata"]["generation"])
            self._patch(cluster, {"metadata": {"annotations": {names.FORCE: generation}}})

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
            self.server.delete((COMPUTE_CLUSTER.plural, NAMESPACE, name))
            if self.random.random() < 0.7:
                self._create(name)

    def second_cluster(self) -> None:
        if not any(cluster["metadata"]["name"] == "other" for cluster in self._clusters()):
            self._create("other")

    def scale_deployment(self) -> None:
        if found := [d for d in self.server.find("deployments") if not d["metadata"]["name"].endswith("-head")]:
            deployment = self.random.choice(found)
            count = deployment["spec"]["replicas"] + self.random.choice((1, 2))
            self.log(f"user: scale Deployment {deployment['metadata']['name']} to {count}")
            self._allow(deployment["metadata"]["labels"][names.CLUSTER], count)
            key = ("deployments", NAMESPACE, deployment["metadata"]["name"])
            self.server.patch(key, {"spec": {"replicas": count}})

    def delete_object(self) -> None:
        plural = self.random.choice(("services", "serviceaccounts", "networkpolicies"))
        if found := list(self.server.find(plural)):
            name = self.random.choice(found)["metadata"]["name"]
            self.log(f"user: delete {plural} {name}")
            self.server.remove((plural, NAMESPACE, name))

    # Faults

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
            self.log(f"fault: {pod['metadata']['name']} is not ready for a while")
            self.kubernetes.set_ready(pod, False)
            self.kubernetes.unready_since[pod["metadata"]["uid"]] = self.clock.now
            self.kubernetes.later(
                pod, "busy", self.random.uniform(5, 40), lambda each: self.kubernetes.set_ready(each, True)
            )

    def lose_node(self) -> None:
        up = [node for node in self.kubernetes.nodes if node.is_up]
        if len(up) > 1:
            self.kubernetes.lose_node(self.random.choice(up), self.random.uniform(5, 60))

    async def bad_network(self) -> None:
        self.log("fault: bad network")
        faults, rng = self.faults, self.random
        faults.lost_request, faults.lost_reply = rng.uniform(0, 0.2), rng.uniform(0, 0.2)
        faults.server_error, faults.broken_watch = rng.uniform(0, 0.2), rng.uniform(0, 0.1)
        faults.expired_watch, faults.watch_lag = rng.uniform(0, 0.05), rng.choice((0.05, 1.0, 5.0))
        faults.slowest_reply = rng.choice((0.02, 0.5))
        await asyncio.sleep(rng.uniform(2, 20))
        faults.stop()
        self.log("fault: the network is well")

    async def bad_engine(self) -> None:
        self.log("fault: bad engine")
        bad, rng = self.engine.misbehaviour, self.random
        bad.silent, bad.refuse = rng.choice((0.0, 0.3, 1.0)), rng.choice((0.0, 0.5))
        bad.hang, bad.error = rng.choice((0.0, 0.3)), rng.choice((0.0, 0.2))
        await asyncio.sleep(rng.uniform(2, 20))
        bad.stop()
        self.log("fault: the engine is well")

    def step_clock(self) -> None:
        seconds = self.random.choice((-3600.0, -30.0, 30.0, 3600.0))
        self.log(f"fault: the clock steps by {seconds:.0f} s")
        self.clock.step += seconds


def main(words: list[str]) -> int:
    """FIRST [LAST]: run these seeds; print the history of each that violates an invariant, or of a single one."""
    logging.getLogger("oars").setLevel(logging.CRITICAL)
    first, last = int(words[0]), int(words[-1])
    violations = 0
    for seed in range(first, last + 1):
        history = History(seed)
        ending = f"seed {seed}: all invariants hold"
        try:
            history.run()
        except Violation as error:
            ending = f"seed {seed}: {error}"
            violations += 1
        if first == last or "all invariants" not in ending:
            sys.stdout.write("\n".join([*history.lines, ending, ""]))
    sys.stdout.write(f"{last - first + 1} histories, {violations} violations\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
