"""Renders a cluster as Kubernetes objects. `oars render` prints them; direct mode and the operator apply them. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from oars.exposure import Alias
from oars.model import HEAD, Desired, Group, Port
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render.pod import file_key, mounted_files, template
from oars.places.kube.render.values import CONTROL_TOKEN, client_ports, secret_files
from oars.plan.desired import digest

BLOCKED_EVICTION = (
    "Evicting the head discards all data of the cluster. To drain its node anyway, set spec.head.eviction to allow."
)
# How ingress-nginx removes a path: Kubernetes has no field for that. `$2` is what follows it.
REWRITE = {"nginx.ingress.kubernetes.io/rewrite-target": "/$2", "nginx.ingress.kubernetes.io/use-regex": "true"}
NO_DEADLINE = 2**31 - 1  # Kubernetes treats this number as no deadline


def manifests(desired: Desired) -> list[Object]:
    """All objects but the Secret, in the order in which to apply them."""
    workers = [worker_deployment(desired, group, group.replicas) for group in desired.shape.workers]
    members = [head_deployment(desired), *workers]
    for deployment in members:
        _add_service_variables(desired, deployment)
    objects = [*supporting_objects(desired), *disruption_budgets(desired), *members]
    if desired.create_namespace:
        # Without labels: the namespace may exist and be shared.
        objects.insert(0, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": desired.namespace}})
    return objects


def _add_service_variables(desired: Desired, deployment: Object) -> None:
    """Add the variables that service links would set (such as RAY_HEAD_SERVICE_HOST), with the Service's name as host:
    scripts find the head by them without Oars. Only in `oars render`: Kubernetes tracks field ownership of every
    variable at every write of a pod, and six variables made 300 clusters a tenth slower."""
    service = names.head(desired.name)
    found = {}
    for owner in dict.fromkeys((service, names.head(desired.engine))):
        prefix = owner.upper().replace("-", "_")
        found[f"{prefix}_SERVICE_HOST"] = service
        for port in _service_ports(desired):
            found.setdefault(f"{prefix}_SERVICE_PORT", str(port.default))
            name = (port.alias or port.name).upper().replace("-", "_")
            found[f"{prefix}_SERVICE_PORT_{name}"] = str(port.default)
    container = deployment["spec"]["template"]["spec"]["containers"][0]  # the engine's; the others are the user's
    known = {variable["name"] for variable in container["env"]}
    container["env"] += [{"name": name, "value": text} for name, text in found.items() if name not in known]


def _service_ports(desired: Desired) -> list[Port]:
    return [port for port in desired.shape.head.process.ports if port.on_service]


def supporting_objects(desired: Desired) -> list[Object]:
    """The objects that members need before they start."""
    files = config_map(desired)
    return [
        cluster_object(desired, "v1", "ServiceAccount", names.root(desired.name), automountServiceAccountToken=False),
        *([files] if files["data"] else []),
        *network_objects(desired),
    ]


def network_objects(desired: Desired) -> list[Object]:
    """The objects through which clients reach the head. They depend on `expose`; pods do not depend on them."""
    exposed = [ingress(desired)] if desired.expose.host else []
    return [service(desired), *alias_services(desired), network_policy(desired), *exposed]


def config_map(desired: Desired) -> Object:
    """The ConfigMap with the engine's files for its members."""
    groups = (desired.shape.head, *desired.shape.workers)
    data = {file_key(group, name): text for group in groups for name, text in mounted_files(desired, group).items()}
    return cluster_object(desired, "v1", "ConfigMap", names.root(desired.name), data=data)


def secret(desired: Desired, content: Mapping[str, bytes]) -> Object:
    data = {name: base64.b64encode(value).decode() for name, value in content.items()}
    return cluster_object(desired, "v1", "Secret", names.root(desired.name), type="Opaque", data=data)


