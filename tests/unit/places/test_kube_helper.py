"""The helper that watches over a cluster: when it removes it, and what it says. And whom its rights are given to."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oars.client.direct import lease_metadata
from oars.places.intent import Intent
from oars.places.kube import helper, names
from oars.places.kube.render import sidecar
from oars.places.kube.state import endings
from oars.places.kube.state.root import dump_intent
from tests.unit.places.clusters import cluster

PATIENCE = 120.0
RENEWAL = 5.0
EPOCH = 1_800_000_000.0
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
        self.root = "root"  # uid of the one that is there
        self.notes: list[Any] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self.end or self.removed_at is not None:
            raise TimeIsUp

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return EPOCH + self.now

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        if method == "GET":
            assert path == "/apis/coordination.k8s.io/v1/namespaces/lab/leases/demo-oars"
            return self.lease(self.now)
        if method == "PATCH":
            assert path == "/api/v1/namespaces/lab/configmaps/oars-gone"
            self.notes += [json.loads(text) for text in body["data"].values()]
            return 200, {}
        assert path == "/api/v1/namespaces/lab/configmaps/demo-oars"
        if not self.may_delete:
            return 403, {"message": 'configmaps "demo-oars" is forbidden'}
        if body.get("preconditions", {}).get("uid", self.root) != self.root:
            return 409, {"reason": "Conflict"}
        self.removed_at = self.now
        return 200, {}

    def watch(self, monkeypatch: pytest.MonkeyPatch, watch: helper.Watch | None = None) -> None:
        monkeypatch.setattr(helper, "time", SimpleNamespace(sleep=self.sleep, monotonic=self.monotonic, time=self.time))
        monkeypatch.setattr(helper, "call", self.call)
        with pytest.raises(TimeIsUp):
            (watch or helper.Watch("lab", "demo-oars", PATIENCE)).run()


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
    assert silent == "Removing the cluster: its owner was silent for 120 s."
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
    [("2m", True, "120"), (1, True, "10"), (0, True, "0"), ("2m", False, "0")],
)
def test_helper_reads_the_lease_that_a_client_writes(orphaned: object, tied: bool, said: str) -> None:
    assert names.ORPHANED == helper.ORPHANED_ANNOTATION
    intent = Intent({"engine": "dask", "lifetime": {"orphaned": orphaned}}, tied=tied)
    root = {"metadata": {"name": "demo-oars", "uid": "root", "labels": {}}, "data": dump_intent(intent)}
    assert lease_metadata(root)["annotations"].get(helper.ORPHANED_ANNOTATION) == said


class Head(helper.Inquiry):
    """A head whose figures are functions of the time."""

    def __init__(self, world: World, **figures: Callable[[float], float | None]) -> None:
        super().__init__(8787)
        self.world, self.figures = world, figures

    def get(self) -> Any:
        return {name: figure(self.world.now) for name, figure in self.figures.items()}


def lease_of(lifetime: dict[str, Any], *, tied: bool = False, created: float = EPOCH) -> dict[str, Any]:
    """As a client writes it."""
    intent = Intent({"engine": "dask", "lifetime": lifetime}, tied=tied)
    stamp = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = names.labels("demo", "dask")
    metadata = {"name": "demo-oars", "uid": "root", "labels": labels, "creationTimestamp": stamp}
    return lease_metadata({"metadata": metadata, "data": dump_intent(intent)})


@pytest.mark.parametrize(
    ("lifetime", "figures", "ends", "reason"),
    [
        ({"max": "8h"}, {}, 28800, "MaxLifetime"),
        ({"idle": "30m"}, {"idle": lambda now: now}, 1800, "Idle"),
        ({"idle": "30m"}, {"idle": lambda now: max(0.0, now - 1000)}, 2800, "Idle"),
        ({"idle": "30m"}, {"idle": lambda now: now % 1700}, None, ""),
        ({"idle": "30m"}, {"idle": lambda now: None}, None, ""),
        ({"idle": "30m"}, {}, None, ""),
        ({"noClient": "5m"}, {"no_client": lambda now: now, "idle": lambda now: 0.0}, 300, "NoClient"),
        ({"noClient": "5m", "max": "2m"}, {"no_client": lambda now: now}, 120, "MaxLifetime"),
        ({"idle": "4s"}, {"idle": lambda now: now}, 4, "Idle"),
        ({"orphaned": "2m"}, {"idle": lambda now: now, "no_client": lambda now: now}, None, ""),
    ],
)
def test_detached_cluster_ends_when_its_lifetime_is_over(
    monkeypatch: pytest.MonkeyPatch,
    lifetime: dict[str, Any],
    figures: dict[str, Callable[[float], float | None]],
    ends: float | None,
    reason: str,
) -> None:
    assert (names.LIFETIME, names.GONE) == (helper.LIFETIME_ANNOTATION, helper.GONE)
    lease = {"metadata": lease_of(lifetime), "spec": {"renewTime": "of a client that has left"}}
    world = World(lambda now: (200, lease), 40_000)
    world.watch(monkeypatch, helper.Watch("lab", "demo-oars", 0.0, Head(world, **figures)))
    if ends is None:
        assert world.removed_at is None and world.notes == []
        return
    assert world.removed_at is not None and 0 <= world.removed_at - ends <= helper.POLL_SECONDS
    (note,) = endings.entries({"demo.root": json.dumps(world.notes[0])}, "lab")
    assert (note.name, note.engine, note.mode, note.namespace) == ("demo", "dask", "direct", "lab")
    assert note.reason == reason and note.message in [rule["message"] for rule in rules_of(lease)]
    assert note.ended == EPOCH + world.removed_at


@pytest.mark.parametrize("has_lease", [True, False], ids=["with its Lease", "without its Lease yet"])
def test_cluster_that_took_the_name_stays(monkeypatch: pytest.MonkeyPatch, has_lease: bool) -> None:
    """The head of the cluster before it still runs, for example on a node whose kubelet hangs, and is idle."""

    def answer(now: float) -> Answer:
        if now > 1700:
            world.root = "of the next cluster"
        if now > 1700 and not has_lease:
            return 404, {}
        metadata = lease_of({"idle": "30m"})
        metadata["ownerReferences"] = [{**metadata["ownerReferences"][0], "uid": world.root}]
        return 200, {"metadata": metadata, "spec": {"renewTime": f"t{now}"}}

    world = World(answer, 10_000)
    monkeypatch.setattr(helper, "time", SimpleNamespace(sleep=world.sleep, monotonic=world.monotonic, time=world.time))
    monkeypatch.setattr(helper, "call", world.call)
    helper.Watch("lab", "demo-oars", 0.0, Head(world, idle=lambda now: now)).run()
    assert world.removed_at is None and world.notes == []


def rules_of(lease: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lease["metadata"]["annotations"][names.LIFETIME])["rules"]
    return found


def test_changed_lifetime_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(now: float) -> Answer:
        return 200, {"metadata": lease_of({"max": "1h" if now < 600 else "20m"}), "spec": {"renewTime": "before"}}

    world = World(answer, 4000)
    world.watch(monkeypatch, helper.Watch("lab", "demo-oars", 0.0))
    assert world.removed_at == 1200


def test_watch_continues_when_the_head_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its owner counts nevertheless."""
    lease = {"metadata": lease_of({"idle": "30m"}, tied=True)}
    world = World(lambda now: (200, {**lease, "spec": {"renewTime": "t0" if now > 300 else f"t{now}"}}), 3600)
    world.watch(monkeypatch, helper.Watch("lab", "demo-oars", PATIENCE, helper.Inquiry(1, script="/missing/script.py")))
    assert world.removed_at is not None and [note["reason"] for note in world.notes] == ["OwnerGone"]
    failures = [line for line in capsys.readouterr().err.splitlines() if "/missing/script.py" in line]
    assert failures


