"""Changes to a spec before validation: `--set path=value` and the short options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from oars.base.errors import SpecError
from oars.base.text import suggest
from oars.spec import text
from oars.spec.problems import path
from oars.spec.text import Loc

OVERRIDES = (
    "engine",
    "place",
    "workers",
    "cpu",
    "memory",
    "cache",
    "spill",
    "head_cpu",
    "head_memory",
    "packages",
    "image",
    "lifetime",
)
_PART = re.compile(r'(?:^|\.)(?P<name>[^."\[\]=]+|"[^"]*")|\[(?P<index>\d{1,6})\]')


def apply_set(assignment: str, spec: dict[str, Any], places: dict[Loc, str]) -> None:
    """Apply one 'path=value' to the data of a spec. The value is YAML."""
    loc, value = _parse(assignment)
    if loc == ("workers",) and _is_count(value):
        _set_count(spec, value)
    elif loc[0] == "workers" and len(loc) > 1:
        spec["workers"] = _groups(spec)
        loc = ("workers", _group_index(spec["workers"], loc[1], assignment), *loc[2:])
        _assign(spec, loc, value, assignment)
        if loc == ("workers", 0, "replicas"):
            spec.pop("replicas", None)
    else:
        _assign(spec, loc, value, assignment)
        if loc == ("replicas",) and "workers" in spec:
            spec["workers"] = groups = _groups(spec)
            if isinstance(groups, list) and groups and isinstance(groups[0], dict):
                groups[0].pop("replicas", None)  # that of the cluster replaces it
    _set_place(places, ("spec", *loc), f"--set {assignment}")


def apply_overrides(overrides: Mapping[str, Any], spec: dict[str, Any], places: dict[Loc, str]) -> None:
    """Set engine, place, image, lifetime, workers of the first group, cpu, memory, cache and spill of every group, cpu
    and memory of the head; add packages."""
    for name, value in overrides.items():
        if name not in OVERRIDES:
            raise SpecError(f"Unknown option {name!r}.{suggest(name, OVERRIDES)}", f"Options: {', '.join(OVERRIDES)}.")
        if value is not None:
            for loc in _apply_override(name, value, spec):
                _set_place(places, ("spec", *loc), "")


def _apply_override(name: str, value: Any, spec: dict[str, Any]) -> list[Loc]:
    """Apply one override. Returns the changed paths."""
    if name == "workers" and not _is_count(value) and not isinstance(value, list | tuple):
        message = f"workers must be a whole number or a list of groups, not {value!r}."
        raise SpecError(message, "For example workers=3.")
    if name == "workers" and _is_count(value):
        if value < 0:
            raise SpecError(f"workers must be at least 0, not {value}.", "Use a whole number, 0 or more.")
        _set_count(spec, value)
        return [("workers", 0, "replicas")]
    if name in ("cpu", "memory", "cache", "spill"):
        if name == "spill" and isinstance(value, str | list | tuple):
            value = {"paths": value}
        spec["workers"] = groups = _groups(spec)
        entries = list(enumerate(groups)) if isinstance(groups, list) else []
        chosen = [(index, group) for index, group in entries if isinstance(group, dict)]
        for _, group in chosen:
            group[name] = value
        return [("workers", index, name) for index, _ in chosen]
    if name in ("head_cpu", "head_memory"):
        head = spec["head"] = spec.get("head") or {}
        field = name.removeprefix("head_")
        if isinstance(head, dict):  # anything else is left for the validation
            head[field] = value
        return [("head", field)]
    if name == "packages":
        return _add_packages(spec, value)
    spec[name] = value
    return [(name,)]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _set_count(spec: dict[str, Any], count: int) -> None:
    spec.pop("replicas", None)
    groups = _groups(spec)
    if isinstance(groups, list):
        groups[:1] = [{**(groups[0] if groups and isinstance(groups[0], dict) else {}), "replicas": count}]
        spec["workers"] = groups


def _add_packages(spec: dict[str, Any], packages: Any) -> list[Loc]:
    if not isinstance(packages, list | tuple):
        raise SpecError("packages must be a list of requirements.", "For example packages=['pandas', 'numpy>=2'].")
    environment = spec.setdefault("environment", {})
    if isinstance(environment, dict) and isinstance(environment.setdefault("packages", []), list):
        first = len(environment["packages"])
        environment["packages"] += packages
        return [("environment", "packages", first + index) for index in range(len(packages))]
    return []


def _groups(spec: Mapping[str, Any]) -> Any:
    """`workers` as a list of groups; invalid values are left for the validation."""
    workers = spec.get("workers")
    if workers is None:
        return [{}]
    return [{"replicas": workers}] if _is_count(workers) else workers


def _parse(assignment: str) -> tuple[Loc, Any]:
    loc: list[str | int] = []
    position = 0
    while (match := _PART.match(assignment, position)) and match.end() > position:
        loc.append(int(match["index"]) if match["index"] else match["name"].strip().strip('"'))
        position = match.end()
    if not loc or not isinstance(loc[0], str) or assignment[position : position + 1] != "=":
        raise SpecError(
            f"--set {assignment}: expected path=value.",
            "For example head.cpu=2, workers=5 or workers.gpu.replicas=3.",
        )
    try:
        return tuple(loc), text.read(assignment[position + 1 :], "the value").data
    except SpecError as error:
        raise SpecError(f"--set {assignment}: {error.message}", "Quote the value if it is text.") from None


def _group_index(groups: Any, wanted: str | int, assignment: str) -> int:
    if isinstance(wanted, int):
        return wanted
    names = [str(group.get("name", "default")) for group in groups if isinstance(group, dict)] if groups else []
    if wanted in names:
        return names.index(wanted)
    listed = ", ".join(names) or "none"
    raise SpecError(
        f"--set {assignment}: there is no worker group {wanted!r}.{suggest(wanted, names)}",
        f"For example workers.default.cpu=2; the groups are: {listed}.",
    )


def _assign(target: Any, loc: Loc, value: Any, assignment: str) -> None:
    """Set the value at a path. Missing mappings and lists on the way are created."""
    for depth, part in enumerate(loc):
        key = _key(target, part, loc[:depth], assignment)
        is_last = depth == len(loc) - 1
        new: Any = value if is_last else {} if isinstance(loc[depth + 1], str) else []
        if isinstance(target, list) and key == len(target):
            target.append(new)
        elif is_last or (isinstance(target, dict) and target.get(key) is None):
            target[key] = new
        target = target[key]


def _key(target: Any, part: str | int, loc: Loc, assignment: str) -> Any:
    """The key or index in the target: object_store_memory refers to an existing objectStoreMemory."""
    where = path(("spec", *loc))
    if isinstance(part, str) and not isinstance(target, dict):
        sentence = f"{where} is not a mapping, so it has no {part!r}"
    elif isinstance(part, int) and not isinstance(target, list):
        sentence = f"{where} is not a list, so it has no [{part}]"
    elif isinstance(part, int) and part > len(target):
        sentence = f"{where} has {len(target)} entries, so it has no [{part}]"
    else:
        return to_camel(part) if isinstance(part, str) and to_camel(part) in target else part
    raise SpecError(f"--set {assignment}: {sentence}.", "Correct the path, or set the whole value.")


def _set_place(places: dict[Loc, str], loc: Loc, place: str) -> None:
    """Replace the positions of a value and of what is below it."""
    for known in [known for known in places if known[: len(loc)] == loc]:
        del places[known]
    places[loc] = place
