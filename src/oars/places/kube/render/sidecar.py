"""Our helper as a container beside the head, and the rights it needs where it watches over the cluster. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oars.model import Cause
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import objects
from oars.places.kube.render.pod import NO_PRIVILEGES, Cluster, environment, image, with_default_container
from oars.places.kube.render.values import FILES, SCRATCH, SECRETS

SCRIPT = Path(__file__).parents[1].joinpath("helper.py").read_text(encoding="utf-8")
KEY = "helper.py"
CONTROL_TOKEN = "control"  # its key in the Secret
ACCOUNT = "/var/run/secrets/oars"
UNWATCHED = Cause(
    "Unwatched",
    "You may not make a Role here, so nobody watches over the cluster: if this program is killed, everything stays.",
    "Remove it with `oars down` then, or ask for the rights that `oars rbac` prints.",
)


def with_helper(deployment: Object, cluster: Cluster, watched: bool) -> Object:
    """The head's Deployment with the helper in its pods. `watched`: it ends the cluster when its owner has gone; after
    how long is the Lease's to say, as whoever changes that must not replace the head."""
    template = deployment["spec"]["template"]
    spec = template["spec"]
    spec["containers"] = [*spec["containers"], _container(cluster, watched)]
    spec["volumes"] = _volumes(cluster, spec["volumes"], watched)
    with_default_container(template)
    return deployment


def _container(cluster: Cluster, watched: bool) -> Object:
    variables = {"OARS_HELPER_PORT": str(names.HELPER_PORT)}
    if watched:
        variables["OARS_LEASE"] = f"{cluster.namespace}/{names.root(cluster.name)}"
    mounts: list[Object] = [
        {"name": "tmp", "mountPath": SCRATCH},
        {"name": "oars-files", "mountPath": FILES, "readOnly": True},
        {"name": "oars-secrets", "mountPath": SECRETS, "readOnly": True},
    ]
    if watched:
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


def _volumes(cluster: Cluster, volumes: list[Object], watched: bool) -> list[Object]:
    """The head's, with our own files among its files: each volume more is one more that a pod waits for."""
    name = names.root(cluster.name)
    found = {volume["name"]: volume for volume in volumes}
    files = found.get("oars-files", {"name": "oars-files", "configMap": {"name": name, "items": []}})
    files["configMap"]["items"].append({"key": KEY, "path": KEY})
    secret = {"secretName": name, "defaultMode": 0o440}  # all of it: also the token that the helper asks for
    found |= {"oars-files": files, "oars-secrets": {"name": "oars-secrets", "secret": secret}}
    volumes = list(found.values())
    if watched:
        sources: list[dict[str, Any]] = [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]
        volumes.append({"name": "oars-account", "projected": {"defaultMode": 0o440, "sources": sources}})
    return volumes


def rights(cluster: Cluster, head: Object) -> list[Object]:
    """The watching helper may see one Lease and delete one ConfigMap. They are given to the account that the pods of
    the head's Deployment have, which may be one of the user's."""
    name = names.root(cluster.name)
    account = head["spec"]["template"]["spec"]["serviceAccountName"] or "default"
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["delete"]},
    ]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": cluster.namespace}]
    version = "rbac.authorization.k8s.io/v1"
    return [
        objects.cluster_object(cluster, version, "Role", name, rules=rules),
        objects.cluster_object(cluster, version, "RoleBinding", name, roleRef=reference, subjects=subjects),
    ]


def head_and_owned(cluster: Cluster, watched: bool) -> tuple[list[Object], Object]:
    """All of a cluster but its workers: what the head needs, and its Deployment, with the helper if it has one."""
    head = objects.managed(objects.head_deployment(cluster))
    around = [*objects.surroundings(cluster), *(rights(cluster, head) if watched else [])]
    if cluster.helped:
        head = with_helper(head, cluster, watched)
        _files(around, cluster)[KEY] = SCRIPT
    return around, head


def _files(around: list[Object], cluster: Cluster) -> dict[str, str]:
    """The data of the cluster's ConfigMap among the objects, which is added if the engine itself needs none."""
    for obj in around:
        if obj["kind"] == "ConfigMap":
            data: dict[str, str] = obj["data"]
            return data
    files = objects.config_map(cluster)
    around.append(files)
    return _files(around, cluster)
