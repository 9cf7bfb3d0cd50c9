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

OVERRIDES = ("engine", "place", "workers", "cpu", "memory", "packages", "image")
_PART = re.compile(r'(?:^|\.)(?P<name>[^."\[\]=]+|"[^"]*")|\[(?P<index>\d{1,6})\]')


def apply_set(assignment: str, spec: dict[str, Any], places: dict[Loc, str]) -> None:
    """Apply one 'path=value' to the data of a spec. The value is YAML."""
    loc, value = _parse(assignment)
    if loc == ("workers",) and _is_count(value):
        _set_count(spec, value)
    elif loc[0] == "workers" and len(loc) > 1:
        spec["workers"] = _groups(spec.get("workers"))
        loc = ("workers", _group_index(spec["workers"], loc[1], assignment), *loc[2:])
        _assign(spec, loc, value, assignment)
        if loc == ("workers", 0, "replicas"):
            spec.pop("replicas", None)
    else:
        _assign(spec, loc, value, assignment)
        if loc == ("replicas",) and "workers" in spec:
            spec["workers"] = _without_count(_groups(spec["workers"]))
    _delete_places(places, ("spec", *loc))
    places[("spec", *loc)] = f"--set {assignment}"


def apply_overrides(overrides: Mapping[str, Any], spec: dict[str, Any], places: dict[Loc, str]) -> None:
    """Set engine, place, image, workers of the first group, cpu and memory of every group; add packages."""
    for name, value in overrides.items():
        if name not in OVERRIDES:
            raise SpecError(f"Unknown option {name!r}.{suggest(name, OVERRIDES)}", f"Options: {', '.join(OVERRIDES)}.")
        if value is not None:
            for loc in _apply_override(name, value, spec):
                _delete_places(places, loc)
                places[loc] = ""


def _apply_override(name: str, value: Any, spec: dict[str, Any]) -> list[Loc]:
    """Apply one override. Returns the changed paths."""
    if name == "workers" and _is_count(value):
        return _set_count(spec, value)
    if name in ("cpu", "memory"):
        return _set_all(spec, name, value)
    if name == "packages":
        return _add_packages(spec, value)
    spec[name] = value
    return [("spec", name)]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _without_count(groups: Any) -> Any:
    """The groups, the first one without `replicas`: that of the cluster replaces it."""
    if not isinstance(groups, list) or not groups or not isinstance(groups[0], dict):
        return groups
    return [{key: value for key, value in groups[0].items() if key != "replicas"}, *groups[1:]]


def _set_count(spec: dict[str, Any], count: int) -> list[Loc]:
    spec.pop("replicas", None)
    groups = _groups(spec.get("workers"))
    if isinstance(groups, list):
        groups[:1] = [{**(groups[0] if groups and isinstance(groups[0], dict) else {}), "replicas": count}]
        spec["workers"] = groups
    return [("spec", "workers", 0, "replicas")]


def _set_all(spec: dict[str, Any], name: str, value: Any) -> list[Loc]:
    spec["workers"] = groups = _groups(spec.get("workers"))
    chosen = (
        [index for index, group in enumerate(groups) if isinstance(group, dict)] if isinstance(groups, list) else []
    )
    for index in chosen:
        groups[index][name] = value
    return [("spec", "workers", index, name) for index in chosen]


def _add_packages(spec: dict[str, Any], packages: Any) -> list[Loc]:
    environment = spec.setdefault("environment", {})
    if not isinstance(packages, list | tuple):
        raise SpecError("packages must be a list of requirements.", "For example packages=['pandas', 'numpy>=2'].")
    if isinstance(environment, dict) and isinstance(environment.setdefault("packages", []), list):
        first = len(environment["packages"])
        environment["packages"] += packages
        return [("spec", "environment", "packages", first + index) for index in range(len(packages))]
    return []


def _groups(workers: Any) -> Any:
    """`workers` as a list of groups; invalid values are left for the validation."""
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
    for depth, part in enumerate(loc[:-1]):
        _check_container(target, part, loc[:depth], assignment)
        part = _key(target, part)
        fresh: Any = {} if isinstance(loc[depth + 1], str) else []
        if isinstance(target, dict) and target.get(part) is None:
            target[part] = fresh
        elif isinstance(target, list) and part == len(target):
            target.append(fresh)
        target = target[part]
    _check_container(target, loc[-1], loc[:-1], assignment)
    key = _key(target, loc[-1])
    if isinstance(target, list) and key == len(target):
        target.append(value)
    else:
        target[key] = value


def _key(target: Any, part: Any) -> Any:
    """The key in the target: object_store_memory refers to an existing objectStoreMemory."""
    spelled = to_camel(part) if isinstance(target, dict) and isinstance(part, str) else part
    return spelled if isinstance(target, dict) and spelled in target else part


def _check_container(target: Any, part: str | int, loc: Loc, assignment: str) -> None:
    where = path(("spec", *loc))
    if isinstance(part, str) and not isinstance(target, dict):
        sentence = f"{where} is not a mapping, so it has no {part!r}"
    elif isinstance(part, int) and not isinstance(target, list):
        sentence = f"{where} is not a list, so it has no [{part}]"
    elif isinstance(part, int) and part > len(target):
        sentence = f"{where} has {len(target)} entries, so it has no [{part}]"
    else:
        return
    raise SpecError(f"--set {assignment}: {sentence}.", "Correct the path, or set the whole value.")


def _delete_places(places: dict[Loc, str], loc: Loc) -> None:
    """Delete the positions of values that were replaced."""
    for known in [known for known in places if known[: len(loc)] == loc]:
        del places[known]