def test_watch_continues_after_a_reply_that_is_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lambda now: (200, ["of a proxy"]) if 100 < now < 120 else until(300, STOOD_STILL)(now), end=3600)
    world.watch(monkeypatch)
    assert removed(world)


def test_lost_owner_is_noted_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = {"metadata": lease_of({}, tied=True), "spec": {"renewTime": "t0"}}
    world = World(lambda now: (200, lease), 1000)
    world.watch(monkeypatch)
    assert [note["reason"] for note in world.notes] == ["OwnerGone"]


def test_head_is_asked_with_the_token_of_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization", "")))
            body = b'{"idle": 1.5, "no_client": null, "workers": []}' if len(asked) < 3 else b"[]"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

    tmp_path.joinpath("token").write_text("known\n")
    monkeypatch.setattr(helper, "TOKEN_FILE", str(tmp_path / "control"))
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        assert helper.Inquiry(port, "/figures", "token").ask() == {"idle": 1.5}
        assert helper.Inquiry(port, "/figures").ask() == {"idle": 1.5}
        assert helper.Inquiry(port, "/figures").ask() == {}
        server.shutdown()
    assert asked[:2] == [("/figures", "Bearer known"), ("/figures", "")]
    assert helper.Inquiry(port, "/figures").ask() == {}  # nobody listens


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_helper_of_a_limited_cluster_knows_how_to_ask_its_head(engine: str) -> None:
    desired = replace(cluster(engine=engine, lifetime={"idle": "30m"}), mode="direct")
    assert sidecar.is_watched(desired) and not sidecar.is_watched(replace(desired, mode="operator"))
    owned, head = sidecar.head_and_owned(desired, watched=True)
    (container,) = [c for c in head["spec"]["template"]["spec"]["containers"] if c["name"] == names.HELPER]
    env = {each["name"]: each.get("value", "") for each in container["env"]}
    assert env["OARS_DETACHED"] == "1"
    found = helper.Inquiry(**json.loads(env["OARS_INQUIRY"]))
    assert found.path or found.script
    defined = {volume["name"] for volume in head["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= defined
    (files,) = [obj for obj in owned if obj["kind"] == "ConfigMap"]
    (volume,) = [v for v in head["spec"]["template"]["spec"]["volumes"] if v["name"] == "oars-files"]
    paths = {f"/etc/oars/files/{item['path']}": item["key"] for item in volume["configMap"]["items"]}
    assert not found.script or files["data"][paths[found.script]] == desired.shape.inquiry.script  # type: ignore[union-attr]
    (role,) = [obj for obj in owned if obj["kind"] == "Role"]
    assert {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["oars-gone"], "verbs": ["patch"]} in role[
        "rules"
    ]


def test_lifetime_does_not_change_the_head() -> None:
    heads = [
        sidecar.head_and_owned(replace(cluster(lifetime=lifetime), mode="direct"), watched=True)
        for lifetime in ({"idle": "30m"}, {"idle": "1h", "max": "8h"})
    ]
    assert heads[0] == heads[1]


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
