"""Sends the working directory of a job to Kubernetes, in ConfigMaps that are named after its content."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from oars.base.errors import OarsError
from oars.client.backend import Progress
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_conflict, is_not_found
from oars.kube.kinds import CONFIG_MAP, Object
from oars.places.kube.render.driver import PART_BYTES, archive_parts

if TYPE_CHECKING:
    from oars.client.archive import Archive

WRITE_ATTEMPTS = 10


async def send_files(client: Client, archive: Archive, owner: Object, namespace: str, progress: Progress) -> None:
    """Store the archive, each part once: jobs with the same files share it, and the last one takes it along."""
    for name, key, data in archive_parts(archive.hash, archive.data):
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": {"app.kubernetes.io/managed-by": "oars"},
                "ownerReferences": [owner],
            },
            "immutable": True,
            "binaryData": {key: base64.b64encode(data).decode()},
        }
        await _create_or_share(client, body, owner)
    progress(f"{-(-len(archive.data) // PART_BYTES)} ConfigMaps hold the files")


async def _create_or_share(client: Client, body: Object, owner: Object) -> None:
    """Content that is there already is not sent again. The driver checks the hash of what it gets."""
    metadata = body["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    for _ in range(WRITE_ATTEMPTS):
        try:
            found = await client.get_metadata(CONFIG_MAP, name, namespace)
            owners = [*(found.get("ownerReferences") or ()), owner]
            change = {"metadata": {"resourceVersion": found["resourceVersion"], "ownerReferences": owners}}
            await client.patch(CONFIG_MAP, name, namespace, change)
            return
        except ApiError as error:
            if is_conflict(error):
                continue
            if not is_not_found(error):
                raise
        try:
            await client.create(body)
            return
        except ApiError as error:
            if not is_conflict(error):
                raise
    raise OarsError(f"Gave up after {WRITE_ATTEMPTS} conflicting writes to ConfigMap {name!r}.")
