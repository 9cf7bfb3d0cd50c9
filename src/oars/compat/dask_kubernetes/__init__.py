"""The interface of dask-kubernetes on Oars: change `dask_kubernetes` to `oars.compat.dask_kubernetes` in imports."""

from __future__ import annotations

from oars.compat.dask_kubernetes import config
from oars.compat.dask_kubernetes.classic.kubecluster import KubeCluster
from oars.compat.dask_kubernetes.common.auth import ClusterAuth, InCluster, KubeAuth, KubeConfig
from oars.compat.dask_kubernetes.common.objects import clean_pod_template, make_pod_from_dict, make_pod_spec

__all__ = [
    "ClusterAuth",
    "InCluster",
    "KubeAuth",
    "KubeCluster",
    "KubeConfig",
    "clean_pod_template",
    "config",
    "make_pod_from_dict",
    "make_pod_spec",
]
