"""Why autoscaling chose a number of members: a CamelCase reason and a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oars.model import Autoscale, Group, LabelRule
from oars.plan.packing import ROUNDING, Fleet, Part
from oars.spec.resources import show_memory

Reason = tuple[str, str]

MOST_VALUES = 3  # of a label that a message shows

SILENT: Reason = ("DemandUnknown", "The engine does not report its demand, so the number of workers stays as it is.")


@dataclass(frozen=True)
class Facts:
    """A group after the decision."""

    group: Group
    before: int  # its last target
    target: int
    need: int
    peak: int  # the largest need within the delay
    ready: int
    is_overdue: bool  # it has more members than were needed within the delay
    blocked: str | None  # why its members cannot start, if it is blocked
    limit: str  # what keeps it from growing, besides its maximum
    has_no_room: bool  # there is work that it could serve with more members
    serves: tuple[int, Part] | None  # what most of its work is


def explain(facts: Facts, policy: Autoscale) -> Reason:
    if facts.group.max is None:
        return "Fixed", "This group is not autoscaled."
    if facts.blocked is not None:
        why = facts.blocked or "its workers did not start"
        work = _work(facts) if facts.need else "No worker is needed now."
        return "Blocked", f"{work} No more workers are added than one that waits, because {why}."
    if facts.target != facts.before:
        return _change(facts, policy)
    if facts.need > facts.target:
        return "Settling", f"{_work(facts)} Workers are added as soon as the demand has settled."
    if facts.has_no_room and facts.limit:
        return "Limited", f"More work waits than {_workers(facts.target)} can serve, but {facts.limit}."
    if facts.has_no_room and facts.target == facts.group.max:
        return "AtMaximum", f"More work waits than {_workers(facts.target)} can serve; that is the maximum."
    if facts.need < facts.target:
        return _surplus(facts, policy)
    if facts.ready < facts.target:
        return "Starting", f"{facts.ready} of {_workers(facts.target)} are ready. {_work(facts)}"
    return "Steady", f"{_workers(facts.target)} {'is' if facts.target == 1 else 'are'} needed."


def _change(facts: Facts, policy: Autoscale) -> Reason:
    if facts.target < facts.before:
        if facts.target == facts.group.max:
            return "ScaledDown", f"{_workers(facts.target)} {'is' if facts.target == 1 else 'are'} the maximum."
        return "ScaledDown", f"No more than {_workers(facts.peak)} were needed within {policy.scale_down_delay:g} s."
    if facts.target == facts.group.min:
        return "ScaledUp", f"{_workers(facts.target)} {'is' if facts.target == 1 else 'are'} the minimum."
    return "ScaledUp", _work(facts)


def _surplus(facts: Facts, policy: Autoscale) -> Reason:
    if facts.is_overdue:
        return "InUse", f"{_workers(facts.need)} would do; the others leave when they are empty, several together."
    needed = f"{_workers(facts.peak)} were needed within the last {policy.scale_down_delay:g} s"
    if facts.peak <= facts.target and facts.peak > facts.need:
        return "Stabilizing", f"{_workers(facts.need)} would do now, but {needed}."
    return "Stabilizing", f"{_workers(facts.need)} would do now; the others stay for {policy.scale_down_delay:g} s."


def _work(facts: Facts) -> str:
    """What the group is needed for."""
    if facts.serves is None:
        return "Workers are needed for data, or because the user requested the capacity."
    part = facts.serves[1].demand
    waiting = part.count - part.running
    number, verb = (waiting, "wait") if waiting else (part.running, "run")
    tasks = f"{number} tasks {verb}" if number != 1 else f"1 task {verb}s"
    needs = _amounts(part.needs) + (" each" if number != 1 else "")
    return f"{tasks} for {needs}." if waiting else f"{tasks} with {needs}."


def why_never(fleet: Fleet, part: Part) -> str:
    """Why no group can serve the demand."""
    demand = part.demand
    head = f"{demand.count} tasks need" if demand.count != 1 else "1 task needs"
    text = f"{head} {_amounts(demand.needs)}" + (" each" if demand.count != 1 else "")
    for name, amount in part.needs:
        largest = fleet.largest.get(name, 0.0)
        if not largest:
            return f"{text}, but no group of workers offers {name}."
        if amount > largest + ROUNDING:
            return f"{text}, but no worker has more than {_amount(name, largest)}."
    if demand.labels:
        rules = " and ".join(map(_rule, demand.labels))
        return f"{text}, on workers with {rules}; no group of workers has all of that."
    if demand.gang and part.groups:
        return f"{text}, all at once; the groups of workers are not that large at their maximum."
    return f"{text}; no group of workers offers all of that, or its maximum is 0."


def _rule(rule: LabelRule) -> str:
    """As Kubernetes writes selectors."""
    values = sorted(rule.values)
    more = ", …" if len(values) > MOST_VALUES else ""
    return f"{rule.key} {'notin' if rule.negated else 'in'} ({', '.join(values[:MOST_VALUES])}{more})"


def _workers(number: int) -> str:
    return f"{number} worker" if number == 1 else f"{number} workers"


def _amounts(needs: Mapping[str, float]) -> str:
    shown = [_amount(name, amount) for name, amount in needs.items() if amount > 0]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown) or "any worker"


def _amount(name: str, amount: float) -> str:
    return f"{show_memory(int(amount))} of memory" if name == "memory" else f"{amount:g} {name}"
