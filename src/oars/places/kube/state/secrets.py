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
from oars.places.kube.why.api_errors import NameConflict
from oars.secure.secrets import cluster_secrets
from oars.secure.tokens import new_token


def make_secrets(name: str, kinds: Sequence[str]) -> dict[str, bytes]:
    """New content for the Secret: what the engine needs, and the helper's token."""
    return {CONTROL_TOKEN: new_token().encode(), **cluster_secrets(name, kinds)}


async def ensure_secret(client: Client, desired: Desired, owner: Object) -> str:
    """Create the Secret unless it exists; returns the helper's token."""
    made = make_secrets(desired.name, desired.shape.secrets)
    obj = objects.secret(desired, made)
    obj["metadata"]["ownerReferences"] = [owner]
    try:
        found = await client.create(obj)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        found = await _existing(client, obj, owner)
    return content(found)[CONTROL_TOKEN].decode()


async def _existing(client: Client, obj: Object, owner: Object) -> Object:
    """The existing Secret, completed with missing keys. A Secret that a deleted cluster of the same name left behind is
    replaced, for it is about to be garbage-collected. Raises NameConflict if it belongs to something else."""
    name, namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
    found = await client.get(SECRET, name, namespace)
    if not ownership.is_of(found, owner):
        raise NameConflict(SECRET.kind, name, namespace)
    if ownership.is_left(found, owner):
        await client.delete(SECRET, name, namespace, uid=found["metadata"]["uid"])
        return await client.create(obj)
    missing = {key: value for key, value in obj["data"].items() if key not in found.get("data", {})}
    return await client.patch(SECRET, name, namespace, {"data": missing}) if missing else found


def content(secret: Object) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}


async def read_secrets(client: Client, cluster: str, namespace: str) -> dict[str, bytes]:
    """The Secret's content, for a client of the cluster; empty if there is no Secret."""
    try:
        return content(await client.get(SECRET, names.root(cluster), namespace))
    except ApiError as error:
        if error.status == 404:
            return {}
        raise OarsError(
            f"The secrets of {cluster!r} cannot be read: {error.message}",
            "Ask for the right to get this Secret; `oars rbac --mode user` prints it.",
        ) from error


async def read_helper_token(client: Client, cluster: str, namespace: str, owner: Object) -> str:
    """The helper's token from the cluster's Secret; empty if there is none or an earlier cluster left it."""
    try:
        found = await client.get(SECRET, names.root(cluster), namespace)
    except ApiError as error:
        if error.status == 404:
            return ""
        raise
    if not ownership.is_of(found, owner) or ownership.is_left(found, owner):
        return ""
    return content(found).get(CONTROL_TOKEN, b"").decode()
