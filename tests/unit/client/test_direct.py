"""Direct mode: what the client owns, for how long it leads, and what it does when something unexpected fails."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from oars.base import codec
from oars.base.errors import NotFound, OarsError
from oars.client import direct as module
from oars.client.direct import Direct, DirectCache
from oars.kube.auth import Credentials
from oars.kube.client import Client, Listing
from oars.kube.errors import ApiError
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, Kind, Object
from oars.kube.lease import Elector
from oars.kube.target import ExecPlugin, Target
from oars.model import Desired, LoopState, Pause
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.place import KubePlace
from oars.places.kube.state.root import STATE, dump_intent, read_intent, report_of
from oars.places.report import Report
from oars.plan.lifetime import Outlook
from oars.spec.status import Expires, Phase, Status
from tests.unit.places.test_kube_observe import created_by

LABELS = names.labels("demo", "dask")
ROOT: Object = {
    "metadata": {"name": "demo-oars", "namespace": "n", "uid": "r", "resourceVersion": "1", "labels": LABELS},
    "data": dump_intent(Intent({"engine": "dask", "image": "i:1"})),
}
THEIRS: Object = {**ROOT, "metadata": {**ROOT["metadata"], "uid": "another", "resourceVersion": "2"}}
OWNERS = [{"kind": "ConfigMap", "name": "demo-oars", "uid": "r"}]


def pod(name: str, **labels: str) -> Object:
    metadata = {"name": name, "namespace": "n", "resourceVersion": "1"}
    metadata |= created_by("demo-worker", {names.CLUSTER: "demo", **labels})
    return {"metadata": metadata}


def deployment(name: str, owners: list[Object]) -> Object:
    metadata = {"name": name, "namespace": "n", "resourceVersion": "1", "labels": LABELS, "ownerReferences": owners}
    return {"metadata": metadata, "spec": {"selector": {}}}


class Server:
    """Lists its objects; watches deliver what the test sends. Another client holds the Lease until it is released."""

    def __init__(self, root: Object = ROOT, *others: tuple[Kind, Object]) -> None:
        self.root = root
        self.listed = [(CONFIG_MAP, root), *others]
        self.events: dict[Kind, asyncio.Queue[tuple[str, Object]]] = {}
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 1000}
        self.lease: Object = {"metadata": {"resourceVersion": "1"}, "spec": spec}

    def tell(self, kind: Kind, what: str, obj: Object) -> None:
        self.events.setdefault(kind, asyncio.Queue()).put_nowait((what, obj))

    async def list(self, kind: Kind, *_: object, **__: object) -> Listing:
        return Listing([obj for each, obj in self.listed if each is kind], "1")

    async def watch(self, kind: Kind, *_: object, **__: object) -> AsyncIterator[tuple[str, Object]]:
        queue = self.events.setdefault(kind, asyncio.Queue())
        while True:
            yield await queue.get()

    async def get(self, kind: Kind, *_: object) -> Object:
        return self.root if kind is CONFIG_MAP else self.lease

    async def replace(self, lease: Object) -> Object:
        self.lease = lease
        return lease

    def guarded(self, check: Callable[[], None]) -> Server:
        self.check = check
        return self


class Once:
    """A loop that only notes the head epoch it starts from."""

    report: Report | None = None
    outlook = Outlook()

    def __init__(self, place: KubePlace, passes: asyncio.Queue[int]) -> None:
        self._place, self._passes = place, passes

    async def once(self, desired: Desired) -> Pause:
        self._passes.put_nowait((await self._place.observe(desired)).state.head_epoch)
        return Pause(1000)

    async def close(self) -> None:
        return None


class Noting(Direct):
    def __init__(self, server: Server) -> None:
        super().__init__(cast(Client, server), "n", "demo", "me")
        self.passes: asyncio.Queue[int] = asyncio.Queue()
        self.stopped = asyncio.Event()

    async def _start_leading(self, cached: Object, desired: Desired) -> Any:
        place, _ = await super()._start_leading(cached, desired)
        return place, Once(place, self.passes)

    async def _stop_leading(self) -> None:
        await super()._stop_leading()
        self.stopped.set()

    async def until_not_leading(self) -> None:
        self.stopped.clear()
        await self.stopped.wait()

    async def until_over(self) -> None:
        async for _ in self.watch():
            pass


def test_only_own_objects_are_cached() -> None:
    member = pod("w", **{names.GROUP: "default"})
    server = Server(
        ROOT,
        (POD, member),
        (POD, pod("odd")),
        (DEPLOYMENT, deployment("demo-head", OWNERS)),
        (DEPLOYMENT, deployment("theirs", [])),
        (DEPLOYMENT, deployment("demo-worker", [{**OWNERS[0], "uid": "of an earlier cluster"}])),
    )

    async def body() -> DirectCache:
        following = DirectCache(cast(Client, server), "n", "demo", lambda: None)
        await following.start()
        await following.close()
        return following

    seen = asyncio.run(body())
    assert [each["metadata"]["name"] for each in (*seen.pods(), *seen.deployments())] == ["w", "demo-head"]
    assert (seen.has("Deployment", "demo-head"), seen.has("Deployment", "theirs")) == (True, False)
    assert (seen.has("ConfigMap", "demo-oars"), seen.has("Service", "demo-head")) == (True, None)


def test_deposed_leader_writes_nothing() -> None:
    server = Server()
    server.lease["spec"]["holderIdentity"] = ""

    async def body() -> None:
        direct = Noting(server)
        await direct.start()
        await direct.passes.get()
        server.check()
        direct._elector._renewed_at = float("-inf")  # the machine was suspended, and the Lease expired
        with pytest.raises(OarsError, match="Another client may hold the Lease"):
            server.check()
        await direct.close()

    asyncio.run(asyncio.wait_for(body(), 5))


def test_deposed_leader_does_not_end_the_cluster() -> None:
    """Its lifetime was over when the pass began. Another client may have extended it since."""

    class Writable(Server):
        def __init__(self) -> None:
            super().__init__()
            self.writes: list[str] = []
            self.check: Callable[[], None] = lambda: None

        def guarded(self, check: Callable[[], None]) -> Server:
            guarded = copy.copy(self)
            guarded.check = check
            return guarded

        async def patch(self, kind: Kind, name: str, *_: object) -> None:
            self.check()
            self.writes.append(f"patch {name}")

        async def delete(self, kind: Kind, name: str, *_: object, **__: object) -> None:
            self.check()
            self.writes.append(f"delete {name}")

    async def body() -> None:
        server = Writable()
        direct, elected = Noting(server), Elected()
        direct._elector = cast(Elector, elected)
        desired, expires = direct._desired(ROOT), Expires(0.0, "MaxLifetime", "1h after its creation")
        elected.is_leader = False  # the machine was suspended, and the Lease expired
        with pytest.raises(OarsError, match="Another client may hold the Lease"):
            await direct._end(ROOT, desired, expires)
        assert server.writes == []
        elected.is_leader = True
        await direct._end(ROOT, desired, expires)
        assert server.writes == [f"patch {names.GONE}", "delete demo-oars"]

    asyncio.run(asyncio.wait_for(body(), 5))


def test_unexpected_error_is_reported_and_reconciliation_goes_on() -> None:
    """A watch that ended leaves an outdated cache: it is restarted."""
    server = Server()
    server.lease["spec"]["holderIdentity"] = ""

    async def body() -> str:
        direct = Noting(server)
        await direct.start()
        await direct.passes.get()
        server.tell(POD, "ADDED", {"metadata": {}})
        report = await anext(aiter(direct.watch()))
        await direct.passes.get()
        await direct.close()
        return report.causes[0].reason

    assert asyncio.run(asyncio.wait_for(body(), 5)) == "InternalError"


UNREADABLE = ("demo-oars cannot be read", "kubectl edit")
DAMAGED: list[tuple[Object | None, tuple[str, str]]] = [
    ({"cluster.json": ROOT["data"]["cluster.json"][:-1]}, UNREADABLE),  # a brace was lost in `kubectl edit`
    ({"cluster.json": '{"spec": 3}'}, UNREADABLE),
    ({"cluster.json": '{"spec": {}}'}, ("engine", "")),
    ({"cluster.json": '{"spec": {"engine": 3}}'}, ("engine", "")),
    ({}, UNREADABLE),
    (None, UNREADABLE),
]


@pytest.mark.parametrize(("data", "expected"), DAMAGED)
def test_damaged_root_is_reported_and_the_cluster_is_kept(data: Object | None, expected: tuple[str, str]) -> None:
    """The Lease is renewed, or the helper would delete the cluster; when the root is repaired, all goes on."""
    server = Server()
    server.lease["spec"]["holderIdentity"] = ""

    async def body() -> None:
        direct = Noting(server)
        await direct.start()
        await direct.passes.get()
        metadata = {**ROOT["metadata"], "resourceVersion": "2"}
        server.tell(CONFIG_MAP, "MODIFIED", {"metadata": metadata, "data": data})
        async for report in direct.watch():
            if report.causes:
                break
        assert expected[0] in report.causes[0].message and expected[1] in report.causes[0].hint
        assert direct._elector.is_leader and server.lease["spec"]["holderIdentity"] == "me"
        server.tell(CONFIG_MAP, "MODIFIED", {**ROOT, "metadata": {**metadata, "resourceVersion": "3"}})
        await direct.passes.get()
        await direct.close()

    asyncio.run(asyncio.wait_for(body(), 10))


@pytest.mark.parametrize("error", [TypeError("a bug"), OSError(24, "Too many open files"), RecursionError()])
def test_failed_pass_does_not_give_up_the_cluster(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    server = Server()
    server.lease["spec"]["holderIdentity"] = ""
    failing = [True, True, False]

    async def body() -> None:
        direct = Noting(server)
        desired = direct._desired

        def sometimes(root: Object) -> Desired:
            if failing and failing.pop(0):
                raise error
            return desired(root)

        monkeypatch.setattr(direct, "_desired", sometimes)
        await direct.start()
        await direct.passes.get()
        assert not failing and server.lease["spec"]["holderIdentity"] == "me"
        await direct.close()

    asyncio.run(asyncio.wait_for(body(), 10))


STATUS = Status("demo", "dask", "kubernetes", Phase.READY, mode="direct", namespace="n", generation=1)
READY: Object = {**ROOT, "data": {**ROOT["data"], "report.json": json.dumps(codec.dump(Report(STATUS, ())))}}


class LoggedIn(Server):
    """Every request needs a credential of the plug-in; watches that are open stay open."""

    def __init__(self, plug_in: ExecPlugin) -> None:
        super().__init__(READY)
        self._credentials = Credentials(Target("https://k:6443", exec_plugin=plug_in), os.environ)

    async def list(self, kind: Kind, *_: object, **__: object) -> Listing:
        await self._credentials.headers()
        return await super().list(kind)

    async def get(self, kind: Kind, *_: object) -> Object:
        await self._credentials.headers()
        return await super().get(kind)

    async def replace(self, lease: Object) -> Object:
        await self._credentials.headers()
        return await super().replace(lease)


class Restored(Noting):
    """Its loop reports what the root has stored."""

    async def _start_leading(self, cached: Object, desired: Desired) -> Any:
        place, loop = await super()._start_leading(cached, desired)
        loop.report = report_of(cached)
        return place, loop


def install(program: Path, text: str) -> None:
    """Replace the program in one step."""
    new = program.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o755)
    new.replace(program)


@pytest.mark.parametrize("holder", ["", "another"], ids=["leader", "follower"])
def test_plug_in_that_can_no_longer_start_is_reported_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    """The last status stays, with the reason why it may be outdated."""
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.05)
    version, program = "client.authentication.k8s.io/v1", tmp_path / "log-in"
    token = {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}  # each request needs another one
    working = f"#!/bin/sh\necho '{json.dumps({'kind': 'ExecCredential', 'apiVersion': version, 'status': token})}'\n"
    install(program, working)
    server = LoggedIn(ExecPlugin(str(program), api_version=version, interactive_mode="Never"))
    server.lease["spec"]["holderIdentity"] = holder

    async def body() -> None:
        direct = Restored(server)
        direct._elector = Elector(cast(Client, server), "n", "demo-oars", "me", 3, 2, 0.5)
        await direct.start()
        reports = direct.watch()
        assert not (await anext(reports)).causes
        if not holder:
            await direct.passes.get()
        await asyncio.to_thread(install, program, "#!/no/such/interpreter\n")
        if not holder:
            await direct._elector.lost.wait()
            direct.wake()
        failed = await anext(report async for report in reports if "cannot be started" in report.status.message)
        assert failed.status.phase is Phase.READY and str(program) in failed.status.message
        assert [cause.message for cause in failed.causes] == [failed.status.message]
        await asyncio.to_thread(install, program, working)
        assert await anext(report async for report in reports if not report.causes)
        await direct.close()

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.mark.parametrize(("status", "is_shown"), [(401, True), (403, False), (503, True)])
def test_report_of_the_leader_is_shown_to_those_who_may_not_lead(status: int, is_shown: bool) -> None:
    """They see what the leader does. Without an answer of the API server, nobody knows whether it still does it."""
    direct = Noting(Server(READY))
    direct._elector.error = ApiError(status, {"message": "no"})
    report = direct._followed(READY)
    assert report is not None and bool(report.causes) is is_shown


def test_intent_of_a_newer_oars_is_read() -> None:
    newer = json.loads(ROOT["data"]["cluster.json"]) | {"a_new_field": {"x": 1}}
    root = {**ROOT, "data": {"cluster.json": json.dumps(newer), "report.json": '{"status"'}}
    assert read_intent(root) == read_intent(ROOT)
    assert report_of(root) is None, "a report that cannot be read is none"


@pytest.mark.parametrize(
    ("what", "obj"), [("DELETED", ROOT), ("MODIFIED", THEIRS)], ids=["deleted", "another has its name"]
)
def test_lease_is_released_when_the_cluster_is_gone(what: str, obj: Object) -> None:
    """A watch that broke may show another root without ever showing that ours is gone."""
    server = Server()
    server.lease["spec"]["holderIdentity"] = ""

    async def body() -> Object:
        direct = Noting(server)
        await direct.start()
        await direct.passes.get()
        assert server.lease["spec"]["holderIdentity"] == "me"
        server.tell(CONFIG_MAP, what, obj)
        await direct.until_over()
        found = server.lease
        await direct.close()
        assert server.lease is found, "released once"
        return found

    assert asyncio.run(asyncio.wait_for(body(), 5))["spec"]["holderIdentity"] == ""


def test_handle_does_not_follow_another_cluster_of_the_same_name() -> None:
    async def body() -> None:
        direct = Direct(cast(Client, Server(THEIRS)), "n", "demo", "me", "r")
        with pytest.raises(NotFound):
            await direct.start()

    asyncio.run(body())


def test_foreign_root_with_our_name_is_not_led() -> None:
    """It has our root's name already, and our watch lags."""
    server = Server()

    async def body() -> None:
        direct = Noting(server)
        server.root = THEIRS
        with pytest.raises(NotFound) as told:
            await direct._start_leading(ROOT, direct._desired(ROOT))
        await direct.report_failure("demo", told.value)
        assert direct.report is None, "the watch will show it"

    asyncio.run(body())


