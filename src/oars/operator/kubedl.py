"""What KubeDL has installed."""

from __future__ import annotations

import re
from collections.abc import Callable

from oars.base.errors import OarsError
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import CRD, DEPLOYMENT, Object
from oars.operator import marsjob
from oars.operator.marsjob_status import is_ended

PART_OF, OARS = "app.kubernetes.io/part-of", "oars"
_IMAGE = re.compile(r"(^|/)kubedl(:|@|$)")  # kubedl/kubedl:v0.5.0


async def check_absent(client: Client) -> None:
    """Raises OarsError if KubeDL's operator runs: both would serve the same MarsJobs."""
    for each in (await client.list(DEPLOYMENT)).items:
        if is_operator(each):
            metadata = each["metadata"]
            name, namespace = metadata["name"], metadata["namespace"]
            raise OarsError(
                f"KubeDL's operator runs here (Deployment {namespace}/{name}), and serves MarsJobs.",
                f"Stop it first: `kubectl -n {namespace} scale deployment {name} --replicas 0`. "
                "Nobody serves its other kinds then.",
            )


def is_operator(deployment: Object) -> bool:
    """True for a Deployment that runs KubeDL, under whatever name."""
    spec = deployment["spec"]
    images = [str(each.get("image", "")) for each in spec["template"]["spec"]["containers"]]
    return spec.get("replicas", 1) > 0 and any(map(_IMAGE.search, images))


async def adopted_jobs(client: Client, is_served: Callable[[Object], bool]) -> list[Object]:
    """The MarsJobs that end with the operator, with their kind: all of a definition of Oars, which is deleted, and
    those of KubeDL's definition that it serves and that have not ended."""
    found: list[Object] = []
    for kind in marsjob.KINDS:
        stays = await has_defined(client, f"{kind.plural}.{kind.group}")
        try:
            listed = (await client.list(kind)).items
        except ApiError as error:
            if not is_not_found(error):
                raise
            continue
        found += [
            {**each, "apiVersion": kind.api_version, "kind": kind.kind}
            for each in listed
            if not stays or (is_served(each) and not is_ended(each.get("status") or {}))
        ]
    return found


async def has_defined(client: Client, crd: str) -> bool:
    """True if the definition exists and is not that of Oars."""
    try:
        found = await client.get(CRD, crd)
    except ApiError as error:
        if is_not_found(error):
            return False
        raise
    return (found["metadata"].get("labels") or {}).get(PART_OF) != OARS
