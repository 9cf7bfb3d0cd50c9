"""Why clusters on Kubernetes ended by themselves: a ConfigMap per namespace, with an entry per cluster that is kept for
a day. Events do not last that long."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from oars.base import codec
from oars.base.log import get_logger, pairs
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import CONFIG_MAP, Object
from oars.places.kube import names
from oars.plan.lifetime import KEEP_SECONDS
from oars.spec.status import Gone

MAX_ENTRIES = 500  # a ConfigMap holds 1 MiB
LABELS = {"app.kubernetes.io/managed-by": "oars", "app.kubernetes.io/part-of": "oars"}

log = get_logger(__name__)


def config_map(namespace: str, data: Mapping[str, str] | None = None) -> Object:
    metadata = {"name": names.GONE, "namespace": namespace, "labels": LABELS}
    return {"apiVersion": "v1", "kind": CONFIG_MAP.kind, "metadata": metadata, "data": dict(data or {})}


async def ensure(client: Client, namespace: str) -> None:
    """Create the ConfigMap, for those who may only change it. Without it nothing but the reason of an end is lost."""
    try:
        await client.create(config_map(namespace))
    except ApiError as error:
        if error.status != 409:
            log.warning(pairs("reasons of ends not stored", namespace=namespace, error=error.message))


async def store(client: Client, uid: str, gone: Gone) -> None:
    """Add an entry and remove old ones. `uid`: of the cluster's root. A refusal is logged: the cluster must end."""
    entry = {f"{gone.name}.{uid}": json.dumps(codec.dump(gone))}
    try:
        found = await client.get(CONFIG_MAP, names.GONE, gone.namespace)
        changes = entry | dict.fromkeys(outdated(found.get("data") or {}, gone.ended))
        await client.patch(CONFIG_MAP, names.GONE, gone.namespace, {"data": changes})
    except ApiError as error:
        if not is_not_found(error):
            log.warning(pairs("reason not stored", cluster=gone.name, error=error.message))
            return
        await _create(client, gone.namespace, entry)


async def _create(client: Client, namespace: str, data: Mapping[str, str]) -> None:
    try:
        await client.create(config_map(namespace, data))
    except ApiError as error:
        log.warning(pairs("reason not stored", namespace=namespace, error=error.message))


async def read(client: Client, namespace: str | None, now: float) -> list[Gone]:
    """The entries of the last day in one namespace, or in all (None), the latest last."""
    if namespace is None:
        labels = names.selector(LABELS)
        listed = (await client.list(CONFIG_MAP, None, labels=labels)).items
    else:
        try:
            listed = [await client.get(CONFIG_MAP, names.GONE, namespace)]
        except ApiError as error:
            if not is_not_found(error):
                raise
            return []
    found = [
        gone
        for each in listed
        if each["metadata"]["name"] == names.GONE
        for gone in entries(each.get("data") or {}, each["metadata"]["namespace"])
        if now - gone.ended < KEEP_SECONDS
    ]
    return sorted(found, key=lambda gone: gone.ended)


def entries(data: Mapping[str, str], namespace: str) -> Sequence[Gone]:
    """Those that can be read: pods of clusters in direct mode write them, too."""
    found = []
    for key, text in data.items():
        try:
            found.append(codec.load(Gone, {**json.loads(text), "namespace": namespace}))
        except (ValueError, TypeError) as error:
            log.warning(pairs("stored reason ignored", key=key, error=error))
    return found


def outdated(data: Mapping[str, str], now: float) -> list[str]:
    """Keys of entries that are a day old or cannot be read, and of the oldest if there are too many."""
    ended = {key: max((gone.ended for gone in entries({key: text}, "")), default=0.0) for key, text in data.items()}
    newest = sorted(ended, key=lambda key: ended[key])[-MAX_ENTRIES + 1 :]
    return [key for key in data if key not in newest or now - ended[key] >= KEEP_SECONDS]