def test_foreign_root_with_our_name_is_not_written_to() -> None:
    """It got our root's name since we began to lead, and our watch lags."""

    class Conflicting(Server):
        async def patch(self, *_: object, **__: object) -> Object:
            raise ApiError(409, {"reason": "Conflict"})

    async def body() -> None:
        direct = Noting(Conflicting())
        desired = direct._desired(ROOT)
        place, _ = await direct._start_leading(ROOT, desired)
        with pytest.raises(NotFound) as told:
            await place.record(desired, LoopState(head_epoch=1))
        await direct.report_failure("demo", told.value)
        assert direct.report is None

    asyncio.run(body())


class Elected:
    """Returns what the test sets."""

    def __init__(self) -> None:
        self.is_leader, self.error = True, None
        self.lease_metadata: Object = {}

    async def lead(self) -> bool:
        return await asyncio.Event().wait()

    async def release(self) -> None:
        self.is_leader = False


def test_next_leader_starts_from_the_recorded_state() -> None:
    server = Server()

    async def body() -> list[int]:
        direct, elected = Noting(server), Elected()
        direct._elector = cast(Elector, elected)
        await direct.start()
        seen = [await direct.passes.get()]
        for leads in (False, True):
            elected.is_leader = leads
            server.root = {
                **ROOT,
                "data": {**ROOT["data"], STATE: json.dumps({"head_epoch": 7})},
            }
            direct.wake()
            if not leads:
                await direct.until_not_leading()
        seen.append(await direct.passes.get())
        await direct.close()
        return seen

    assert asyncio.run(asyncio.wait_for(body(), 5)) == [0, 7]


def test_invalid_spec_is_reported() -> None:
    root: Any = {**ROOT, "data": dump_intent(Intent({"engine": "dask", "head": {"memory": "much"}}))}
    direct = Direct(cast(Client, Server(root)), "n", "demo", "me")
    with pytest.raises(OarsError) as told:
        direct._desired(root)
    report = direct._failed(told.value, Intent(root["data"] and {"engine": "dask"}))
    assert report.status.reason == report.causes[0].reason == "InvalidSpec"
