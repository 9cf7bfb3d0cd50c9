"""The Kubernetes permissions that each mode needs."""

from __future__ import annotations

from typing import Any

from oars.operator import NAMESPACE, rbac
from oars.operator.rbac import Subject, why

__all__ = ["Subject", "roles", "why"]


def roles(
    mode: str,
    namespace: str | None,
    subject: Subject,
    *,
    minimal: bool = False,
    nodes: bool = False,
    create_namespace: bool = False,
) -> list[dict[str, Any]]:
    """mode: "direct", "user" or "operator". For direct mode, `minimal` omits the optional rules, and with
    `create_namespace` the permissions apply to all namespaces. The operator has its own subject and lists nodes."""
    if mode == "operator":
        return rbac.operator_roles(NAMESPACE, (namespace,) if namespace else ())
    if mode == "user":
        objects = rbac.user_role(namespace or "default", subject)
    elif create_namespace:
        objects = rbac.namespaces_role(subject)
    else:
        objects = rbac.direct_role(namespace or "default", subject, minimal=minimal)
    return objects + (rbac.nodes_role(subject) if nodes else [])
