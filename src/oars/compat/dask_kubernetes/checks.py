"""Checks of single arguments, which may come from Dask's configuration. Each returns the value in the type that is
used, or raises UsageError with the name of the argument. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dask.utils import parse_bytes, parse_timedelta

from oars.base.errors import SpecError, UsageError
from oars.base.text import suggest
from oars.spec.cluster import check_namespace

PROTOCOLS = ("tcp", "tls", "ws", "wss", "ucx")
# The arguments that one of these has and another one lacks.
ELSEWHERE = {
    "make_pod_spec": (
        "image", "labels", "threads_per_worker", "extra_container_config", "extra_pod_config", "resources",
        "memory_limit", "memory_request", "cpu_limit", "cpu_request", "gpu_limit", "annotations",
    ),
    "oars.compat.dask_kubernetes.classic.KubeCluster": (
        "pod_template", "host", "port", "auth", "deploy_mode", "interface", "protocol", "dashboard_address",
        "security", "scheduler_service_wait_timeout", "scheduler_service_name_resolution_retries",
        "scheduler_pod_template", "apply_default_affinity",
    ),
    "oars.compat.dask_kubernetes.operator.KubeCluster": (
        "image", "resources", "worker_command", "port_forward_cluster_ip", "create_mode", "resource_timeout",
        "scheduler_service_type", "custom_cluster_spec", "scheduler_forward_port", "jupyter",
    ),
}  # fmt: skip


def keywords(given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for an argument that KubeCluster does not have."""
    for name in given:
        if name not in known:
            owners = " and of ".join(owner for owner, names in ELSEWHERE.items() if name in names)
            meant = f" It is an argument of {owners}." if owners else suggest(name, known)
            raise TypeError(f"KubeCluster() got an unexpected keyword argument {name!r}.{meant}")


def count(name: str, value: Any, what: str = "a whole number") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{name}: {value!r} is not {what}.", "Use a whole number, 0 or more.")
    return value


def limit(name: str, value: Any) -> int | float:
    """A number of workers, or infinity."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return math.inf if value == math.inf else count(name, value, "a number of workers")


def amount(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise UsageError(f"{name}: {value!r} is not an amount.", "Use a number, 0 or more.")
    return float(value)


def size(name: str, value: Any) -> int:
    """Bytes, of a number or of a text such as 4GB."""
    is_known = isinstance(value, str | int | float) and not isinstance(value, bool)
    try:
        found = parse_bytes(value) if is_known and any(map(str.isdigit, str(value))) else -1
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        raise UsageError(f"{name}: {value!r} is not a size.", "Use bytes, or a text such as '4GB'.")
    return int(found)


def port(name: str, value: Any) -> int:
    number = int(value) if isinstance(value, str) and value.isdigit() else value
    if count(name, number, "a port") > 65535:
        raise UsageError(f"{name}: {value!r} is not a port.", "Use a number from 0 to 65535.")
    return int(number)


def seconds(name: str, value: Any) -> float:
    """Of a number, or of a text such as "5 minutes"."""
    try:
        found = float(parse_timedelta(value)) if isinstance(value, str | int | float) else math.nan
    except (ValueError, KeyError, IndexError):  # what Dask raises for other texts
        found = math.nan
    if isinstance(value, bool) or not 0 <= found < math.inf:
        raise UsageError(f"{name}: {value!r} is not a time.", "Use seconds, or a text such as '5 minutes'.")
    return found


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name}: {value!r} is not a text.", "Put it in quotes.")
    return value


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{name}: {value!r} is not a dict.", "Pass names and values, such as {'NAME': 'value'}.")
    return value


def protocol(value: Any) -> str:
    name = text("protocol", value).removesuffix("://")
    if name not in PROTOCOLS:
        raise UsageError(f"There is no protocol {value!r}.{suggest(name, PROTOCOLS)}", f"Use {', '.join(PROTOCOLS)}.")
    return name


def namespace(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return check_namespace(text("namespace", value))
    except ValueError as error:
        raise UsageError(f"{error}.") from error


def fill(name: str, pattern: str, values: Mapping[str, str]) -> str:
    """The pattern with these values, most of them environment variables, in place of their {names}."""
    try:
        return pattern.format(**values)
    except KeyError as error:
        raise SpecError(
            f"{name} {pattern!r} needs the environment variable {error.args[0]}, which is not set.",
            "Set it, or write the pattern without it.",
        ) from None
    except (ValueError, IndexError, AttributeError) as error:
        raise SpecError(f"{name} {pattern!r} is not a valid pattern: {error}.", "Use {NAME} for variables.") from None
