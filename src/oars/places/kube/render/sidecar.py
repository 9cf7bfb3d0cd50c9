"""Renders the helper as a sidecar of the head, and the rights it needs to end the cluster. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from oars.model import Cause, Desired
from oars.places.kube import names
from oars.places.kube.names import Object
from oars.places.kube.render import objects
from oars.places.kube.render.pod import NO_PRIVILEGES, environment, image, volume_mounts, with_default_container
from oars.places.kube.render.values import FILES, SCRATCH, SECRETS

SCRIPT = Path(__file__).parents[1].joinpath("helper.py").read_text(encoding="utf-8")
KEY = "helper.py"
INQUIRY = "inquiry.py"  # the script that Shape.inquiry names
ACCOUNT = "/var/run/secrets/oars"


def is_watched(desired: Desired) -> bool:
    """True if the helper may have to delete the cluster: because its owner is gone, or its lifetime is over while no
    client runs the loop."""
    return desired.tied or (desired.mode == "direct" and desired.lifetime.is_limited)


def unwatched(desired: Desired) -> Cause:
    """The remark about a cluster whose helper cannot delete it."""
    flag = f"-n {desired.namespace}"
    if desired.tied:
        message = (
            f"You may not create a Role in namespace {desired.namespace}, so the cluster cannot watch its owner: if "
            "this program is killed, the cluster keeps running."
        )
    else:
        message = (
            f"You may not create a Role in namespace {desired.namespace}, or the head started before the cluster had a "
            "lifetime. So the lifetime counts only while an oars command or a Python program uses the cluster."
        )
    hint = f"Remove it with `oars down {desired.name} {flag}` then, or ask for the permissions that `oars rbac {flag}` "
    return Cause("Unwatched", message, f"{hint}prints.")


def head_and_owned(desired: Desired, watched: bool, secret_epoch: int = 0) -> tuple[list[Object], Object]:
    """All objects but the workers: those that the head needs, and its Deployment, with the helper if there is one. The
    epoch of the secrets replaces the head when they are replaced."""
    helped = replace(desired, helper=desired.helper or watched)
    head = objects.managed(objects.head_deployment(helped))
    if secret_epoch:
        annotations = head["spec"]["template"]["metadata"].setdefault("annotations", {})
        annotations[names.SECRET_EPOCH] = str(secret_epoch)
    owned = [*objects.supporting_objects(desired), *(_rights(desired, head) if watched else [])]
    if helped.helper:
        _add_helper(head, desired, watched)
        files = next((obj for obj in owned if obj["kind"] == "ConfigMap"), None)
        if files is None:  # the engine needs none
            files = objects.config_map(desired)
            owned.append(files)
        files["data"][KEY] = SCRIPT
        if watched and desired.shape.inquiry is not None and desired.shape.inquiry.script:
            files["data"][INQUIRY] = desired.shape.inquiry.script
    return owned, head


def _add_helper(deployment: Object, desired: Desired, watched: bool) -> None:
    """Add the helper to the head's pods. `watched`: the helper deletes the cluster when its owner is gone or its
    lifetime is over. The times for that are on the Lease, so that a change of them does not replace the head."""
    name, template = names.root(desired.name), deployment["spec"]["template"]
    spec = template["spec"]
    variables = {"OARS_HELPER_PORT": str(names.HELPER_PORT)}
    mounts = {"tmp": SCRATCH, "oars-files": FILES}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    # The script is one more of the head's files, as a pod waits for every additional volume.
    files = volumes.setdefault("oars-files", {"name": "oars-files", "configMap": {"name": name, "items": []}})
    files["configMap"]["items"].append({"key": KEY, "path": KEY})
    if objects.secret_keys(desired):
        secret = {"secretName": name, "defaultMode": 0o440}  # all keys, also the token that the helper checks
        volumes["oars-secrets"] = {"name": "oars-secrets", "secret": secret}
        mounts["oars-secrets"] = SECRETS
    if watched:
        variables |= {"OARS_LEASE": f"{desired.namespace}/{name}", "OARS_INQUIRY": json.dumps(_inquiry(desired))}
        if not desired.tied:
            variables["OARS_DETACHED"] = "1"
        if "script" in _inquiry(desired):
            files["configMap"]["items"].append({"key": INQUIRY, "path": INQUIRY})
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


def _inquiry(desired: Desired) -> dict[str, object]:
    """How the helper asks the head, as it reads it from its environment; empty: the engine does not tell."""
    inquiry = desired.shape.inquiry
    if inquiry is None:
        return {}
    port = next(each for each in desired.shape.head.process.ports if each.name == inquiry.port)
    if inquiry.script:
        return {"port": port.default, "script": f"{FILES}/{INQUIRY}"}
    return {"port": port.default, "path": inquiry.path, "secret": port.secret}


def _rights(desired: Desired, head: Object) -> list[Object]:
    """Role and RoleBinding that let the helper read one Lease, delete one ConfigMap, and note in another why. The
    subject is the ServiceAccount of the head's pods, which the user may have set."""
    name = names.root(desired.name)
    account = head["spec"]["template"]["spec"]["serviceAccountName"] or "default"
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["delete"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [names.GONE], "verbs": ["patch"]},
    ]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": desired.namespace}]
    version = "rbac.authorization.k8s.io/v1"
    return [
        objects.cluster_object(desired, version, "Role", name, rules=rules),
        objects.cluster_object(desired, version, "RoleBinding", name, roleRef=reference, subjects=subjects),
    ]
