"""Faults of the past and of our own, reintroduced one by one: `python -m tests.simulation.reintroduced NAME FIRST LAST`
runs histories until one of them violates the invariant that the fault should violate. Exit code 0: the simulator caught
the fault."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from oars.control import schedule
from oars.control.loop import Loop
from oars.kube.informer import Informer
from oars.kube.lease import Elector
from oars.model import Drained, DrainOutcome, LoopState, Observed
from oars.operator import job_place
from oars.operator import jobs as operator_jobs
from oars.places.kube.place import KubePlace
from oars.places.kube.render.driver import STOPPED
from oars.places.kube.scale_down import ScaleDownGate
from oars.places.kube.state import drivers
from oars.places.kube.state.drivers import see_driver
from oars.places.kube.state.observe import is_of
from oars.plan import decide as plan
from oars.plan import jobs
from oars.plan.jobs import DriverSeen, DriverState
from tests.simulation.__main__ import history_of
from tests.simulation.history import History, Violation
from tests.simulation.jobs import JobHistory

Patch = AbstractContextManager[Any]


def interrupted_scale_down_that_waits_for_nobody() -> Patch:
    """M1: once victims are marked and the write that lowers the number of replicas has failed, the next pass lowers it
    although a worker that stays is not ready."""

    async def finish(place: KubePlace, desired: Any, group: Any, deployment: Any, pods: Any) -> None:
        await place._ensure_workers(desired, group, place._size(group, pods))

    return mock.patch.object(KubePlace, "_finish_scale_down", finish)


def scale_down_that_waits_for_nobody() -> Patch:
    """The number of replicas is lowered although a worker that stays is not ready."""
    return mock.patch.object(ScaleDownGate, "cause", lambda *_: None)


def leader_that_never_steps_down() -> Patch:
    """M3: the task that renews the Lease dies, and the replica works on without it."""

    async def die(_: Elector) -> None:
        return None

    leads = property(lambda elector: elector._is_leading)
    return mock.patch.multiple(Elector, is_leader=leads, _renew_until_lost=die)


def clock_that_is_trusted() -> Patch:
    """M8: times in the future, from before the clock was set back, are taken at face value."""
    return mock.patch.object(plan, "_without_future", lambda observed, now: observed)


def drain_that_is_believed_at_once() -> Patch:
    """A drain that failed counts as done."""

    async def drain(loop: Loop, wire: Any, members: Any, *_: Any) -> Any:
        return [Drained(member, DrainOutcome.FINISHED) for member in members]

    return mock.patch.object(Loop, "_drain", drain)


def deployment_that_is_lowered_first() -> Patch:
    """The number of replicas follows the spec at once, as a plain `kubectl scale` does."""
    ensure = KubePlace._ensure_workers

    async def lowered(place: KubePlace, desired: Any, group: Any, count: int) -> None:
        await ensure(place, desired, group, min(count, group.replicas))

    return mock.patch.object(KubePlace, "_ensure_workers", lowered)


def obsolete_deployment_that_is_deleted_at_once() -> Patch:
    """The Deployment of an earlier revision is deleted as soon as one of its workers is drained."""
    remove = KubePlace.remove

    async def hasty(place: KubePlace, desired: Any, step: Any) -> Any:
        leaving = [pod for pod in place.pods() if pod["metadata"]["name"] in step.members]
        for deployment in place._worker_deployments():
            if any(is_of(pod, deployment) for pod in leaving) and place._group_of(desired, deployment) is None:
                await place._delete_deployment(deployment)
        return await remove(place, desired, step)

    return mock.patch.object(KubePlace, "remove", hasty)


def workers_that_leave_before_their_head_is_changed() -> Patch:
    """Workers are removed although the change that replaces their head could not be applied."""
    remove = KubePlace.remove

    async def early(place: KubePlace, desired: Any, step: Any) -> Any:
        place._is_change_pending = lambda *_: False  # type: ignore[method-assign]
        try:
            return await remove(place, desired, step)
        finally:
            del place._is_change_pending

    return mock.patch.object(KubePlace, "remove", early)


def head_loss_that_is_not_noticed() -> Patch:
    """Workers of an earlier head are not replaced, neither at once nor because the present one does not list them."""

    def unnoticed(observed: Observed, now: float) -> LoopState:
        return replace(observed.state, head="", head_epoch=0)

    return mock.patch.multiple(plan, _with_head=unnoticed, JOIN_TIMEOUT=math.inf)


def garbage_that_stays() -> Patch:
    """Deployments of earlier revisions are never deleted."""

    async def keep(*_: object) -> None:
        return None

    return mock.patch.object(KubePlace, "collect", keep)


def watch_that_ignores_lost_events() -> Patch:
    """After 410, the informer watches from the present on and lists nothing."""
    listed = Informer._list

    async def skipped(informer: Informer) -> None:
        if not informer.synced.is_set():
            await listed(informer)
        else:
            found = await informer._client.list(informer._kind, informer._namespace)
            informer._resource_version = found.resource_version

    return mock.patch.object(Informer, "_list", skipped)


def foreign_cluster_that_must_go() -> Patch:
    """The next attempt waits until a cluster that belongs to somebody else is gone."""
    return mock.patch.object(jobs, "_NOTHING_TO_REMOVE", (jobs.ClusterState.ABSENT,))


def lost_node_that_is_waited_for() -> Patch:
    return mock.patch.object(drivers, "LOST_SECONDS", 1e9)


def removed_driver_that_counts_as_lost() -> Patch:
    """An ended attempt without a pod has a driver that is lost, which is removed again and again."""

    def see(pods: Any, job: Any, attempt: Any, now: float) -> DriverSeen:
        return see_driver(pods, job, replace(attempt, ended=None), now)

    return mock.patch.object(job_place, "see_driver", see)


def shared_cluster_that_is_used_twice() -> Patch:
    """A driver that cannot be reached counts as lost, although the next one has the same cluster."""

    def see(pods: Any, job: Any, attempt: Any, now: float) -> DriverSeen:
        seen = see_driver(pods, job, attempt, now)
        return replace(seen, state=DriverState.LOST) if seen.state is DriverState.UNREACHABLE else seen

    return mock.patch.object(job_place, "see_driver", see)


def stopped_driver_that_others_can_resume() -> Patch:
    """A driver is stopped by suspending its Job and by nothing else."""
    return mock.patch.dict(STOPPED, {"suspend": True}, clear=True)


def run_that_is_forgotten() -> Patch:
    """A run that the status names, but that does not exist yet, is not created."""
    reconcile = schedule.reconcile_schedule

    async def forget(template: Any, status: Any, *rest: Any) -> Any:
        runs = status.schedule and replace(status.schedule, starting="")
        return await reconcile(template, replace(status, schedule=runs), *rest)

    return mock.patch.object(operator_jobs, "reconcile_schedule", forget)


@dataclass(frozen=True)
class Fault:
    """`sign`: how the violation that it causes begins. `acts`: what users do and which faults there are in histories
    that provoke it; empty: all."""

    plant: Callable[[], Patch]
    sign: str
    acts: tuple[str, ...] = ()
    is_of_jobs: bool = False  # found by histories of jobs


LOST, STUCK = "acknowledged results were lost", "not converged"
FAULTS: dict[str, Fault] = {
    each.plant.__name__: each
    for each in (
        Fault(interrupted_scale_down_that_waits_for_nobody, LOST, ("interrupt_scale_down", "scale")),
        Fault(scale_down_that_waits_for_nobody, LOST, ("scale_while_busy", "scale")),
        Fault(leader_that_never_steps_down, "(operator|client)-. wrote, but", ("pause_process", "scale")),
        Fault(clock_that_is_trusted, STUCK),
        Fault(drain_that_is_believed_at_once, f"{LOST}|{STUCK}", ("scale",)),
        Fault(deployment_that_is_lowered_first, LOST, ("scale",)),
        Fault(obsolete_deployment_that_is_deleted_at_once, LOST, ("change_workers", "scale")),
        Fault(workers_that_leave_before_their_head_is_changed, LOST, ("bad_network", "change_head")),
        Fault(head_loss_that_is_not_noticed, STUCK, ("delete_head", "restart_head", "scale")),
        Fault(garbage_that_stays, STUCK, ("change_workers", "change_head", "scale")),
        Fault(watch_that_ignores_lost_events, "", ("bad_network", "recreate", "pause_process")),
        Fault(foreign_cluster_that_must_go, "", is_of_jobs=True),
        Fault(lost_node_that_is_waited_for, "", is_of_jobs=True),
        Fault(removed_driver_that_counts_as_lost, "", is_of_jobs=True),
        Fault(shared_cluster_that_is_used_twice, "", is_of_jobs=True),
        Fault(stopped_driver_that_others_can_resume, "attempt .* (runs|starts)", is_of_jobs=True),
        Fault(run_that_is_forgotten, "run .* is forgotten", is_of_jobs=True),
    )
}


def main(words: list[str]) -> int:
    """Any other exception than a violation ends it, and so does one of the fault itself, which the status reports: such
    a fault does not fit the program any more."""
    logging.getLogger("oars").setLevel(logging.CRITICAL)
    fault, first, last = FAULTS[words[0]], int(words[1]), int(words[2])
    for seed in range(first, last + 1):
        history = JobHistory(seed) if fault.is_of_jobs else history_of(seed)
        if isinstance(history, History):
            history.only = fault.acts
        with fault.plant():
            try:
                history.run()
            except Violation as error:
                sys.stdout.write(f"seed {seed}: {error}\n")
                if words[0] in str(error):
                    return 2
                if re.match(fault.sign, str(error)):
                    return 0
    sys.stdout.write(f"not caught in {last - first + 1} histories\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
