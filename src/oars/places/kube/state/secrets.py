"""The cluster's Secret: certificates and tokens, created once and never overwritten."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import SECRET, Object
from oars.model import Desired
from oars.places.kube import names
from oars.places.kube.render import objects
from oars.places.kube.render.sidecar import CONTROL_TOKEN
from oars.places.kube.state import ownership
from oars.places.kube.state.owned_objects import OwnedObjects
from oars.secure.secrets import cluster_secrets, new_token


def make_secrets(name: str, kinds: Sequence[str]) -> dict[str, bytes]:
    """New content for the Secret: what the engine needs, and the helper's token."""
    return {CONTROL_TOKEN: new_token().encode(), **cluster_secrets(name, kinds)}


async def ensure_secret(client: Client, desired: Desired, owned: OwnedObjects) -> str:
    """Create the Secret unless it exists, and add keys that it lacks; returns the helper's token."""
    obj = objects.secret(desired, make_secrets(desired.name, desired.shape.secrets))
    obj["metadata"]["ownerReferences"] = [owned.owner]
    try:
        found = await client.create(obj)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        found = await owned.existing(obj)
        missing = {key: value for key, value in obj["data"].items() if key not in found.get("data", {})}
        if missing:
            found = await client.patch(SECRET, obj["metadata"]["name"], desired.namespace, {"data": missing})
    return content(found)[CONTROL_TOKEN].decode()


def content(secret: Object) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}


async def read_secrets(client: Client, cluster: str, namespace: str) -> dict[str, bytes]:
    """The Secret's content, for a client of the cluster; empty if there is no Secret."""
    try:
        found = await _find(client, cluster, namespace)
    except ApiError as error:
        raise OarsError(
            f"The secrets of {cluster!r} cannot be read: {error.message}",
            "Ask for the right to get this Secret; `oars rbac --mode user` prints it.",
        ) from error
    return content(found or {})


async def read_helper_token(client: Client, cluster: str, namespace: str, owner: Object) -> str:
    """The helper's token from the cluster's Secret; empty if there is none or an earlier cluster left it."""
    found = await _find(client, cluster, namespace)
    if found is None or not ownership.is_of(found, owner) or ownership.is_left(found, owner):
        return ""
    return content(found).get(CONTROL_TOKEN, b"").decode()


async def _find(client: Client, cluster: str, namespace: str) -> Object | None:
    try:
        return await client.get(SECRET, names.root(cluster), namespace)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
