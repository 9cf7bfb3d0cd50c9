"""When a tied cluster counts as left by its program."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oars.client.owner import Owner
from oars.kube.client import Client
from oars.kube.errors import ApiError, Unreachable
from oars.kube.kinds import Kind, Object
from oars.model import Cause, Pause
from oars.operator.index import Watches
from oars.operator.owners import OwnerWatch, orphan_limit
from oars.operator.reconciler import ClusterReconciler, Tracked
from oars.operator.resources import RESOURCE_KINDS, Key, compute_cluster
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.plan.lifetime import Outlook

LIMIT = 120.0


def metadata(value: object) -> Object:
    return {"name": "demo", "namespace": "team", "uid": "u", "annotations": {names.OWNER: str(value)}}


@pytest.mark.parametrize(
    ("annotations", "lifetime", "limit"),
    [
        ({names.OWNER: "1"}, None, 120.0),
        ({names.OWNER: "1"}, {"orphaned": "5m"}, 300.0),
        ({names.OWNER: "1"}, {"orphaned": 1}, 10.0),
        ({names.OWNER: "1"}, {"orphaned": 0}, 0.0),
        ({}, {"orphaned": "5m"}, 0.0),
        ({names.OWNER: "1/600.0"}, {"orphaned": "1m"}, 600.0),
        ({names.OWNER: "1/60.0"}, {"orphaned": "10m"}, 600.0),
        ({names.OWNER: "1/600.0"}, {"orphaned": 0}, 0.0),
        ({names.OWNER: "1/600.0"}, {"orphaned": "soon"}, 600.0),
        ({names.OWNER: "1/60.0"}, ["invalid"], 120.0),
        ({names.OWNER: "1/nan"}, {"orphaned": "1m"}, 60.0),
        ({names.OWNER: "1/x"}, {"orphaned": "1m"}, 60.0),
        (None, None, 0.0),
    ],
)
def test_only_a_tied_cluster_has_a_limit(annotations: Any, lifetime: Any, limit: float) -> None:
    spec = {"lifetime": lifetime} if lifetime is not None else {}
    assert orphan_limit({"metadata": {"annotations": annotations}, "spec": spec}) == limit


def looks(*values: object, seconds: float = 30.0) -> list[bool]:
    watch = OwnerWatch()
    return [watch.look(metadata(value), LIMIT, number * seconds) for number, value in enumerate(values)]


def test_owner_that_does_not_renew_is_gone_after_the_limit() -> None:
    assert looks(1, 2, 3, 4, 5, 6, 7) == [False] * 7
    assert looks(1, 1, 1, 1, 1) == [False, False, False, False, True]
    assert looks(1, 1, 1, 1, 2, 2, 2, 2, 2)[-2:] == [False, True]


def test_time_without_answers_of_the_api_server_does_not_count() -> None:
    assert looks(1, 1, seconds=3600.0) == [False, False]
    watch = OwnerWatch()
    assert watch.is_due(LIMIT, 0.0)
    watch.look(metadata(1), LIMIT, 0.0)
    assert not watch.is_due(LIMIT, 29.0) and watch.is_due(LIMIT, 30.0)


class Api:
    def __init__(self, *answers: Exception | None, lifetimes: Sequence[Object] = ({},)) -> None:
        """lifetimes: of the spec, after each renewal; then the last one."""
        self.answers = list(answers)
        self.lifetimes = list(lifetimes)
        self.patched: list[Object] = []
        self.is_over = asyncio.Event()

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object) -> Object:
        assert (kind.kind, name, namespace) == ("ComputeCluster", "demo", "team")
        self.patched.append(body["metadata"])
        answer = self.answers.pop(0)
        if not self.answers:
            self.is_over.set()
        if answer is not None:
            raise answer
        lifetime = self.lifetimes.pop(0) if len(self.lifetimes) > 1 else self.lifetimes[0]
        return {"metadata": body["metadata"], "spec": {"engine": "dask", "lifetime": lifetime}}


def test_program_renews_until_the_cluster_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "owner_interval", lambda orphaned: 0.0)

    async def run() -> list[Object]:
        api = Api(None, Unreachable("away"), ApiError(403, {}), None, ApiError(404, {}))
        owner = Owner(cast(Client, api), {"metadata": metadata(0)}, LIMIT)
        await asyncio.wait_for(api.is_over.wait(), 10)
        await owner.close()
        return api.patched

    found = asyncio.run(run())
    assert len(found) == 5
    assert {each["uid"] for each in found} == {"u"}
    renewed = [each["annotations"][names.OWNER].partition("/") for each in found]
    assert [(float(time) > 0, limit) for time, _, limit in renewed] == [(True, "120.0")] * 5


def test_program_follows_a_limit_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The annotation promises a limit before the program renews as seldom as that limit allows."""
    intervals: list[float] = []

    def interval(limit: float) -> float:
        intervals.append(limit)
        return 0.0

    monkeypatch.setattr(names, "owner_interval", interval)
    lifetimes: list[Object] = [{"orphaned": each} for each in ("10m", "1m", "1m", 0, "soon", "10m", "10m")]

    async def run() -> list[str]:
        api = Api(*[None] * 7, ApiError(404, {}), lifetimes=lifetimes)
        owner = Owner(cast(Client, api), {"metadata": metadata(0)}, 600.0)
        await asyncio.wait_for(api.is_over.wait(), 10)
        await owner.close()
        return [each["annotations"][names.OWNER].partition("/")[2] for each in api.patched]

    assert asyncio.run(run()) == ["600.0", "600.0", "60.0", "60.0", "60.0", "60.0", "600.0", "600.0"]
    assert intervals == [600.0, 60.0, 60.0, 60.0, 60.0, 60.0, 600.0]


