"""The cluster's Secret: certificates and tokens, made once and never written over."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import SECRET, Object
from oars.places.kube import names
from oars.places.kube.render import objects
from oars.places.kube.render.pod import Cluster
from oars.places.kube.render.sidecar import CONTROL_TOKEN
from oars.places.kube.state import ownership
from oars.places.kube.why.api_errors import Taken
from oars.secure.secrets import cluster_secrets
from oars.secure.tokens import new_token


def make_secrets(name: str, kinds: Sequence[str]) -> dict[str, bytes]:
    """Fresh content for a cluster: what its engine uses, and the helper's token."""
    return {CONTROL_TOKEN: new_token().encode(), **cluster_secrets(name, kinds)}


async def ensure_secret(client: Client, cluster: Cluster, owner: Object) -> str:
    """See to it that the Secret is there; returns the helper's token."""
    made = make_secrets(cluster.name, cluster.shape.secrets)
    obj = objects.secret(cluster, made)
    obj["metadata"]["ownerReferences"] = [owner]
    try:
        found = await client.create(obj)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        found = await _found(client, obj, owner)
    return content(found)[CONTROL_TOKEN].decode()


async def _found(client: Client, obj: Object, owner: Object) -> Object:
    """The one that is there, if it is the cluster's own. One that a deleted cluster of the same name left goes when the
    garbage collector comes to it, and must not be taken for ours."""
    name, namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
    found = await client.get(SECRET, name, namespace)
    if not ownership.is_of(found, owner):
        raise Taken(SECRET.kind, name, namespace)
    if ownership.is_left(found, owner):
        await client.delete(SECRET, name, namespace, uid=found["metadata"]["uid"])
        return await client.create(obj)
    missing = {key: value for key, value in obj["data"].items() if key not in found.get("data", {})}
    return await client.patch(SECRET, name, namespace, {"data": missing}) if missing else found


def content(secret: Object) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}


async def read_secrets(client: Client, cluster: str, namespace: str) -> dict[str, bytes]:
    """For a client of the cluster; empty if it has none."""
    try:
        return content(await client.get(SECRET, names.root(cluster), namespace))
    except ApiError as error:
        if error.status == 404:
            return {}
        raise OarsError(
            f"The secrets of {cluster!r} cannot be read: {error.message}",
            "Ask for the right to get this Secret; `oars rbac --mode user` prints it.",
        ) from error
