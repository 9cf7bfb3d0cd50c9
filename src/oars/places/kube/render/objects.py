"""A cluster as Kubernetes objects. One rendering for all ways in: `oars render` prints it, others apply it. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from oars.model import HEAD, Group
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render.pod import Cluster, file_key, mounted_files, revision, service_variables, template
from oars.places.kube.render.values import secret_files

NO_DEADLINE = 2**31 - 1  # the number that stands for it in Kubernetes


def manifests(cluster: Cluster) -> list[Object]:
    """Everything but secrets, in an order in which it can be applied."""
    workers = [worker_deployment(cluster, group, group.replicas) for group in cluster.shape.workers]
    members = [_with_service_variables(cluster, each) for each in (head_deployment(cluster), *workers)]
    namespace = [namespace_object(cluster)] if cluster.spec.namespace.create else []
    return [*namespace, *surroundings(cluster), disruption_budget(cluster), *members]


def _with_service_variables(cluster: Cluster, deployment: Object) -> Object:
    """For scripts that find the head without Oars. Not where Oars looks after the cluster: Kubernetes keeps account of
    every variable at every write of a pod, and six of them made 300 clusters a tenth slower."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]  # the engine's; what follows is the user's
    known = {variable["name"] for variable in container["env"]}
    more = [(name, text) for name, text in service_variables(cluster).items() if name not in known]
    container["env"] += [{"name": name, "value": text} for name, text in more]
    return deployment


def surroundings(cluster: Cluster) -> list[Object]:
    """All that members need before they start, and that is not a member."""
    files = config_map(cluster)
    return [
        cluster_object(cluster, "v1", "ServiceAccount", names.root(cluster.name), automountServiceAccountToken=False),
        *([files] if files["data"] else []),
        service(cluster),
        network_policy(cluster),
        *([ingress(cluster)] if cluster.spec.expose.host else []),
    ]


def namespace_object(cluster: Cluster) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": cluster.namespace, "labels": cluster.labels},
    }


def config_map(cluster: Cluster) -> Object:
    """Files of the engine that its members read."""
    groups = (cluster.shape.head, *cluster.shape.workers)
    data = {file_key(group, name): text for group in groups for name, text in mounted_files(cluster, group).items()}
    return cluster_object(cluster, "v1", "ConfigMap", names.root(cluster.name), data=data)


def secret(cluster: Cluster, content: Mapping[str, bytes]) -> Object:
    data = {name: base64.b64encode(value).decode() for name, value in content.items()}
    return cluster_object(cluster, "v1", "Secret", names.root(cluster.name), type="Opaque", data=data)


def service(cluster: Cluster) -> Object:
    """Published before the head is ready: workers that start with it need not wait for a probe and a proxy."""
    expose = cluster.spec.expose
    ports = [
        {"name": port.alias or port.name, "port": port.default, "targetPort": port.default, "protocol": "TCP"}
        for port in cluster.shape.head.process.ports
        if port.on_service
    ]
    body = cluster_object(
        cluster, "v1", "Service", names.head(cluster.name),
        spec={
            "type": expose.type,
            "selector": names.pod_labels(cluster.name),
            "publishNotReadyAddresses": True,
            "ports": ports,
        },
    )  # fmt: skip
    if expose.annotations:
        body["metadata"]["annotations"] = dict(expose.annotations)
    return body


def disruption_budget(cluster: Cluster) -> Object:
    """Whoever empties a node asks first: with the head goes all that the cluster holds."""
    selector = {"matchLabels": names.pod_labels(cluster.name)}
    spec = {"maxUnavailable": 0, "selector": selector}
    return cluster_object(cluster, "policy/v1", "PodDisruptionBudget", names.head(cluster.name), spec=spec)


