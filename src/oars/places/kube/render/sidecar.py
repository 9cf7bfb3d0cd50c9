"""Renders the helper as a sidecar of the head, and the rights it needs to watch the cluster's owner. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oars.model import Cause, Desired
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import objects
from oars.places.kube.render.pod import NO_PRIVILEGES, environment, image, with_default_container
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


def with_helper(deployment: Object, desired: Desired, watched: bool) -> Object:
    """The head's Deployment with the helper in its pods. `watched`: the helper deletes the cluster when its owner is
    gone. The timeout for that is on the Lease, so that a change of it does not replace the head."""
    template = deployment["spec"]["template"]
    spec = template["spec"]
    spec["containers"] = [*spec["containers"], _container(desired, watched)]
    spec["volumes"] = _volumes(desired, spec["volumes"], watched)
    with_default_container(template)
    return deployment


def _container(desired: Desired, watched: bool) -> Object:
    variables = {"OARS_HELPER_PORT": str(names.HELPER_PORT)}
    if watched:
        variables["OARS_LEASE"] = f"{desired.namespace}/{names.root(desired.name)}"
    mounts: list[Object] = [
        {"name": "tmp", "mountPath": SCRATCH},
        {"name": "oars-files", "mountPath": FILES, "readOnly": True},
        {"name": "oars-secrets", "mountPath": SECRETS, "readOnly": True},
    ]
    if watched:
        mounts.append({"name": "oars-account", "mountPath": ACCOUNT, "readOnly": True})
    return {
        "name": names.HELPER,
        "image": image(desired),
        "command": ["python3", f"{FILES}/{KEY}"],
        "env": [*environment(desired, desired.shape.head), *({"name": k, "value": v} for k, v in variables.items())],
        "ports": [{"name": "oars", "containerPort": names.HELPER_PORT}],
        # A script that imports the engine needs the limits; an idle helper needs little.
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
        "securityContext": NO_PRIVILEGES,
        "volumeMounts": mounts,
    }


def _volumes(desired: Desired, volumes: list[Object], watched: bool) -> list[Object]:
    """The head's volumes, with the helper's script added to its files: a pod waits for every additional volume."""
    name = names.root(desired.name)
    found = {volume["name"]: volume for volume in volumes}
    files = found.get("oars-files", {"name": "oars-files", "configMap": {"name": name, "items": []}})
    files["configMap"]["items"].append({"key": KEY, "path": KEY})
    secret = {"secretName": name, "defaultMode": 0o440}  # all keys, also the token that the helper checks
    found |= {"oars-files": files, "oars-secrets": {"name": "oars-secrets", "secret": secret}}
    volumes = list(found.values())
    if watched:
        sources: list[dict[str, Any]] = [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]
        volumes.append({"name": "oars-account", "projected": {"defaultMode": 0o440, "sources": sources}})
    return volumes


def rights(desired: Desired, head: Object) -> list[Object]:
    """Role and RoleBinding that let the helper read one Lease and delete one ConfigMap. The subject is the
    ServiceAccount of the head's pods, which the user may have set."""
    name = names.root(desired.name)
    account = head["spec"]["template"]["spec"]["serviceAccountName"] or "default"
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["delete"]},
    ]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": desired.namespace}]
    version = "rbac.authorization.k8s.io/v1"
    return [
        objects.cluster_object(desired, version, "Role", name, rules=rules),
        objects.cluster_object(desired, version, "RoleBinding", name, roleRef=reference, subjects=subjects),
    ]


def head_and_owned(desired: Desired, watched: bool) -> tuple[list[Object], Object]:
    """All objects but the workers: those that the head needs, and its Deployment, with the helper if there is one."""
    head = objects.managed(objects.head_deployment(desired))
    owned = [*objects.supporting_objects(desired), *(rights(desired, head) if watched else [])]
    if desired.helper:
        head = with_helper(head, desired, watched)
        _files(owned, desired)[KEY] = SCRIPT
    return owned, head


def _files(owned: list[Object], desired: Desired) -> dict[str, str]:
    """The data of the cluster's ConfigMap. Adds the ConfigMap to `owned` if the engine does not need one."""
    for obj in owned:
        if obj["kind"] == "ConfigMap":
            data: dict[str, str] = obj["data"]
            return data
    files = objects.config_map(desired)
    owned.append(files)
    return _files(owned, desired)
