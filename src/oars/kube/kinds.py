"""The kinds of objects we speak of, and where the API server keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from oars.base.errors import OarsError
from oars.base.text import suggest

Object = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of object. `group` is empty for the core."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As an object's apiVersion has it: v1, apps/v1."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Its path on the API server; without a namespace that of all namespaces, without a name the collection's."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


POD = Kind("", "v1", "pods", "Pod")
SERVICE = Kind("", "v1", "services", "Service")
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")
SECRET = Kind("", "v1", "secrets", "Secret")
SERVICE_ACCOUNT = Kind("", "v1", "serviceaccounts", "ServiceAccount")
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", namespaced=False)
EVENT = Kind("", "v1", "events", "Event")
NODE = Kind("", "v1", "nodes", "Node", namespaced=False)
RESOURCE_QUOTA = Kind("", "v1", "resourcequotas", "ResourceQuota")
LIMIT_RANGE = Kind("", "v1", "limitranges", "LimitRange")
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
JOB = Kind("batch", "v1", "jobs", "Job")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
INGRESS = Kind("networking.k8s.io", "v1", "ingresses", "Ingress")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDING = Kind(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
COMPUTE_CLUSTER = Kind("oars.dev", "v1alpha1", "computeclusters", "ComputeCluster")

_KNOWN: dict[tuple[str, str], Kind] = {}


def register(kind: Kind) -> Kind:
    """Let `of` know one more kind."""
    _KNOWN[kind.api_version, kind.kind] = kind
    return kind


for _kind in [value for value in globals().values() if isinstance(value, Kind)]:
    register(_kind)


def of(obj: Mapping[str, Any]) -> Kind:
    """The kind of an object, by its apiVersion and kind."""
    version, word = obj.get("apiVersion", ""), obj.get("kind", "")
    found = _KNOWN.get((version, word))
    if found is None:
        names = [kind for _, kind in _KNOWN]
        hint = f"Oars does not know where the API server keeps it.{suggest(word, names) if word not in names else ''}"
        raise OarsError(f"No kind {word!r} of apiVersion {version!r}.", hint)
    return found
