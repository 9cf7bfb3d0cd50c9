"""Merges a user's PodTemplateSpec into ours, as Kubernetes merges: maps by key, containers and the like by name, other
lists as a whole. Pure.

The user's values override our defaults. Fields that we must control (how the engine is started, the labels by which we
find pods) cannot be overridden: a different value is an error that names the field. A null, which YAML reads from a
field without a value, counts as not set.
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
# Fields that users must not change, with the reason for the error message.
_PROTECTED = (
    (re.compile(r"metadata\.labels\[oars\.dev/"), "Oars finds its pods by it; choose another label"),
    (re.compile(r"metadata\.annotations\[oars\.dev/"), "Oars keeps its books there; choose another annotation"),
    (re.compile(r"containers\[(head|worker)\]\.(command|args)"), "it is how the engine is started"),
    (
        re.compile(r"containers\[(head|worker)\]\.resources\.(requests|limits)\[(cpu|memory)\]"),
        "the engine is told the same; use cpu and memory of the head or the group",
    ),
    (
        re.compile(r"containers\[worker\]\.resources\.(requests|limits)\[nvidia\.com/gpu\]"),
        "the engine is told the same; use gpu of the group",
    ),
    (re.compile(r"containers\[(head|worker)\]\.env\["), "Oars sets it for the engine"),
    (re.compile(r"containers\[(head|worker)\]\.ports\["), "the engine listens there"),
    (re.compile(r"containers\[oars\]"), "this container is Oars' own"),
    (re.compile(r"volumes\[(oars-[a-z]+|tmp|shm)\]"), "this volume is Oars' own; give yours another name"),
    (re.compile(r"volumeMounts\[/etc/oars"), "Oars keeps the engine's files there"),
    (re.compile(r"restartPolicy$"), "pods of a Deployment are always restarted"),
)

# Maps that we may add to later, even if our template does not have them yet.
_ADDED_TO = ("metadata.annotations",)

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
    result: dict[str, Any] = _merge(ours, _without_deprecated_names(_without_nulls(theirs)), "", where)
    return result


def container(theirs: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The user's entry for one container. Skips malformed entries: `merged` raises for them."""
    spec = theirs.get("spec")
    listed = spec.get("containers") if isinstance(spec, Mapping) else None
    containers = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []
    return next((item for item in containers if item.get("name") == name), {})


def _without_deprecated_names(theirs: dict[str, Any]) -> dict[str, Any]:
    """Rename `serviceAccount`, the deprecated name of the field. Kubernetes ignores it if the new name is set, and our
    template always sets that."""
    spec = theirs.get("spec")
    if not isinstance(spec, Mapping) or "serviceAccount" not in spec:
        return theirs
    rest = {key: value for key, value in spec.items() if key != "serviceAccount"}
    return {**theirs, "spec": {"serviceAccountName": spec["serviceAccount"], **rest}}


def _without_nulls(theirs: Any) -> Any:
    """The value without nulls, as Kubernetes reads it."""
    if isinstance(theirs, Mapping):
        return {str(key): _without_nulls(value) for key, value in theirs.items() if value is not None}
    return [_without_nulls(item) for item in theirs] if isinstance(theirs, list) else theirs


def _merge(ours: Any, theirs: Any, path: str, where: str) -> Any:
    if ours == theirs:
        return ours
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping) and not WHOLE.search(path):
        for key in theirs:
            if key not in ours:
                _refuse(_below(path, key), where)  # the user adds a field to an object that must stay as rendered
                if _below(path, key) in _ADDED_TO:
                    _merge({}, theirs[key], _below(path, key), where)
        merged_keys = {key: _merge(ours[key], theirs[key], _below(path, key), where) for key in ours if key in theirs}
        return {**ours, **theirs, **merged_keys}
    if isinstance(ours, list) and isinstance(theirs, list):
        return _merge_lists(ours, theirs, path, where)
    _refuse(path, where)
    _check_kind(ours, theirs, path, where)
    return theirs


def _check_kind(ours: Any, theirs: Any, path: str, where: str) -> None:
    if isinstance(ours, list) and not isinstance(theirs, list):
        raise SpecError(f"{where}.{path}: must be a list.", "Put a dash before each entry.")
    if isinstance(ours, Mapping) and not isinstance(theirs, Mapping):
        dash = " without a dash" if isinstance(theirs, list) else ""
        raise SpecError(f"{where}.{path}: must be a map.", f"Write name: value pairs below it{dash}.")


def _merge_lists(ours: list[Any], theirs: list[Any], path: str, where: str) -> list[Any]:
    name = re.split(r"[.\]]", path)[-1]
    key = KEYS.get(name)
    if key is None:
        _refuse(path, where)
        return theirs
    for item in theirs:
        if not isinstance(item, Mapping) or not isinstance(item.get(key), str | int):
            raise SpecError(f"{where}.{path}: each entry needs its {key}.", f"Add {key}: to the entry.")
    known = {item[key]: item for item in ours}
    for item in theirs:
        if item[key] not in known and _RESERVED.search(f"{path}[{item[key]}]"):
            _refuse(f"{path}[{item[key]}]", where)
    given = {item[key]: item for item in theirs}
    result = [
        _merge(item, given[item[key]], f"{path}[{item[key]}]", where) if item[key] in given else item for item in ours
    ]
    return [*result, *(item for item in theirs if item[key] not in known)]


def _refuse(path: str, where: str) -> None:
    for pattern, reason in _PROTECTED:
        if pattern.search(path):
            raise SpecError(f"{where}.{path} clashes with what Oars sets there: {reason}.", "Leave it out.")


def _below(path: str, key: str) -> str:
    if "/" in key or path.endswith(("labels", "annotations", "requests", "limits")):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key
