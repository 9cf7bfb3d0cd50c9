"""Delete a cluster on Kubernetes, and wait until its pods are gone."""

from __future__ import annotations

import asyncio
import time

from oars.client import operator_client
from oars.client.operator_client import if_allowed
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import CONFIG_MAP, NAMESPACE, POD, Object, kind_of
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state import observe
from oars.places.kube.state.root import INTENT
from oars.places.kube.why.api_errors import denied_with_rule

POLL_SECONDS = 0.2
FORCE_AFTER = 5.0  # seconds; the work of a deleted cluster need not finish


async def remove(client: Client, name: str, namespace: str, root: Object | None = None) -> bool:
    """Delete the root, which owns all other objects, and the namespace if it was created for the cluster. The namespace
    is deleted before the pods are gone, because an interrupted wait would leave it behind. `root`: delete only this
    one. False: it is gone, and another cluster has its name, which is not touched."""
    owned = await owns_namespace(client, name, namespace)
    if root is None:
        await _delete_roots(client, name, namespace)
    elif not await _delete_root(client, name, namespace, root):
        return False
    if owned:
        await client.delete(NAMESPACE, namespace)
    return True


async def owns_namespace(client: Client, name: str, namespace: str) -> bool:
    """True if the namespace was created for this cluster, by its label. The spec is no proof: it may have been written
    into a namespace that others share."""
    found = await if_allowed(client.get(NAMESPACE, namespace))
    return found is not None and bool(found["metadata"].get("labels", {}).get(names.CLUSTER) == name)


async def _delete_roots(client: Client, name: str, namespace: str) -> None:
    """Delete the roots of both modes. After an interrupted create the mode is not known."""
    was_operated = await operator_client.delete(client, name, namespace)
    try:
        found = await client.get(CONFIG_MAP, names.root(name), namespace)
        labels = found["metadata"].get("labels") or {}
        if labels.get(names.CLUSTER) == name or INTENT in found.get("data", {}):  # it may be another application's
            await client.delete(CONFIG_MAP, names.root(name), namespace, uid=found["metadata"]["uid"])
    except ApiError as error:
        if error.status != 404 and (error.status != 403 or not was_operated):
            raise


async def _delete_root(client: Client, name: str, namespace: str, root: Object) -> bool:
    """False: it is gone, and another cluster has its name."""
    metadata = root["metadata"]
    try:
        with denied_with_rule():
            if await client.delete(kind_of(root), metadata["name"], namespace, uid=metadata["uid"]):
                return True
    except ApiError as error:
        if error.status != 409:
            raise
        return False
    return not await exists(client, name, namespace)


async def exists(client: Client, name: str, namespace: str) -> bool:
    """True if there is a cluster of that name, of either mode. One of an operator has a ConfigMap too, for files."""
    root = await if_allowed(client.get(CONFIG_MAP, names.root(name), namespace))
    is_direct = root is not None and INTENT in root.get("data", {})
    return is_direct or await if_allowed(client.get(COMPUTE_CLUSTER, name, namespace)) is not None


async def await_end(client: Client, name: str, namespace: str, wait: float) -> bool:
    """True if all members were gone in time. Other pods with the cluster's label do not count."""
    started, selector, forced = time.monotonic(), names.selector({names.CLUSTER: name}), False
    while time.monotonic() - started < wait:
        listed = (await client.list(POD, namespace, labels=selector)).items
        left = [pod for pod in listed if observe.is_member(pod)]
        if not left:
            return True
        if not forced and time.monotonic() - started > FORCE_AFTER:
            forced = True  # shorten the grace period, if we have the right to
            named = [pod["metadata"]["name"] for pod in left]
            await asyncio.gather(*(if_allowed(client.delete(POD, name, namespace, grace=1)) for name in named))
        await asyncio.sleep(POLL_SECONDS)  # a few polls are cheaper than a watch
    return False
