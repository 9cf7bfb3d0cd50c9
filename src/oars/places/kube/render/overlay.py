"""Merges a user's PodTemplateSpec into ours, as Kubernetes merges: maps by key, containers and the like by name, other
lists as a whole. Pure.

The user's values override our defaults. Fields that Oars must control (the engine's command, the labels that select
pods) cannot be overridden: a different value is an error that names the field. A null, which YAML reads from a field
without a value, counts as not set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oars.base.errors import SpecError

# Merge keys of lists. Of the lists without a merge key Kubernetes merges only finalizers, which we do not set. Other
# lists, such as the capabilities to drop, are replaced by the user's.
KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
    "ports": "containerPort",
}
# Replaced as a whole by the user's: a mix of both would be invalid.
WHOLE = re.compile(r"(Probe|affinity|preStop|postStart)$")
# Fields that users must not change: pattern of the path, reason, hint.
_OMIT = "Remove this field."
_PROTECTED = (
    (r"metadata\.labels\[oars\.dev/", "Oars selects pods by labels with this prefix", "Use another label."),
    (r"metadata\.annotations\[oars\.dev/", "Oars stores its own data there", "Use another annotation."),
    (r"containers\[(head|worker)\]\.(command|args)", "Oars starts the engine with it", _OMIT),
    (r"containers\[(head|worker)\]\.resources\.(requests|limits)\[(cpu|memory)\]",
     "the engine is configured with the same amount", "Set cpu and memory of the head or the worker group instead."),
    (r"containers\[worker\]\.resources\.(requests|limits)\[nvidia\.com/gpu\]",
     "the engine is configured with the same number", "Set gpu of the worker group instead."),
    (r"containers\[(head|worker)\]\.env\[", "Oars sets this variable for the engine", _OMIT),
    (r"containers\[(head|worker)\]\.ports\[", "the engine listens on this port", _OMIT),
    (r"containers\[oars\]", "the name is reserved for the container of Oars", "Use another name."),
    (r"volumes\[(oars-[a-z]+|tmp|shm|spill-\d+)\]", "the name is reserved for a volume of Oars", "Use another name."),
    (r"volumeMounts\[/etc/oars", "Oars mounts the engine's files there", "Use another path."),
    (r"restartPolicy$", "pods of a Deployment are always restarted", _OMIT),
)  # fmt: skip
# List entries that only Oars may add, whether or not this pod has them.
_RESERVED = re.compile(r"containers\[oars\]$|volumes\[oars-[a-z]+\]$|volumeMounts\[/etc/oars")


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Our template with the user's merged in. `where` is the user's field for error messages, such as head.pod."""
    unknown = sorted(set(theirs) - {"metadata", "spec"})
    if unknown:
        raise SpecError(
            f"{where}.{unknown[0]}: a PodTemplateSpec has only metadata and spec.",
            f"Write {where}: {{spec: {{{unknown[0]}: …}}}}.",
        )
    theirs = _without_nulls(theirs)
    spec = theirs.get("spec")
    if isinstance(spec, Mapping) and "serviceAccount" in spec:
        # The deprecated name. Kubernetes ignores it if the new name is set, and our template always sets that.
        rest = {key: value for key, value in spec.items() if key != "serviceAccount"}
        theirs = {**theirs, "spec": {"serviceAccountName": spec["serviceAccount"], **rest}}
    result: dict[str, Any] = _merge(ours, theirs, "", where)
    return result


def container(theirs: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The user's entry for one container. Skips malformed entries: `merged` raises for them."""
    spec = theirs.get("spec")
    listed = spec.get("containers") if isinstance(spec, Mapping) else None
    containers = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    return next((item for item in containers if item.get("name") == name), {})


def _without_nulls(theirs: Any) -> Any:
    """The value without nulls, as Kubernetes reads it."""
    if isinstance(theirs, Mapping):
        return {str(key): _without_nulls(value) for key, value in theirs.items() if value is not None}
    return [_without_nulls(item) for item in theirs] if isinstance(theirs, list) else theirs


def _merge(ours: Any, theirs: Any, path: str, where: str) -> Any:
    if ours == theirs:
        return ours
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and not WHOLE.search(path):
        return {**ours, **{key: _merge_field(ours, key, theirs[key], path, where) for key in theirs}}
    if isinstance(ours, list) and isinstance(theirs, list):
        return _merge_lists(ours, theirs, path, where)
    _check_allowed(path, where)
    if isinstance(ours, list):
        raise SpecError(f"{where}.{path}: must be a list.", "Put a dash before each entry.")
    if isinstance(ours, Mapping) and not isinstance(theirs, Mapping):
        dash = " without a dash" if isinstance(theirs, list) else ""
        raise SpecError(f"{where}.{path}: must be a map.", f"Write name: value pairs below it{dash}.")
    return theirs


def _merge_field(ours: Mapping[str, Any], key: str, value: Any, path: str, where: str) -> Any:
    is_quoted = "/" in key or path.endswith(("labels", "annotations", "requests", "limits"))
    below = f"{path}[{key}]" if is_quoted else f"{path}.{key}" if path else key
    if key in ours:
        return _merge(ours[key], value, below, where)
    _check_allowed(below, where)  # the user adds a field to an object that must stay as rendered
    if below == "metadata.annotations":  # Oars may add annotations later, even if our template has none yet
        _merge({}, value, below, where)
    return value


def _merge_lists(ours: list[Any], theirs: list[Any], path: str, where: str) -> list[Any]:
    key = KEYS.get(re.split(r"[.\]]", path)[-1])
    if key is None:
        _check_allowed(path, where)
        return theirs
    for item in theirs:
        if not isinstance(item, Mapping) or not isinstance(item.get(key), str | int):
            raise SpecError(f"{where}.{path}: each entry needs its {key}.", f"Add {key}: to the entry.")
    known = {item[key] for item in ours}
    added = [item for item in theirs if item[key] not in known]
    for item in added:
        if _RESERVED.search(f"{path}[{item[key]}]"):
            _check_allowed(f"{path}[{item[key]}]", where)
    given = {item[key]: item for item in theirs}
    result = [_merge(item, given.get(item[key], item), f"{path}[{item[key]}]", where) for item in ours]
    return [*result, *added]


def _check_allowed(path: str, where: str) -> None:
    for pattern, reason, hint in _PROTECTED:
        if re.search(pattern, path):
            raise SpecError(f"{where}.{path} cannot be set: {reason}.", hint)
