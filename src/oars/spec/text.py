"""Parse YAML into plain data, with the position of every value. Rejects YAML features that are usually mistakes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from oars.base.errors import SpecError

Loc = tuple[str | int, ...]

MAX_BYTES = 2**20
MAX_VALUES = 50_000  # counted after aliases are expanded: a few lines can expand to billions of values
MAX_DEPTH = 50
MAX_DOCUMENTS = 100

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_STRINGS = {f"{_TAG}str", f"{_TAG}timestamp", f"{_TAG}value"}  # dates stay text
_SCALARS = {f"{_TAG}null", f"{_TAG}bool", f"{_TAG}int", f"{_TAG}float"}
_MERGE = f"{_TAG}merge"
_NOT_YAML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")

# Pattern in the message of the C or the Python parser, and what we report instead.
_MESSAGES = (
    (r"cannot start any token", "unexpected tab or reserved character; indent with spaces, and quote other text"),
    (r"mapping values are not allowed", "unexpected ':'; check the indentation or quote the value"),
    (r"node content", "a value is missing, or a bracket is never closed"),
    (r"',' or '[]}]'", "a ',' or a closing bracket is missing"),
    (r"end of stream|unexpected document", "a quote or a bracket is never closed"),
    (r"could not find expected ':'", "a ':' is missing after a key"),
    (r"expected key|block end|expected '-'|block (collection|entry|sequence)", "wrong indentation"),
    (r"undefined alias", "the alias (*name) has no anchor (&name) before it"),
    (r"duplicate anchor", "two anchors have the same name"),
    (r"tag", "tags (!name) are not allowed; remove it"),
    (r"escape", "unknown escape sequence after '\\'; write '\\\\' or use single quotes"),
)


@dataclass
class Document:
    """Plain data, and the position ('file:line:column') of each value by its path."""

    source: str
    data: Any = None
    places: dict[Loc, str] = field(default_factory=dict)
    values: int = 0


def read(text: str, source: str) -> Document:
    """Parse a text with one YAML document. Raises SpecError with the position."""
    found = _documents(text, source, 1)
    return found[0] if found else Document(source)


def read_all(text: str, source: str) -> list[Document]:
    """Parse a text with any number of YAML documents. Raises SpecError with the position."""
    return _documents(text, source, MAX_DOCUMENTS)


def _documents(text: str, source: str, most: int) -> list[Document]:
    _check_characters(text, source)
    try:
        _check_structure(text, source, most)
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        problem = f"{error.context or ''} {error.problem or ''}"
        reason = ": ".join(filter(None, ["invalid YAML", error.problem]))
        message = next((message for pattern, message in _MESSAGES if re.search(pattern, problem)), reason)
        raise _error(_place(source, error.problem_mark or error.context_mark), message) from None
    except yaml.YAMLError as error:
        reason = f"{source}: invalid YAML: {' '.join(str(error).split())}".rstrip(": .")
        raise SpecError(f"{reason}.", "Check the file with an editor that supports YAML.") from None
    documents = [Document(source) for _ in nodes]
    for document, node in zip(documents, nodes, strict=True):
        document.data = _value(document, node, ())
    return documents


def _check_characters(text: str, source: str) -> None:
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        message = f"{source} is larger than {MAX_BYTES // 2**20} MiB."
        raise SpecError(message, "A cluster spec is a few lines; is it the right file?")
    found = _NOT_YAML.search(text)
    if found:
        line, column = text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start())
        raise _error(f"{source}:{line}:{column}", f"the character {found[0]!r} is not allowed in YAML; remove it")


def _check_structure(text: str, source: str, most: int) -> None:
    """Check depth and number of documents before recursive code handles the text."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if depth > MAX_DEPTH:
            raise _error(_place(source, event.start_mark), f"nested more than {MAX_DEPTH} levels deep")
        if documents > most:
            place = _place(source, event.start_mark)
            which = "a second document" if most == 1 else f"more than {most} documents: one"
            raise SpecError(f"{place}: {which} starts here.", "Write one cluster per file.")


def _value(document: Document, node: Any, loc: Loc) -> Any:
    document.values += 1
    place = _place(document.source, node.start_mark)
    if document.values > MAX_VALUES or len(loc) > MAX_DEPTH:
        raise _error(place, "the aliases (*name) here expand to too many values; write them out")
    document.places.setdefault(loc, place)
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        return _mapping(document, node, loc)
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        return [_value(document, child, (*loc, index)) for index, child in enumerate(node.value)]
    return _scalar(document, node)


def _scalar(document: Document, node: Any) -> Any:
    if isinstance(node, yaml.ScalarNode) and node.tag in _STRINGS:
        return node.value
    place = _place(document.source, node.start_mark)
    if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, yaml.YAMLError, LookupError):
            shown = node.value if len(node.value) < 40 else node.value[:40] + "…"
            raise _error(place, f"{shown!r} is not a valid value") from None
    raise _error(place, f"the tag {node.tag.replace(_TAG, '!!')} is not allowed; remove it")


def _mapping(document: Document, node: Any, loc: Loc) -> dict[Any, Any]:
    own: dict[Any, Any] = {}
    merged: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        place = _place(document.source, key_node.start_mark)
        if key_node.tag == _MERGE:
            merged |= _merged(document, value_node, loc)
        elif not isinstance(key_node, yaml.ScalarNode):
            raise _error(place, "a key must be plain text, not a list or a mapping")
        else:
            key = _scalar(document, key_node)
            if key in own:
                raise _error(place, f"duplicate key {key!r}; remove one")
            document.places[(*loc, key)] = place
            own[key] = _value(document, value_node, (*loc, key))
    return merged | own


def _merged(document: Document, node: Any, loc: Loc) -> dict[Any, Any]:
    """The mapping for `<<: *base` or `<<: [*first, *second]`; the first one wins."""
    sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
    merged: dict[Any, Any] = {}
    for source in reversed(sources):
        value = _value(document, source, (*loc, "<<"))
        if not isinstance(value, dict):
            raise _error(_place(document.source, source.start_mark), "'<<' needs a mapping")
        merged |= value
    return merged


def _place(source: str, mark: Any) -> str:
    return f"{source}:{mark.line + 1}:{mark.column + 1}" if mark is not None else source


def _error(place: str, message: str) -> SpecError:
    return SpecError(f"{place}: {message}.", "Correct the text there and try again.")
