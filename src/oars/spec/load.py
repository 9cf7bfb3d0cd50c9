"""YAML, mappings and options → a checked cluster description; and back. Every fault is one SpecError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from oars.base.errors import Denied, NotFound, SpecError
from oars.base.text import suggest
from oars.spec import edit, text
from oars.spec.cluster import API_VERSION, KIND, ClusterSpec, check_name
from oars.spec.problems import Problem, in_plain, in_spec, raise_for, unknown
from oars.spec.text import Loc

__all__ = ["Manifest", "build", "dump", "load_file", "load_text", "suggest"]

NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})
_TOP = ("apiVersion", "kind", "metadata", "spec")
_METADATA = ("name", "namespace")
_SIZES = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"))
_HEADER_HINT = f"A file starts with apiVersion: {API_VERSION} and kind: {KIND}, and has the cluster under spec."


@dataclass(frozen=True)
class Manifest:
    """A cluster's description and, if it was given, its name."""

    name: str | None
    spec: ClusterSpec


def load_file(path: Path, sets: Sequence[str] = (), overrides: Mapping[str, Any] = NO_OVERRIDES) -> Manifest:
    """The manifest in a file, with changes."""
    try:
        with path.open("rb") as file:
            content = file.read(text.MAX_BYTES + 1).decode("utf-8-sig")
    except FileNotFoundError:
        raise NotFound(
            f"There is no file {path}.", "Check the path; it is relative to the current directory."
        ) from None
    except PermissionError:
        raise Denied(f"The file {path} may not be read.", "Check its owner and its mode.") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not a text file in UTF-8.", "Name a YAML file.") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read: {error}.", "Name a YAML file.") from None
    return load_text(content, str(path), sets, overrides)


def load_text(
    content: str, source: str, sets: Sequence[str] = (), overrides: Mapping[str, Any] = NO_OVERRIDES
) -> Manifest:
    """The manifest in a text; `source` is what errors call it."""
    document = text.read(content, source)
    if document.data is None:
        raise SpecError(f"{source} is empty.", _HEADER_HINT)
    if not isinstance(document.data, dict):
        raise SpecError(f"{source} does not hold a mapping of names to values.", _HEADER_HINT)
    return _finish(document.data, document.places, sets, overrides)


def build(data: Mapping[str, Any], sets: Sequence[str] = (), overrides: Mapping[str, Any] = NO_OVERRIDES) -> Manifest:
    """From a mapping: what stands under `spec`, or a whole manifest."""
    whole = any(key in data for key in ("apiVersion", "kind", "spec"))
    return _finish(data if whole else {"apiVersion": API_VERSION, "kind": KIND, "spec": data}, {}, sets, overrides)


def dump(manifest: Manifest) -> dict[str, Any]:
    """The manifest as a mapping that loads to the same again; what has its default value is left out."""
    spec = manifest.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if "workers" in spec:
        pairs = zip(manifest.spec.workers, spec["workers"], strict=True)
        spec["workers"] = [{"name": group.name, "replicas": group.replicas, **_readable(data)} for group, data in pairs]
    for block in {"head", "ray"} & spec.keys():
        spec[block] = _readable(spec[block])
    name = {"metadata": {"name": manifest.name}} if manifest.name else {}
    return {"apiVersion": API_VERSION, "kind": KIND, **name, "spec": spec}


def _readable(block: dict[str, Any]) -> dict[str, Any]:
    """Memory in the largest unit that is exact."""
    sizes = {key: block[key] for key in ("memory", "objectStoreMemory") if block.get(key) is not None}
    return {**block, **{key: _size(amount) for key, amount in sizes.items()}}


def _size(amount: int) -> int | str:
    return next((f"{amount // size}{unit}" for size, unit in _SIZES if amount % size == 0), amount)


def _finish(
    data: Mapping[Any, Any], places: dict[Loc, str], sets: Sequence[str], overrides: Mapping[str, Any]
) -> Manifest:
    raise_for(in_plain(data, ()), places)
    _check_header(data, places)
    problems = _around(data)
    spec = _copy(data["spec"])
    for assignment in sets:
        edit.apply_set(assignment, spec, places)
    edit.apply_overrides(overrides, spec, places)
    problems += _home(data, spec)
    raise_for(in_plain(spec, ("spec",)), places)
    checked = _validate(spec, problems)
    raise_for(problems, places)
    assert checked is not None
    return Manifest(data.get("metadata", {}).get("name"), checked)


def _check_header(data: Mapping[str, Any], places: Mapping[Loc, str]) -> None:
    """Raises for the first thing that makes the rest meaningless."""
    kind, version = data.get("kind"), data.get("apiVersion")
    if kind == "ComputeJob":
        problem = Problem(("kind",), "ComputeJob is not available yet", f"Describe the cluster alone, as a {KIND}.")
    elif version != API_VERSION:
        said = f"is {str(version)[:60]!r}" if "apiVersion" in data else "is missing"
        problem = Problem(("apiVersion",), f"{said}; it must be {API_VERSION}", _HEADER_HINT)
    elif kind != KIND:
        said = f"is {str(kind)[:60]!r}" if "kind" in data else "is missing"
        problem = Problem(("kind",), f"{said}; it must be {KIND}", _HEADER_HINT)
    elif not isinstance(data.get("spec"), Mapping):
        said = "must be a mapping of fields" if "spec" in data else "is missing"
        problem = Problem(("spec",), said, "Add it, with at least the engine: `spec: {engine: dask}`.")
    else:
        return
    raise_for([problem], places)


def _around(data: Mapping[str, Any]) -> list[Problem]:
    """What is wrong beside the spec."""
    metadata = data.get("metadata", {})
    problems = [unknown((key,), _TOP) for key in data if key not in _TOP]
    if not isinstance(metadata, Mapping):
        return [*problems, Problem(("metadata",), "must be a mapping with the name of the cluster")]
    problems += [unknown(("metadata", key), _METADATA) for key in metadata if key not in _METADATA]
    name = metadata.get("name")
    try:
        if name is not None:
            check_name(str(name) if isinstance(name, str) else "")
    except ValueError as error:
        sentence = str(error) if isinstance(name, str) else "must be text; put it in quotes"
        problems.append(Problem(("metadata", "name"), sentence))
    return problems


def _home(data: Mapping[str, Any], spec: dict[str, Any]) -> list[Problem]:
    """Files for kubectl say the namespace in their metadata; it means what `spec.namespace.name` means."""
    metadata, block = data.get("metadata", {}), spec.get("namespace") or {}
    said = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    if said is None or not isinstance(block, Mapping):
        return []
    if block.get("name") not in (None, said):
        return [
            Problem(("metadata", "namespace"), f"is {said!r}, and spec.namespace.name {block['name']!r}; leave one out")
        ]
    spec["namespace"] = {**block, "name": said}
    return []


def _validate(spec: dict[str, Any], problems: list[Problem]) -> ClusterSpec | None:
    """The checked spec, or None with the problems added."""
    try:
        checked = ClusterSpec.model_validate(spec)
    except ValidationError as error:
        problems += in_spec(error, spec)
        return None
    except (ArithmeticError, RecursionError):
        problems.append(Problem(("spec",), "a number in it is far too large"))
        return None
    problems += in_plain(checked.model_dump(by_alias=True), ("spec",))  # text that reads as a number may be nan
    return checked


def _copy(value: Any) -> Any:
    """Plain and our own: edits must not reach the caller's data, nor two places that share a value."""
    if isinstance(value, Mapping):
        return {key: _copy(child) for key, child in value.items()}
    return [_copy(child) for child in value] if isinstance(value, list | tuple) else value
