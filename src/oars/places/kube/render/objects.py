"""Renders a cluster as Kubernetes objects. `oars render` prints them; direct mode and the operator apply them. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from oars.model import HEAD, Desired, Group
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render.pod import file_key, labels, mounted_files, service_variables, template
from oars.places.kube.render.values import secret_files
from oars.plan.desired import digest

NO_DEADLINE = 2**31 - 1  # Kubernetes treats this number as no deadline


def manifests(desired: Desired) -> list[Object]:
    """All objects but the Secret, in the order in which to apply them."""
    workers = [worker_deployment(desired, group, group.replicas) for group in desired.shape.workers]
    members = [_with_service_variables(desired, each) for each in (head_deployment(desired), *workers)]
    namespace = [namespace_object(desired)] if desired.create_namespace else []
    return [*namespace, *supporting_objects(desired), disruption_budget(desired), *members]


def _with_service_variables(desired: Desired, deployment: Object) -> Object:
    """Add variables by which scripts find the head without Oars. Only in `oars render`: Kubernetes tracks field
    ownership of every variable at every write of a pod, and six variables made 300 clusters a tenth slower."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]  # the engine's; the others are the user's
    known = {variable["name"] for variable in container["env"]}
    more = [(name, text) for name, text in service_variables(desired).items() if name not in known]
    container["env"] += [{"name": name, "value": text} for name, text in more]
    return deployment


def supporting_objects(desired: Desired) -> list[Object]:
    """The objects that members need before they start."""
    files = config_map(desired)
    return [
        cluster_object(desired, "v1", "ServiceAccount", names.root(desired.name), automountServiceAccountToken=False),
        *([files] if files["data"] else []),
        service(desired),
        network_policy(desired),
        *([ingress(desired)] if desired.expose.host else []),
    ]


def namespace_object(desired: Desired) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": desired.namespace, "labels": labels(desired)},
    }


def config_map(desired: Desired) -> Object:
    """The ConfigMap with the engine's files for its members."""
    groups = (desired.shape.head, *desired.shape.workers)
    data = {file_key(group, name): text for group in groups for name, text in mounted_files(desired, group).items()}
    return cluster_object(desired, "v1", "ConfigMap", names.root(desired.name), data=data)


def secret(desired: Desired, content: Mapping[str, bytes]) -> Object:
    data = {name: base64.b64encode(value).decode() for name, value in content.items()}
    return cluster_object(desired, "v1", "Secret", names.root(desired.name), type="Opaque", data=data)


def service(desired: Desired) -> Object:
    """The head's Service. It publishes the head before it is ready, so that workers that start at the same time need
    not wait for its probe and for kube-proxy."""
    expose = desired.expose
    ports = [
        {"name": port.alias or port.name, "port": port.default, "targetPort": port.default, "protocol": "TCP"}
        for port in desired.shape.head.process.ports
        if port.on_service
    ]
    body = cluster_object(
        desired, "v1", "Service", names.head(desired.name),
        spec={
            "type": expose.type,
            "selector": names.pod_labels(desired.name),
            "publishNotReadyAddresses": True,
            "ports": ports,
        },
    )  # fmt: skip
    if expose.annotations:
        body["metadata"]["annotations"] = dict(expose.annotations)
    return body


def disruption_budget(desired: Desired) -> Object:
    """The PodDisruptionBudget that protects the head from eviction when a node is drained: losing the head loses all
    data of the cluster."""
    selector = {"matchLabels": names.pod_labels(desired.name)}
    spec = {"maxUnavailable": 0, "selector": selector}
    return cluster_object(desired, "policy/v1", "PodDisruptionBudget", names.head(desired.name), spec=spec)


