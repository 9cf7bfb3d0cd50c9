"""Load a validated cluster spec from YAML, mappings and options, and dump it. All errors are SpecErrors."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from oars.base.errors import Denied, NotFound, SpecError
from oars.spec import edit, resources, text
from oars.spec.cluster import API_VERSION, KIND, ClusterSpec, check_name
from oars.spec.options import OptionModel, check_blocks
from oars.spec.problems import Problem, in_block, in_plain, raise_for, unknown
from oars.spec.text import Loc

NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})
_TOP = ("apiVersion", "kind", "metadata", "spec")
_METADATA = ("name", "namespace")
_HEADER_HINT = f"A file starts with apiVersion: {API_VERSION} and kind: {KIND}, and has the cluster under spec."


@dataclass(frozen=True)
class Manifest:
    """A cluster spec and, if given, the name of the cluster."""

    name: str | None
    spec: ClusterSpec


def load_file(
    path: Path,
    sets: Sequence[str] = (),
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    option_model: OptionModel | None = None,
) -> Manifest:
    """The manifest in a file, with changes. `option_model` (engines.option_model) checks the blocks of engines; without
    it the engine checks its options later, and errors do not have the place in the file."""
    return load_text(read_text(path), str(path), sets, overrides, option_model)


def read_text(path: Path) -> str:
    """The content of a file. Raises NotFound, Denied or SpecError."""
    try:
        with path.open("rb") as file:
            return file.read(text.MAX_BYTES + 1).decode("utf-8-sig")
    except FileNotFoundError:
        raise NotFound(
            f"There is no file {path}.", "Check the path; it is relative to the current directory."
        ) from None
    except PermissionError:
        raise Denied(f"No permission to read {path}.", "Check its owner and its mode.") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not a text file in UTF-8.", "Pass a YAML file.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"{path} cannot be read: {reason}.", "Pass a YAML file.") from None


def load_text(
    content: str,
    source: str,
    sets: Sequence[str] = (),
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    option_model: OptionModel | None = None,
) -> Manifest:
    """Load a manifest from a text; `source` names it in errors."""
    document = text.read(content, source)
    if document.data is None:
        raise SpecError(f"{source} is empty.", _HEADER_HINT)
    if not isinstance(document.data, dict):
        raise SpecError(f"{source} is not a mapping.", _HEADER_HINT)
    return _finish(document.data, document.places, sets, overrides, option_model, source)


def build(
    data: Mapping[str, Any],
    sets: Sequence[str] = (),
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    option_model: OptionModel | None = None,
) -> Manifest:
    """Load from a mapping: a spec or a whole manifest."""
    whole = any(key in data for key in ("apiVersion", "kind", "spec"))
    manifest = data if whole else {"apiVersion": API_VERSION, "kind": KIND, "spec": data}
    return _finish(manifest, {}, sets, overrides, option_model)


def dump(manifest: Manifest) -> dict[str, Any]:
    """Return a mapping from which `build` restores the manifest; defaults are omitted."""
    spec = manifest.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if "workers" in spec:
        pairs = zip(manifest.spec.workers, spec["workers"], strict=True)
        spec["workers"] = [{"name": group.name, "replicas": group.replicas, **_readable(data)} for group, data in pairs]
    if "head" in spec:
        spec["head"] = _readable(spec["head"])
    name = {"metadata": {"name": manifest.name}} if manifest.name else {}
    return {"apiVersion": API_VERSION, "kind": KIND, **name, "spec": spec}


def _readable(block: dict[str, Any]) -> dict[str, Any]:
    """The block with memory in the largest exact unit."""
    sizes = {name: block[name] for name in ("memory", "cache", "size") if isinstance(block.get(name), int)}
    spill = {"spill": _readable(block["spill"])} if block.get("spill") else {}
    return {**block, **{name: resources.exact_memory(size) for name, size in sizes.items()}, **spill}


def _finish(
    data: Mapping[Any, Any],
    places: dict[Loc, str],
    sets: Sequence[str],
    overrides: Mapping[str, Any],
    option_model: OptionModel | None,
    source: str = "",
) -> Manifest:
    raise_for(in_plain(data, ()), places)
    if data.get("kind") == "ComputeJob":
        file = "-" if source == "stdin" else shlex.quote(source)
        hint = f"Run it with `oars submit -f {file}`." if source else "Run it with `oars submit`."
        raise_for([Problem(("kind",), "is ComputeJob, not a cluster", hint)], places)
    check_header(data, places, KIND, _HEADER_HINT, "the engine: `spec: {engine: dask}`")
    problems = header_problems(data)
    spec = copy_plain(data["spec"])
    for assignment in sets:
        edit.apply_set(assignment, spec, places)
    edit.apply_overrides(overrides, spec, places)
    problems += _move_namespace(data, spec)
    raise_for(in_plain(spec, ("spec",)), places)
    block_problems = check_blocks(spec, option_model) if option_model else []
    checked: ClusterSpec | None = None
    try:
        checked = ClusterSpec.model_validate(spec)
        # Text that was parsed as a number may be nan.
        problems += in_plain(checked.model_dump(by_alias=True), ("spec",))
    except ValidationError as error:
        problems += in_block(error, spec, ClusterSpec, ("spec",))
    except (ArithmeticError, RecursionError):
        problems.append(Problem(("spec",), "contains a number that is too large"))
    raise_for([*problems, *block_problems], places)
    assert checked is not None
    return Manifest(data.get("metadata", {}).get("name"), checked)


def check_header(data: Mapping[str, Any], places: Mapping[Loc, str], kind: str, hint: str, example: str) -> None:
    """Raise for the first error that makes the rest of the file meaningless."""
    for field, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        if data.get(field) != expected:
            found = f"is {str(data[field])[:60]!r}" if field in data else "is missing"
            raise_for([Problem((field,), f"{found}; it must be {expected}", hint)], places)
    if not isinstance(data.get("spec"), Mapping):
        found = "must be a mapping of fields" if "spec" in data else "is missing"
        raise_for([Problem(("spec",), found, f"Add at least {example}.")], places)


def header_problems(data: Mapping[str, Any], fields: Sequence[str] = _METADATA) -> list[Problem]:
    """Problems outside of the spec. fields: of metadata."""
    metadata = data.get("metadata", {})
    problems = [unknown((key,), _TOP) for key in data if key not in _TOP]
    if not isinstance(metadata, Mapping):
        return [*problems, Problem(("metadata",), "must be a mapping with the name of the cluster")]
    problems += [unknown(("metadata", key), fields) for key in metadata if key not in fields]
    name = metadata.get("name")
    if name is not None and not isinstance(name, str):
        problems.append(Problem(("metadata", "name"), "must be text; put it in quotes"))
    elif name is not None:
        try:
            check_name(name)
        except ValueError as error:
            problems.append(Problem(("metadata", "name"), str(error)))
    return problems


def _move_namespace(data: Mapping[str, Any], spec: dict[str, Any]) -> list[Problem]:
    """Move metadata.namespace, which files for kubectl use, to spec.namespace.name."""
    metadata, block = data.get("metadata", {}), spec.get("namespace") or {}
    namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    if namespace is None or not isinstance(block, Mapping):
        return []
    if block.get("name") not in (None, namespace):
        sentence = f"is {namespace!r}, but spec.namespace.name is {block['name']!r}; remove one"
        return [Problem(("metadata", "namespace"), sentence)]
    spec["namespace"] = {**block, "name": namespace}
    return []


def copy_plain(value: Any) -> Any:
    """A deep copy as plain dicts and lists, without shared values."""
    if isinstance(value, Mapping):
        return {key: copy_plain(child) for key, child in value.items()}
    return [copy_plain(child) for child in value] if isinstance(value, list | tuple) else value


def check_packages_in_image(spec: ClusterSpec, path: str = "") -> None:
    """Raises SpecError if a cluster on Kubernetes needs packages and names no image that may have them. path: of the
    cluster's fields."""
    if spec.environment.packages and spec.image is None:
        options = shlex.join(word for each in spec.environment.packages for word in ("--package", each))
        raise SpecError(
            f"{path}environment.packages: on Kubernetes nobody installs packages; pods have what their image has.",
            f"Run `oars image build --engine {spec.engine} {options}`, and set {path}image.",
        )
