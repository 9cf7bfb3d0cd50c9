"""KindAndName objects are a cluster's own: names can be anybody's, and labels too. Pure."""

from __future__ import annotations

from oars.places.kube import names
from oars.places.kube.names import Object
from oars.spec.cluster import KIND


def hangs_on(obj: Object, kind: str, name: str) -> bool:
    """Whether it goes with a root of that name. One with another uid than the root has now was left by a root that is
    gone: there is only one of a name at a time."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["kind"] == kind and owner["name"] == name for owner in owners)


def is_operated(obj: Object) -> bool:
    """Whether an operator made it for the cluster that its label names."""
    return hangs_on(obj, KIND, str(obj["metadata"]["labels"][names.CLUSTER]))


def is_of(obj: Object, root: Object) -> bool:
    """`root`: the owner reference of all that is the cluster's. Without an operator one object is the root itself."""
    return bool(obj["metadata"]["uid"] == root["uid"]) or hangs_on(obj, root["kind"], root["name"])


def is_left(obj: Object, root: Object) -> bool:
    """Whether it was left by another cluster of the same name, and will go."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return root["uid"] not in {obj["metadata"]["uid"], *(owner["uid"] for owner in owners)}
