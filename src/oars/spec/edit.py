"""Changes to a description before it is checked: `--set path=value` and the short options."""

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
    """Carry out one 'path=value' on the mapping of spec. The value is YAML."""
    loc, value = _parse(assignment)
    if loc == ("workers",) and _is_count(value):
        _set_count(spec, value)
    elif loc[0] == "workers" and len(loc) > 1:
        spec["workers"] = _groups(spec.get("workers"))
        loc = ("workers", _group_index(spec["workers"], loc[1], assignment), *loc[2:])
        _assign(spec, loc, value, assignment)
    else:
        _assign(spec, loc, value, assignment)
    _forget(places, ("spec", *loc))
    places[("spec", *loc)] = f"--set {assignment}"


def apply_overrides(overrides: Mapping[str, Any], spec: dict[str, Any], places: dict[Loc, str]) -> None:
    """engine, place, image, workers (of the first group), cpu and memory (of every group), packages (added)."""
    for name, value in overrides.items():
        if name not in OVERRIDES:
            raise SpecError(f"There is no option {name!r}.{suggest(name, OVERRIDES)}", f"Use: {', '.join(OVERRIDES)}.")
        if value is not None:
            for loc in _apply_override(name, value, spec):
                _forget(places, loc)
                places[loc] = ""


def _apply_override(name: str, value: Any, spec: dict[str, Any]) -> list[Loc]:
    """Returns the paths that changed."""
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


def _set_count(spec: dict[str, Any], count: int) -> list[Loc]:
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
        raise SpecError("packages must be a list of requirements.", "Write it like packages=['pandas', 'numpy>=2'].")
    if isinstance(environment, dict) and isinstance(environment.setdefault("packages", []), list):
        first = len(environment["packages"])
        environment["packages"] += packages
        return [("spec", "environment", "packages", first + index) for index in range(len(packages))]
    return []


def _groups(workers: Any) -> Any:
    """The long form of `workers`; what is neither a list nor a number is left for the check to complain of."""
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
            f"--set {assignment}: this is not of the form path=value.",
            "Write it like head.cpu=2, workers=5 or workers.gpu.replicas=3.",
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
        f"Worker groups are named as in workers.default.cpu=2; there are: {listed}.",
    )


def _assign(target: Any, loc: Loc, value: Any, assignment: str) -> None:
    for depth, part in enumerate(loc[:-1]):
        _check_holder(target, part, loc[:depth], assignment)
        part = _key(target, part)
        fresh: Any = {} if isinstance(loc[depth + 1], str) else []
        if isinstance(target, dict) and target.get(part) is None:
            target[part] = fresh
        elif isinstance(target, list) and part == len(target):
            target.append(fresh)
        target = target[part]
    _check_holder(target, loc[-1], loc[:-1], assignment)
    key = _key(target, loc[-1])
    if isinstance(target, list) and key == len(target):
        target.append(value)
    else:
        target[key] = value


def _key(target: Any, part: Any) -> Any:
    """A Python spelling (object_store_memory) of a name that is there in the files' spelling means that one."""
    spelled = to_camel(part) if isinstance(target, dict) and isinstance(part, str) else part
    return spelled if isinstance(target, dict) and spelled in target else part


def _check_holder(target: Any, part: str | int, loc: Loc, assignment: str) -> None:
    where = path(("spec", *loc))
    if isinstance(part, str) and not isinstance(target, dict):
        sentence = f"{where} is not a mapping, so it has no {part!r}"
    elif isinstance(part, int) and not isinstance(target, list):
        sentence = f"{where} is not a list, so it has no [{part}]"
    elif isinstance(part, int) and part > len(target):
        sentence = f"{where} has {len(target)} entries, so there is no [{part}]"
    else:
        return
    raise SpecError(f"--set {assignment}: {sentence}.", "Set the whole value instead, or correct the path.")


def _forget(places: dict[Loc, str], loc: Loc) -> None:
    """What the file says of a value that was replaced no longer counts."""
    for known in [known for known in places if known[: len(loc)] == loc]:
        del places[known]
