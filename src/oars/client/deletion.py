"""Delete a cluster on Kubernetes, and wait until its pods are gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from oars.base.errors import OarsError
from oars.client import namespaces, operator_client
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


@dataclass(frozen=True)
class Removal:
    """`is_ours` False: the root is gone, and another cluster has its name, which is not touched. `others`: what keeps
    the namespace that was created for the cluster from being deleted."""

    is_ours: bool
    others: tuple[str, ...] = ()


async def remove(client: Client, name: str, namespace: str, root: Object | None = None) -> Removal:
    """Delete the root, which owns all other objects, and the namespace if it was created for the cluster and nothing
    else is in it. The namespace is deleted before the pods are gone, because an interrupted wait would leave it behind.
    `root`: delete only this one."""
    present = [root] if root else await _roots(client, name, namespace)
    own = await namespaces.find_own(client, name, namespace, present[0] if present else None)
    others = await namespaces.others(client, name, namespace) if own else []
    if root is None:
        await _delete_roots(client, name, namespace)
    elif not await _delete_root(client, name, namespace, root):
        return Removal(is_ours=False)
    if own and not others:
        await client.delete(NAMESPACE, namespace, uid=own["metadata"]["uid"])
    return Removal(is_ours=True, others=tuple(others))


async def _roots(client: Client, name: str, namespace: str) -> list[Object]:
    """The roots of both modes. With an operator the ConfigMap has files only, and the root is the ComputeCluster."""
    config_map = await if_allowed(client.get(CONFIG_MAP, names.root(name), namespace))
    resource = await if_allowed(client.get(COMPUTE_CLUSTER, name, namespace))
    is_direct = config_map is not None and INTENT in config_map.get("data", {})
    return [root for root in (config_map if is_direct else None, resource) if root is not None]


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
    """True if there is a cluster of that name, of either mode."""
    return bool(await _roots(client, name, namespace))


async def await_end(client: Client, name: str, namespace: str, wait: float) -> bool:
    """True if all members were gone in time. Other pods with the cluster's label do not count."""
    started, selector, forced = time.monotonic(), names.selector({names.CLUSTER: name}), set[str]()
    while time.monotonic() - started < wait:
        listed = (await client.list(POD, namespace, labels=selector)).items
        left = [pod["metadata"] for pod in listed if observe.is_member(pod)]
        if not left:
            return True
        # Shorten the grace period, if we have the right to: a worker that is starting does not hear the signal to end.
        # One that is not being deleted yet would be replaced.
        ending = {pod["name"] for pod in left if pod.get("deletionTimestamp")} - forced
        if ending and time.monotonic() - started > FORCE_AFTER:
            forced |= ending
            await asyncio.gather(*(if_allowed(client.delete(POD, each, namespace, grace=1)) for each in ending))
        await asyncio.sleep(POLL_SECONDS)  # a few polls are cheaper than a watch
    return False


@contextlib.asynccontextmanager
async def deleted_on_error(client: Client, created: Object) -> AsyncIterator[None]:
    """Delete an object that was just created if the body fails."""
    try:
        yield
    except BaseException:
        metadata = created["metadata"]
        with contextlib.suppress(OarsError):  # the first error is the one to report
            await client.delete(kind_of(created), metadata["name"], metadata.get("namespace"), uid=metadata["uid"])
        raise
