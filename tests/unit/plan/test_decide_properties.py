"""Whatever sequence of crashes and scales: decide converges, never starts more than asked, and never removes a worker
that was not drained (unless its head or it itself is dead)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from oars.model import (
    HEAD,
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
    Remove,
    Role,
    View,
)
from oars.plan.decide import decide, ready, with_drain_reply
from tests.unit.plan.clusters import desired

events = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.integers(0, 6)),
        st.tuples(st.just("crash"), st.integers(0, 9)),
        st.tuples(st.just("crash head"), st.just(0)),
        st.tuples(st.just("refuse drains"), st.integers(0, 1)),
        st.tuples(st.just("engine silent"), st.integers(0, 1)),
        st.tuples(st.just("pass"), st.integers(0, 90)),
        st.tuples(st.just("keeper dies"), st.just(0)),
        st.tuples(st.just("serve again"), st.just(0)),
    ),
    max_size=25,
)


@dataclass
class World:
    """A place and an engine in one, without any I/O."""

    wanted: Desired = field(default_factory=desired)
    now: float = 1000.0
    members: dict[MemberId, Member] = field(default_factory=dict)
    notes: LoopState = field(default_factory=LoopState)
    incarnations: int = 0
    refuse: bool = False
    silent: bool = False
    drained: set[MemberId] = field(default_factory=set)
    draining: set[MemberId] = field(default_factory=set)  # since the last step; they take no work meanwhile

    def observed(self) -> Observed:
        return Observed(tuple(self.members.values()), self.notes)

    def view(self) -> View:
        head = self.members.get(HEAD)
        if self.silent or head is None or head.state is not MemberState.RUNNING:
            return View()
        serving = [m for m in self.members.values() if m.role is Role.WORKER and m.head == head.incarnation]
        away = self.drained | self.draining
        known = [m for m in serving if m.state is MemberState.RUNNING and m.id not in away]
        return View(up=True, members={m.id: MemberView(True, incarnation=m.incarnation) for m in known})

    def step(self) -> Decision:
        observed = self.observed()
        decision = decide(self.wanted, observed, self.view(), self.now)
        self.notes = decision.notes
        for step in decision.steps:
            match step:
                case Ensure():
                    self.ensure(step)
                case Drain():
                    self.drain(step)
                case Remove():
                    self.remove(step)
        self.check(decision)
        self.now += 0.1
        self.answer({member for step in decision.steps if isinstance(step, Drain) for member in step.members})
        return decision

    def ensure(self, step: Ensure) -> None:
        for member in step.members:
            before = self.members.get(member)
            if before is not None and before.state is MemberState.RUNNING:
                continue
            self.incarnations += 1
            self.drained.discard(member)
            head = self.members.get(HEAD)
            bound = str(self.incarnations) if member == HEAD else head.incarnation if head else ""
            self.members[member] = Member(
                member, step.group.role, step.group.name, MemberState.RUNNING, str(self.incarnations), bound, self.now
            )

    def drain(self, step: Drain) -> None:
        assert all(self.members[member].state is MemberState.RUNNING for member in step.members)

    def answer(self, asked: set[MemberId]) -> None:
        """A drain takes until the step after the one that asked for it."""
        for member in self.draining & self.members.keys():
            if not self.refuse:
                self.drained.add(member)
            self.notes = with_drain_reply(self.notes, member, not self.refuse, "busy" if self.refuse else "", self.now)
        self.draining = asked - self.draining

    def remove(self, step: Remove) -> None:
        head = self.members.get(HEAD)
        for name in step.members:
            member = self.members.pop(name)
            dead = member.state is not MemberState.RUNNING
            orphan = head is None or head.state is not MemberState.RUNNING or member.head != head.incarnation
            assert dead or orphan or name in self.drained or not self.wanted.running, f"{name} was not drained"

    def check(self, decision: Decision) -> None:
        for group in self.wanted.shape.workers:
            running = [m for m in self.members.values() if m.group == group.name and m.state is MemberState.RUNNING]
            staying = [m for m in running if m.id not in self.notes.retiring]
            assert len(staying) <= group.replicas, "more than asked for"
        assert decision.again_after > 0

    def happen(self, event: str, value: int) -> None:
        match event:
            case "scale":
                self.wanted = replace(self.wanted, shape=desired(value).shape)
            case "crash" | "crash head":
                self.crash(value if event == "crash" else None)
            case "refuse drains":
                self.refuse = bool(value)
            case "engine silent":
                self.silent = bool(value)
            case "pass":
                self.now += value
            case "serve again":
                self.drained.clear()  # whatever was emptied and is still there has joined anew

    def crash(self, number: int | None) -> None:
        name = HEAD if number is None else MemberId(f"worker-{number}")
        if name in self.members:
            self.members[name] = replace(self.members[name], state=MemberState.EXITED, reason="was killed")

    def settled(self) -> bool:
        observed, view = self.observed(), self.view()
        workers = [m for m in observed.members if m.role is Role.WORKER]
        wanted = self.wanted.shape.workers[0].replicas
        return len(workers) == wanted and all(ready(m, observed, view) for m in observed.members) and view.up


@settings(max_examples=150, deadline=None)
@given(events)
def test_converges_and_keeps_its_promises(sequence: list[tuple[str, int]]) -> None:
    world = World()
    for event, value in sequence:
        world.happen(event, value)
        world.step()
    world.refuse = world.silent = False
    for _ in range(60):
        decision = world.step()
        if world.settled() and not decision.steps:
            break
        world.now += 2.0  # past any back-off in a few rounds
    assert world.settled()
    assert world.step().steps == ()


@settings(max_examples=50, deadline=None)
@given(events)
def test_stopping_always_ends_empty(sequence: list[tuple[str, int]]) -> None:
    world = World()
    for event, value in sequence:
        world.happen(event, value)
        world.step()
    world.wanted = replace(world.wanted, running=False)
    world.step()
    assert not world.members
    assert world.step().steps == ()
