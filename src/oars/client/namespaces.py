"""Namespaces that were created for one cluster and are deleted with it.

Two annotations prove it. Only the request that created the namespace wrote one, and the cluster's root has the other,
with the namespace's uid. Labels and specs are no proof: `kubectl apply` adds them to a namespace that others share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from oars.base.errors import OarsError
from oars.base.text import command
from oars.client.operator_client import if_allowed
from oars.kube.client import Client
from oars.kube.kinds import (
    CONFIG_MAP,
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE,
    STATEFUL_SET,
    Kind,
    Object,
)
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER

# What runs or holds data. Kinds that the user may not list are skipped.
CONTENT = (
    COMPUTE_CLUSTER,
    DEPLOYMENT,
    STATEFUL_SET,
    DAEMON_SET,
    CRON_JOB,
    JOB,
    POD,
    SERVICE,
    PERSISTENT_VOLUME_CLAIM,
    CONFIG_MAP,
)
# ConfigMaps that Kubernetes, OpenShift and Istio put into every namespace, and the one of Oars that no cluster owns.
PUBLISHED = ("kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert", names.GONE)
MAX_NAMES = 5


def manifest(cluster: str, engine: str, namespace: str) -> Object:
    """The namespace to create. `create` fails if it exists, so the annotation proves that it is new."""
    annotations = {names.CREATED_FOR: cluster}
    metadata = {"name": namespace, "labels": names.labels(cluster, engine), "annotations": annotations}
    return {"apiVersion": "v1", "kind": NAMESPACE.kind, "metadata": metadata}


async def find_own(client: Client, cluster: str, namespace: str, root: Object | None) -> Object | None:
    """The namespace if it was created for this cluster. Without a root: if an earlier cluster of that name left it."""
    found = await if_allowed(client.get(NAMESPACE, namespace))
    if found is None or _annotation(found, names.CREATED_FOR) != cluster:
        return None
    is_ours = root is None or _annotation(root, names.CREATED_NAMESPACE) == found["metadata"]["uid"]
    return found if is_ours else None


def _annotation(obj: Object, name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name, ""))


async def others(client: Client, cluster: str, namespace: str) -> list[str]:
    """What else is in the namespace, as "Kind name"."""

    async def list_kind(kind: Kind) -> list[str]:
        listing = await if_allowed(client.list(kind, namespace))
        found = [obj for obj in (listing.items if listing else ()) if not _is_deleted_with(cluster, kind, obj)]
        return [f"{kind.kind} {obj['metadata']['name']}" for obj in found]

    return [name for found in await asyncio.gather(*map(list_kind, CONTENT)) for name in found]


def _is_deleted_with(cluster: str, kind: Kind, obj: Object) -> bool:
    metadata = obj["metadata"]
    if kind is COMPUTE_CLUSTER:
        return bool(metadata["name"] == cluster)
    is_published = kind is CONFIG_MAP and metadata["name"] in PUBLISHED
    is_ours = (metadata.get("labels") or {}).get(names.CLUSTER) == cluster
    return is_ours or is_published or bool(metadata.get("deletionTimestamp"))


def kept(cluster: str, namespace: str, found: Sequence[str]) -> OarsError:
    """The error after a stop that did not delete the namespace."""
    more = f" and {len(found) - MAX_NAMES} more" if len(found) > MAX_NAMES else ""
    again = command("down", cluster, namespace=namespace)
    return OarsError(
        f"Cluster {cluster!r} is stopped. Namespace {namespace!r} was created for it, but is not deleted: it also "
        f"contains {', '.join(found[:MAX_NAMES])}{more}.",
        f"Remove them and run `{again}` again, or run `kubectl delete namespace {namespace}`.",
    )
