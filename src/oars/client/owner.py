"""The owner of a tied cluster that the operator reconciles: this process says that it is alive, in an annotation of the
resource. Users of the operator need no right for Leases."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Protocol

from oars.base.errors import OarsError
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import SELF_SUBJECT_ACCESS_REVIEW, Object
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state.renewal import read_lifetime, renewal

log = get_logger(__name__)


class Closable(Protocol):
    async def close(self) -> None: ...


async def close_all(*closed: Closable | None) -> None:
    for each in closed:
        if each is not None:
            await each.close()


async def first_renewal(client: Client, name: str, namespace: str, orphaned: float) -> dict[str, str]:
    """Annotations for the request that creates a tied cluster: it never exists without its owner. Empty
    if we may not renew it, or cannot find out."""
    where = {"group": COMPUTE_CLUSTER.group, "resource": COMPUTE_CLUSTER.plural, "namespace": namespace, "name": name}
    review = {
        "apiVersion": SELF_SUBJECT_ACCESS_REVIEW.api_version,
        "kind": SELF_SUBJECT_ACCESS_REVIEW.kind,
        "metadata": {},
        "spec": {"resourceAttributes": {**where, "verb": "patch"}},
    }
    try:
        found = await client.create(review)
    except ApiError as error:
        log.warning(pairs("it is not known whether the owner may renew", cluster=name, error=error.message))
        return {}
    return {names.OWNER: renewal(time.time(), orphaned)} if found["status"]["allowed"] else {}


class Owner:
    """Renews the annotation until it is closed or the cluster is gone."""

    def __init__(self, client: Client, cluster: Object, orphaned: float) -> None:
        """orphaned: seconds that the cluster outlives this process."""
        self._client = client
        self._metadata = cluster["metadata"]
        self._limit = orphaned
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            written = self._limit
            try:
                await self._renew()
            except ApiError as error:
                if is_not_found(error):
                    return
                log.warning(pairs("the owner of a cluster is not renewed", error=error.message, **self._where()))
            except OarsError as error:
                log.warning(pairs("the owner of a cluster is not renewed", error=error.message, **self._where()))
            await asyncio.sleep(names.owner_interval(min(written, self._limit)))

    def _where(self) -> dict[str, str]:
        return {key: self._metadata[key] for key in ("name", "namespace")}

    async def _renew(self) -> None:
        value = renewal(time.time(), self._limit)
        metadata = {"uid": self._metadata["uid"], "annotations": {names.OWNER: value}}
        where = self._where()
        found = await self._client.patch(COMPUTE_CLUSTER, where["name"], where["namespace"], {"metadata": metadata})
        lifetime = read_lifetime(found)
        if lifetime is not None and lifetime.orphaned:  # 0: there is no limit; the interval is right for a later one
            self._limit = lifetime.orphaned

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
