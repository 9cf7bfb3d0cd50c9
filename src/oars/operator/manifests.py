"""The objects that `oars operator install` applies, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import oars
from oars.operator import HEALTH_PORT, METRICS_PORT, NAME, NAMESPACE, crd, rbac
from oars.places.kube import names

Object = dict[str, Any]

IMAGE = f"oars/operator:{oars.__version__}"
# Label of a namespace that the installation created, and that uninstall deletes.
CREATED_BY_INSTALL = {"app.kubernetes.io/managed-by": "oars-operator-install"}
SELECTOR = names.OPERATOR
LABELS = {**SELECTOR, "app.kubernetes.io/part-of": "oars", "app.kubernetes.io/version": oars.__version__}
# Measured with hundreds of clusters, plus a margin. There is no CPU limit: a throttled operator could lose its Lease.
RESOURCES = {"requests": {"cpu": "50m", "memory": "96Mi"}, "limits": {"memory": "512Mi"}}
GRACE_SECONDS = 30


@dataclass(frozen=True)
class InstallOptions:
    """Options of `oars operator install`."""

    namespace: str = NAMESPACE
    image: str = IMAGE
    replicas: int = 2
    watch_namespaces: tuple[str, ...] = ()  # empty: all
    create_namespace: bool = True
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    log_format: str = "json"
    priority_class: str = ""
    nodes: bool = True  # allow it to list nodes
    resources: Object = field(default_factory=lambda: dict(RESOURCES))
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()


def install(options: InstallOptions) -> list[Object]:
    """All objects; those that others need come first."""
    return [
        *([namespace(options)] if options.create_namespace else []),
        definition(options.namespace),
        service_account(options),
        *rbac.operator_roles(options.namespace, options.watch_namespaces, nodes=options.nodes),
        *rbac.shared_roles(options.namespace),
        network_policy(options),
        disruption_budget(options),
        metrics_service(options),
        deployment(options),
    ]


def namespace(options: InstallOptions) -> Object:
    """The namespace, with the restricted pod security standard enforced."""
    security = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    metadata = {
        "name": options.namespace,
        "labels": {**CREATED_BY_INSTALL, "app.kubernetes.io/part-of": "oars", **security},
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def definition(namespace: str, engine_names: Iterable[str] | None = None) -> Object:
    """The CRD; an annotation names the namespace of the operator."""
    obj = crd.compute_cluster(engine_names)
    return obj | {"metadata": {**obj["metadata"], "annotations": {names.OPERATOR_HOME: namespace}}}


def service_account(options: InstallOptions) -> Object:
    """The ServiceAccount; only the operator's pods mount its token."""
    return _object("v1", "ServiceAccount", options) | {"automountServiceAccountToken": False}


def deployment(options: InstallOptions) -> Object:
    """The Deployment: one replica leads, the others stand by."""
    template = {"metadata": {"labels": LABELS}, "spec": _pod(options)}
    return _object("apps/v1", "Deployment", options) | {
        "spec": {
            "replicas": options.replicas,
            "selector": {"matchLabels": SELECTOR},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": template,
        }
    }


def _pod(options: InstallOptions) -> Object:
    spec: Object = {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(options)],
        # The root file system is read-only.
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": SELECTOR},
            }
        ],
    }
    optional = {
        "imagePullSecrets": [{"name": name} for name in options.pull_secrets],
        "priorityClassName": options.priority_class,
        "nodeSelector": options.node_selector,
        "tolerations": list(options.tolerations),
    }
    return spec | {key: value for key, value in optional.items() if value}


def _container(options: InstallOptions) -> Object:
    return {
        "name": "operator",
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "command": ["oars", "operator", "run"],
        "args": [
            "--identity=$(POD_NAME)",
            "--lease-namespace=$(POD_NAMESPACE)",
            f"--metrics-port={METRICS_PORT}",
            f"--health-port={HEALTH_PORT}",
            f"--log-format={options.log_format}",
            *(f"--namespace={each}" for each in options.watch_namespaces),
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "HOME", "value": "/tmp"},
        ],
        "ports": [
            {"name": "metrics", "containerPort": METRICS_PORT},
            {"name": "health", "containerPort": HEALTH_PORT},
        ],
        "startupProbe": _probe("/healthz", 1, 60),
        "livenessProbe": _probe("/healthz", 10, 3),
        "readinessProbe": _probe("/readyz", 2, 3),
        "resources": options.resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _probe(path: str, period: int, failures: int) -> Object:
    return {"httpGet": {"path": path, "port": "health"}, "periodSeconds": period, "failureThreshold": failures}


def metrics_service(options: InstallOptions) -> Object:
    """A headless Service, so that Prometheus scrapes every replica."""
    port = {"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics"}
    obj = _object("v1", "Service", options) | {"spec": {"clusterIP": "None", "selector": SELECTOR, "ports": [port]}}
    obj["metadata"]["name"] = f"{NAME}-metrics"
    return obj


def disruption_budget(options: InstallOptions) -> Object:
    """At most one replica is evicted at a time; node drains are never blocked."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": SELECTOR}}
    return _object("policy/v1", "PodDisruptionBudget", options) | {"spec": spec}


def network_policy(options: InstallOptions) -> Object:
    """Allow only metrics and probes as ingress. The operator may connect to anything: API server and heads."""
    ports = [{"protocol": "TCP", "port": port} for port in ("metrics", "health")]
    spec = {"podSelector": {"matchLabels": SELECTOR}, "policyTypes": ["Ingress"], "ingress": [{"ports": ports}]}
    return _object("networking.k8s.io/v1", "NetworkPolicy", options) | {"spec": spec}


def _object(api: str, kind: str, options: InstallOptions) -> Object:
    metadata = {"name": NAME, "namespace": options.namespace, "labels": dict(LABELS)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata}
