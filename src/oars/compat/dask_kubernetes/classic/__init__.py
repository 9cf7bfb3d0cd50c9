"""The classic KubeCluster of dask-kubernetes, on today's Dask."""

from __future__ import annotations

from oars.compat.dask_kubernetes.classic.kubecluster import KubeCluster
from oars.compat.dask_kubernetes.common.objects import make_pod_spec

__all__ = ["KubeCluster", "make_pod_spec"]