def service(desired: Desired) -> Object:
    """The head's Service. It publishes only a head that is ready: one that is being deleted, which takes for ever if
    its node is lost, would get half of all connections."""
    spec = {
        "type": desired.expose.type,
        "selector": names.pod_labels(desired.name),
        "ports": [
            {"name": port.alias or port.name, "port": port.default, "targetPort": port.default, "protocol": "TCP"}
            for port in _service_ports(desired)
        ],
    }
    body = cluster_object(desired, "v1", "Service", names.head(desired.name), spec=spec)
    if desired.expose.annotations:
        body["metadata"]["annotations"] = {**desired.annotations, **desired.expose.annotations}
    return body


def alias_services(desired: Desired) -> list[Object]:
    """The Services of `aliases`."""
    found = []
    for alias in desired.aliases:
        group = next(each for each in desired.groups if each.name == alias.group)
        for number in numbers(group) if alias.is_numbered else (None,):
            chosen = {} if number is None else {group.number_label: str(number)}
            spec: Object = {
                "selector": {**names.pod_labels(desired.name, alias.group), **chosen},
                "ports": [
                    {"name": name, "port": port, "targetPort": target, "protocol": "TCP"}
                    for name, (port, target) in alias.ports.items()
                ],
            }
            if alias.is_direct:
                spec["clusterIP"] = "None"
            body = cluster_object(desired, "v1", "Service", alias_name(alias, number), spec=spec)
            body["metadata"]["labels"] |= {**alias.labels, **chosen}
            found.append(body)
    return found


def numbers(group: Group) -> range:
    return range(group.first_number, group.first_number + group.replicas)


def alias_name(alias: Alias, number: int | None) -> str:
    return alias.name if number is None else f"{alias.name}-{number}"


def published_early(service: Object) -> Object:
    """The Service of a cluster that starts. It publishes the head before that is ready, so that workers that start at
    the same time need not wait for its probe and for kube-proxy: Dask starts a second faster."""
    return {**service, "spec": {**service["spec"], "publishNotReadyAddresses": True}}


