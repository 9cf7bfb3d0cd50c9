"""A simulated engine: heads that know their workers, workers that hold results, drains that take time, refuse, hang
and fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from toy_engine.simulated import SimulatedPodsEngine

from oars.base.errors import EngineUnreachable
from oars.engines.base import Wire
from oars.kube.kinds import Object
from oars.model import HEAD, Drained, DrainOutcome, MemberId, MemberView, Shape, View
from oars.places.kube import names
from oars.spec.cluster import ClusterSpec
from tests.simulation.controllers import ROLLED_OUT, Kubernetes, is_head, is_ready, is_running

LATE_SECONDS = 6.0  # after a worker has joined, until a loop with a bad network knows it


@dataclass
class Misbehaviour:
    """Probabilities of what an engine may do wrong."""

    silent: float = 0.0  # look gets no answer
    refuse: float = 0.0  # a drain ends undone
    hang: float = 0.0  # a drain gets no answer in time
    error: float = 0.0  # look or drain raises something unexpected
    lie: str = ""  # one of LIES, which the engine tells most of the time

    def stop(self) -> None:
        self.silent = self.refuse = self.hang = self.error = 0.0
        self.lie = ""


# A look lists members that do not exist, or leaves out some that do. A drain's reply names others than were asked for,
# or says that workers are empty that are in service. A look that leaves out what a drain says is empty is no lie that
# anybody could see through.
LIES = ("strangers", "gaps", "others", "pretence")


@dataclass
class SimulatedEngine(SimulatedPodsEngine):
    """Everything is keyed by incarnation: a new head knows nothing of the one before."""

    kubernetes: Kubernetes
    random: random.Random
    log: Callable[[str], None]
    misbehaviour: Misbehaviour = field(default_factory=Misbehaviour)
    results: dict[str, set[int]] = field(default_factory=dict)  # worker's uid → results that only it holds
    lost: list[str] = field(default_factory=list)  # results that were lost, with the reason
    in_use: bool = True
    forced: set[str] = field(default_factory=set)
    _retired: dict[str, set[str]] = field(default_factory=dict)  # head → workers that it has drained
    _next: int = 0
    _joined: dict[str, str] = field(default_factory=dict)  # worker's uid → the head that it joined, and no other
    _joined_at: dict[str, float] = field(default_factory=dict)
    _serving: set[str] = field(default_factory=set)  # heads that have answered their probe, and so accept workers
    _head: dict[str, str] = field(default_factory=dict)  # cluster → incarnation of the head that holds the results

    name = "simulated"

    def shape(self, spec: ClusterSpec) -> Shape:
        return replace(super().shape(spec), secrets=("token",), needs_helper=True)

    async def send_secrets(self, wire: Wire, *_: object, **__: object) -> Object:
        """What the helper sends: the files of its pod."""
        await self._answer()
        return self.kubernetes.secrets[self._dial(wire).partition(":")[0]]

    # What users do

    def submit(self, cluster: str) -> None:
        """A task finishes on some worker in service, and its result is acknowledged."""
        head = self._present_head(cluster)
        self._join(cluster, head)
        if not self.in_use:
            return
        retired = self._retired.get(head, set())
        serving = [uid for uid in self._workers(cluster, head) if uid not in retired]
        if head and serving:
            self._next += 1
            self.results.setdefault(self.random.choice(sorted(serving)), set()).add(self._next)

    def release(self) -> None:
        """Users have read all results and compute no more; a worker that holds some would stay for ever."""
        self.results.clear()
        self.in_use = False

    def account(self) -> None:
        """Find out which results are gone, and whether somebody may be blamed for it. A cluster that its user deletes
        loses its head, and all results with it; a Deployment that is deleted by others than its user is no excuse."""
        pods = {pod["metadata"]["uid"]: pod for pod in self.kubernetes.pods(active=False)}
        for cluster in {pod["metadata"]["labels"].get(names.CLUSTER, "") for pod in pods.values()}:
            head = self._present_head(cluster)
            if head != self._head.get(cluster, ""):  # the results died with the head
                self._head[cluster] = head
                for uid, pod in pods.items():
                    if pod["metadata"]["labels"].get(names.CLUSTER, "") == cluster:
                        self.results.pop(uid, None)
        for uid in [uid for uid in self.results if uid not in pods]:
            why = self.kubernetes.deaths.get(uid, "it vanished")
            held = self.results.pop(uid)
            is_excused = why.startswith("fault") or uid in self.forced
            # A worker of an earlier head may join the next one in the moment in which it is replaced.
            seconds = self.kubernetes.ended_at.get(uid, 0.0) - self._joined_at.get(uid, 0.0)
            is_excused |= why == ROLLED_OUT and seconds < LATE_SECONDS
            # A forced scale-down does not wait for unready pods, which Kubernetes then deletes first.
            if held and not is_excused and not (why == "it was scaled down" and self._is_forced()):
                self.lost.append(f"{len(held)} results of {uid}: {why}")

    def _is_forced(self) -> bool:
        """True if a user has forced the present generation of a cluster."""
        clusters = [each["metadata"] for each in self.kubernetes.server.find("computeclusters")]
        return any((each.get("annotations") or {}).get(names.FORCE) == str(each["generation"]) for each in clusters)

    def _present_head(self, cluster: str) -> str:
        heads = [pod for pod in self.kubernetes.members(cluster) if is_head(pod) and is_running(pod)]
        return incarnation(max(heads, key=lambda pod: int(pod["metadata"]["uid"][4:]))) if heads else ""

    def _join(self, cluster: str, head: str) -> None:
        """Each worker that runs joins the first head that it finds and that has the same secrets."""
        secrets = self.kubernetes.secrets
        for pod in self.kubernetes.members(cluster) if self._is_serving(head) else ():
            has_access = (
                secrets.get(pod["metadata"]["uid"], {}).get("token") == secrets[head.partition(":")[0]]["token"]
            )
            if not is_head(pod) and is_running(pod) and has_access:
                self._joined.setdefault(pod["metadata"]["uid"], head)
                self._joined_at.setdefault(pod["metadata"]["uid"], self.kubernetes.server.clock.now)

    def _is_serving(self, head: str) -> bool:
        pod = self.kubernetes.server.with_uid(head.partition(":")[0])
        if pod is not None and is_ready(pod):
            self._serving.add(head)
        return head in self._serving

    def _token(self, incarnation: str) -> str:
        """The token with which a member started."""
        return str(self.kubernetes.secrets.get(incarnation.partition(":")[0], {}).get("token", ""))

    def leave(self, uid: str) -> None:
        """The worker's process died, and what it held with it. Its successor in the same pod joins again."""
        self.results.pop(uid, None)
        self._joined.pop(uid, None)
        self._joined_at.pop(uid, None)

    def _workers(self, cluster: str, head: str) -> list[str]:
        running = [pod["metadata"]["uid"] for pod in self.kubernetes.members(cluster) if is_running(pod)]
        return [uid for uid in running if self._joined.get(uid) == head]

    # The engine interface

    async def look(self, wire: Wire) -> View:
        await self._answer()
        head = self._dial(wire)
        retired = self._retired.setdefault(head, set())
        members = {}
        for member, uid in wire.incarnations.items():
            if member != HEAD and self.kubernetes.runs(uid) and uid not in retired and self._joined.get(uid) == head:
                members[member] = MemberView(True, held=len(self.results.get(uid, ())), incarnation=uid)
        if self._lies("strangers"):
            members |= {MemberId(f"stranger-{each}"): MemberView(True, incarnation="9") for each in range(3)}
            members = {
                m: replace(view, incarnation=self.random.choice((view.incarnation, "9"))) for m, view in members.items()
            }
        if self._lies("gaps"):
            members = {member: view for member, view in members.items() if self.random.random() < 0.5}
        return View(up=True, members=members)

    def _lies(self, how: str) -> bool:
        return self.misbehaviour.lie == how and self.random.random() < 0.7

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        await self._answer()
        if self.random.random() < self.misbehaviour.hang:
            await asyncio.sleep(deadline + 60)
        head = self._dial(wire)
        retired = self._retired.setdefault(head, set())
        if self._lies("pretence") and not force:
            return [Drained(member, DrainOutcome.FINISHED) for member in members]
        replies = []
        if self._lies("others"):
            replies += [Drained(each, DrainOutcome.FINISHED) for each in wire.incarnations if each not in members]
        for member in members:
            uid = wire.incarnations.get(member, "")
            if not uid:
                replies.append(Drained(member, DrainOutcome.FINISHED))
                continue
            await asyncio.sleep(self.random.uniform(0.05, 1.0))
            if force:
                self.forced.add(uid)
                retired.add(uid)
                replies.append(Drained(member, DrainOutcome.FINISHED))
                continue
            asked = {wire.incarnations.get(each, "") for each in members}
            others = [each for each in wire.incarnations.values() if self.kubernetes.runs(each)]
            others = [each for each in others if each not in asked and each not in retired]
            others = [each for each in others if self._joined.get(each) == head]
            held = self.results.get(uid, set())
            if self.random.random() < self.misbehaviour.refuse or (held and not others):
                replies.append(Drained(member, DrainOutcome.REFUSED, "it holds results"))
                continue
            if held:
                self.results.setdefault(self.random.choice(sorted(others)), set()).update(held)
                self.results[uid] = set()
            retired.add(uid)
            replies.append(Drained(member, DrainOutcome.FINISHED))
        return replies

    def _dial(self, wire: Wire) -> str:
        """The incarnation of the head that answers."""
        uid = wire.incarnations.get(HEAD, "")
        pod = self.kubernetes.server.with_uid(uid)
        if pod is not None and is_running(pod):
            return incarnation(pod)
        raise EngineUnreachable("the head does not run")

    async def _answer(self) -> None:
        await asyncio.sleep(self.random.uniform(0.001, 0.05))
        if self.random.random() < self.misbehaviour.silent:
            raise EngineUnreachable("the head did not answer")
        if self.random.random() < self.misbehaviour.error:
            raise TypeError("an unexpected error in an engine")


def incarnation(head: Object) -> str:
    return f"{head['metadata']['uid']}:{head['status']['containerStatuses'][0]['restartCount']}"
