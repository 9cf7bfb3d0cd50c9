"""Renders the helper as a sidecar of the head, and the rights it needs to watch the cluster's owner. Pure."""

from __future__ import annotations

from pathlib import Path

from oars.model import Cause, Desired
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import objects
from oars.places.kube.render.pod import NO_PRIVILEGES, environment, image, volume_mounts, with_default_container
from oars.places.kube.render.values import FILES, SCRATCH, SECRETS

SCRIPT = Path(__file__).parents[1].joinpath("helper.py").read_text(encoding="utf-8")
KEY = "helper.py"
CONTROL_TOKEN = "control"  # its key in the Secret
ACCOUNT = "/var/run/secrets/oars"


def unwatched(desired: Desired) -> Cause:
    """The remark about a tied cluster whose owner cannot be watched."""
    flag = f"-n {desired.namespace}"
    return Cause(
        "Unwatched",
        f"You may not create a Role in namespace {desired.namespace}, so the cluster cannot watch its owner: if this "
        "program is killed, the cluster keeps running.",
        f"Remove it with `oars down {desired.name} {flag}` then, or ask for the permissions that `oars rbac {flag}` "
        "prints.",
    )


def head_and_owned(desired: Desired, watched: bool) -> tuple[list[Object], Object]:
    """All objects but the workers: those that the head needs, and its Deployment, with the helper if there is one."""
    head = objects.managed(objects.head_deployment(desired))
    owned = [*objects.supporting_objects(desired), *(_rights(desired, head) if watched else [])]
    if desired.helper:
        _add_helper(head, desired, watched)
        files = next((obj for obj in owned if obj["kind"] == "ConfigMap"), None)
        if files is None:  # the engine needs none
            files = objects.config_map(desired)
            owned.append(files)
        files["data"][KEY] = SCRIPT
    return owned, head


def _add_helper(deployment: Object, desired: Desired, watched: bool) -> None:
    """Add the helper to the head's pods. `watched`: the helper deletes the cluster when its owner is gone. The timeout
    for that is on the Lease, so that a change of it does not replace the head."""
    name, template = names.root(desired.name), deployment["spec"]["template"]
    spec = template["spec"]
    variables = {"OARS_HELPER_PORT": str(names.HELPER_PORT)}
    mounts = {"tmp": SCRATCH, "oars-files": FILES, "oars-secrets": SECRETS}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    # The script is one more of the head's files, as a pod waits for every additional volume.
    files = volumes.setdefault("oars-files", {"name": "oars-files", "configMap": {"name": name, "items": []}})
    files["configMap"]["items"].append({"key": KEY, "path": KEY})
    secret = {"secretName": name, "defaultMode": 0o440}  # all keys, also the token that the helper checks
    volumes["oars-secrets"] = {"name": "oars-secrets", "secret": secret}
    if watched:
        variables["OARS_LEASE"] = f"{desired.namespace}/{name}"
        mounts["oars-account"] = ACCOUNT
        sources = [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ]
        volumes["oars-account"] = {"name": "oars-account", "projected": {"defaultMode": 0o440, "sources": sources}}
    container = {
        "name": names.HELPER,
        "image": image(desired),
        "command": ["python3", f"{FILES}/{KEY}"],
        "env": [*environment(desired, desired.shape.head), *({"name": k, "value": v} for k, v in variables.items())],
        "ports": [{"name": "oars", "containerPort": names.HELPER_PORT}],
        # A script that imports the engine needs the limits; an idle helper needs little.
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
        "securityContext": NO_PRIVILEGES,
        "volumeMounts": volume_mounts(mounts),
    }
    spec["containers"] = [*spec["containers"], container]
    spec["volumes"] = list(volumes.values())
    with_default_container(template)


def _rights(desired: Desired, head: Object) -> list[Object]:
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
