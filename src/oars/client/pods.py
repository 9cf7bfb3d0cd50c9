"""A cluster of bare pods, reconciled by the client that created it while that client lives."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace

from oars.base.errors import OarsError, StartFailed, TimedOut
from oars.base.log import get_logger, pairs
from oars.client.watches import Watches
from oars.control.loop import Loop
from oars.control.runner import Runner
from oars.engines.base import Engine
from oars.kube.client import Client
from oars.kube.errors import is_transient
from oars.kube.informer import Informer
from oars.kube.kinds import POD, POD_DISRUPTION_BUDGET, SERVICE, Object
from oars.model import HEAD, Cause, Desired, MemberId, Pause, Remove, Retiring
from oars.places.kube import names
from oars.places.kube.pods.observe import instance_selector
from oars.places.kube.pods.place import Memory, PodPlace
from oars.places.kube.state.observe import phase
from oars.places.report import Report
from oars.plan.why import pass_failure
from oars.spec.status import Phase

LONGEST_PAUSE = 5.0  # after an error
START_SECONDS = 600.0  # a node may have to be added, and a large image to be pulled
GRACE_SECONDS = 20.0  # in which a cause that prevents the start may go away by itself
STOP_SECONDS = 60.0
RETRY_SECONDS = 1.0  # after a deletion that failed
KEY = "cluster"

# Causes that do not go away by themselves. The first are certain, the others may be a fault of the moment.
HOPELESS = frozenset({"RightMissing", "Forbidden", "Invalid", "NameTaken", "InvalidImageName", "NamespaceMissing"})
DOUBTFUL = frozenset({"ImagePull", "ConfigMissing", "CommandMissing", "RunsAsRoot", "ContainerFails", "Refused"})

log = get_logger(__name__)


class PodWatches(Watches):
    """Watches the objects of one cluster (see places.kube.pods.place.PodCache)."""

    def __init__(self, client: Client, namespace: str, instance: str, wake: Callable[[], None]) -> None:
        labels = instance_selector(instance)

        def on_change(*_: object) -> None:
            self._changed.set()
            wake()

        self._changed = asyncio.Event()
        self._pods = Informer(client, POD, namespace, labels=labels, on_change=on_change)
        self._services = Informer(client, SERVICE, namespace, labels=labels, on_change=on_change)
        self._budgets = Informer(client, POD_DISRUPTION_BUDGET, namespace, labels=labels, on_change=on_change)
        super().__init__((self._pods, self._services, self._budgets), wake)

    def pods(self) -> list[Object]:
        return list(self._pods.objects.values())

    def owned(self) -> list[Object]:
        return [*self._services.objects.values(), *self._budgets.objects.values()]

    async def services(self, name: str) -> AsyncIterator[Object]:
        """The Service of that name, now and after each change."""
        while True:
            self._changed.clear()
            for obj in self._services.objects.values():
                if obj["metadata"]["name"] == name and not obj["metadata"].get("deletionTimestamp"):
                    yield obj
            await self._changed.wait()


class PodCluster:
    """Reconciles one cluster of bare pods (see control.runner.Reconciler).

    `on_report` gets each new report, `on_end` is called once if the head ends by itself, after which everything has
    been removed."""

    def __init__(self, place: PodPlace, engine: Engine, watches: PodWatches, memory: Memory, desired: Desired) -> None:
        self._place, self._watches, self._memory = place, watches, memory
        self._desired = desired
        self._loop = Loop(place, engine, time.time)
        self._runner: Runner[str] = Runner(self, longest_backoff=LONGEST_PAUSE)
        self._task: asyncio.Task[None] | None = None
        self._passed = asyncio.Event()  # set after each pass
        self._to_retire: set[MemberId] = set()
        self._is_removed = False
        self._failure: Cause | None = None  # why the head cannot start, the first time that it was clear
        self._is_up = False
        self.on_report: Callable[[Report], None] = lambda report: None
        self.on_end: Callable[[], None] = lambda: None
        self.report: Report | None = None

    @property
    def desired(self) -> Desired:
        return self._desired

    @property
    def workers(self) -> int:
        """The desired number of workers."""
        return self._desired.shape.workers[0].replicas

    @property
    def staying(self) -> list[MemberId]:
        """The worker pods that exist and have not been chosen to leave."""
        leaving = {*self._memory.state.retiring, *self._to_retire}
        return [member for member in self._place.workers() if member not in leaving]

    def wake(self) -> None:
        self._runner.wake(KEY)

    def set_workers(self, count: int) -> None:
        shape = self._desired.shape
        group = replace(shape.workers[0], replicas=max(0, count))
        self._desired = replace(self._desired, shape=replace(shape, workers=(group, *shape.workers[1:])))
        self.wake()

    def retire(self, members: Iterable[MemberId], others: int = 0) -> None:
        """Let these workers leave, after they are drained, and `others` of the loop's choice. The next pass begins with
        it: a pass that is under way records its own state."""
        chosen = {member for member in members if member in self.staying}
        self._to_retire |= chosen
        self.set_workers(self.workers - len(chosen) - others)

    # life cycle

    async def start(self) -> None:
        self._task = asyncio.create_task(self._runner.run(), name=f"oars {self._desired.name}")
        self.wake()

    async def wait_until_running(self) -> None:
        """Wait until the head's pod runs. Raises StartFailed as soon as it is clear that it will not."""
        await self._wait(lambda: (head := self._place.head()) is not None and phase(head) == "Running")

    async def wait_until_up(self) -> None:
        """Wait until the head answers. There must be a route to it."""

        def is_up() -> bool:
            members = self.report.status.members if self.report else ()
            return any(member.id == HEAD and member.phase is Phase.READY for member in members)

        await self._wait(is_up)
        self._is_up = True

    async def _wait(self, is_done: Callable[[], bool]) -> None:
        since: dict[str, float] = {}
        started = time.monotonic()
        while not is_done():
            self._passed.clear()
            if self._is_removed:
                message = f"The head of {self._desired.name} ended by itself before it was ready."
                raise StartFailed(message, "Check its command and arguments.")
            now, causes = time.monotonic(), self.report.causes if self.report else ()
            since = {cause.reason: since.get(cause.reason, now) for cause in causes}
            lasting = [each for each in causes if self._is_fatal(each, now - since[each.reason])]
            for cause in (*([self._failure] if self._failure else []), *lasting):
                raise StartFailed(cause.message, cause.hint, cause.lines)
            if now - started > START_SECONDS:
                message = f"The head of {self._desired.name} did not start within {START_SECONDS:.0f} s."
                because = f" {causes[0].message}" if causes else ""
                raise TimedOut(message + because, causes[0].hint if causes else "")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._passed.wait(), LONGEST_PAUSE)

    def _is_fatal(self, cause: Cause, seconds: float) -> bool:
        concerns_head = HEAD in cause.members or not cause.members
        if cause.reason in HOPELESS or (self._place.has_head_died() and HEAD in cause.members):
            return concerns_head
        return concerns_head and cause.reason in DOUBTFUL and seconds > GRACE_SECONDS

    async def stop(self) -> None:
        """Delete everything, and end the loop. What Kubernetes has accepted to delete may take a moment to go."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._loop.close()
        try:
            if not self._is_removed:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._remove_all()
        except TimeoutError:
            where = f"-n {self._desired.namespace} -l {names.CLUSTER}={self._desired.name}"
            raise TimedOut(
                f"The API server did not delete {self._desired.name} within {STOP_SECONDS:.0f} s.",
                f"Delete it later: `kubectl delete pod,service,pdb {where}`.",
            ) from None
        finally:
            await self._place.close()
            await self._watches.close()

    async def _remove_all(self) -> None:
        self._desired = stopped = replace(self._desired, running=False)
        while True:
            try:
                observed = await self._place.observe(stopped)
                everyone = tuple(member.id for member in observed.members)
                await self._place.remove(stopped, Remove(everyone, "the cluster is closed"))
                await self._place.collect(stopped)
                break
            except OarsError as error:
                if not is_transient(error.__cause__ or error):
                    raise
                log.warning(pairs("not deleted yet", cluster=stopped.name, error=error.message))
                await asyncio.sleep(RETRY_SECONDS)
        self._is_removed = True

    # the loop

    async def reconcile(self, key: str) -> Pause | None:
        self._watches.check()
        head = self._place.head()
        if head is not None and phase(head) == "Succeeded":  # it was idle for too long, or a user shut it down
            log.info(pairs("the head ended", cluster=self._desired.name))
            await self._remove_all()
            self._passed.set()
            self.on_end()
            return None
        if self._to_retire:
            state, now = self._memory.state, time.time()
            chosen = {member: Retiring(now) for member in self._to_retire}
            self._memory.state = replace(state, retiring={**chosen, **state.retiring})
            self._to_retire.clear()
        pause = await self._loop.once(self._desired)
        self._publish(self._loop.report)
        return pause

    async def report_failure(self, key: str, error: Exception) -> None:
        await self._loop.report_failure(self._desired, pass_failure(error))
        self._publish(self._loop.report)

    def _publish(self, report: Report | None) -> None:
        if report is not None and report != self.report:
            report = replace(report, causes=tuple(map(_without_commands, report.causes)))
            self.report = report
            fatal = [cause for cause in report.causes if self._is_fatal(cause, 0.0)]
            if fatal and not self._failure and not self._is_up:
                self._failure = fatal[0]
            self.on_report(report)
        self._passed.set()


def _without_commands(cause: Cause) -> Cause:
    """Without the sentences of the hint that name a command of Oars: the commands do not know clusters of bare pods."""
    kept = ". ".join(part for part in cause.hint.removesuffix(".").split(". ") if "`oars " not in part)
    return replace(cause, hint=f"{kept}." if kept else "")
