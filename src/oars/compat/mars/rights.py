"""The Role by which members read the pods of their cluster's own namespace. Pure."""

from __future__ import annotations

from typing import Any

from oars.kube.kinds import Object
from oars.places.kube import names

ROLE_NAME = "mars-pod-reader"
DEFAULT_ACCOUNT = "default"


def manifests(cluster: str, namespace: str) -> list[Object]:
    """The Role, and its binding to the accounts of the namespace: the default one and that of the members."""
    accounts = (DEFAULT_ACCOUNT, names.root(cluster))
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": namespace} for account in accounts]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ROLE_NAME}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "watch", "list"]}]
    return [
        _object("Role", ROLE_NAME, cluster, namespace, rules=rules),
        _object("RoleBinding", f"{ROLE_NAME}-binding", cluster, namespace, subjects=subjects, roleRef=reference),
    ]


def _object(kind: str, name: str, cluster: str, namespace: str, **body: Any) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": names.labels(cluster, "mars")}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, **body}
