"""The helper that watches over a cluster: when it removes it, and what it says. And whom its rights are given to."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from oars.client.direct import lease_metadata
from oars.places.intent import Intent
from oars.places.kube import helper, names
from oars.places.kube.render import sidecar
from oars.places.kube.state.root import dump_intent
from tests.unit.places.clusters import cluster

PATIENCE = 120.0
RENEWAL = 5.0
Answer = tuple[int, Any]
FORBIDDEN = (403, {"kind": "Status", "message": 'leases "demo-oars" is forbidden'})
GONE = (404, {"kind": "Status", "reason": "NotFound"})
AWAY: Answer = (0, {})


class TimeIsUp(Exception):
    pass


class World:
    """An API server, and time that passes only while the helper sleeps."""

    def __init__(self, lease: Callable[[float], Answer], end: float, may_delete: bool = True) -> None:
        self.now, self.end = 0.0, end
        self.lease, self.may_delete = lease, may_delete
        self.removed_at: float | None = None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self.end or self.removed_at is not None:
            raise TimeIsUp

    def monotonic(self) -> float:
        return self.now

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        if method == "GET":
            assert path == "/apis/coordination.k8s.io/v1/namespaces/lab/leases/demo-oars"
            return self.lease(self.now)
        assert path == "/api/v1/namespaces/lab/configmaps/demo-oars"
        if not self.may_delete:
            return 403, {"message": 'configmaps "demo-oars" is forbidden'}
        self.removed_at = self.now
        return 200, {}

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(helper, "time", SimpleNamespace(sleep=self.sleep, monotonic=self.monotonic))
        monkeypatch.setattr(helper, "call", self.call)
        with pytest.raises(TimeIsUp):
            helper.OwnerWatch("lab", "demo-oars", PATIENCE).run()


def renewed(moment: float) -> Answer:
    """By an owner who lives."""
    return 200, {"spec": {"renewTime": f"t{moment // RENEWAL:.0f}"}}


def until(moment: float, then: Answer) -> Callable[[float], Answer]:
    return lambda now: renewed(now) if now < moment else then


STOOD_STILL = renewed(299.0)


def removed(world: World) -> bool:
    """In its time: after the last word of the owner, at 300, not earlier and not much later."""
    return world.removed_at is not None and PATIENCE < world.removed_at - 295 < PATIENCE + 3 * helper.POLL_SECONDS


def test_cluster_with_a_renewed_lease_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(renewed, end=3600)
    world.watch(monkeypatch)
    assert world.removed_at is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("then", [STOOD_STILL, GONE], ids=["not renewed", "deleted"])
def test_cluster_is_removed_when_its_lease_expires(monkeypatch: pytest.MonkeyPatch, then: Answer) -> None:
    world = World(until(300, then), end=3600)
    world.watch(monkeypatch)
    assert removed(world)


@pytest.mark.parametrize("then", [AWAY, FORBIDDEN, (500, {}), (401, {})])
def test_while_nothing_can_be_seen_the_cluster_stays(monkeypatch: pytest.MonkeyPatch, then: Answer) -> None:
    world = World(until(300, then), end=3600)
    world.watch(monkeypatch)
    assert world.removed_at is None


def test_recreated_lease_counts_as_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda now: GONE if 300 <= now < 300 + PATIENCE - 20 else renewed(now), end=3600)
    world.watch(monkeypatch)
    assert world.removed_at is None


def test_missing_lease_counts_as_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda now: GONE, end=3600)
    world.watch(monkeypatch)
    assert world.removed_at is not None and world.removed_at > PATIENCE


def test_missing_permission_is_logged_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    World(until(300, FORBIDDEN), end=3600).watch(monkeypatch)
    (line,) = capsys.readouterr().err.splitlines()
    assert "service account needs the right to get the lease demo-oars" in line
    assert 'leases "demo-oars" is forbidden' in line


def test_permission_lost_again_is_logged_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    World(lambda now: FORBIDDEN if now % 1000 > 500 else renewed(now), end=2000).watch(monkeypatch)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_denied_removal_is_logged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    World(until(300, STOOD_STILL), end=3600, may_delete=False).watch(monkeypatch)
    silent, missing = capsys.readouterr().err.splitlines()
    assert silent == "The owner has been silent for 120 s: removing the cluster."
    assert "needs the right to delete the configmap demo-oars" in missing and "`oars down`" in missing


def patient(moment: float, patience: object) -> Answer:
    status, lease = renewed(moment)
    return status, {**lease, "metadata": {"annotations": {helper.ORPHANED_ANNOTATION: patience}}}


@pytest.mark.parametrize(
    ("said", "patience"),
    [("60", 60.0), ("600", 600.0), ("12.5", 12.5), ("a while", PATIENCE)],
)
def test_the_lease_says_how_long_an_owner_may_be_silent(
    monkeypatch: pytest.MonkeyPatch, said: str, patience: float
) -> None:
    world = World(lambda now: patient(min(now, 299.0), said), end=3600)
    world.watch(monkeypatch)
    assert world.removed_at is not None
    assert patience < world.removed_at - 295 < patience + 3 * helper.POLL_SECONDS


def test_lease_duration_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda now: patient(min(now, 299.0), "3000" if now < 1000 else "900"), end=3600)
    world.watch(monkeypatch)
    assert world.removed_at is not None and 299 + 900 < world.removed_at < 299 + 900 + 3 * helper.POLL_SECONDS


def test_last_lease_duration_applies_when_the_lease_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda now: patient(now, "600") if now < 300 else GONE, end=3600)
    world.watch(monkeypatch)
    assert world.removed_at is not None and world.removed_at > 295 + 600


def test_cluster_without_an_orphan_timeout_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda now: patient(min(now, 299.0), "0"), end=36_000)
    world.watch(monkeypatch)
    assert world.removed_at is None


def test_the_head_is_the_same_whatever_its_owner_s_time() -> None:
    heads = [
        sidecar.head_and_owned(cluster(tied=True, lifetime={"orphaned": orphaned}), watched=True)
        for orphaned in (0, 60, 7200)
    ]
    assert heads[0] == heads[1] == heads[2]
    (container,) = [c for c in heads[0][1]["spec"]["template"]["spec"]["containers"] if c["name"] == names.HELPER]
    assert {"name": "OARS_LEASE", "value": "lab/demo-oars"} in container["env"]


@pytest.mark.parametrize(
    ("orphaned", "tied", "said"),
    [("2m", True, "120"), (1, True, "10"), (0, True, "0"), ("2m", False, None)],
)
def test_helper_reads_the_lease_that_a_client_writes(orphaned: object, tied: bool, said: str | None) -> None:
    assert names.ORPHANED == helper.ORPHANED_ANNOTATION
    intent = Intent({"engine": "dask", "lifetime": {"orphaned": orphaned}}, tied=tied)
    root = {"metadata": {"name": "demo-oars", "uid": "root", "labels": {}}, "data": dump_intent(intent)}
    assert lease_metadata(root)["annotations"].get(helper.ORPHANED_ANNOTATION) == said


@pytest.mark.parametrize(
    ("pod", "account"),
    [
        ({}, "demo-oars"),
        ({"spec": {"serviceAccountName": "reader"}}, "reader"),
        ({"spec": {"serviceAccountName": ""}}, "default"),
    ],
)
def test_rights_are_given_to_the_account_of_the_head(pod: dict[str, Any], account: str) -> None:
    desired = cluster(tied=True, head={"pod": pod})
    owned, _ = sidecar.head_and_owned(desired, watched=True)
    role, binding = (next(obj for obj in owned if obj["kind"] == kind) for kind in ("Role", "RoleBinding"))
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "lab"}]
