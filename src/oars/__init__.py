"""Oars: Dask, Ray and Mars clusters on a laptop, on bare hosts and on Kubernetes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oars.base.version import VERSION

if TYPE_CHECKING:
    from oars.base.errors import OarsError
    from oars.client.cluster import AsyncCluster
    from oars.client.current import connect, executor
    from oars.client.job import AsyncJob, Job
    from oars.client.sync import Cluster
    from oars.spec.cluster import ClusterSpec
    from oars.spec.job import JobSpec

__all__ = [
    "AsyncCluster",
    "AsyncJob",
    "Cluster",
    "ClusterSpec",
    "Job",
    "JobSpec",
    "OarsError",
    "connect",
    "executor",
]
__version__ = VERSION

# Loaded on first use, so that `import oars` is fast and needs neither an engine nor pydantic.
_MODULES = {
    "AsyncCluster": "oars.client.cluster",
    "AsyncJob": "oars.client.job",
    "Cluster": "oars.client.sync",
    "ClusterSpec": "oars.spec.cluster",
    "Job": "oars.client.job",
    "JobSpec": "oars.spec.job",
    "OarsError": "oars.base.errors",
    "connect": "oars.client.current",
    "executor": "oars.client.current",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'oars' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_MODULES[name]), name)  # noqa: TID251 (lazy exports)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