def disruption_budgets(desired: Desired) -> list[Object]:
    """The PodDisruptionBudget that protects the head from eviction when a node is drained: losing the head loses all
    data of the cluster. A head that is not ready has nothing to lose, and may be evicted."""
    if desired.is_head_evictable:
        return []
    selector = {"matchLabels": names.pod_labels(desired.name)}
    spec = {"maxUnavailable": 0, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": selector}
    budget = cluster_object(desired, "policy/v1", "PodDisruptionBudget", names.head(desired.name), spec=spec)
    budget["metadata"].setdefault("annotations", {})[names.HINT] = BLOCKED_EVICTION
    return [budget]


def network_policy(desired: Desired) -> Object:
    """The NetworkPolicy. Members reach each other on all ports. Pods of the namespace that have the labels of
    `expose.clients`, the drivers of its jobs and the operator reach the head's ports for clients. Other sources reach
    only what is exposed: all of these ports if the Service is external, the dashboard if there is an Ingress, the
    metrics of all members from namespaces with the labels of `expose.metrics`."""
    expose = desired.expose
    served = _open(*(port.default for port in client_ports(desired.shape)))
    if expose.type == "ClusterIP":
        served["from"] = [_clients(desired), *_drivers(desired), *_operator(desired)]
    rules: list[Object] = [{"from": [{"podSelector": {"matchLabels": {names.CLUSTER: desired.name}}}]}, served]
    if expose.host:
        rules.append(_open(_dashboard_port(desired)))
    if expose.metrics:
        scrapers = {"namespaceSelector": {"matchLabels": dict(expose.metrics)}}
        rules.append({"from": [scrapers], **_open(*expose.metrics_ports)})
    if controllers := _controllers(desired):
        rules.append({"from": controllers, **_open(names.HELPER_PORT)})
    spec = {
        "podSelector": {"matchLabels": {names.CLUSTER: desired.name}},
        "policyTypes": ["Ingress"],
        "ingress": rules,
    }
    return cluster_object(desired, "networking.k8s.io/v1", "NetworkPolicy", names.root(desired.name), spec=spec)


def _clients(desired: Desired) -> Object:
    """The pods of the namespace that may use the cluster."""
    labels = dict(desired.expose.clients)
    return {"podSelector": {"matchLabels": labels} if labels else {}}


def _drivers(desired: Desired) -> list[Object]:
    """The drivers of the cluster's jobs, which do not have the labels of `expose.clients`: an author of a cluster may
    not choose the labels of pods."""
    labels = {names.DRIVER_OF: desired.name}
    return [{"podSelector": {"matchLabels": labels}}] if desired.expose.clients else []


def _operator(desired: Desired) -> list[Object]:
    """The operator's pods. Anybody can use their labels, but only in another namespace."""
    if not desired.operator_namespace:
        return []
    where = {"matchLabels": {names.NAMESPACE_NAME: desired.operator_namespace}}
    return [{"namespaceSelector": where, "podSelector": {"matchLabels": names.OPERATOR}}]


def _controllers(desired: Desired) -> list[Object]:
    """Who sends requests to the helper: the operator or, in direct mode, a client in a pod. All others use a
    port-forward, which no policy restricts."""
    if not desired.helper:
        return []
    return [_clients(desired)] if desired.mode == "direct" else _operator(desired)


def _open(*ports: int) -> Object:
    return {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}


def _dashboard_port(desired: Desired) -> int:
    """The dashboard's port; the first port if there is none."""
    ports = desired.shape.head.process.ports
    return next((port for port in ports if port.dashboard), ports[0]).default


def ingress(desired: Desired) -> Object:
    expose = desired.expose
    backend = {"service": {"name": names.head(desired.name), "port": {"number": _dashboard_port(desired)}}}
    path = {"path": "/", "pathType": "Prefix"}
    if expose.path:
        path = {"path": f"{expose.path}(/|$)(.*)", "pathType": "ImplementationSpecific"}
    spec: dict[str, Any] = {"rules": [{"host": expose.host, "http": {"paths": [{**path, "backend": backend}]}}]}
    if expose.ingress_class:
        spec["ingressClassName"] = expose.ingress_class
    if expose.tls_secret:
        spec["tls"] = [{"hosts": [expose.host], "secretName": expose.tls_secret}]
    body = cluster_object(desired, "networking.k8s.io/v1", "Ingress", names.head(desired.name), spec=spec)
    rewrite = REWRITE if expose.path else {}
    body["metadata"]["annotations"] = {**desired.annotations, **rewrite, **expose.annotations}
    return body


def head_deployment(desired: Desired) -> Object:
    deployment = _deployment(desired, desired.shape.head, names.head(desired.name), HEAD, 1)
    deployment["spec"]["strategy"] = {"type": "Recreate"}  # never two heads
    return deployment


def worker_deployment(desired: Desired, group: Group, replicas: int) -> Object:
    return _deployment(desired, group, names.workers(desired.name, group.name), group.name, replicas)


def _deployment(desired: Desired, group: Group, name: str, label: str, replicas: int) -> Object:
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": names.pod_labels(desired.name, label)},
        "template": template(desired, group),
    }
    deployment = cluster_object(desired, "apps/v1", "Deployment", name, spec=spec)
    deployment["metadata"]["labels"] |= {
        **names.labels(desired.name, desired.engine, group.role.value),
        names.GROUP: label,
    }
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


def secret_keys(desired: Desired) -> set[str]:
    """The keys of the Secret that the cluster needs; without any it needs no Secret."""
    return {*secret_files(desired.shape), *([CONTROL_TOKEN] if desired.helper else [])}


def cluster_object(desired: Desired, version: str, kind: str, name: str, **body: Any) -> Object:
    metadata: Object = {"name": name, "namespace": desired.namespace}
    metadata["labels"] = {**desired.labels, **names.labels(desired.name, desired.engine)}
    if desired.annotations:
        metadata["annotations"] = dict(desired.annotations)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}
