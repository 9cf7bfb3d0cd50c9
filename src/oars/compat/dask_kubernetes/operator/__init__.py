"""The newer KubeCluster of dask-kubernetes."""

from __future__ import annotations

from oars.compat.dask_kubernetes.operator.arguments import CreateMode
from oars.compat.dask_kubernetes.operator.kubecluster import KubeCluster, discover
from oars.compat.dask_kubernetes.operator.manifest import make_cluster_spec, make_scheduler_spec, make_worker_spec

__all__ = ["CreateMode", "KubeCluster", "discover", "make_cluster_spec", "make_scheduler_spec", "make_worker_spec"]