def network_policy(desired: Desired) -> Object:
    """The NetworkPolicy. Members reach each other on all ports. Pods of the namespace and the operator reach the head's
    service ports. Other sources reach only what is exposed: all service ports if the Service is external, the dashboard
    if there is an Ingress. The helper's port is open to all, as the helper requires a token."""
    expose = desired.expose
    served = _open([port.default for port in desired.shape.head.process.ports if port.on_service])
    if expose.type == "ClusterIP":
        served["from"] = [
            {"podSelector": {}},
            {"namespaceSelector": {}, "podSelector": {"matchLabels": names.OPERATOR}},
        ]
    rules: list[Object] = [{"from": [{"podSelector": {"matchLabels": {names.CLUSTER: desired.name}}}]}, served]
    if expose.host:
        rules.append(_open([_dashboard_port(desired)]))
    if desired.helper:
        rules.append(_open([names.HELPER_PORT]))
    spec = {
        "podSelector": {"matchLabels": {names.CLUSTER: desired.name}},
        "policyTypes": ["Ingress"],
        "ingress": rules,
    }
    return cluster_object(desired, "networking.k8s.io/v1", "NetworkPolicy", names.root(desired.name), spec=spec)


def _open(ports: Sequence[int]) -> Object:
    return {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}


def _dashboard_port(desired: Desired) -> int:
    """The dashboard's port; the first port if there is none."""
    ports = desired.shape.head.process.ports
    return next((port for port in ports if port.dashboard), ports[0]).default


def ingress(desired: Desired) -> Object:
    expose = desired.expose
    backend = {"service": {"name": names.head(desired.name), "port": {"number": _dashboard_port(desired)}}}
    spec: dict[str, Any] = {
        "rules": [{"host": expose.host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]
    }
    if expose.ingress_class:
        spec["ingressClassName"] = expose.ingress_class
    if expose.tls_secret:
        spec["tls"] = [{"hosts": [expose.host], "secretName": expose.tls_secret}]
    body = cluster_object(desired, "networking.k8s.io/v1", "Ingress", names.head(desired.name), spec=spec)
    body["metadata"]["annotations"] = dict(expose.annotations)
    return body


def head_deployment(desired: Desired) -> Object:
    group = desired.shape.head
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 1,
        "strategy": {"type": "Recreate"},  # never two heads
        "selector": {"matchLabels": names.pod_labels(desired.name)},
        "template": template(desired, group),
    }
    return _deployment(desired, names.head(desired.name), HEAD, spec)


def worker_deployment(desired: Desired, group: Group, replicas: int) -> Object:
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": names.pod_labels(desired.name, group.name)},
        "template": template(desired, group),
    }
    return _deployment(desired, names.workers(desired.name, group.name), group.name, spec)


def _deployment(desired: Desired, name: str, group: str, spec: Object) -> Object:
    deployment = cluster_object(desired, "apps/v1", "Deployment", name, spec=spec)
    deployment["metadata"]["labels"] = {**labels(desired), names.GROUP: group}
    return deployment


def managed(deployment: Object) -> Object:
    """The Deployment without a progress deadline, for clusters that Oars reconciles. Oars reports what keeps pods from
    starting long before the deadline, and tracking progress costs Kubernetes two writes at each start."""
    deployment["spec"]["progressDeadlineSeconds"] = NO_DEADLINE
    return deployment


def managed_worker_deployment(desired: Desired, group: Group, replicas: int, name: str, revision: str) -> Object:
    """A group's Deployment in a cluster that Oars reconciles. A Deployment of another revision may exist beside it."""
    deployment = managed(worker_deployment(desired, group, replicas))
    spec, metadata = deployment["spec"], deployment["metadata"]
    of_revision = {names.REVISION: revision}
    spec["selector"]["matchLabels"] |= of_revision
    spec["template"]["metadata"]["labels"] |= of_revision
    # All at once: the template changes only after the head was lost, and with it the data of the workers.
    spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}
    if desired.head_epoch:
        spec["template"]["metadata"].setdefault("annotations", {})[names.HEAD_EPOCH] = str(desired.head_epoch)
    metadata["name"] = name
    metadata["labels"] |= of_revision
    return deployment


def revision_of(desired: Desired, group: Group) -> str:
    """Hash of the pod template, which names the content of the files it mounts. A new hash means new pods."""
    return digest(template(desired, group))


def needs_secret(desired: Desired) -> bool:
    return bool(secret_files(desired.shape)) or desired.helper


def cluster_object(desired: Desired, version: str, kind: str, name: str, **body: Any) -> Object:
    metadata = {"name": name, "namespace": desired.namespace, "labels": labels(desired)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}
