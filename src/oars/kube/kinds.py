"""Kinds of Kubernetes objects and their API paths."""

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
    """A kind of object. `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The apiVersion of objects of this kind, such as v1 or apps/v1."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """The URL path of an object. Without a name: of the collection. Without a namespace: of all namespaces."""
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
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
PERSISTENT_VOLUME_CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SET = Kind("apps", "v1", "daemonsets", "DaemonSet")
JOB = Kind("batch", "v1", "jobs", "Job")
CRON_JOB = Kind("batch", "v1", "cronjobs", "CronJob")
POD_DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
INGRESS = Kind("networking.k8s.io", "v1", "ingresses", "Ingress")
ROLE = Kind("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDING = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDING = Kind(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
POD_METRICS = Kind("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")  # of metrics-server, where it is installed
SELF_SUBJECT_ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease")
CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
VALIDATING_ADMISSION_POLICY = Kind(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
VALIDATING_ADMISSION_POLICY_BINDING = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)

_BY_NAME = {(kind.api_version, kind.kind): kind for kind in list(globals().values()) if isinstance(kind, Kind)}


def register(kind: Kind) -> Kind:
    """Make a custom resource known to `kind_of`."""
    _BY_NAME[kind.api_version, kind.kind] = kind
    return kind


def kind_of(obj: Mapping[str, Any]) -> Kind:
    """Return the Kind of an object, from its apiVersion and kind."""
    api_version, name = obj.get("apiVersion", ""), obj.get("kind", "")
    found = _BY_NAME.get((api_version, name))
    if found is None:
        names = [kind for _, kind in _BY_NAME]
        hint = f"Check the object's apiVersion and kind.{suggest(name, names) if name not in names else ''}"
        raise OarsError(f"Unknown kind {name!r} of apiVersion {api_version!r}.", hint)
    return found
