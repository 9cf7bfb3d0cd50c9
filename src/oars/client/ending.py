"""The end of a cluster on Kubernetes: what has to be deleted, and waiting until its pods are gone."""

from __future__ import annotations

import asyncio
import time

from oars.client import operated
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import CONFIG_MAP, NAMESPACE, POD, Object
from oars.places.kube import names

POLL_SECONDS = 0.2
FORCE_AFTER = 5.0  # seconds; pods of a cluster that is gone have nothing left to finish


async def remove(client: Client, name: str, namespace: str) -> None:
    """Deleting the root deletes all, and a namespace that was made for the cluster goes with it: at once, as whoever
    is interrupted while waiting for pods would leave it behind."""
    own = await is_its_own(client, name, namespace)
    await _delete_roots(client, name, namespace)
    if own:
        await client.delete(NAMESPACE, namespace)


async def is_its_own(client: Client, name: str, namespace: str) -> bool:
    """Whether the namespace was made for this cluster. What a description says is not enough to delete one: it may
    have been written into a namespace that others share."""
    try:
        found = await client.get(NAMESPACE, namespace)
    except ApiError as error:
        if error.status in (403, 404):
            return False
        raise
    return bool(found["metadata"].get("labels", {}).get(names.CLUSTER) == name)


async def _delete_roots(client: Client, name: str, namespace: str) -> None:
    """Of either kind: which one it was is not always known, as after an interrupted create."""
    was_operated = await operated.delete(client, name, namespace)
    try:
        await client.delete(CONFIG_MAP, names.root(name), namespace)
    except ApiError as error:
        if error.status != 403 or not was_operated:
            raise


async def await_end(client: Client, name: str, namespace: str, wait: float) -> bool:
    """Whether all pods were gone in time."""
    started, selector, forced = time.monotonic(), names.selector({names.CLUSTER: name}), False
    while time.monotonic() - started < wait:
        left = (await client.list(POD, namespace, labels=selector)).items
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
