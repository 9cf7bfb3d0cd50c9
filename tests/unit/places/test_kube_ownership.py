"""Objects of the names that a cluster gives its own: whose they are, and what becomes of those of others."""

from __future__ import annotations

import asyncio
import base64
import itertools
from typing import Any, cast

import pytest

from oars.base.errors import Denied, SpecError
from oars.kube.client import Client
from oars.kube.errors import ApiError, Unreachable
from oars.kube.kinds import CONFIG_MAP, INGRESS, Kind, kind_of
from oars.model import Cause
from oars.places.base import PlaceError
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.render import objects
from oars.places.kube.state import ownership
from oars.places.kube.state.owned_objects import OwnedObjects
from oars.places.kube.state.root import reference
from oars.places.kube.state.secrets import ClusterSecret
from oars.places.kube.why.api_errors import NameConflict, cause_of
from tests.unit.places.clusters import cluster

Object = dict[str, Any]
ROOT = reference(COMPUTE_CLUSTER, {"metadata": {"name": "demo", "uid": "now"}})
OTHER = {**ROOT, "name": "other", "uid": "theirs"}
LEFT = {**ROOT, "uid": "before"}


class Server:
    """As much of an API server as it takes: names, versions, uids."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.asked: list[str] = []
        self._next = itertools.count(100)

    def put(self, obj: Object, **metadata: Any) -> Object:
        """Somebody else does."""
        number = str(next(self._next))
        made = {**obj, "metadata": {"uid": f"u{number}", **obj["metadata"], "resourceVersion": number, **metadata}}
        self.objects[obj["kind"], obj["metadata"]["name"]] = made
        return made

    async def create(self, obj: Object) -> Object:
        self.asked.append("create")
        if (obj["kind"], obj["metadata"]["name"]) in self.objects:
            raise ApiError(409, {"reason": "AlreadyExists"})
        return self.put(obj)

    async def apply(self, obj: Object) -> Object:
        self.asked.append("apply")
        there = self.objects.get((obj["kind"], obj["metadata"]["name"]))
        asked = obj["metadata"].get("resourceVersion")
        if there and asked and asked != there["metadata"]["resourceVersion"]:
            raise ApiError(409, {"reason": "Conflict"})
        if obj["metadata"].get("uid") not in (None, there and there["metadata"]["uid"]):
            raise ApiError(409, {"reason": "Conflict"})
        return self.put(obj, **({"uid": there["metadata"]["uid"]} if there else {}))

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        self.asked.append("get")
        if (kind.kind, name) not in self.objects:
            raise ApiError(404, {})
        return self.objects[kind.kind, name]

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object) -> Object:
        self.asked.append("patch")
        found = self.objects[kind.kind, name]
        return self.put({**found, "data": {**found["data"], **body["data"]}})

    async def delete(self, kind: Kind, name: str, namespace: str, *, uid: str) -> bool:
        self.asked.append("delete")
        assert self.objects[kind.kind, name]["metadata"]["uid"] == uid
        del self.objects[kind.kind, name]
        return True


class Seen:
    """A cache with the given objects."""

    def __init__(self, **shown: bool) -> None:
        self.shown = shown

    def has(self, kind: str, name: str) -> bool | None:
        return self.shown.get(kind)


def service(**metadata: Any) -> Object:
    kept = {"name": "demo-head", "namespace": "team", **metadata}
    return {"apiVersion": "v1", "kind": "Service", "metadata": kept}


def around(server: Server, **shown: bool) -> OwnedObjects:
    seen: Any = Seen(**shown)
    return OwnedObjects(cast(Client, server), seen, ROOT, lambda: 1000.0)


# whose it is


@pytest.mark.parametrize(
    ("metadata", "is_of", "is_left"),
    [
        ({"uid": "s", "ownerReferences": [ROOT]}, True, False),
        ({"uid": "s", "ownerReferences": [LEFT]}, True, True),
        ({"uid": "s", "ownerReferences": [OTHER]}, False, True),
        ({"uid": "s", "ownerReferences": [{**ROOT, "kind": "ConfigMap"}]}, False, False),
        ({"uid": "s"}, False, True),
        ({"uid": "now"}, True, False),
    ],
    ids=["ours", "of one before us", "another's", "of another kind of root", "nobody's", "the root"],
)
def test_owner_decides_who_owns_an_object(metadata: Object, is_of: bool, is_left: bool) -> None:
    obj = {"metadata": metadata}
    assert (ownership.is_of(obj, ROOT), ownership.is_left(obj, ROOT)) == (is_of, is_left)


def test_foreground_deletion_waits_for_owned_objects() -> None:
    root = {"metadata": {"name": "demo", "uid": "u"}}
    assert reference(COMPUTE_CLUSTER, root)["blockOwnerDeletion"] is True
    assert reference(CONFIG_MAP, root)["blockOwnerDeletion"] is False, "the client may lack the right to say so"


# asking for it


def test_deleted_root_does_not_come_back() -> None:
    """In direct mode the ConfigMap with the engine's files is the root. Without its intent nobody could read it."""
    server, seen = Server(), cast(Any, Seen(ConfigMap=True))
    root = reference(CONFIG_MAP, {"metadata": {"name": "demo-oars", "uid": "now"}})
    owned = OwnedObjects(cast(Client, server), seen, root, lambda: 1000.0)
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "demo-oars", "namespace": "team"}}
    with pytest.raises(ApiError) as refused:
        asyncio.run(owned.apply(files))
    assert refused.value.status == 409 and not server.objects
    server.put(files, uid="now")
    assert asyncio.run(owned.apply(files))["metadata"]["uid"] == "now"


