"""A simulated engine: heads that know their workers, workers that hold results, drains that take time, refuse, hang
and fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toy_engine.played import PlayedEngine

from oars.base.errors import EngineUnreachable
from oars.engines.base import Wire
from oars.kube.kinds import Object
from oars.model import HEAD, Drained, MemberId, MemberView, View
from oars.places.kube import names
from tests.simulation.controllers import Kubernetes, is_head, is_running


@dataclass
class Misbehaviour:
    """Probabilities of what an engine may do wrong."""

    silent: float = 0.0  # look gets no answer
    refuse: float = 0.0  # a drain ends undone
    hang: float = 0.0  # a drain gets no answer in time
    error: float = 0.0  # look or drain raises something unexpected

    def stop(self) -> None:
        self.silent = self.refuse = self.hang = self.error = 0.0


@dataclass
class SimulatedEngine(PlayedEngine):
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
    _first: dict[str, str] = field(default_factory=dict)  # cluster → its first head
    _joined: dict[str, str] = field(default_factory=dict)  # worker's uid → the head that it joined, and no other
    _head: dict[str, str] = field(default_factory=dict)  # cluster → incarnation of the head that holds the results

    name = "played"

    # What users do

    def submit(self, cluster: str) -> None:
        """A task finishes on some worker in service, and its result is acknowledged."""
        head = self._present_head(cluster)
        self._join(cluster, head)
        if not self.in_use:
            return
        first = self._first.setdefault(cluster, head) if head else ""
        old = set() if head == first else self._older_than(cluster, head)  # Oars replaces those of an earlier head
        retired = self._retired.get(head, set())
        serving = [uid for uid in self._workers(cluster, head) if uid not in retired and uid not in old]
        if head and serving:
            self._next += 1
            self.results.setdefault(self.random.choice(sorted(serving)), set()).add(self._next)

    def release(self) -> None:
        """Users have read all results and compute no more; a worker that holds some would stay for ever."""
        self.results.clear()
        self.in_use = False

    def account(self) -> None:
        """Find out which results are gone, and whether somebody may be blamed for it."""
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
            if held and not why.startswith("fault") and uid not in self.forced and why != "its owner was deleted":
                self.lost.append(f"{len(held)} results of {uid}: {why}")

    def _present_head(self, cluster: str) -> str:
        heads = [pod for pod in self.kubernetes.members(cluster) if is_head(pod) and is_running(pod)]
        return incarnation(max(heads, key=lambda pod: int(pod["metadata"]["uid"][4:]))) if heads else ""

    def _join(self, cluster: str, head: str) -> None:
        """Each worker that runs joins the first head that it finds."""
        for pod in self.kubernetes.members(cluster) if head else ():
            if not is_head(pod) and is_running(pod):
                self._joined.setdefault(pod["metadata"]["uid"], head)

    def _older_than(self, cluster: str, head: str) -> set[str]:
        started = {
            pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
            for pod in self.kubernetes.members(cluster)
            if is_running(pod)
        }
        return {uid for uid, at in started.items() if at <= started[head.partition(":")[0]]}

    def leave(self, uid: str) -> None:
        """The worker's process died, and what it held with it. Its successor in the same pod joins anew."""
        self.results.pop(uid, None)
        self._joined.pop(uid, None)

    def _workers(self, cluster: str, head: str) -> list[str]:
        running = [pod["metadata"]["uid"] for pod in self.kubernetes.members(cluster) if is_running(pod)]
        return [uid for uid in running if self._joined.get(uid) == head]

    # The engine interface

    async def look(self, wire: Wire) -> View:
        await self._answer()
        head = self._dial(wire)
        retired = self._retired.setdefault(head, set())
        running = {pod["metadata"]["uid"] for pod in self.kubernetes.pods() if is_running(pod)}
        members = {}
        for member, uid in wire.incarnations.items():
            if member != HEAD and uid in running and uid not in retired and self._joined.get(uid) == head:
                members[member] = MemberView(True, held=len(self.results.get(uid, ())), incarnation=uid)
        return View(up=True, members=members)

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        await self._answer()
        if self.random.random() < self.misbehaviour.hang:
            await asyncio.sleep(deadline + 60)
        head = self._dial(wire)
        retired = self._retired.setdefault(head, set())
        replies = []
        for member in members:
            uid = wire.incarnations.get(member, "")
            if not uid:
                replies.append(Drained(member, True))
                continue
            await asyncio.sleep(self.random.uniform(0.05, 1.0))
            if force:
                self.forced.add(uid)
                retired.add(uid)
                replies.append(Drained(member, True))
                continue
            asked = {wire.incarnations.get(each, "") for each in members}
            running = {pod["metadata"]["uid"] for pod in self.kubernetes.pods() if is_running(pod)}
            others = [each for each in wire.incarnations.values() if each in running]
            others = [each for each in others if each not in asked and each not in retired]
            others = [each for each in others if self._joined.get(each) == head]
            held = self.results.get(uid, set())
            if self.random.random() < self.misbehaviour.refuse or (held and not others):
                replies.append(Drained(member, False, "it holds results"))
                continue
            if held:
                self.results.setdefault(self.random.choice(sorted(others)), set()).update(held)
                self.results[uid] = set()
            retired.add(uid)
            replies.append(Drained(member, True))
        return replies

    def _dial(self, wire: Wire) -> str:
        """The incarnation of the head that answers."""
        uid = wire.incarnations.get(HEAD, "")
        for pod in self.kubernetes.pods(active=False):
            if pod["metadata"]["uid"] == uid and is_running(pod):
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
