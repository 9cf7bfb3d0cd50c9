"""Requests to drain workers on Kubernetes: in annotations that the operator reads, or in direct mode in the intent. All
writes raise a conflict (409) if the root was written since it was read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from oars.client.drains import with_drains
from oars.kube.client import Client
from oars.kube.kinds import CONFIG_MAP, Object
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state.root import dump_intent, read_intent


async def request(
    client: Client, root: Object, members: Sequence[str], present: Collection[str], *, force: bool
) -> None:
    """Request the drain of these workers; requests for workers that are not present are dropped. The name of a pod is
    never used again, so it identifies a worker."""
    if root["kind"] != COMPUTE_CLUSTER.kind:
        chosen = dict.fromkeys(members, "")
        await write_intent(
            client, root, with_drains(read_intent(root), chosen, dict.fromkeys(present, ""), force=force)
        )
        return
    annotations = root["metadata"].get("annotations") or {}
    before = {key: names.listed(annotations.get(key, "")) for key in (names.DRAIN, names.DRAIN_FORCE)}
    kept = {key: [each for each in value if each in present or each == names.EVERYONE] for key, value in before.items()}
    key = names.DRAIN_FORCE if force else names.DRAIN
    kept[key] = [*dict.fromkeys([*kept[key], *members])]
    await _annotate(client, root, {key: ",".join(value) or None for key, value in kept.items()})


async def request_all(client: Client, root: Object, wanted: bool) -> None:
    """Request that all workers leave when their work is done, or cancel that."""
    if root["kind"] != COMPUTE_CLUSTER.kind:
        await write_intent(client, root, read_intent(root).changed(drain_all=wanted))
        return
    annotations = root["metadata"].get("annotations") or {}
    named = [each for each in names.listed(annotations.get(names.DRAIN, "")) if each != names.EVERYONE]
    await _annotate(client, root, {names.DRAIN: ",".join([*named, *([names.EVERYONE] if wanted else [])]) or None})


async def write_intent(client: Client, config_map: Object, intent: Intent) -> None:
    name, namespace, version = (config_map["metadata"][key] for key in ("name", "namespace", "resourceVersion"))
    body = {"metadata": {"resourceVersion": version}, "data": dump_intent(intent)}
    await client.patch(CONFIG_MAP, name, namespace, body)


async def _annotate(client: Client, root: Object, annotations: Mapping[str, str | None]) -> None:
    name, namespace, version = (root["metadata"][key] for key in ("name", "namespace", "resourceVersion"))
    body = {"metadata": {"resourceVersion": version, "annotations": annotations}}
    await client.patch(COMPUTE_CLUSTER, name, namespace, body)