@pytest.mark.parametrize("shown", [{}, {"Service": False}], ids=["not watched", "not seen"])
def test_missing_object_is_created_with_one_request(shown: dict[str, bool]) -> None:
    server = Server()
    made = asyncio.run(around(server, **shown).apply(service()))
    assert server.asked == ["apply"] and made["metadata"]["ownerReferences"] == [ROOT]


def test_own_object_is_updated() -> None:
    server = Server()
    uid = server.put(service(ownerReferences=[ROOT]))["metadata"]["uid"]
    made = asyncio.run(around(server).apply(service(labels={"new": "yes"})))
    assert (made["metadata"]["uid"], made["metadata"]["labels"]) == (uid, {"new": "yes"})
    assert made["metadata"]["ownerReferences"] == [ROOT]


def test_leftovers_of_an_earlier_cluster_are_collected_and_not_used() -> None:
    """The garbage collector deletes it, and in direct mode nobody would notice."""
    server = Server()
    left = server.put(service(ownerReferences=[LEFT]))
    owned = around(server)
    with pytest.raises(PlaceError, match="Service demo-head of an earlier cluster of this name is being deleted"):
        asyncio.run(owned.apply(service()))
    assert server.objects["Service", "demo-head"] == left
    asyncio.run(owned.collect_left())
    assert server.objects == {}
    server.asked.clear()
    asyncio.run(owned.collect_left())
    assert server.asked == []
    asyncio.run(owned.apply(service()))
    assert server.objects["Service", "demo-head"]["metadata"]["ownerReferences"] == [ROOT]


def test_object_that_is_deleted_between_conflict_and_check_is_created() -> None:
    class Collecting(Server):
        async def get(self, kind: Kind, name: str, namespace: str) -> Object:
            self.objects.pop((kind.kind, name), None)  # the garbage collector is faster
            return await super().get(kind, name, namespace)

    server = Collecting()
    server.put(service(ownerReferences=[LEFT]))
    made = asyncio.run(around(server).apply(service()))
    assert made["metadata"]["ownerReferences"] == [ROOT] and server.asked == ["apply", "get", "apply"]


def test_known_object_is_applied_with_one_request() -> None:
    server = Server()
    server.put(service(ownerReferences=[ROOT]))
    asyncio.run(around(server, Service=True).apply(service()))
    assert server.asked == ["apply"]
    unwatched = around(server)
    asyncio.run(unwatched.apply(service()))
    server.asked.clear()
    asyncio.run(unwatched.apply(service()))
    assert server.asked == ["apply"]


@pytest.mark.parametrize("owners", [[], [OTHER]], ids=["nobody's", "another cluster's"])
def test_foreign_object_is_left_alone(owners: list[Object]) -> None:
    server = Server()
    theirs = server.put(service(ownerReferences=owners, labels={"oars.dev/cluster": "demo"}))
    with pytest.raises(NameConflict) as told:
        asyncio.run(around(server).apply(service()))
    assert server.objects["Service", "demo-head"] == theirs
    cause = cause_of(told.value)
    assert cause.reason == "NameTaken" and cause.hint
    assert cause.message == "A Service demo-head that does not belong to this cluster exists in namespace team."


