"""ComputeClusters as a client reads and writes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from oars.base.errors import Denied, UsageError
from oars.client import operator_client
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import CONFIG_MAP, CRD, LEASE, Kind, Object
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.spec.load import build
from oars.spec.status import Phase


def test_namespace_of_the_resource_is_not_repeated_in_its_spec() -> None:
    spec = build({"engine": "dask", "workers": 2, "namespace": {"name": "team"}}).spec
    assert operator_client.resource_spec("demo", spec, "team") == operator_client.resource_spec(
        "demo", build({"engine": "dask", "workers": 2}).spec, ""
    )
    assert operator_client.resource_spec("demo", spec, "other")["namespace"] == {"name": "team"}


def test_number_of_the_first_group_is_replicas() -> None:
    dumped = operator_client.resource_spec("demo", build({"engine": "dask", "workers": 2}).spec, "team")
    assert dumped["replicas"] == 2
    assert "replicas" not in dumped["workers"][0]
    assert build(dumped).spec.workers[0].replicas == 2


def test_other_groups_keep_their_numbers() -> None:
    groups = [{"name": "a", "replicas": 0}, {"name": "b", "replicas": 2}]
    dumped = operator_client.resource_spec("demo", build({"engine": "dask", "workers": groups}).spec, "team")
    assert (dumped["replicas"], dumped["workers"]) == (0, [{"name": "a"}, {"name": "b", "replicas": 2}])


def test_cluster_without_a_group_has_no_number() -> None:
    dumped = operator_client.resource_spec("demo", build({"engine": "dask", "workers": []}).spec, "team")
    assert dumped == {"engine": "dask", "workers": []}


class Server:
    """Has an operator that watches some namespaces, if `leads`. `hidden`: kinds that may not be read."""

    def __init__(self, *, leads: bool = True, watches: str | None = None, hidden: tuple[Kind, ...] = ()) -> None:
        self.leads, self.watches, self.hidden = leads, watches, hidden

    async def list(self, kind: Kind, namespace: str | None, **_: Any) -> Listing:
        return Listing([], "1")

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        if kind in self.hidden:
            raise ApiError(403, {"reason": "Forbidden"})
        if kind is CRD:
            return {"metadata": {"annotations": {names.OPERATOR_NAMESPACE: "elsewhere"}}}
        assert kind is LEASE and namespace == ("oars-system" if CRD in self.hidden else "elsewhere")
        if not self.leads:
            raise ApiError(404, {"reason": "NotFound"})
        resource_spec = {} if self.watches is None else {names.OPERATOR_WATCHES: self.watches}
        renewed = datetime.now(UTC).isoformat()
        spec = {"holderIdentity": "one", "renewTime": renewed, "leaseDurationSeconds": 15}
        return {"metadata": {"resourceVersion": "1", "annotations": resource_spec}, "spec": spec}


WATCHED = [
    (Server(), "operator"),
    (Server(watches=""), "operator"),
    (Server(watches="team"), "operator"),
    (Server(watches="a,team,b"), "operator"),
    (Server(watches="team-a"), "direct"),
    (Server(watches="a,b"), "direct"),
    (Server(leads=False), "direct"),
    (Server(hidden=(CRD,), watches="team"), "operator"),
    (Server(hidden=(LEASE,)), "operator"),
]


@pytest.mark.parametrize(("server", "mode"), WATCHED)
def test_operator_mode_is_chosen_where_an_operator_watches(server: Server, mode: str) -> None:
    assert asyncio.run(operator_client.find_mode(cast(Client, server), "team")) == mode


@pytest.mark.parametrize(("server", "mode"), WATCHED)
def test_requested_operator_must_watch_the_namespace(server: Server, mode: str) -> None:
    check = operator_client.check_watched(cast(Client, server), "team")
    if mode == "operator" or not server.leads:
        asyncio.run(check)
        return
    with pytest.raises(UsageError, match=r"does not watch the namespace 'team': only (a, b|team-a)\.") as raised:
        asyncio.run(check)
    assert "mode 'direct'" in raised.value.hint


OWNED = [{"kind": "ComputeCluster", "name": "demo", "uid": "u"}]


class Refusing:
    """Denies deletion. `read` and `files` are the HTTP codes for reading the ComputeCluster and its ConfigMap."""

    def __init__(self, read: int, files: int = 404, owners: Sequence[Object] = ()) -> None:
        self.read = {COMPUTE_CLUSTER: read, CONFIG_MAP: files}
        self.owners = owners

    async def delete(self, *_: object, **__: object) -> bool:
        message = (
            'computeclusters.oars.dev "demo" is forbidden: User "ann" cannot delete resource "computeclusters" in API '
            'group "oars.dev" in the namespace "team"'
        )
        raise ApiError(403, {"reason": "Forbidden", "message": message})

    async def get(self, kind: Kind, name: str, *_: object) -> Object:
        if self.read[kind] != 200:
            raise ApiError(self.read[kind], {})
        return {"metadata": {"name": name, "ownerReferences": self.owners}}


@pytest.mark.parametrize(
    "server",
    [Refusing(404), Refusing(404, 200, OWNED), Refusing(403), Refusing(403, 200)],
    ids=["none", "deleted before its ConfigMap", "unreadable", "the ConfigMap of a direct cluster"],
)
def test_missing_compute_cluster_need_not_be_deleted(server: Refusing) -> None:
    assert not asyncio.run(operator_client.delete(cast(Client, server), "demo", "team"))


@pytest.mark.parametrize(
    "server", [Refusing(200), Refusing(403, 200, OWNED)], ids=["readable", "its ConfigMap is readable"]
)
def test_denied_deletion_names_the_missing_permission(server: Refusing) -> None:
    with pytest.raises(Denied, match=r"'demo' belongs to an operator\. ann may not delete computeclusters") as raised:
        asyncio.run(operator_client.delete(cast(Client, server), "demo", "team"))
    assert 'verbs: ["delete"]' in raised.value.hint


def test_unreadable_cluster_is_not_deleted() -> None:
    with pytest.raises(Denied):
        asyncio.run(operator_client.delete(cast(Client, Refusing(403, 403)), "demo", "team"))


class Watched:
    """Has one ComputeCluster and no pods; its watches yield the events that the test queues."""

    silence = 100.0

    def __init__(self, uid: str) -> None:
        self.resource = resource(uid)
        self.events: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()

    async def list(self, kind: Kind, *_: object, **__: object) -> Listing:
        return Listing([self.resource] if kind is COMPUTE_CLUSTER else [], "1")

    async def watch(self, kind: Kind, *_: object, **__: object) -> AsyncIterator[tuple[str, Object]]:
        while kind is COMPUTE_CLUSTER:
            yield await self.events.get()
        await asyncio.Event().wait()


def resource(uid: str, version: str = "1", **status: Any) -> Object:
    metadata = {"name": "demo", "namespace": "team", "uid": uid, "resourceVersion": version, "generation": 1}
    return {"metadata": metadata, "spec": {"engine": "dask"}, "status": status}


@pytest.mark.parametrize(("uid", "reports"), [("", 2), ("mine", 2), ("before", 0)])
def test_reports_end_if_another_cluster_takes_the_name(uid: str, reports: int) -> None:
    """A broken watch may show the other cluster without showing the deletion of the first."""
    server = Watched("mine")

    async def collect_phases() -> list[str]:
        phases = []
        async for report in operator_client.watch(cast(Client, server), "demo", "team", uid):
            phases.append(str(report.status.phase))
            after = resource("mine", "2", phase="Ready") if len(phases) == 1 else resource("theirs", "3")
            server.events.put_nowait(("MODIFIED", after))
        return phases

    assert asyncio.run(asyncio.wait_for(collect_phases(), 5)) == ["Pending", "Ready"][:reports]


class Silent(Server):
    """Has an operator that crashed: it still holds the Lease, but does not renew it."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        found = await super().get(kind, name, namespace)
        if kind is LEASE:
            found["spec"]["renewTime"] = (datetime.now(UTC) - timedelta(minutes=2)).isoformat()
        return found


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Server(), None),
        (Server(watches="team"), None),
        (Server(hidden=(LEASE,)), None),
        (Server(leads=False), "No operator is running"),
        (Silent(), "No operator is running"),
        (Server(watches="a,b"), "does not watch the namespace 'team': only a, b."),
    ],
)
def test_absence_of_an_operator_is_a_cause(server: Server, message: str | None) -> None:
    found = asyncio.run(operator_client.find_absence(cast(Client, server), "team"))
    assert (found is None) == (message is None)
    assert found is None or (found.reason == "NoOperator" and message and message in found.message)


def test_report_begins_with_the_absence_of_the_operator() -> None:
    resource = {"metadata": {"name": "demo", "namespace": "team", "uid": "u"}, "spec": {"engine": "dask"},
                "status": {"phase": "Ready", "observedGeneration": 1}}  # fmt: skip
    report = operator_client.with_absence(operator_client.report_of(resource, []), operator_client.NO_OPERATOR)
    assert (report.status.phase, report.status.reason) == (Phase.READY, "NoOperator")
    assert report.status.message == report.causes[0].message == operator_client.NO_OPERATOR.message