def test_cluster_of_a_program_that_runs_survives_a_lower_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program renews every 150 s until it knows the new limit."""
    resource: Object = {"metadata": metadata("1/600.0"), "spec": {"lifetime": {"orphaned": "1m"}}}
    watch, ended = OwnerWatch(), []
    for now in range(0, 600, 10):
        if now == 150:
            resource["metadata"] = metadata("2/60.0")
        limit = orphan_limit(resource)
        if watch.is_due(limit, now) and watch.look(resource["metadata"], limit, now):
            ended.append(now)
    assert ended[0] >= 150 + 60, "since the last renewal"


class Server:
    """The resource with the value of its last renewal, and what was created and deleted."""

    def __init__(self) -> None:
        self.value = "1"
        self.created: list[Object] = []
        self.deleted: list[tuple[str, str]] = []

    async def get_metadata(self, kind: Kind, name: str, namespace: str) -> Object:
        if kind is COMPUTE_CLUSTER:
            return metadata(self.value)
        raise ApiError(404, {})

    async def get(self, kind: Kind, name: str, namespace: str) -> Object:
        raise ApiError(404, {})

    async def create(self, obj: Object) -> Object:
        self.created.append(obj)
        return obj

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, **options: Any) -> Object:
        self.created.append(body)
        return body

    async def delete(self, kind: Kind, name: str, namespace: str, *, uid: str) -> bool:
        self.deleted.append((name, uid))
        return True


class Passes:
    """Passes of one cluster, 30 s apart. The loop succeeds, or raises `failure`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failure: OSError | None = None, **spec: Any) -> None:
        self.now, self.server, self.key = 1e9, Server(), Key("ComputeCluster", "team", "demo")
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: self.now)
        created = datetime.fromtimestamp(self.now, UTC).isoformat()
        found = {**metadata("1"), "generation": 1, "creationTimestamp": created}
        self.resource: Object = {"metadata": found, "spec": {"engine": "dask", "image": "i:1", **spec}}
        watches = cast(Watches, SimpleNamespace(resources={self.key: self.resource}))
        self.reconciler = ClusterReconciler(cast(Client, self.server), watches, RESOURCE_KINDS)
        self.failure = failure
        self.report, self.outlook = None, Outlook()  # as Loop
        self.status: Object = {}  # as ResourceRoot
        valid = {**self.resource, "spec": {"engine": "dask", "image": "i:1"}}
        here = cast(Any, self)
        self.reconciler._tracked[self.key] = Tracked("u", here, here, here, compute_cluster(valid))

    async def once(self, desired: object) -> Pause:
        if self.failure is not None:
            raise self.failure
        return Pause(600.0)

    async def publish(self) -> None:
        """Nothing is written."""

    async def announce(self, cause: Cause) -> None:
        self.server.created.append({"reason": cause.reason, "message": cause.message})

    async def close(self) -> None:
        """Nothing is open."""

    def run(self, count: int) -> list[Pause | Exception | None]:
        found: list[Pause | Exception | None] = []
        for _ in range(count):
            try:
                found.append(asyncio.run(self.reconciler.reconcile(self.key)))
            except OSError as error:
                found.append(error)
            self.now += 30.0
        return found


def test_operator_deletes_the_cluster_of_a_program_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch)
    assert passes.run(4) == [Pause(30.0)] * 4
    passes.server.value = "2"  # the watch has not delivered it
    passes.run(4)
    assert not passes.server.deleted
    passes.run(1)
    assert passes.server.deleted == [("demo", "u")]
    message = "its program has been gone for 2m (lifetime.orphaned)"
    assert f"The cluster ended: {message}." in str(passes.server.created)
    assert "OwnerGone" in str(passes.server.created)


def test_cluster_of_a_program_that_is_gone_ends_also_if_every_pass_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch, OSError("status write refused"))
    assert all(isinstance(each, OSError) for each in passes.run(4))
    assert not passes.server.deleted
    passes.run(1)
    assert passes.server.deleted == [("demo", "u")]


@pytest.mark.parametrize("spec", [{"workers": "x"}, {"lifetime": {"orphaned": "soon"}}])
def test_cluster_of_a_program_that_is_gone_ends_also_if_its_spec_is_invalid(
    spec: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(monkeypatch, **spec)
    passes.resource["metadata"]["generation"] = 2
    assert passes.run(4) == [Pause(30.0)] * 4
    assert not passes.server.deleted
    passes.run(1)
    assert passes.server.deleted == [("demo", "u")]


@pytest.mark.parametrize(("spec", "failure"), [({}, OSError("refused")), ({"workers": "x"}, None)])
def test_cluster_without_a_successful_pass_does_not_outlive_its_limit(
    spec: Object, failure: OSError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(monkeypatch, failure, **spec, lifetime={"max": "1m"})
    passes.resource["metadata"] |= {"generation": 2, "annotations": {}}
    passes.run(2)
    assert not passes.server.deleted
    passes.run(1)
    assert passes.server.deleted == [("demo", "u")]
    assert "1m after its creation (lifetime.max)" in str(passes.server.created)


def test_owner_that_cannot_be_read_does_not_stop_the_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(monkeypatch)

    async def away(*_: object) -> Object:
        raise Unreachable("away")

    monkeypatch.setattr(passes.server, "get_metadata", away)
    assert passes.run(9) == [Pause(30.0)] * 9
    assert not passes.server.deleted
