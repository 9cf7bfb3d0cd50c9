"""Defaults of the `kubernetes` section of Dask's configuration. `worker-name` is the older name of `name`; if both are
set, it wins. `orphan-timeout` is Oars' own: see docs/migrate/dask-kubernetes-classic.md."""

from __future__ import annotations

from typing import Any

import dask

from oars.base.errors import UsageError

SERVICE_SELECTOR = {"dask.org/cluster-name": "", "dask.org/component": "scheduler"}  # the cluster's name is filled in

DEFAULTS: dict[str, Any] = {
    # both classes
    "name": "dask-{user}-{uuid}",
    "namespace": None,
    "env": {},
    "count": {"start": 0, "max": None},
    "scheduler-service-type": "ClusterIP",
    "idle-timeout": None,
    # the newer class
    "image": "ghcr.io/dask/dask:latest",
    "resources": {},
    "worker-command": "dask-worker",
    "port-forward-cluster-ip": None,
    "create-mode": "CREATE_OR_CONNECT",
    "shutdown-on-close": True,
    "resource-timeout": 60,
    "custom-cluster-spec": None,
    "scheduler-forward-port": None,
    "scheduler-jupyter": False,
    "controller": {  # of its own operator; no effect here
        "worker-allocation": {"batch-size": None, "delay": None},
        "events": {"enabled": True, "level": "INFO"},
    },
    # the classic class
    "worker-name": None,
    "host": "0.0.0.0",
    "port": 0,
    "deploy-mode": "remote",
    "interface": None,
    "protocol": "tcp://",
    "dashboard_address": ":8787",
    "scheduler-service-wait-timeout": 30,
    "scheduler-service-name-resolution-retries": 20,
    "scheduler-service-template": {
        "apiVersion": "v1",
        "kind": "Service",
        "spec": {
            "selector": SERVICE_SELECTOR,
            "ports": [
                {"name": "tcp-comm", "protocol": "TCP", "port": 8786, "targetPort": 8786},
                {"name": "http-dashboard", "protocol": "TCP", "port": 8787, "targetPort": 8787},
            ],
        },
    },
    "scheduler-pdb-template": {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "spec": {"minAvailable": 1, "selector": {"matchLabels": SERVICE_SELECTOR}},
    },
    "worker-template-path": None,
    "worker-template": {},
    "scheduler-template-path": None,
    "scheduler-template": {},
    "orphan-timeout": 120,
}

dask.config.update_defaults({"kubernetes": DEFAULTS})


def get(key: str, override: Any = None) -> Any:
    """The configured value, unless the caller gives one."""
    try:
        return dask.config.get(f"kubernetes.{key}", override_with=override)
    except (KeyError, TypeError) as error:  # a part of the path is no mapping
        raise UsageError(f"Dask's configuration has no kubernetes.{key}.", "Write it as in dask.yaml.") from error
