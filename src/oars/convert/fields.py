"""Reads another project's manifest field by field. What no rule takes is reported, so nothing is dropped silently."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NoReturn, TypeVar

from oars.spec.problems import Problem, path, raise_for
from oars.spec.text import Loc

T = TypeVar("T")
_INDEX = re.compile(r"\[\d+\]")
_LAST = re.compile(r"(\.[^.\[\]]+|\[[^\[\]]*\]|^[^.\[\]]+)$")
_EMPTY: tuple[object, ...] = (None, "", {}, [])


class Fate(Enum):
    """What becomes of a field: it is converted, Oars does the same without it, or it has no effect."""

    KEPT = "kept"
    OURS = "not needed"
    UNMET = "not honoured"


@dataclass(frozen=True)
class Rule:
    """What becomes of one field. text: the field of Oars, or the reason. defaults: values without effect."""

    field: str
    fate: Fate
    text: str
    defaults: tuple[object, ...] = ()


@dataclass(frozen=True)
class Unmet:
    """A field that is not honoured. document: kind and name of its manifest."""

    document: str
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.document}: {self.path + ': ' if self.path else ''}{self.reason}."


@dataclass
class Source:
    """One manifest while it is read: its rules by field, the position of each value, and what is not honoured."""

    document: str
    rules: Mapping[str, Rule]
    places: Mapping[Loc, str] = field(default_factory=dict)
    unmet: list[Unmet] = field(default_factory=list)

    def report(self, loc: Loc, reason: str) -> None:
        self.unmet.append(Unmet(self.document, path(loc), reason))

    def fail(self, loc: Loc, sentence: str, hint: str = "") -> NoReturn:
        raise_for([Problem(loc, sentence, hint)], self.places)
        raise AssertionError(loc)

    def rule(self, pattern: str) -> Rule | None:
        """The rule of the field; else that of all fields of its block, or of the nearest block around it."""
        found = self.rules.get(pattern)
        while pattern and found is None:
            pattern = _LAST.sub("", pattern)
            found = self.rules.get(f"{pattern}.*") or self.rules.get(pattern)
        return found

    def has_rules_below(self, pattern: str) -> bool:
        return any(name.startswith((f"{pattern}.", f"{pattern}[")) for name in self.rules)

    def report_left(self, loc: Loc, value: Any) -> None:
        """Report a value that no converter took, unless its rule says that it has no effect."""
        name = pattern_of(loc)
        if isinstance(value, Mapping | list) and self.has_rules_below(name):
            entries = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, inner in entries:
                self.report_left((*loc, key), inner)
            return
        rule = self.rule(name)
        if rule is None or (rule.fate is Fate.KEPT and rule.field != name):
            self.report(loc, f"is not a known field of {self.document.split()[0]}")
        elif rule.fate is not Fate.OURS and not any(_is_same(value, each) for each in (*_EMPTY, *rule.defaults)):
            self.report(loc, rule.text if rule.fate is Fate.UNMET else "has no effect here")


def pattern_of(loc: Loc) -> str:
    """The field's name in the tables: ('spec', 'groups', 0, 'cpu') → 'spec.groups[].cpu'."""
    return _INDEX.sub("[]", path(loc))


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


class Fields:
    """A mapping of a manifest. Each field can be taken once."""

    def __init__(self, data: Mapping[str, Any], loc: Loc, source: Source) -> None:
        self.loc = loc
        self.source = source
        self._left = dict(data)
        self._children: list[Fields] = []

    def __contains__(self, name: str) -> bool:
        return self._left.get(name) is not None

    def take(self, name: str) -> Any:
        """The value as it is; None if it is missing."""
        return self._left.pop(name, None)

    def take_all(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """These fields, by default all that are left, as they are and without those that are null."""
        found = {name: self.take(name) for name in (list(self._left) if names is None else names)}
        return {name: value for name, value in found.items() if value is not None}

    def text(self, name: str) -> str | None:
        return self._typed(name, str, "text")

    def whole(self, name: str) -> int | None:
        return self._typed(name, int, "a whole number")

    def flag(self, name: str) -> bool:
        return bool(self._typed(name, bool, "true or false"))

    def texts(self, name: str) -> list[str]:
        found: list[Any] = self._typed(name, list, "a list") or []
        for index, each in enumerate(found):
            if not isinstance(each, str):
                self.source.fail((*self.loc, name, index), "must be text; put it in quotes")
        return found

    def pairs(self, name: str) -> dict[str, str]:
        """A map of texts."""
        found: dict[str, Any] = self._typed(name, dict, "a map") or {}
        for key, each in found.items():
            if not isinstance(each, str):
                self.source.fail((*self.loc, name, key), "must be text; put it in quotes")
        return found

    def block(self, name: str) -> Fields:
        """The mapping with that name, empty if it is missing. Its fields are read one by one."""
        found: dict[str, Any] = self._typed(name, dict, "a mapping of fields") or {}
        return self.child(found, name)

    def blocks(self, name: str) -> list[Fields]:
        """The mappings of a list."""
        found: list[Any] = self._typed(name, list, "a list") or []
        for index, each in enumerate(found):
            if not isinstance(each, dict):
                self.source.fail((*self.loc, name, index), "must be a mapping of fields")
        return [self.child(each, name, index) for index, each in enumerate(found)]

    def child(self, data: Mapping[str, Any], *below: str | int) -> Fields:
        """Fields that are read from data below this block, such as the options of a command."""
        made = Fields(data, (*self.loc, *below), self.source)
        self._children.append(made)
        return made

    def parsed(self, name: str, parse: Callable[[object], T]) -> T | None:
        """An amount, such as of memory; `parse` raises ValueError."""
        value = self.take(name)
        try:
            return None if value is None else parse(value)
        except (ValueError, ArithmeticError) as error:
            self.source.fail((*self.loc, name), str(error))

    def unmet(self, name: str, reason: str) -> None:
        """Report a field, whether or not it was taken."""
        self._left.pop(name, None)
        self.source.report((*self.loc, name), reason)

    def fail(self, name: str, sentence: str, hint: str = "") -> NoReturn:
        self.source.fail((*self.loc, name), sentence, hint)

    def finish(self) -> None:
        """Report everything that was not taken, here and below."""
        for name, value in self._left.items():
            self.source.report_left((*self.loc, name), value)
        for each in self._children:
            each.finish()

    def _typed(self, name: str, kind: type[T], words: str) -> T | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.fail(name, f"must be {words}")
        return value


@dataclass(frozen=True)
class Foreign:
    """A manifest of another project, opened for reading."""

    name: str
    namespace: str | None
    root: Fields
    metadata: Fields
    spec: Fields


def open_manifest(data: Mapping[str, Any], rules: Mapping[str, Rule], places: Mapping[Loc, str]) -> Foreign:
    """Raises SpecError for a manifest without a name."""
    source = Source(str(data.get("kind")), rules, places)
    root = Fields(data, (), source)
    metadata = root.block("metadata")
    name, pattern = metadata.text("name"), metadata.text("generateName")
    name = name or (pattern or "").rstrip("-")
    if not name:
        metadata.fail("name", "is missing")
    source.document = f"{source.document} {name}"
    return Foreign(name, metadata.text("namespace"), root, metadata, root.block("spec"))
