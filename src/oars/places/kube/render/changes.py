"""Compares two specs of a running cluster: what changes in place, which workers are replaced (after they have handed
over their data), and whether the head is replaced, which loses all workers and all work. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from oars import engines
from oars.model import Desired
from oars.places.kube import names
from oars.places.kube.render import objects
from oars.places.kube.render.replacement import head_replacement, replacement
from oars.plan.changes import Change, Effect, difference, lines_between
from oars.spec.cluster import ClusterSpec
from oars.spec.options import parse_options

# Fields that cannot change in a running cluster, with the reason. The CRD has the same; engines add their own options.
IMMUTABLE = {
    "engine": "another engine is another cluster",
    "namespace.name": "a cluster cannot move",
    "namespace.create": "a cluster cannot move",
}
# Fields that only the control loop reads: they change no Kubernetes object.
LOOP_FIELDS = {"autoscale", "drain", "lifetime", "min_ready"}


@dataclass(frozen=True)
class Version:
    """A spec and the desired state built from it."""

    spec: ClusterSpec
    desired: Desired


def compare(before: Version, after: Version) -> tuple[Change, ...]:
    """The changes from one version to the other, the most severe first. Empty: both are the same."""
    refused = tuple(_refused(before, after))
    if refused:
        return refused
    found = list(_owned_objects(before, after))
    old, new = (version.spec.model_dump(mode="json", by_alias=True, include=LOOP_FIELDS) for version in (before, after))
    if lines := lines_between(old, new):
        found.append(Change(Effect.IN_PLACE, "Settings of the control loop change.", lines))
    head = head_replacement(before.desired, after.desired)
    if head is not None:
        message = "The head is replaced: running work and all data of the cluster are lost."
        found.append(Change(Effect.HEAD, message, head))
    found += _groups(before, after, with_head=head is not None)
    order = list(Effect)
    return tuple(sorted(found, key=lambda change: -order.index(change.effect)))


def _refused(before: Version, after: Version) -> Iterator[Change]:
    old, new = _immutable_fields(before), _immutable_fields(after)
    for path, (value, reason) in old.items():
        if path in new and new[path][0] != value:
            yield Change(Effect.REFUSED, f"{path} cannot change: {reason}.", (difference(path, value, new[path][0]),))


def _immutable_fields(version: Version) -> dict[str, tuple[Any, str]]:
    """Path: value and reason. The options are those of the version's engine."""
    spec, engine = version.spec, engines.get(version.spec.engine)
    values = {
        "engine": spec.engine,
        "namespace.name": spec.namespace.name or version.desired.namespace,
        "namespace.create": spec.namespace.create,
    }
    fields = {path: (values[path], reason) for path, reason in IMMUTABLE.items()}
    if (model := engine.options_model()) is not None:
        options = parse_options(model, spec).model_dump(mode="json", by_alias=True)
        immutable = engine.immutable_options.items()
        fields |= {f"{engine.name}.{name}": (options[name], reason) for name, reason in immutable}
    return fields


def _owned_objects(before: Version, after: Version) -> Iterator[Change]:
    """Changes of the Service, the policies and the like. Files are reported with the members that read them."""
    old, new = (
        {
            names.kind_and_name(obj): obj
            for obj in (*objects.supporting_objects(each), *objects.disruption_budgets(each))
        }
        for each in (before.desired, after.desired)
    )
    for key in {**old, **new}:
        kind, name = key
        if kind == "ConfigMap" or old.get(key) == new.get(key):
            continue
        verb = "is created" if key not in old else "is deleted" if key not in new else "changes"
        lines = lines_between(old[key], new[key]) if key in old and key in new else ()
        yield Change(Effect.IN_PLACE, f"{kind} {name} {verb}.", lines)


def _groups(before: Version, after: Version, *, with_head: bool) -> Iterator[Change]:
    """Changes of worker groups. `with_head`: the head is replaced too, so the workers cannot hand over their data."""
    old, new = ({group.name: group for group in each.desired.shape.workers} for each in (before, after))
    for name, group in old.items():
        if name not in new:
            yield Change(Effect.DRAINED, f"The group {name!r} is removed: {_leave(group.replicas, with_head)}.")
    for name, group in new.items():
        if name not in old:
            yield Change(Effect.ADDED, f"The group {name!r} is new, with {_count(group.replicas)}.")
            continue
        fields = replacement(before.desired, after.desired, old[name], group)
        if fields is not None:
            how = " with the head, and their data is lost" if with_head else "; each hands over its data first"
            yield Change(Effect.ROLLED, f"The workers of {name!r} are replaced{how}.", fields)
        more, numbers = group.replicas - old[name].replicas, f"from {old[name].replicas} to {group.replicas}"
        if more > 0:
            yield Change(Effect.ADDED, f"The group {name!r} gets {more} more, {numbers}.")
        elif more < 0:
            yield Change(Effect.DRAINED, f"The group {name!r} shrinks {numbers}: {_leave(-more, with_head)}.")


def _count(number: int) -> str:
    return f"{number} {'worker' if number == 1 else 'workers'}"


def _leave(number: int, with_head: bool) -> str:
    if with_head:
        return f"{_count(number)} {'is' if number == 1 else 'are'} removed with the head"
    verbs = "hands over its data and is removed" if number == 1 else "hand over their data and are removed"
    return f"{_count(number)} {verbs}"
