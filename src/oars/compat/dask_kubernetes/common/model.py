"""Kubernetes objects as programs of the `kubernetes` package use them: `pod.spec.containers[0].image_pull_policy`.

A Model is a dict with the names of the Kubernetes API (camelCase) that also has attributes with the names of that
package (snake_case). A field that is not set is None. Objects of the package itself, and of packages that are made like
it, may be used anywhere inside a template; the package need not be installed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any

from oars.base.errors import SpecError

_UPPER = re.compile(r"([A-Z]+)")
# camelCase names whose capitals the snake_case name does not tell.
_IRREGULAR = {
    "pod_ip": "podIP", "host_ip": "hostIP", "pod_i_ps": "podIPs", "host_i_ps": "hostIPs", "cluster_ip": "clusterIP",
    "cluster_i_ps": "clusterIPs", "external_i_ps": "externalIPs", "load_balancer_ip": "loadBalancerIP",
    "host_pid": "hostPID", "host_ipc": "hostIPC", "container_id": "containerID", "image_id": "imageID",
    "set_hostname_as_fqdn": "setHostnameAsFQDN", "volume_id": "volumeID", "pd_id": "pdID", "_from": "from",
    "external_id": "externalID", "pod_cidr": "podCIDR", "target_ww_ns": "targetWWNs", "api_version": "apiVersion",
}  # fmt: skip
_REGULAR = {camel: snake for snake, camel in _IRREGULAR.items()}


def camel_case(name: str) -> str:
    if name in _IRREGULAR:
        return _IRREGULAR[name]
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def snake_case(name: str) -> str:
    return _REGULAR.get(name) or _UPPER.sub(r"_\1", name).lower()


class Model(dict[str, Any]):
    """An object of the Kubernetes API. Fields called like a method of dict (`items`, `values`) are only reachable as
    entries: `volume["configMap"]["items"]`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_ipython_display_":
            raise AttributeError(name)
        return self.get(camel_case(name))

    def __setattr__(self, name: str, value: Any) -> None:
        self[camel_case(name)] = value

    def __delattr__(self, name: str) -> None:
        del self[camel_case(name)]

    def to_dict(self) -> dict[str, Any]:
        """As the `kubernetes` package does: a dict with snake_case names."""
        return {snake_case(key): _with_snake_case(value) for key, value in self.items()}

    # With these two the `kubernetes` package serializes a Model like its own objects.

    @property
    def openapi_types(self) -> dict[str, str]:
        return {snake_case(key): "object" for key in self}

    @property
    def attribute_map(self) -> dict[str, str]:
        return {snake_case(key): key for key in self}


def _with_snake_case(value: Any) -> Any:
    if isinstance(value, Model):
        return value.to_dict()
    return [_with_snake_case(each) for each in value] if isinstance(value, list) else value


def model(value: Any) -> Any:
    """Plain data with Models in place of dicts. The content is copied."""
    if isinstance(value, Mapping):
        return Model({key: model(each) for key, each in value.items()})
    return [model(each) for each in value] if isinstance(value, list) else value


def plain(value: Any, where: str) -> Any:
    """Data that JSON can hold, from dicts, Models and objects of Kubernetes packages. Fields that are None are left
    out. Raises SpecError for a value that Kubernetes cannot hold; `where` names the template."""
    if isinstance(value, Mapping):
        return {_key(key, where): plain(each, f"{where}.{key}") for key, each in value.items() if each is not None}
    if isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, datetime | date):
        return value.isoformat()
    names = getattr(value, "attribute_map", None)
    if isinstance(names, Mapping):
        fields = {camel: getattr(value, snake) for snake, camel in names.items()}
        return plain(fields, where)
    if callable(convert := getattr(value, "to_dict", None)):  # newer versions of the package have no map
        return plain(convert(), where)
    if isinstance(value, Iterable) and not isinstance(value, bytes | set | frozenset):
        return [plain(each, f"{where}[{number}]") for number, each in enumerate(value)]
    raise SpecError(
        f"{where}: {value!r} ({type(value).__name__}) is no value that Kubernetes can hold.",
        "Use strings, numbers, booleans, lists and dicts.",
    )


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise SpecError(f"{where}: the key {key!r} is not a string.", "Put it in quotes.")
    return key
