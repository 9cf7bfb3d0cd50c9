"""The interface of `mars.deploy.kubernetes` on Oars: change that import to `oars.compat.mars`. Names are imported when
they are used: `oars.compat.mars.session` needs only Mars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oars.compat.mars.cluster import KubernetesClusterClient as KubernetesClusterClient
    from oars.compat.mars.cluster import new_cluster as new_cluster

__all__ = ["KubernetesClusterClient", "new_cluster"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oars.compat.mars import cluster

    return getattr(cluster, name)
