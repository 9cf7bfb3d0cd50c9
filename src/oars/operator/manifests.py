"""The objects that `oars operator install` applies, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import oars
from oars.operator import HEALTH_PORT, MARS_JOB, METRICS_PORT, NAME, NAMESPACE, admission, crd, rbac
from oars.places.kube import names

Object = dict[str, Any]

TEMPLATE = Path(__file__).with_name("install.yaml")
IMAGE = f"oars/operator:{oars.__version__}"
# Label of a namespace that the installation created, and that uninstall deletes.
CREATED_BY_INSTALL = {"app.kubernetes.io/managed-by": "oars-operator-install"}
SELECTOR = names.OPERATOR
MATCH = {"matchLabels": SELECTOR}
LABELS = {**SELECTOR, "app.kubernetes.io/part-of": "oars", "app.kubernetes.io/version": oars.__version__}
# Measured with hundreds of clusters, plus a margin. There is no CPU limit: a throttled operator could lose its Lease.
# Ephemeral storage: its log, which Kubernetes rotates, and /tmp.
RESOURCES = {
    "requests": {"cpu": "50m", "memory": "96Mi", "ephemeral-storage": "64Mi"},
    "limits": {"memory": "512Mi", "ephemeral-storage": "256Mi"},
}


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
    queues: bool = False  # allow it to put jobs into queues
    trust_authors: bool = False  # do not check the authors of restricted fields
    adopt: tuple[str, ...] = ()  # kinds of other projects that it serves, too: `marsjob`
    resources: Object = field(default_factory=lambda: dict(RESOURCES))
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()


def install(options: InstallOptions) -> list[Object]:
    """All objects; those that others need come first."""
    return [
        *([namespace(options)] if options.create_namespace else []),
        *admission.manifests(trust_authors=options.trust_authors),  # before there can be a cluster
        definition(options.namespace),
        crd.compute_job(),
        *(adopted(trust_authors=options.trust_authors) if MARS_JOB in options.adopt else []),
        service_account(options),
        *rbac.operator_roles(
            options.namespace,
            options.watch_namespaces,
            nodes=options.nodes,
            queues=options.queues,
            adopt=MARS_JOB in options.adopt,
        ),
        *rbac.shared_roles(options.namespace),
        network_policy(options),
        disruption_budget(options),
        metrics_service(options),
        deployment(options),
    ]


def adopted(*, trust_authors: bool) -> list[Object]:
    """What MarsJobs need: their definitions, the policy that checks their authors, the rights of their users."""
    return [*admission.mars_job_manifests(trust_authors=trust_authors), *crd.mars_jobs(), *rbac.mars_job_roles()]


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
    return obj | {"metadata": {**obj["metadata"], "annotations": {names.OPERATOR_NAMESPACE: namespace}}}


def service_account(options: InstallOptions) -> Object:
    return _object("ServiceAccount", options)


def network_policy(options: InstallOptions) -> Object:
    return _object("NetworkPolicy", options, podSelector=MATCH)


def disruption_budget(options: InstallOptions) -> Object:
    return _object("PodDisruptionBudget", options, selector=MATCH)


def metrics_service(options: InstallOptions) -> Object:
    service = _object("Service", options, selector=SELECTOR)
    service["metadata"]["name"] = f"{NAME}-metrics"
    return service


def deployment(options: InstallOptions) -> Object:
    result = _object("Deployment", options, replicas=options.replicas, selector=MATCH)
    template = result["spec"]["template"]
    template["metadata"]["labels"] = LABELS
    pod = template["spec"]
    pod["serviceAccountName"] = NAME
    pod["topologySpreadConstraints"][0]["labelSelector"] = MATCH
    optional = {
        "imagePullSecrets": [{"name": name} for name in options.pull_secrets],
        "priorityClassName": options.priority_class,
        "nodeSelector": options.node_selector,
        "tolerations": list(options.tolerations),
    }
    pod |= {key: value for key, value in optional.items() if value}
    pod["containers"][0] |= {
        "image": options.image,
        "imagePullPolicy": options.pull_policy,
        "args": [
            "--identity=$(POD_NAME)",
            "--lease-namespace=$(POD_NAMESPACE)",
            f"--metrics-port={METRICS_PORT}",
            f"--health-port={HEALTH_PORT}",
            f"--log-format={options.log_format}",
            *(f"--namespace={each}" for each in options.watch_namespaces),
            *(["--trust-authors"] if options.trust_authors else []),
            *(f"--adopt={each}" for each in options.adopt),
        ],
        "resources": options.resources,
    }
    return result


def _object(kind: str, options: InstallOptions, **spec: object) -> Object:
    """An object of install.yaml with its metadata and further fields of its spec."""
    found: Object = yaml.safe_load(TEMPLATE.read_text())[kind]
    own = {"name": NAME, "namespace": options.namespace, "labels": dict(LABELS)}
    metadata = {**own, **found.pop("metadata", {})}
    result = {"apiVersion": found.pop("apiVersion"), "kind": kind, "metadata": metadata, **found}
    return result | ({"spec": {**result["spec"], **spec}} if spec else {})
