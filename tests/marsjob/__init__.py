"""The MarsJob of KubeDL's document."""

from __future__ import annotations

from typing import Any

import yaml

from tests.compat.blocks import MARS_BY_HAND, page


def document(image: str = "", **pod: Any) -> dict[str, Any]:
    """The example. `image`: of all containers; `pod`: further fields of the pods' spec."""
    found: dict[str, Any] = yaml.safe_load(next(code for language, code in page(MARS_BY_HAND) if language == "yaml"))
    for role in found["spec"]["marsReplicaSpecs"].values():
        spec = role["template"]["spec"]
        spec |= pod
        for container in spec["containers"]:
            container["image"] = image or container["image"]
    return found


def small_document(image: str) -> dict[str, Any]:
    """The example with an image that no registry has, in a size for a node with two processors."""
    job = document(image)
    del job["metadata"]["namespace"]
    for role in job["spec"]["marsReplicaSpecs"].values():
        for container in role["template"]["spec"]["containers"]:
            container["imagePullPolicy"] = "Never"
            container["resources"] = {each: {"cpu": "300m", "memory": "1Gi"} for each in ("limits", "requests")}
    return job
