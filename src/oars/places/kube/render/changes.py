"""What another description means for a cluster that runs: what is changed in place, which workers are replaced (after
they have handed over what they hold), and whether the head must go, and with it all workers and all work. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from oars.model import Group
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import objects
from oars.places.kube.render.pod import Cluster, mounted_files, revision, template
from oars.spec.cluster import ClusterSpec

# Fields that cannot follow, as in the CRD, with the reason.
FIXED = {
    "engine": "another engine is another cluster",
    "namespace.name": "a cluster cannot move",
    "namespace.create": "a cluster cannot move",
    "dask.protocol": "running clients and workers speak the old one",
    "ray.auth": "running clients and workers use the old one",
    "mars.distribution": "the two cannot talk to each other",
}
# Of the loop alone: no object of Kubernetes shows them.
QUIET = ("drain", "lifetime", "min_ready")
MOST_LINES = 20
_LONG = 60
_MISSING = object()


class Effect(StrEnum):
    """What a change costs, from nothing to everything."""

    IN_PLACE = "in place"
    ADDED = "added"
    DRAINED = "drained"  # workers go, what they hold moves first unless the head goes too
    ROLLED = "rolled"  # workers are replaced, what they hold moves first unless the head goes too
    HEAD = "head replaced"  # and all that the cluster holds is lost
    REFUSED = "refused"


@dataclass(frozen=True)
class Change:
    """One difference: what it costs, a sentence, and the fields that make it."""

    effect: Effect
    message: str
    lines: tuple[str, ...] = ()


def compare(before: Cluster, after: Cluster) -> tuple[Change, ...]:
    """Nothing: both are the same. The gravest comes first."""
    refused = tuple(_refused(_at_home(before), _at_home(after)))
    if refused:
        return refused
    head = list(_head(before, after))
    found = [*_around(before, after), *_quiet(before.spec, after.spec), *head]
    found += _groups(before, after, with_head=bool(head))
    order = list(Effect)
    return tuple(sorted(found, key=lambda change: -order.index(change.effect)))


def _at_home(cluster: Cluster) -> ClusterSpec:
    """Said or not, a cluster is in a namespace."""
    block = cluster.spec.namespace
    named = block.model_copy(update={"name": block.name or cluster.namespace})
    return cluster.spec.model_copy(update={"namespace": named})


def _refused(before: ClusterSpec, after: ClusterSpec) -> Iterator[Change]:
    for path, reason in FIXED.items():
        old, new = _field(before, path), _field(after, path)
        if old != new:
            yield Change(Effect.REFUSED, f"{path} cannot change: {reason}.", (_line(path, old, new),))


def _field(spec: ClusterSpec, path: str) -> Any:
    found: Any = spec
    for step in path.split("."):
        found = getattr(found, step)
    return found


def _around(before: Cluster, after: Cluster) -> Iterator[Change]:
    """The Service, the policies and the like. Files are told with the members that read them."""
    old, new = ({names.kind_and_name(obj): obj for obj in _everything_around(each)} for each in (before, after))
    for key in [*old, *(key for key in new if key not in old)]:
        kind, name = key
        if kind == "ConfigMap" or old.get(key) == new.get(key):
            continue
        verb = "is made" if key not in old else "is removed" if key not in new else "is changed"
        lines = lines_between(old[key], new[key]) if key in old and key in new else ()
        yield Change(Effect.IN_PLACE, f"{kind} {name} {verb}.", lines)


def _everything_around(cluster: Cluster) -> list[Object]:
    return [*objects.surroundings(cluster), objects.disruption_budget(cluster)]


def _quiet(before: ClusterSpec, after: ClusterSpec) -> Iterator[Change]:
    old, new = ({name: each.model_dump(mode="json")[name] for name in QUIET} for each in (before, after))
    if lines := lines_between(old, new):
        yield Change(Effect.IN_PLACE, "How the cluster is looked after is changed.", lines)


def _head(before: Cluster, after: Cluster) -> Iterator[Change]:
    old, new = before.shape.head, after.shape.head
    if objects.revision_of(before, old) == objects.revision_of(after, new):
        return
    sentence = "The head is replaced: running work and all that the cluster holds are lost."
    yield Change(Effect.HEAD, sentence, lines_between(_made_of(before, old), _made_of(after, new)))


def _groups(before: Cluster, after: Cluster, *, with_head: bool) -> Iterator[Change]:
    """`with_head`: it is replaced too, and all workers go with it as they are."""
    old, new = ({group.name: group for group in each.shape.workers} for each in (before, after))
    for name, group in old.items():
        if name not in new:
            sentence = f"The group {name!r} is removed: {_leave(group.replicas, with_head=with_head)}."
            yield Change(Effect.DRAINED, sentence)
    for name, group in new.items():
        if name not in old:
            yield Change(Effect.ADDED, f"The group {name!r} is new, with {_count(group.replicas)}.")
        else:
            yield from _group(before, after, old[name], group, with_head=with_head)


def _group(before: Cluster, after: Cluster, old: Group, new: Group, *, with_head: bool) -> Iterator[Change]:
    if objects.revision_of(before, old) != objects.revision_of(after, new):
        how = (
            " with the head; what they hold is lost" if with_head else "; each hands over what it holds before it goes"
        )
        sentence = f"The workers of {new.name!r} are replaced{how}."
        yield Change(Effect.ROLLED, sentence, lines_between(_made_of(before, old), _made_of(after, new)))
    if new.replicas > old.replicas:
        more = new.replicas - old.replicas
        yield Change(Effect.ADDED, f"The group {new.name!r} gets {more} more, from {old.replicas} to {new.replicas}.")
    elif new.replicas < old.replicas:
        numbers = f"from {old.replicas} to {new.replicas}"
        leave = _leave(old.replicas - new.replicas, with_head=with_head)
        yield Change(Effect.DRAINED, f"The group {new.name!r} shrinks {numbers}: {leave}.")


def _count(number: int) -> str:
    return f"{number} {'worker' if number == 1 else 'workers'}"


def _leave(number: int, *, with_head: bool) -> str:
    if with_head:
        return "1 worker goes with the head" if number == 1 else f"{number} workers go with the head"
    return "1 worker hands over what it holds and goes" if number == 1 else f"{number} workers hand over and go"


def _made_of(cluster: Cluster, group: Group) -> Object:
    """What its pods are made of. Whole files would hide the rest; each has a short name for its content instead, and
    the annotation that stands for all of them says no more."""
    pod = template(cluster, group)
    pod["metadata"].get("annotations", {}).pop(names.FILES, None)
    return {**pod, "files": {name: revision({name: text}) for name, text in mounted_files(cluster, group).items()}}


# fields


def lines_between(before: Any, after: Any) -> tuple[str, ...]:
    """The fields that differ, as `path: old → new`."""
    found = list(_between(before, after, ""))
    more = len(found) - MOST_LINES
    return (*found[:MOST_LINES], f"… and {more} more") if more > 0 else tuple(found)


def _between(before: Any, after: Any, path: str) -> Iterator[str]:
    if before == after:
        return
    old, new = _by_name(before), _by_name(after)
    if old is None or new is None:
        yield _line(path, before, after)
        return
    named = isinstance(before, list)
    for key in [*old, *(key for key in new if key not in old)]:
        below = f"{path}[{key}]" if named else f"{path}.{key}" if path else str(key)
        yield from _between(old.get(key, _MISSING), new.get(key, _MISSING), below)


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """A mapping as it is, and a list whose entries have names as one."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and all(isinstance(entry, Mapping) and "name" in entry for entry in value):
        return {str(entry["name"]): entry for entry in value}
    return None


def _line(path: str, old: Any, new: Any) -> str:
    shown = _short(old), _short(new)
    return f"{path} differs" if shown[0] == shown[1] else f"{path}: {shown[0]} → {shown[1]}"


def _short(value: Any) -> str:
    if value is _MISSING or value is None:
        return "nothing"
    if isinstance(value, Mapping) and set(value) == {"name", "value"}:
        value = value["value"]
    text = " ".join(str(value).split())
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"