def network_policy(cluster: Cluster) -> Object:
    """Members speak to each other freely. Others in the namespace reach what the head serves; an operator looks after
    it from elsewhere; from outside only what was exposed is open: by the Service all that it serves, by the Ingress the
    one page. The helper asks for a token."""
    expose = cluster.spec.expose
    served = _open([port.default for port in cluster.shape.head.process.ports if port.on_service])
    if expose.type == "ClusterIP":
        served["from"] = [
            {"podSelector": {}},
            {"namespaceSelector": {}, "podSelector": {"matchLabels": names.OPERATOR}},
        ]
    rules: list[Object] = [{"from": [{"podSelector": {"matchLabels": {names.CLUSTER: cluster.name}}}]}, served]
    if expose.host:
        rules.append(_open([_page(cluster)]))
    if cluster.helped:
        rules.append(_open([names.HELPER_PORT]))
    spec = {
        "podSelector": {"matchLabels": {names.CLUSTER: cluster.name}},
        "policyTypes": ["Ingress"],
        "ingress": rules,
    }
    return cluster_object(cluster, "networking.k8s.io/v1", "NetworkPolicy", names.root(cluster.name), spec=spec)


def _open(ports: Sequence[int]) -> Object:
    return {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}


def _page(cluster: Cluster) -> int:
    """The port of the dashboard, or of whatever comes first."""
    ports = cluster.shape.head.process.ports
    return next((port for port in ports if port.name in ("dashboard", "web")), ports[0]).default


def ingress(cluster: Cluster) -> Object:
    expose = cluster.spec.expose
    backend = {"service": {"name": names.head(cluster.name), "port": {"number": _page(cluster)}}}
    spec: dict[str, Any] = {
        "rules": [{"host": expose.host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]
    }
    if expose.ingress_class:
        spec["ingressClassName"] = expose.ingress_class
    if expose.tls_secret:
        spec["tls"] = [{"hosts": [expose.host], "secretName": expose.tls_secret}]
    body = cluster_object(cluster, "networking.k8s.io/v1", "Ingress", names.head(cluster.name), spec=spec)
    body["metadata"]["annotations"] = dict(expose.annotations)
    return body


def head_deployment(cluster: Cluster) -> Object:
    group = cluster.shape.head
    spec = {
        "replicas": 1,
        "revisionHistoryLimit": 1,
        "strategy": {"type": "Recreate"},  # never two heads
        "selector": {"matchLabels": names.pod_labels(cluster.name)},
        "template": template(cluster, group),
    }
    return _deployment(cluster, names.head(cluster.name), HEAD, spec)


def worker_deployment(cluster: Cluster, group: Group, replicas: int) -> Object:
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": names.pod_labels(cluster.name, group.name)},
        "template": template(cluster, group),
    }
    return _deployment(cluster, names.workers(cluster.name, group.name), group.name, spec)


def _deployment(cluster: Cluster, name: str, group: str, spec: Object) -> Object:
    deployment = cluster_object(cluster, "apps/v1", "Deployment", name, spec=spec)
    deployment["metadata"]["labels"] = {**cluster.labels, names.GROUP: group}
    return deployment


def managed(deployment: Object) -> Object:
    """Where Oars looks after it. What keeps its pods from coming up we tell ourselves, long before Kubernetes would; to
    have it keep account of their progress costs a write at each start, and another that is refused."""
    deployment["spec"]["progressDeadlineSeconds"] = NO_DEADLINE
    return deployment


def managed_worker_deployment(
    cluster: Cluster, group: Group, replicas: int, name: str, of_revision: str, head_changes: int
) -> Object:
    """A group's where Oars looks after it: others of it, of another revision, may stand beside it for a while."""
    deployment = managed(worker_deployment(cluster, group, replicas))
    spec, metadata = deployment["spec"], deployment["metadata"]
    labels = {names.REVISION: of_revision}
    spec["selector"]["matchLabels"] |= labels
    spec["template"]["metadata"]["labels"] |= labels
    # All at once: it happens only when the head was lost, and with it all that workers hold.
    spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}
    if head_changes:
        spec["template"]["metadata"].setdefault("annotations", {})[names.HEAD_EPOCH] = str(head_changes)
    metadata["name"] = name
    metadata["labels"] |= labels
    return deployment


def revision_of(cluster: Cluster, group: Group) -> str:
    """What a change of makes other pods necessary: the template, which names the content of the files it mounts."""
    return revision(template(cluster, group))


def needs_secret(cluster: Cluster) -> bool:
    return bool(secret_files(cluster.shape)) or cluster.helped


def cluster_object(cluster: Cluster, version: str, kind: str, name: str, **body: Any) -> Object:
    metadata = {"name": name, "namespace": cluster.namespace, "labels": cluster.labels}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}
