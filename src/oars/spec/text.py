"""YAML text → plain data, with the line and column of every value. Refuses what YAML allows but nobody means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from oars.base.errors import SpecError

Loc = tuple[str | int, ...]

MAX_BYTES = 2**20
MAX_VALUES = 50_000  # counted after aliases are written out: a few lines of them can mean billions of values
MAX_DEPTH = 50

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_AS_TEXT = {f"{_TAG}str", f"{_TAG}timestamp", f"{_TAG}value"}  # a date means what it says to us
_CONVERTED = {f"{_TAG}null", f"{_TAG}bool", f"{_TAG}int", f"{_TAG}float"}
_MERGE = f"{_TAG}merge"
_NOT_YAML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")

# What the parser says (two parsers, two wordings) → what it means to whoever wrote the file.
_MEANINGS = (
    (r"cannot start any token", "a tab or a reserved character stands here; indent with spaces, quote other text"),
    (r"mapping values are not allowed", "a ':' stands where none can be; check the indentation or quote the value"),
    (r"node content", "a value is missing, or a bracket is opened and never closed"),
    (r"',' or '[]}]'", "a ',' or a closing bracket is missing"),
    (r"end of stream|unexpected document", "a quote or a bracket is opened and never closed"),
    (r"could not find expected ':'", "a ':' is missing after a name"),
    (r"expected key|block end|expected '-'|block (collection|entry|sequence)", "the indentation does not fit"),
    (r"undefined alias", "an alias (*name) stands before its anchor (&name), or there is none"),
    (r"duplicate anchor", "two anchors have the same name"),
    (r"tag", "tags (!name) are not understood here; take it out"),
    (r"escape", "the text in quotes has a '\\' that means nothing; write it twice or use single quotes"),
)


@dataclass
class Document:
    """Plain data and where each value stands: 'file:line:column' by its path."""

    source: str
    data: Any = None
    places: dict[Loc, str] = field(default_factory=dict)
    values: int = 0


def read(text: str, source: str) -> Document:
    """The one document in the text. Raises SpecError with the place."""
    _check_characters(text, source)
    try:
        _check_events(text, source)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        problem = f"{error.context or ''} {error.problem or ''}"
        meaning = next((said for pattern, said in _MEANINGS if re.search(pattern, problem)), "this is not valid YAML")
        raise _wrong(_place(source, error.problem_mark or error.context_mark), meaning) from None
    except yaml.YAMLError:
        raise SpecError(f"{source}: this is not valid YAML.", "Check the file with a YAML-aware editor.") from None
    document = Document(source)
    if node is not None:
        document.data = _value(document, node, ())
    return document


def _check_characters(text: str, source: str) -> None:
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise SpecError(
            f"{source} is larger than {MAX_BYTES // 2**20} MiB.",
            "A description of a cluster is a few lines; is it the right file?",
        )
    found = _NOT_YAML.search(text)
    if found:
        line, column = text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start())
        raise _wrong(f"{source}:{line}:{column}", f"the character {found[0]!r} is not allowed in YAML; take it out")


def _check_events(text: str, source: str) -> None:
    """Before anything recursive sees the text: how deep it goes, and that it is one document."""
    depth = documents = 0
    for event in _events(text):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if depth > MAX_DEPTH:
            raise _wrong(_place(source, event.start_mark), f"this is nested more than {MAX_DEPTH} levels deep")
        if documents > 1:
            place = _place(source, event.start_mark)
            raise SpecError(f"{place}: a second document starts here.", "Write one cluster per file.")


def _events(text: str) -> Iterator[Any]:
    yield from yaml.parse(text, Loader=_Loader)


def _value(document: Document, node: Any, loc: Loc) -> Any:
    document.values += 1
    place = _place(document.source, node.start_mark)
    if document.values > MAX_VALUES or len(loc) > MAX_DEPTH:
        raise _wrong(place, "the aliases (*name) here unfold into too many values; write them out")
    document.places.setdefault(loc, place)
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        return _mapping(document, node, loc)
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        return [_value(document, child, (*loc, index)) for index, child in enumerate(node.value)]
    return _scalar(document, node)


def _scalar(document: Document, node: Any) -> Any:
    if isinstance(node, yaml.ScalarNode) and node.tag in _AS_TEXT:
        return node.value
    if isinstance(node, yaml.ScalarNode) and node.tag in _CONVERTED:
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, yaml.YAMLError, LookupError):
            shown = node.value if len(node.value) < 40 else node.value[:40] + "…"
            raise _wrong(_place(document.source, node.start_mark), f"{shown!r} is not a value we can read") from None
    tag = node.tag.replace(_TAG, "!!")
    raise _wrong(_place(document.source, node.start_mark), f"the tag {tag} is not allowed; take it out")


def _mapping(document: Document, node: Any, loc: Loc) -> dict[Any, Any]:
    own: dict[Any, Any] = {}
    merged: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE:
            merged |= _merged(document, value_node, loc)
            continue
        place = _place(document.source, key_node.start_mark)
        if not isinstance(key_node, yaml.ScalarNode):
            raise _wrong(place, "a name must be plain text, not a list or a mapping")
        key = _scalar(document, key_node)
        if key in own:
            raise _wrong(place, f"the name {key!r} stands here for the second time; keep one")
        document.places[(*loc, key)] = place
        own[key] = _value(document, value_node, (*loc, key))
    return merged | own


def _merged(document: Document, node: Any, loc: Loc) -> dict[Any, Any]:
    """`<<: *base` or `<<: [*first, *second]`; of several, the first wins."""
    sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
    together: dict[Any, Any] = {}
    for source in reversed(sources):
        value = _value(document, source, (*loc, "<<"))
        if not isinstance(value, dict):
            raise _wrong(_place(document.source, source.start_mark), "'<<' takes a mapping")
        together |= value
    return together


def _place(source: str, mark: Any) -> str:
    return f"{source}:{mark.line + 1}:{mark.column + 1}" if mark is not None else source


def _wrong(place: str, sentence: str) -> SpecError:
    return SpecError(f"{place}: {sentence}.", "Correct the text there and try again.")
