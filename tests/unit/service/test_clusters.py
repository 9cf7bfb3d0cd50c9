"""The service: where it looks, what apply() refuses, and what clusters without containers refuse."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from oars.base.errors import NotFound, SpecError, TimedOut, UsageError
from oars.client.backend import Location, SupportsContainers, SupportsCopy, SupportsExec, SupportsForward
from oars.client.kubernetes import KubeHandle
from oars.client.local import LocalHandle
from oars.kube.kinds import SECRET
from oars.places.kube import names
from oars.places.report import Report
from oars.plan.changes import Change, Effect
from oars.service import LogRequest, Service, clusters
from oars.spec.cluster import ClusterSpec
from oars.spec.status import GroupStatus, Phase, Status
from tests.unit.client.test_kube_backend import Server, handle_on, put_direct
from tests.unit.local_clusters import EARLIER, record, store

STATUS = Status("demo", "toy", "local", Phase.READY, groups=(GroupStatus("default", 2, 2),))


def spec(**fields: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"engine": "dask", **fields})


@pytest.mark.parametrize(
    ("fields", "location", "expected"),
    [
        ({}, Location(), Location()),
        ({"place": "kubernetes"}, Location(), Location("kubernetes")),
        ({"place": "kubernetes"}, Location("local"), Location("local")),
        ({"namespace": {"name": "x"}}, Location(), Location("kubernetes", namespace="x")),
        ({"namespace": {"create": True}}, Location(mode="direct"),
         Location("kubernetes", namespace="demo", mode="direct")),
        ({}, Location("kubernetes", namespace="n"), Location("kubernetes", namespace="n")),
        ({"namespace": {"create": True}}, Location(namespace="n"), Location("kubernetes", namespace="n")),
    ],
)  # fmt: skip
def test_location_of_a_spec(fields: dict[str, Any], location: Location, expected: Location) -> None:
    assert Service({}, location)._at("demo", spec(**fields)).location == expected


@pytest.mark.parametrize(
    ("location", "namespace", "expected"),
    [
        (Location(), "", "demo"),
        (Location("kubernetes"), "ns", "demo -n ns"),
        (Location("kubernetes", "c", "n", "k"), "", "demo --kubeconfig k --context c -n n"),
        (Location("kubernetes", namespace="given"), "actual", "demo -n actual"),
    ],
)
def test_reference_finds_the_same_cluster(location: Location, namespace: str, expected: str) -> None:
    assert Service({}, location).reference("demo", namespace) == expected


def test_refused_change_is_an_error() -> None:
    clusters._check_allowed([Change(Effect.HEAD, "The head is replaced.")], "demo -n team")
    with pytest.raises(SpecError, match="engine cannot change") as raised:
        clusters._check_allowed(
            [Change(Effect.REFUSED, "engine cannot change: x.", ("engine: a → b",))], "demo -n team"
        )
    assert raised.value.details == ("engine: a → b",)
    assert "`oars down demo -n team`" in raised.value.hint


def test_apply_does_not_create_a_cluster_again_that_is_removed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def changed(self: LocalHandle, spec: ClusterSpec) -> tuple[Change, ...]:
        return (Change(Effect.IN_PLACE, "More workers."),)

    async def removed(self: LocalHandle, spec: ClusterSpec, *, force: bool) -> None:
        raise NotFound("There is no cluster 'demo'.")

    async def create(self: Service, *_: object, **options: object) -> Status:
        raise AssertionError("it was created again")

    store().create(record("demo"), {})
    monkeypatch.setattr(LocalHandle, "diff", changed)
    monkeypatch.setattr(LocalHandle, "apply", removed)
    monkeypatch.setattr(Service, "create", create)
    with pytest.raises(NotFound):
        asyncio.run(Service(os.environ, Location("local")).apply("demo", spec(), timeout=1.0))


def test_list_does_not_wait_for_a_silent_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        store().create(record(name), {}).write_report(Report(STATUS))

    async def silent(self: LocalHandle) -> AsyncIterator[Report]:
        await asyncio.sleep(60)
        yield Report(STATUS)

    monkeypatch.setattr(LocalHandle, "watch", silent)
    monkeypatch.setattr(clusters, "LIST_REPORT_SECONDS", 0.05)
    started = time.monotonic()
    found = asyncio.run(Service(os.environ, Location("local")).list()).clusters
    assert time.monotonic() - started < 2
    assert [(each.phase, each.reason, each.ready) for each in found] == [(Phase.DEGRADED, "KeeperSilent", 2)] * 2
    assert "did not answer within 0 s" in found[0].message


def test_only_backend_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clusters, "LIST_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = tmp_path / "config"
        path.write_text(f"{{clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{silent.getsockname()[1]}'}}}}],"
                        " contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: x}}],"
                        " current-context: c}")  # fmt: skip
        with pytest.raises(TimedOut, match="Kubernetes did not answer within 0 s"):
            asyncio.run(Service(os.environ, Location("kubernetes", kubeconfig=str(path))).list())


def test_report_of_an_older_generation_is_shown_if_nobody_acts_on_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unattended(KubeHandle):
        async def generation(self) -> int:
            return 2

        async def watch(self) -> AsyncIterator[Report]:
            yield Report(Status("demo", "dask", "kubernetes", Phase.READY, message="Fine.", generation=1))
            await asyncio.Event().wait()

    handle = Unattended.__new__(Unattended)
    status = asyncio.run(handle.report(0.1)).status
    assert status.phase is Phase.READY
    assert status.message == "Fine. The last change has not been acted on yet; check `oars operator status`."


Call = Callable[[Service], Coroutine[Any, Any, object]]


async def exec_in(service: Service, **target: Any) -> None:
    async with service.exec("demo", ["ls"], **target):
        raise AssertionError("nothing must run")


async def forward(service: Service) -> None:
    async with service.forward_dashboard("demo", 8000):
        raise AssertionError("nothing must be forwarded")


def test_stop_does_not_suggest_a_cluster_that_it_stops() -> None:
    store().create(record("demo2", host=EARLIER), {})
    service = Service(os.environ, Location("local"))
    results = asyncio.run(service.stop(["demo2", "demo"], 30))
    missing = results["demo"]
    assert results["demo2"] is None and isinstance(missing, NotFound)
    assert missing.hint == "Run `oars ls` to list clusters."


@pytest.mark.parametrize(
    ("call", "reason", "hint"),
    [
        (
            lambda s: s.copy_to("demo", Path("x"), "/y"),
            "there are no containers to copy to",
            "Its members use the files of the machine: `cp x /y`.",
        ),
        (
            lambda s: s.copy_from("demo", "/y", Path("x")),
            "there are no containers to copy from",
            "Its members use the files of the machine: `cp /y x`.",
        ),
        (
            lambda s: s.log_members("demo", LogRequest(container="c")),
            "its members have no containers",
            "Omit the container",
        ),
        (lambda s: exec_in(s, member="w"), "there are no containers to run in", "Omit the member."),
        (lambda s: exec_in(s, container="c"), "there are no containers to run in", "Omit the container."),
        (
            lambda s: exec_in(s, member="w", container="c"),
            "there are no containers to run in",
            "Omit the member and the container.",
        ),
        (forward, "its dashboard is not forwarded", "Omit the port."),
    ],
)
def test_local_cluster_says_what_it_does_not_support(call: Call, reason: str, hint: str) -> None:
    store().create(record("demo"), {})
    with pytest.raises(UsageError) as raised:
        asyncio.run(call(Service(os.environ, Location("local"))))
    assert raised.value.message == f"Cluster 'demo' runs as local processes: {reason}."
    assert raised.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ({"engine": "mars"}, "known"),
        ({"engine": "ray"}, "known"),
        ({"engine": "ray", "ray": {"auth": "none"}}, ""),
        ({"engine": "ray", "ray": {"dashboard": False}}, ""),
        ({"engine": "dask"}, ""),
        ({"engine": "dask", "dask": {"dashboardAuth": "token"}}, "known"),
    ],
)
def test_token_that_the_dashboard_requires(fields: dict[str, Any], token: str) -> None:
    server = Server()
    put_direct(server, {**fields, "image": "i:1"})
    server.put(SECRET, names.root("demo"), data={"token": base64.b64encode(b"known").decode()})
    assert asyncio.run(handle_on(server).dashboard_token()) == token


def test_capabilities_of_kubernetes_are_complete() -> None:
    handle = KubeHandle.__new__(KubeHandle)
    for protocol in (SupportsContainers, SupportsCopy, SupportsExec, SupportsForward):
        assert isinstance(handle, protocol)
        assert not isinstance(LocalHandle.__new__(LocalHandle), protocol)
