"""What the running Python has installed, without importing any of it; and version specifiers.

Imports `packaging` when it is needed: it takes 20 ms, and most commands do not need it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, distributions, version
from typing import TYPE_CHECKING

from oars.model import Needs

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True)
class Difference:
    """A package of which the running Python has another version than the one that Oars supports."""

    package: str
    installed: str
    supported: str

    def __str__(self) -> str:
        return f"{self.package} {self.installed} instead of {self.supported}"


def installed(needs: Needs) -> str | None:
    """The version of the engine in the running Python, if it is complete."""
    if not all(_is_importable(module) for module in needs.modules):
        return None
    return _version(needs.distribution)


def differences(needs: Needs) -> tuple[Difference, ...]:
    """Packages in the running Python that differ from the pins of the engine's requirements. Oars patches private parts
    of the engines, so each pin is the version for which the patches were written."""
    found = []
    for requirement in filter(None, map(_parse, needs.requirements)):
        here = _version(requirement.name) if _is_pin(requirement) else None
        if here is not None and not requirement.specifier.contains(here, prereleases=True):
            found.append(_difference(requirement, here))
    return tuple(found)


def overridden(needs: Needs, packages: Sequence[str]) -> tuple[Needs, tuple[Difference, ...]]:
    """The needs without the pins that `packages` pins to another version, and those differences."""
    chosen = {_normalized(each.name): each.specifier for each in map(_parse, packages) if each and each.specifier}
    kept, found = [], []
    for text in needs.requirements:
        requirement = _parse(text)
        other = chosen.get(_normalized(requirement.name)) if requirement and _is_pin(requirement) else None
        if requirement is None or other is None or other == requirement.specifier:
            kept.append(text)
        else:
            kept.append(requirement.name + _extras(requirement))
            found.append(_difference(requirement, str(other).removeprefix("==")))
    return replace(needs, requirements=tuple(kept)), tuple(found)


def pinned(needs: Needs) -> tuple[str, ...]:
    """The requirements, with the engine pinned to its version in the running Python: client and cluster must match."""
    here = _version(needs.distribution)
    pins = []
    for text in needs.requirements:
        requirement = _parse(text)
        is_engine = requirement is not None and _normalized(requirement.name) == _normalized(needs.distribution)
        if requirement and is_engine and here and requirement.specifier.contains(here, prereleases=True):
            pins.append(f"{requirement.name}{_extras(requirement)}=={here}")
        else:
            pins.append(text)
    return tuple(pins)


def python_allowed(specifier: str, python: tuple[int, ...]) -> bool:
    """True if a Python version such as (3, 11, 7) satisfies '>=3.9,<3.13' (PEP 440)."""
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(".".join(map(str, python)), prereleases=True)


def modules_in(site: str, modules: Iterable[str]) -> dict[str, str | None]:
    """Module → its file or directory in a site-packages directory."""
    found: dict[str, str | None] = {}
    for module in modules:
        spec = _spec_in(module, [site])
        found[module] = (spec.origin or next(iter(spec.submodule_search_locations or ()), None)) if spec else None
    return found


def version_in(site: str, distribution: str) -> str | None:
    """The version of a distribution in a site-packages directory."""
    wanted = _normalized(distribution)
    found = (dist for dist in distributions(path=[site]) if _normalized(dist.metadata["Name"] or "") == wanted)
    return next((dist.version for dist in found), None)


def _parse(text: str) -> Requirement | None:
    """None for what only uv can read, such as a path."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _normalized(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def _is_pin(requirement: Requirement) -> bool:
    return any(each.operator == "==" for each in requirement.specifier)


def _difference(requirement: Requirement, installed: str) -> Difference:
    return Difference(requirement.name, installed, str(requirement.specifier).removeprefix("=="))


def _is_importable(module: str) -> bool:
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and (top == module or _spec_in(module, sys.path) is not None)


def _spec_in(module: str, path: Iterable[str]) -> ModuleSpec | None:
    """Find a dotted name level by level: find_spec would import its parents."""
    locations: list[str] | None = list(path)
    spec: ModuleSpec | None = None
    parts = module.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), locations) if locations else None
        locations = list(spec.submodule_search_locations or ()) if spec else None
    return spec


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
