"""What the running Python holds, found without importing any of it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, distributions, version

from oars.model import Needs

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(\[[^\]]*\])?\s*(.*)")
_CONDITION = re.compile(r"\s*(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)\s*")


def installed(needs: Needs) -> str | None:
    """The version of the engine in the running Python, if all of it is there."""
    if not all(_findable(module) for module in needs.modules):
        return None
    return _version(needs.distribution)


def pinned(needs: Needs) -> tuple[str, ...]:
    """The requirements, with what the running Python has of the engine pinned to the same version.

    Client and cluster must speak the same version; so what the engine pins exactly follows its own version."""
    return tuple(_pin(requirement, needs.distribution) for requirement in needs.requirements)


def python_allowed(condition: str, python: tuple[int, ...]) -> bool:
    """Whether a version such as (3, 11, 7) fulfils '>=3.9,<3.13'."""
    return all(_holds(part, python) for part in condition.split(",") if part.strip())


def modules_in(site: str, modules: Iterable[str]) -> dict[str, str | None]:
    """Module → a file or directory that is it, in a site-packages directory."""
    return {module: _origin(_spec_in(module, [site])) for module in modules}


def version_in(site: str, distribution: str) -> str | None:
    """The version of a distribution in a site-packages directory."""
    wanted = _normal(distribution)
    found = (dist for dist in distributions(path=[site]) if _normal(dist.metadata["Name"] or "") == wanted)
    return next((dist.version for dist in found), None)


def _findable(module: str) -> bool:
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and (top == module or _spec_in(module, sys.path) is not None)


def _spec_in(module: str, path: Iterable[str]) -> ModuleSpec | None:
    """Level by level: find_spec of a dotted name would import its parents."""
    places: list[str] | None = list(path)
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), places) if places else None
        places = list(spec.submodule_search_locations or ()) if spec else None
    return spec


def _origin(spec: ModuleSpec | None) -> str | None:
    if spec is None:
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or ()), None)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _pin(requirement: str, engine: str) -> str:
    match = _REQUIREMENT.fullmatch(requirement)
    if not match or not (match[3].startswith("==") or _normal(match[1]) == _normal(engine)):
        return requirement
    here = _version(match[1])
    return f"{match[1]}{match[2] or ''}=={here}" if here else requirement


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _holds(condition: str, python: tuple[int, ...]) -> bool:
    match = _CONDITION.fullmatch(condition)
    if not match:
        raise ValueError(f"{condition!r} is not a condition on the Python version")
    bound = tuple(int(number) for number in match[2].split("."))
    actual = python[: len(bound)]
    return {
        ">=": actual >= bound,
        "<=": actual <= bound,
        "==": actual == bound,
        "!=": actual != bound,
        "<": actual < bound,
        ">": actual > bound,
    }[match[1]]
