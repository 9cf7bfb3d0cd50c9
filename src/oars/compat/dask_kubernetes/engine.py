"""The Dask engine for pods that users describe: one pod may run several Dask workers, under names of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from oars.engines.base import Engine, Wire, drained
from oars.engines.dask import live, shape
from oars.engines.module_engine import ModuleEngine
from oars.model import HEAD, Drained, DrainOutcome, MemberId, MemberView, View


class PodWorkers:
    """Queries and drains a scheduler as the Dask engine does (oars.engines.dask.live), with all workers of a pod as one
    member. A worker belongs to the pod that its name begins with or, if it has another name, to the only pod with its
    address."""

    def __init__(self) -> None:
        self._workers: Mapping[MemberId, list[MemberId]] = {}  # pod → names of its Dask workers
        self._joined: set[str] = set()  # incarnations of pods that have had a worker in the scheduler

    def workers_of(self, pod: str) -> list[str]:
        """The names of the pod's workers in Dask: its own, until they are known."""
        return list(self._workers.get(MemberId(pod), [MemberId(pod)]))

    async def look(self, wire: Wire) -> View:
        view = await live.look(wire)
        if not view.up:
            return view
        pods = [member for member in wire.incarnations if member != HEAD]
        hosts = {member: next(iter(wire.addresses.get(member, {}).values()), "").rpartition(":")[0] for member in pods}
        found: dict[MemberId, list[MemberId]] = {}
        for worker, seen in view.members.items():
            if (pod := pod_of(worker, seen.address, hosts)) is not None:
                found.setdefault(pod, []).append(worker)
        self._workers = found
        members = {pod: _together([view.members[each] for each in workers]) for pod, workers in found.items()}
        # A pod may install packages for long before its worker starts. It is not one that was lost.
        self._joined = {i for pod, i in wire.incarnations.items() if pod in found or i in self._joined}
        starting = [pod for pod in pods if pod not in found and wire.incarnations[pod] not in self._joined]
        return replace(view, members={**members, **dict.fromkeys(starting, MemberView(ready=False))})

    async def reconcile(self, wire: Wire, view: View) -> None:
        await live.reconcile(wire, view)

    async def drain(self, wire: Wire, members: Sequence[MemberId], deadline: float, force: bool) -> Sequence[Drained]:
        names = {member: self._workers.get(member, [member]) for member in members}
        everyone = [name for workers in names.values() for name in workers]
        replies = {reply.member: reply for reply in await live.drain(wire, everyone, deadline, force)}
        return drained(members, {pod: _outcome([replies[name] for name in workers]) for pod, workers in names.items()})


def _outcome(replies: Sequence[Drained]) -> tuple[DrainOutcome, str]:
    """The outcome of a pod: the worst of its workers' outcomes."""
    outcomes = {reply.outcome for reply in replies}
    order = (DrainOutcome.REFUSED, DrainOutcome.MOVED, DrainOutcome.FINISHED)
    worst = next((each for each in order if each in outcomes), DrainOutcome.FINISHED)
    return worst, "; ".join(filter(None, (reply.waits_for for reply in replies)))


def pod_engine(workers: PodWorkers) -> Engine:
    return ModuleEngine("dask", "oars.engines.dask.session", shape, workers)


def pod_of(worker: str, address: str, hosts: Mapping[MemberId, str]) -> MemberId | None:
    """`hosts`: the address of each pod; pods in the network of their node share one."""
    named = re.sub(r"-\d+$", "", worker)
    for name in (worker, named):
        if MemberId(name) in hosts:
            return MemberId(name)
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    there = [pod for pod, each in hosts.items() if each and each == host]
    return there[0] if len(there) == 1 else None


def _together(views: Sequence[MemberView]) -> MemberView:
    return MemberView(
        ready=any(view.ready for view in views),
        address=views[0].address,
        idle=min(view.idle for view in views),
        held=sum(view.held for view in views),
        pinned=any(view.pinned for view in views),
    )
