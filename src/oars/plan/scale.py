"""scale: replaces the numbers of workers in the desired state by those that autoscaling chooses. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from oars.base.text import command
from oars.model import Cause, Desired, Group, GroupScaling, LoopState, Member, MemberState, Observed, Unservable, View
from oars.plan.autoscale import GroupTarget, Memory, Situation, Supply, targets
from oars.plan.decide import is_ready
from oars.plan.starts import observe

UNSERVABLE = "Raise `max`, `cpu`, `memory` or `gpu` of a group, add a group that fits, or change the work."


@dataclass(frozen=True)
class Scaled:
    """The desired state with the chosen numbers and why; what to remember; when to look again, in seconds."""

    desired: Desired
    state: LoopState
    memory: Memory = field(default_factory=Memory)
    groups: Mapping[str, GroupTarget] = field(default_factory=dict)
    causes: tuple[Cause, ...] = ()
    pause: float = math.inf
    unservable: tuple[Unservable, ...] = ()


def with_targets(desired: Desired, scaling: Mapping[str, GroupScaling]) -> Desired:
    """The desired state with the numbers chosen before."""
    known = {group.name: scaling[group.name].target for group in autoscaled(desired) if group.name in scaling}
    return _with_numbers(desired, known)


def autoscaled(desired: Desired) -> list[Group]:
    return [group for group in desired.shape.workers if group.max is not None]


def scale(desired: Desired, observed: Observed, view: View, memory: Memory, now: float) -> Scaled:
    """A group whose number in the spec has changed since autoscaling began, and nothing else, keeps the new number:
    another autoscaler or a person has set it."""
    if not autoscaled(desired) or not desired.running:
        return Scaled(desired, replace(observed.state, scaling={}))
    scaling = {group.name: _scaling(group, observed.state) for group in autoscaled(desired)}
    by_hand = {g.name for g in autoscaled(desired) if scaling[g.name].declared != g.replicas}
    fixed = [replace(g, min=None, max=None) if g.name in by_hand else g for g in desired.shape.workers]
    members = _by_group(observed)
    starts = memory.starts
    if view.up:  # else no member would seem to be ready
        starts = observe(starts, ((m.id, m.group, is_ready(m, observed, view)) for m in observed.members), now)
    supply = {g.name: _supply(g, members.get(g.name, ()), desired, observed, view, scaling) for g in fixed}
    supply = {name: replace(own, start_seconds=starts.typical(name)) for name, own in supply.items()}
    result = targets(Situation(fixed, supply, view.demand, observed.limits), desired.autoscale, memory, now)
    chosen = {name: result.groups[name] for name in scaling if name not in by_hand}
    for name in by_hand:
        number = next(group.replicas for group in desired.shape.workers if group.name == name)
        message = f"replicas was set to {number}. `oars adapt` turns autoscaling on again."
        chosen[name] = GroupTarget(number, number, "SetByHand", message)
    numbers = {name: each.target for name, each in chosen.items()}
    return Scaled(
        _with_numbers(desired, numbers),
        replace(observed.state, scaling={name: replace(scaling[name], target=n) for name, n in numbers.items()}),
        replace(result.memory, starts=starts),
        chosen,
        (*_obstacles(desired, chosen), *(Cause("Unservable", each.message, UNSERVABLE) for each in result.unservable)),
        result.next_look,
        result.unservable,
    )


def _obstacles(desired: Desired, chosen: Mapping[str, GroupTarget]) -> list[Cause]:
    """Groups that cannot grow although work waits for them."""
    status = command("status", desired.name, namespace=desired.namespace)
    hints = {
        "Blocked": f"Oars adds workers again when the one that waits has started; `{status}` shows it.",
        "Limited": "Use smaller workers, or a place with more room.",
    }
    return [
        Cause(f"ScaleUp{target.reason}", f"Group {name}: {target.message}", hints[target.reason])
        for name, target in chosen.items()
        if target.reason in hints
    ]


def _scaling(group: Group, state: LoopState) -> GroupScaling:
    """What is recorded for the group; a new record if its bounds have changed, or `oars adapt` was called."""
    least, most = group.min or 0, group.max or 0
    known = state.scaling.get(group.name)
    if known is not None and (known.min, known.max, known.adapted) == (least, most, group.adapted):
        return known
    return GroupScaling(max(least, min(group.replicas, most)), group.replicas, least, most, group.adapted)


def _by_group(observed: Observed) -> dict[str, list[Member]]:
    found: dict[str, list[Member]] = {}
    for member in observed.members:
        found.setdefault(member.group, []).append(member)
    return found


def _supply(
    group: Group, members: Collection[Member], desired: Desired, observed: Observed, view: View,
    scaling: Mapping[str, GroupScaling],
) -> Supply:  # fmt: skip
    """The members of one group by state. Those that the place has yet to list are starting, or stuck if it refuses to
    create more."""
    staying = [member for member in members if member.id not in observed.state.retiring]
    ready = [member.id for member in staying if is_ready(member, observed, view)]
    stuck = [member for member in staying if member.blocked and member.state is MemberState.WAITING]
    target = scaling[group.name].target if group.name in scaling else group.replicas
    unlisted = max(0, target - len(staying))
    refused = observed.refused.get(group.name, "")
    reported = [view.members[member] for member in ready]
    idle_for = desired.autoscale.scale_down_delay
    removable = sum(not m.pinned and (desired.shape.moves_data or m.idle >= idle_for) for m in reported)
    return Supply(
        ready=len(ready),
        starting=len(staying) - len(ready) - len(stuck) + (0 if refused else unlisted),
        stuck=len(stuck) + (unlisted if refused else 0),
        stuck_since=min((member.created_at for member in stuck), default=0.0),
        stuck_reason=stuck[0].blocked if stuck else refused,
        has_node_autoscaler=any(member.is_node_coming for member in stuck),
        retiring=len(members) - len(staying),
        removable=None if removable == len(reported) and desired.shape.moves_data else removable,
        holding=sum(member.held > 0 for member in reported),
        held=sum(member.held for member in reported),
    )


def _with_numbers(desired: Desired, numbers: Mapping[str, int]) -> Desired:
    workers = tuple(replace(g, replicas=numbers.get(g.name, g.replicas)) for g in desired.shape.workers)
    return replace(desired, shape=replace(desired.shape, workers=workers))
