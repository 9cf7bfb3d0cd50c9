"""Decides by owner references which objects a cluster owns: anybody can use a name or a label. Pure."""

from __future__ import annotations

from collections.abc import Collection

from oars.places.kube import names
from oars.places.kube.names import Object


def has_owner(obj: Object, uid: str) -> bool:
    """True if the root with this uid owns it."""
    return any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences") or ())


def is_owned_by(obj: Object, kind: str, name: str) -> bool:
    """True if a root of that name owns it, either the present root or a deleted one that left the object behind."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["kind"] == kind and owner["name"] == name for owner in owners)


def owner_kind(obj: Object, kinds: Collection[str]) -> str:
    """The kind, out of `kinds`, of the root that the object's label names and that owns it; empty if there is none."""
    cluster = str((obj["metadata"].get("labels") or {}).get(names.CLUSTER, ""))
    return next((kind for kind in kinds if is_owned_by(obj, kind, cluster)), "")


def is_of(obj: Object, root: Object) -> bool:
    """True if it belongs to the cluster with this owner reference, or to an earlier one of the same name (`is_left`).
    In direct mode the object may be the root itself."""
    return bool(obj["metadata"]["uid"] == root["uid"]) or is_owned_by(obj, root["kind"], root["name"])


def is_left(obj: Object, root: Object) -> bool:
    """True if an earlier cluster of the same name left it behind; it will be garbage-collected."""
    return bool(obj["metadata"]["uid"] != root["uid"]) and not has_owner(obj, root["uid"])
