"""Our helper as a container beside the head, and the rights it needs where it watches over the cluster. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.pod import NO_PRIVILEGES, Cluster, environment, image
from oars.places.kube.render import cluster_object
from oars.places.kube.values import FILES, SCRATCH, SECRETS

SCRIPT = Path(__file__).with_name("helper.py").read_text(encoding="utf-8")
KEY = "helper.py"
CONTROL_TOKEN = "control"  # its key in the Secret
ACCOUNT = "/var/run/secrets/oars"


@dataclass(frozen=True)
class Watch:
    """How long the cluster outlives the one who renews its Lease."""

    seconds: float


def with_helper(deployment: Object, cluster: Cluster, watch: Watch | None) -> Object:
    """The head's Deployment with the helper in its pods."""
    spec = deployment["spec"]["template"]["spec"]
    spec["containers"] = [*spec["containers"], _container(cluster, watch)]
    spec["volumes"] = _volumes(cluster, spec["volumes"], watch)
    return deployment


def _container(cluster: Cluster, watch: Watch | None) -> Object:
    variables = {"OARS_HELPER_PORT": str(names.HELPER_PORT)}
    if watch is not None:
        variables["OARS_LEASE"] = f"{cluster.namespace}/{names.root(cluster.name)}/{watch.seconds:.0f}"
    mounts: list[Object] = [
        {"name": "tmp", "mountPath": SCRATCH},
        {"name": "oars-files", "mountPath": FILES, "readOnly": True},
        {"name": "oars-secrets", "mountPath": SECRETS, "readOnly": True},
    ]
    if watch is not None:
        mounts.append({"name": "oars-account", "mountPath": ACCOUNT, "readOnly": True})
    return {
        "name": names.HELPER,
        "image": image(cluster),
        "command": ["python3", f"{FILES}/{KEY}"],
        "env": [*environment(cluster, cluster.shape.head), *({"name": k, "value": v} for k, v in variables.items())],
        "ports": [{"name": "oars", "containerPort": names.HELPER_PORT}],
        # An engine's script imports the engine; until it is asked it needs next to nothing.
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
        "securityContext": NO_PRIVILEGES,
        "volumeMounts": mounts,
    }


def _volumes(cluster: Cluster, volumes: list[Object], watch: Watch | None) -> list[Object]:
    """The head's, with our own files among its files: each volume more is one more that a pod waits for."""
    name = names.root(cluster.name)
    found = {volume["name"]: volume for volume in volumes}
    files = found.get("oars-files", {"name": "oars-files", "configMap": {"name": name, "items": []}})
    files["configMap"]["items"].append({"key": KEY, "path": KEY})
    secret = {"secretName": name, "defaultMode": 0o440}  # all of it: also the token that the helper asks for
    found |= {"oars-files": files, "oars-secrets": {"name": "oars-secrets", "secret": secret}}
    volumes = list(found.values())
    if watch is not None:
        sources: list[dict[str, Any]] = [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]
        volumes.append({"name": "oars-account", "projected": {"defaultMode": 0o440, "sources": sources}})
    return volumes


def rights(cluster: Cluster) -> list[Object]:
    """The watching helper may see one Lease and delete one ConfigMap."""
    name = names.root(cluster.name)
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["delete"]},
    ]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": cluster.name, "namespace": cluster.namespace}]
    version = "rbac.authorization.k8s.io/v1"
    return [
        cluster_object(cluster, version, "Role", name, rules=rules),
        cluster_object(cluster, version, "RoleBinding", name, roleRef=reference, subjects=subjects),
    ]
