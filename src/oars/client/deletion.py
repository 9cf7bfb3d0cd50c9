"""The end of a cluster on Kubernetes: what has to be deleted, and waiting until its pods are gone."""

from __future__ import annotations

import asyncio
import time

from oars.client import operator_client
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import COMPUTE_CLUSTER, CONFIG_MAP, NAMESPACE, POD, Object, of
from oars.places.kube import names
from oars.places.kube.state import observe
from oars.places.kube.state.root import INTENT
from oars.places.kube.why.api_errors import rights_told

POLL_SECONDS = 0.2
FORCE_AFTER = 5.0  # seconds; pods of a cluster that is gone have nothing left to finish


async def remove(client: Client, name: str, namespace: str, made: Object | None = None) -> bool:
    """Deleting the root deletes all, and a namespace that was made for the cluster goes with it: at once, as whoever
    is interrupted while waiting for pods would leave it behind. `made`: the root, if it must be that very one. False:
    that one is gone, and another cluster has its name, which is left as it is."""
    own = await is_its_own(client, name, namespace)
    if made is None:
        await _delete_roots(client, name, namespace)
    elif not await _delete_made(client, name, namespace, made):
        return False
    if own:
        await client.delete(NAMESPACE, namespace)
    return True


async def is_its_own(client: Client, name: str, namespace: str) -> bool:
    """Whether the namespace was made for this cluster. What a description says is not enough to delete one: it may
    have been written into a namespace that others share."""
    found = await operator_client.seen(client, NAMESPACE, namespace)
    return found is not None and bool(found["metadata"].get("labels", {}).get(names.CLUSTER) == name)


async def _delete_roots(client: Client, name: str, namespace: str) -> None:
    """Of either kind: which one it was is not always known, as after an interrupted create."""
    was_operated = await operator_client.delete(client, name, namespace)
    try:
        await client.delete(CONFIG_MAP, names.root(name), namespace)
    except ApiError as error:
        if error.status != 403 or not was_operated:
            raise


async def _delete_made(client: Client, name: str, namespace: str, made: Object) -> bool:
    """False: it is gone, and another cluster has its name."""
    metadata = made["metadata"]
    try:
        with rights_told():
            if await client.delete(of(made), metadata["name"], namespace, uid=metadata["uid"]):
                return True
    except ApiError as error:
        if error.status != 409:
            raise
        return False
    return not await is_there(client, name, namespace)


async def is_there(client: Client, name: str, namespace: str) -> bool:
    """Whether a cluster of that name is, of either kind. An operator's has the ConfigMap too, for files alone."""
    root = await operator_client.seen(client, CONFIG_MAP, names.root(name), namespace)
    is_direct = root is not None and INTENT in root.get("data", {})
    return is_direct or await operator_client.seen(client, COMPUTE_CLUSTER, name, namespace) is not None


async def await_end(client: Client, name: str, namespace: str, wait: float) -> bool:
    """Whether all members were gone in time. Other pods with the cluster's label are nothing to us."""
    started, selector, forced = time.monotonic(), names.selector({names.CLUSTER: name}), False
    while time.monotonic() - started < wait:
        listed = (await client.list(POD, namespace, labels=selector)).items
        left = [pod for pod in listed if observe.is_member(pod)]
        if not left:
            return True
        if not forced and time.monotonic() - started > FORCE_AFTER:
            forced = True
            await _hurry(client, left, namespace)
        await asyncio.sleep(POLL_SECONDS)  # a few looks at the end of a cluster's life, not worth a watch
    return False


async def _hurry(client: Client, pods: list[Object], namespace: str) -> None:
    """Whoever may not end pods waits for them."""
    hurried = (client.delete(POD, pod["metadata"]["name"], namespace, grace=1) for pod in pods)
    for answer in await asyncio.gather(*hurried, return_exceptions=True):
        if isinstance(answer, BaseException) and not (isinstance(answer, ApiError) and answer.status == 403):
            raise answer