def test_other_refusals_stay_what_they_are() -> None:
    class Refusing(Server):
        async def apply(self, obj: Object) -> Object:
            raise ApiError(403, {})

    with pytest.raises(ApiError):
        asyncio.run(around(Refusing()).apply(service()))


INGRESS_OF = {"apiVersion": INGRESS.api_version, "kind": "Ingress"}


@pytest.mark.parametrize(
    ("owners", "shown", "asked"),
    [
        ([ROOT], {}, ["get", "delete"]),
        ([ROOT], {"Ingress": True}, ["get", "delete"]),
        ([], {}, ["get"]),
        ([OTHER], {}, ["get"]),
        (None, {}, ["get"]),
        (None, {"Ingress": False}, []),
    ],
    ids=["ours", "ours and seen", "nobody's", "another's", "none", "none, as is seen"],
)
def test_only_own_objects_are_withdrawn(owners: list[Object] | None, shown: dict[str, bool], asked: list[str]) -> None:
    server = Server()
    if owners is not None:
        metadata = {"name": "demo-head", "namespace": "team", "ownerReferences": owners}
        server.put({**INGRESS_OF, "metadata": metadata})
    asyncio.run(around(server, **shown).withdraw(INGRESS, "demo-head", "team"))
    assert server.asked == asked
    assert bool(server.objects) is (owners in ([], [OTHER]))


# the Secret


def secret(server: Server, *owners: Object, **data: bytes) -> Object:
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-oars", "namespace": "team"}}
    body["data"] = {name: base64.b64encode(value).decode() for name, value in data.items()}
    return server.put(body, ownerReferences=list(owners))


def ensure(server: Server, owned: OwnedObjects | None = None) -> str:
    """The helper's token."""
    found = ClusterSecret(cast(Client, server), owned or around(server), lambda: 1000.0)
    asyncio.run(found.ensure(cluster()))
    return found.files["control"].decode()


def test_own_secret_is_kept_and_completed() -> None:
    server = Server()
    uid = secret(server, ROOT, control=b"known")["metadata"]["uid"]
    assert ensure(server) == "known"
    kept = server.objects["Secret", "demo-oars"]
    assert kept["metadata"]["uid"] == uid and "ca.pem" in kept["data"]
    server.asked.clear()
    assert ensure(server) == "known" and server.asked == ["create", "get"]


def test_the_secret_of_an_earlier_cluster_is_collected_and_not_used() -> None:
    """The garbage collector will delete it, and nobody would notice until a pod starts."""
    server = Server()
    uid = secret(server, LEFT, control=b"old")["metadata"]["uid"]
    owned = around(server)
    with pytest.raises(PlaceError, match="Secret demo-oars of an earlier cluster"):
        ensure(server, owned)
    assert "delete" not in server.asked
    asyncio.run(owned.collect_left())
    assert ensure(server) not in ("", "old")
    made = server.objects["Secret", "demo-oars"]["metadata"]
    assert made["uid"] != uid and made["ownerReferences"] == [ROOT]


@pytest.mark.parametrize("owners", [(), (OTHER,)], ids=["nobody's", "another's"])
def test_foreign_secret_is_left_alone(owners: tuple[Object, ...]) -> None:
    server = Server()
    theirs = secret(server, *owners, password=b"mine")
    with pytest.raises(NameConflict, match="A Secret demo-oars that does not belong"):
        ensure(server)
    assert server.objects == {("Secret", "demo-oars"): theirs}


# what is said


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NameConflict("Ingress", "demo-head", "team"), "NameTaken"),
        (SpecError("No.", "Do."), "InvalidSpec"),
        (Unreachable("cut"), "ApiServerUnreachable"),
        (ApiError(422, {"message": "bad"}), "Invalid"),
        (ApiError(409, {"message": "bad"}), "Conflict"),
        (PlaceError(Cause("QuotaExceeded", "Full.")), "QuotaExceeded"),
        (Denied("No permission."), "PassFailed"),
        (TimeoutError(), "PassFailed"),
        (KeyError("x"), "InternalError"),
    ],
)
def test_error_is_mapped_to_a_cause(error: Exception, reason: str) -> None:
    assert cause_of(error).reason == reason


def test_object_names_do_not_clash_with_applications() -> None:
    """A cluster called `default` must not want the namespace's own account."""
    for obj in objects.manifests(cluster(name="default", expose={"host": "h"})):
        assert obj["metadata"]["name"] != "default", kind_of(obj).kind
