"""Compares two specs of a running cluster: what changes in place, which workers are replaced (after they have handed
over their data), and whether the head is replaced, which loses all workers and all work. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from oars import engines
from oars.model import Desired, Group
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import objects
from oars.places.kube.render.pod import mounted_files, template
from oars.plan.desired import digest
from oars.spec.cluster import ClusterSpec
from oars.spec.options import parse_options

# Fields that cannot change in a running cluster, with the reason. The CRD has the same; engines add their own options.
IMMUTABLE = {
    "engine": "another engine is another cluster",
    "namespace.name": "a cluster cannot move",
    "namespace.create": "a cluster cannot move",
}
# Fields that only the control loop reads: they change no Kubernetes object.
LOOP_FIELDS = ("drain", "lifetime", "min_ready")
MOST_LINES = 20
_LONG = 60
_MISSING = object()


class Effect(StrEnum):
    """The effect of a change, the least severe first."""

    IN_PLACE = "in place"
    ADDED = "added"
    DRAINED = "drained"  # workers are removed; they hand over their data first unless the head is replaced too
    ROLLED = "rolled"  # workers are replaced; they hand over their data first unless the head is replaced too
    HEAD = "head replaced"  # all data of the cluster is lost
    REFUSED = "refused"


@dataclass(frozen=True)
class Change:
    """One difference: its effect, a sentence for users, and the fields that differ."""

    effect: Effect
    message: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Version:
    """A spec and the desired state built from it."""

    spec: ClusterSpec
    desired: Desired


def compare(before: Version, after: Version) -> tuple[Change, ...]:
    """The changes from one version to the other, the most severe first. Empty: both are the same."""
    refused = tuple(_refused(_with_namespace(before), _with_namespace(after)))
    if refused:
        return refused
    head = list(_head(before, after))
    found = [*_owned_objects(before, after), *_loop_settings(before.spec, after.spec), *head]
    found += _groups(before, after, with_head=bool(head))
    order = list(Effect)
    return tuple(sorted(found, key=lambda change: -order.index(change.effect)))


def _with_namespace(version: Version) -> ClusterSpec:
    """The spec with its namespace filled in."""
    block = version.spec.namespace
    named = block.model_copy(update={"name": block.name or version.desired.namespace})
    return version.spec.model_copy(update={"namespace": named})


def _refused(before: ClusterSpec, after: ClusterSpec) -> Iterator[Change]:
    fields = [(path, reason, _field(before, path), _field(after, path)) for path, reason in IMMUTABLE.items()]
    if before.engine == after.engine:
        fields += _immutable_options(before, after)
    for path, reason, old, new in fields:
        if old != new:
            yield Change(Effect.REFUSED, f"{path} cannot change: {reason}.", (_line(path, old, new),))


def _immutable_options(before: ClusterSpec, after: ClusterSpec) -> Iterator[tuple[str, str, Any, Any]]:
    engine = engines.get(before.engine)
    model = engine.options_model()
    if model is not None:
        old, new = (parse_options(model, spec).model_dump(mode="json", by_alias=True) for spec in (before, after))
        for name, reason in engine.immutable_options.items():
            yield f"{engine.name}.{name}", reason, old[name], new[name]


def _field(spec: ClusterSpec, path: str) -> Any:
    found: Any = spec
    for step in path.split("."):
        found = getattr(found, step)
    return found


def _owned_objects(before: Version, after: Version) -> Iterator[Change]:
    """Changes of the Service, the policies and the like. Files are reported with the members that read them."""
    old, new = ({names.kind_and_name(obj): obj for obj in _render_owned(each)} for each in (before, after))
    for key in [*old, *(key for key in new if key not in old)]:
        kind, name = key
        if kind == "ConfigMap" or old.get(key) == new.get(key):
            continue
        verb = "is made" if key not in old else "is removed" if key not in new else "is changed"
        lines = lines_between(old[key], new[key]) if key in old and key in new else ()
        yield Change(Effect.IN_PLACE, f"{kind} {name} {verb}.", lines)


def _render_owned(version: Version) -> list[Object]:
    return [*objects.supporting_objects(version.desired), objects.disruption_budget(version.desired)]


def _loop_settings(before: ClusterSpec, after: ClusterSpec) -> Iterator[Change]:
    old, new = ({name: each.model_dump(mode="json")[name] for name in LOOP_FIELDS} for each in (before, after))
    if lines := lines_between(old, new):
        yield Change(Effect.IN_PLACE, "Settings of the control loop are changed.", lines)


def _head(before: Version, after: Version) -> Iterator[Change]:
    old, new = before.desired.shape.head, after.desired.shape.head
    if objects.revision_of(before.desired, old) == objects.revision_of(after.desired, new):
        return
    sentence = "The head is replaced: running work and all that the cluster holds are lost."
    yield Change(Effect.HEAD, sentence, lines_between(_made_of(before, old), _made_of(after, new)))


def _groups(before: Version, after: Version, *, with_head: bool) -> Iterator[Change]:
    """Changes of worker groups. `with_head`: the head is replaced too, so the workers cannot hand over their data."""
    old, new = ({group.name: group for group in each.desired.shape.workers} for each in (before, after))
    for name, group in old.items():
        if name not in new:
            sentence = f"The group {name!r} is removed: {_leave(group.replicas, with_head=with_head)}."
            yield Change(Effect.DRAINED, sentence)
    for name, group in new.items():
        if name not in old:
            yield Change(Effect.ADDED, f"The group {name!r} is new, with {_count(group.replicas)}.")
        else:
            yield from _group(before, after, old[name], group, with_head=with_head)


def _group(before: Version, after: Version, old: Group, new: Group, *, with_head: bool) -> Iterator[Change]:
    if objects.revision_of(before.desired, old) != objects.revision_of(after.desired, new):
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
        return f"{_count(number)} {'is' if number == 1 else 'are'} removed with the head"
    verbs = "hands over its data and is removed" if number == 1 else "hand over their data and are removed"
    return f"{_count(number)} {verbs}"


def _made_of(version: Version, group: Group) -> Object:
    """The pod template and the files of a group, to compare. Each file is replaced by a hash of its content, as whole
    files would hide the other differences. The annotation with the hash of all files is redundant then."""
    pod = template(version.desired, group)
    pod["metadata"].get("annotations", {}).pop(names.FILES, None)
    return {
        **pod,
        "files": {name: digest({name: text}) for name, text in mounted_files(version.desired, group).items()},
    }


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
    """The value as a mapping: a mapping itself, or a list whose entries all have names. None for others."""
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
