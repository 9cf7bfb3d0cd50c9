"""A place and an engine in one, without any I/O, to run `decide` against: members start, crash and are drained."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from oars.base import codec
from oars.model import (
    HEAD,
    Death,
    Decision,
    Desired,
    Drain,
    Ensure,
    LoopState,
    Member,
    MemberId,
    MemberState,
    MemberView,
    Observed,
    Pace,
    Remove,
    Role,
    View,
)
from oars.plan.decide import decide, is_ready, with_drain_reply
from tests.unit.plan.clusters import desired, with_replicas


@dataclass
class World(ABC):
    """What is common to all places. `memory` of the loop (drains under way) is lost when it dies; only the recorded
    LoopState survives, as JSON."""

    wanted: Desired = field(default_factory=desired)
    now: float = 1000.0
    members: dict[MemberId, Member] = field(default_factory=dict)
    recorded: str = field(default_factory=lambda: _json(LoopState()))
    writes: int = 0  # how often something was changed at the place
    starts: int = 0
    heads_lost: int = 0  # heads that the loop has seen and that ended
    refuse: bool = False  # the engine refuses to drain
    silent: bool = False  # the engine does not answer
    stuck: bool = False  # nothing that was started begins to run
    drained: set[MemberId] = field(default_factory=set)  # those that the engine has drained
    draining: set[MemberId] = field(default_factory=set)  # in the loop's memory
    replies: dict[MemberId, bool] = field(default_factory=dict)  # in the loop's memory, not recorded yet
    dies_after: int | None = None  # the loop dies after that many steps of the next pass

    # the loop

    def step(self) -> Decision:
        """One pass, as control.loop makes it."""
        self.progress()
        state = self.state()
        for member, done in self.replies.items():
            state = with_drain_reply(state, member, done, "" if done else "busy", self.now)
        self.replies.clear()
        observed = self.observe(state)
        decision = decide(self.wanted, observed, self.view(), self.now)
        wanted = replace(self.wanted, head_epoch=decision.state.head_epoch)
        self.record(decision.state)
        for step in decision.steps[: self.dies_after]:
            match step:
                case Ensure():
                    self.ensure(wanted, step)
                case Drain():
                    self.draining |= set(step.members)
                case Remove():
                    self.remove(wanted, step)
        if self.dies_after is not None:
            self.forget()
        self.check(decision)
        self.now += 0.1
        return decision

    def state(self) -> LoopState:
        return codec.load(LoopState, json.loads(self.recorded))

    def record(self, state: LoopState) -> None:
        text = _json(state)
        if text != self.recorded:
            self.recorded = text
            self.writes += 1

    def forget(self) -> None:
        """The loop dies. The engine may have begun with what it was asked for."""
        self.dies_after = None
        self.draining.clear()
        self.replies.clear()

    # the engine

    def view(self) -> View:
        head = self.members.get(HEAD)
        if self.silent or head is None or head.state is not MemberState.RUNNING:
            return View()
        running = [m for m in self.members.values() if m.role is Role.WORKER and m.state is MemberState.RUNNING]
        listed = [m for m in running if m.id not in self.drained]
        return View(up=True, members={m.id: MemberView(m.id not in self.draining) for m in listed})

    def drain(self) -> None:
        """Complete the drains that were begun in the pass before."""
        for member in self.draining:
            done = not self.refuse or self.wanted.force or self._state(member) is not MemberState.RUNNING
            if done and member in self.members:
                self.drained.add(member)
            self.replies[member] = done
        self.draining.clear()

    def _state(self, member: MemberId) -> MemberState | None:
        return self.members[member].state if member in self.members else None

    # the place

    @abstractmethod
    def observe(self, state: LoopState) -> Observed: ...

    @abstractmethod
    def ensure(self, wanted: Desired, step: Ensure) -> None: ...

    @abstractmethod
    def remove(self, wanted: Desired, step: Remove) -> None: ...

    @abstractmethod
    def crash(self, member: MemberId) -> None: ...

    def progress(self) -> None:
        """What happens between two passes."""
        self.drain()
        if self.stuck:
            return
        for member in self.members.values():
            if member.state is MemberState.WAITING:
                self.begin(member)

    def begin(self, member: Member) -> None:
        self.members[member.id] = replace(member, state=MemberState.RUNNING, started_at=self.now)

    def started(self, member: Member) -> None:
        self.starts += 1
        self.writes += 1
        self.drained.discard(member.id)
        self.members[member.id] = member

    def gone(self, member: MemberId) -> None:
        """A member is removed: it must be dead, drained or of an earlier head epoch, unless the user forces it."""
        self.writes += 1
        before = self.members.pop(member)
        is_live = before.state is MemberState.RUNNING and before.role is Role.WORKER
        is_orphan = before.head_epoch < self.state().head_epoch
        may_go = member in self.drained or is_orphan or self.wanted.force or not self.wanted.running
        self.drained.discard(member)
        assert not is_live or may_go, f"{member} was not drained"

    # checks

    def workers(self) -> list[Member]:
        return [m for m in self.members.values() if m.role is Role.WORKER]

    def check(self, decision: Decision) -> None:
        if self.wanted.running:
            group, state = self.wanted.shape.workers[0], decision.state
            of_group = [m for m in self.observe(state).members if m.group == group.name]
            active = [m for m in of_group if m.head_epoch == state.head_epoch and m.id not in state.retiring]
            assert len(active) <= group.replicas, "more active workers than desired"
            assert state.head_epoch <= self.heads_lost, "an epoch without a new head"
        assert decision.pause.seconds > 0

    def settled(self) -> bool:
        state = self.state()
        observed, view = self.observe(state), self.view()
        group = self.wanted.shape.workers[0]
        of_group = [m for m in observed.members if m.group == group.name]
        everyone = len(of_group) == group.replicas and len(observed.members) == 1 + group.replicas
        everyone = everyone and state.head_epoch == self.heads_lost
        return everyone and not state.retiring and all(is_ready(m, observed, view) for m in observed.members)

    # events

    def chosen(self, number: int | None) -> MemberId | None:
        """One of the workers, or the head; None if there is none."""
        names = sorted(m.id for m in self.members.values() if (m.role is Role.HEAD) == (number is None))
        return names[(number or 0) % len(names)] if names else None

    def lose(self, member: Member) -> None:
        """Count heads that the loop has seen."""
        self.heads_lost += member.role is Role.HEAD and member.incarnation == self.state().head

    def happen(self, event: str, value: int) -> None:
        match event:
            case "scale":
                self.wanted = with_replicas(self.wanted, {"default": value})
            case "force":
                self.wanted = replace(self.wanted, force=bool(value))
            case "crash" | "crash head":
                if (member := self.chosen(value if event == "crash" else None)) is not None:
                    self.crash(member)
            case "refuse drains" | "engine silent" | "stuck":
                setattr(self, {"refuse drains": "refuse", "engine silent": "silent"}.get(event, event), bool(value))
            case "time passes" | "clock steps":
                self.now += value
            case "loop dies":
                self.dies_after = value
            case "loop dies after a drain":
                self.drain()  # the engine is done, and nobody hears of it
                self.forget()
            case "serve again":
                self.drained.clear()  # drained workers that still exist have joined again


@dataclass
class ProcessWorld(World):
    """Members are processes: what exits stays so until it is ensured again, under the same name."""

    died_at: dict[MemberId, float] = field(default_factory=dict)

    def observe(self, state: LoopState) -> Observed:
        dead = [m for m in self.members.values() if m.state is MemberState.EXITED]
        deaths = {m.id: Death(m.incarnation, self.died_at[m.id], m.started_at, m.reason) for m in dead}
        return Observed(tuple(self.members.values()), state, deaths)

    def ensure(self, wanted: Desired, step: Ensure) -> None:
        for name in step.members:
            if self._state(name) in (None, MemberState.EXITED):
                incarnation = str(self.starts + 1)
                epoch = wanted.head_epoch
                self.started(
                    Member(name, step.group.role, step.group.name, MemberState.WAITING, incarnation, epoch, self.now)
                )

    def remove(self, wanted: Desired, step: Remove) -> None:
        for name in step.members:
            self.gone(name)

    def crash(self, member: MemberId) -> None:
        before = self.members[member]
        if before.state is MemberState.EXITED:
            return
        self.lose(before)
        self.died_at[member] = self.now
        self.members[member] = replace(before, state=MemberState.EXITED, reason="was killed")


@dataclass
class Deployment:
    revision: int
    replicas: int
    epoch: int


@dataclass
class PodWorld(World):
    """Members are pods: the place replaces dead ones itself and counts their deaths. Names of pods are random. Ensure
    sets the number of replicas and the head epoch of a Deployment, which then creates and deletes pods."""

    random: Random = field(default_factory=lambda: Random(13))
    revision: int = 1  # of the worker group, as desired
    deployments: dict[int, Deployment] = field(default_factory=dict)  # of workers, by revision
    has_head: bool = False  # a Deployment of the head exists
    revisions: dict[MemberId, int] = field(default_factory=dict)
    restarts: dict[MemberId, Death] = field(default_factory=dict)
    head_starts: int = 0
    head_pods: int = 0

    def observe(self, state: LoopState) -> Observed:
        members = tuple(replace(m, group=self._group(m)) for m in self.members.values())
        deaths = {name: death for name, death in self.restarts.items() if name in self.members}
        return Observed(members, state, deaths, Pace(0.5, 2.0, 10.0))

    def _group(self, member: Member) -> str:
        if member.role is Role.HEAD or self.revisions[member.id] == self.revision:
            return member.group
        return f"{member.group}@{self.revisions[member.id]}"

    def ensure(self, wanted: Desired, step: Ensure) -> None:
        if step.group.role is Role.HEAD:
            self.writes += not self.has_head
            self.has_head = True
            return
        retiring = [m for m in self.state().retiring if self.revisions[m] == self.revision]
        assert len(step.members) <= step.group.replicas + len(retiring), "more pods than desired"
        new = Deployment(self.revision, len(step.members), wanted.head_epoch)
        if self.deployments.get(self.revision) != new:
            self.writes += 1
            self.deployments[self.revision] = new

    def remove(self, wanted: Desired, step: Remove) -> None:
        if HEAD in step.members:
            self.has_head = False
            self.gone(HEAD)
        victims = [name for name in step.members if name in self.members]
        for revision, deployment in list(self.deployments.items()):
            mine = [name for name in victims if self.revisions.get(name) == revision]
            is_obsolete = revision != self.revision
            if not mine:
                continue
            if not wanted.running or (step.grace == 0.0 and is_obsolete):
                self.delete(revision)
            elif step.grace != 0.0:
                self._delete_pods(mine)
                deployment.replicas -= len(mine)
                if is_obsolete and not deployment.replicas:
                    del self.deployments[revision]

    def delete(self, revision: int) -> None:
        del self.deployments[revision]
        self._delete_pods(m.id for m in self.workers() if self.revisions[m.id] == revision)

    def _delete_pods(self, names: Iterable[MemberId]) -> None:
        for name in list(names):
            self.gone(name)
            self.restarts.pop(name, None)

    def progress(self) -> None:
        super().progress()
        if self.has_head and HEAD not in self.members:
            self.head_pods += 1
            self.started(Member(HEAD, Role.HEAD, "head", MemberState.WAITING, ""))
        for revision, deployment in self.deployments.items():
            pods = [m for m in self.workers() if self.revisions[m.id] == revision]
            self._delete_pods(m.id for m in pods if m.head_epoch != deployment.epoch)
            pods = [m for m in pods if m.id in self.members]
            self._delete_pods(m.id for m in pods[deployment.replicas :])
            for _ in range(deployment.replicas - len(pods)):
                self._create(deployment)

    def _create(self, deployment: Deployment) -> None:
        name = MemberId(f"demo-worker-{self.random.getrandbits(40):010x}")
        self.revisions[name] = deployment.revision
        self.started(
            Member(
                name, Role.WORKER, "default", MemberState.WAITING, name, deployment.epoch, created_at=self.now
            )
        )  # fmt: skip

    def begin(self, member: Member) -> None:
        self.drained.discard(member.id)
        if member.role is Role.HEAD:
            self.head_starts += 1
            member = replace(member, incarnation=f"{self.head_pods}:{self.head_starts}")
        super().begin(member)

    def crash(self, member: MemberId) -> None:
        """The container is restarted in place."""
        before = self.members[member]
        if before.state is not MemberState.RUNNING:
            return
        self.lose(before)
        count = self.restarts[member].count + 1 if member in self.restarts else 1
        self.restarts[member] = Death(f"{member}:{count}", self.now, before.started_at, "exited", count=count)
        self.members[member] = replace(before, state=MemberState.WAITING, reason="exited")

    def settled(self) -> bool:
        """Also that no Deployment replaces its pods: after a step of the clock they may seem to serve the new head."""
        return super().settled() and all(each.head_epoch == self.state().head_epoch for each in self.workers())

    def evict(self, member: MemberId) -> None:
        """The pod disappears; its Deployment creates another."""
        before = self.members.pop(member)
        self.restarts.pop(member, None)
        if before.state is MemberState.RUNNING:
            self.lose(before)

    def happen(self, event: str, value: int) -> None:
        match event:
            case "new revision":
                self.revision += 1
            case "evict" | "evict head":
                if (member := self.chosen(value if event == "evict" else None)) is not None:
                    self.evict(member)
            case _:
                super().happen(event, value)


def _json(state: LoopState) -> str:
    return json.dumps(codec.dump(state))
