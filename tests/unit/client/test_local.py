"""Changes of local clusters, without a keeper; clusters of other hosts that share the state directory."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from oars.base.errors import NameInUse, NotFound, OarsError, OtherHost
from oars.base.settings import Settings
from oars.client import local
from oars.client.backend import CreateOptions
from oars.client.handles import scale, with_workers
from oars.client.local import LocalBackend, LocalHandle
from oars.model import Role
from oars.places.local.host import this_host
from oars.places.local.store import ClusterDir
from oars.places.process.link import Link
from oars.places.report import Report
from oars.service import Service
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Endpoints, GroupStatus, Phase, Status
from tests.unit.local_clusters import EARLIER, OTHER, record, store
from tests.unit.places.test_local_host import held

GROUPS = {"engine": "toy", "workers": [{"name": "x", "replicas": 1}, {"name": "y", "replicas": 1}]}


def test_concurrent_scales_of_two_groups_are_both_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ClusterSpec.model_validate(GROUPS)
    directory = store().create(record("demo", spec.model_dump(mode="json", by_alias=True)), {})
    handle = LocalBackend(Settings.from_environ(os.environ), os.environ).cluster("demo")
    monkeypatch.setattr(LocalHandle, "_wake_keeper", lambda self: None)
    monkeypatch.setattr(local, "check_fits", lambda spec, memory: time.sleep(0.2))  # so that they overlap
    with ThreadPoolExecutor(2) as pool:
        changes = [
            partial(with_workers, "demo", replicas=3, group="x"),
            partial(with_workers, "demo", replicas=5, group="y"),
        ]
        list(pool.map(lambda change: handle._change(change, False), changes))
    groups = directory.read().intent.spec["workers"]
    assert {group["name"]: group["replicas"] for group in groups} == {"x": 3, "y": 5}


def backend() -> LocalBackend:
    return LocalBackend(Settings.from_environ(os.environ), os.environ)


def content(directory: ClusterDir) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.path.rglob("*") if path.is_file()}


async def watch(handle: LocalHandle) -> None:
    async for _ in handle.watch():
        raise AssertionError("there is nothing to watch")


@pytest.mark.parametrize("role", [Role.HEAD, Role.WORKER])
def test_part_of_a_cluster_does_not_change_the_workers_of_other_machines(role: Role) -> None:
    link = Link(role, "127.0.0.1:8700", "127.0.0.1")
    store().create(record("demo", {"engine": "toy", "workers": [{"replicas": 1}]}, link=link), {})
    handle = backend().cluster("demo")
    for change in (scale(handle, 3), handle.drain(["one-0"])):
        with pytest.raises(OarsError) as refused:
            asyncio.run(change)
        assert refused.value.message.startswith("'demo' is a part of a cluster over several machines")
        assert refused.value.hint == "Start or stop `oars worker` on a machine instead."


CHANGES: list[Callable[[LocalHandle], object]] = [
    lambda handle: asyncio.run(scale(handle, 3)),
    lambda handle: asyncio.run(handle.stop()),
    lambda handle: handle.stop_at_exit(),
    lambda handle: asyncio.run(handle.open()),
    lambda handle: asyncio.run(watch(handle)),
    lambda handle: handle.access(),
    lambda handle: handle.driver(),
]


class TestOtherHosts:
    """The home directory is shared: the cluster runs on login-2."""

    @pytest.fixture
    def directory(self) -> ClusterDir:
        directory = store().create(record("demo", host=OTHER, created=time.time()), {})
        status = Status("demo", "toy", "local", Phase.READY, endpoints=Endpoints("tcp://127.0.0.1:1"))
        directory.write_report(Report(replace(status, groups=(GroupStatus("default", 2, 2),))))
        return directory

    def test_cluster_is_shown_with_its_host(self, directory: ClusterDir) -> None:
        before = content(directory)
        (status,) = asyncio.run(Service(os.environ).list()).clusters
        assert (status.phase, status.ready, status.host, status.reason) == (Phase.READY, 2, "login-2", "OtherHost")
        assert status.endpoints == Endpoints(), "they are of no use here"
        assert "login-2" in status.message
        assert content(directory) == before

    @pytest.mark.parametrize("change", CHANGES)
    def test_cluster_is_not_touched(self, directory: ClusterDir, change: Callable[[LocalHandle], object]) -> None:
        before = content(directory)
        with pytest.raises(OtherHost, match="'demo' belongs to login-2") as caught:
            change(backend().cluster("demo"))
        assert str(directory.path) in caught.value.hint
        assert content(directory) == before, "not even a keeper was started"

    def test_its_name_is_taken(self, directory: ClusterDir) -> None:
        before = content(directory)
        with pytest.raises(NameInUse, match="'demo' exists already on login-2"):
            asyncio.run(backend().create("demo", ClusterSpec(engine="toy"), CreateOptions(tied=True)))
        assert content(directory) == before

    def test_down_of_all_clusters_leaves_it_out(self, directory: ClusterDir) -> None:
        store().create(record("mine"), {})
        assert asyncio.run(Service(os.environ).names()) == ["mine"]

    def test_cluster_of_another_user_is_not_touched(self) -> None:
        """For example of the user whose home directory `sudo` has kept."""
        host = replace(this_host(), uid=os.geteuid() + 1)
        directory = store().create(record("demo", host=host), {})
        with pytest.raises(OtherHost, match=f"@{host.name}"):
            asyncio.run(backend().cluster("demo").stop())
        assert directory.exists

    def test_cluster_is_not_removed_while_its_keeper_runs(self) -> None:
        """The record alone looks like one from before a reboot."""
        directory = store().create(record("demo", host=EARLIER), {})
        with held(directory.keeper_lock):
            with pytest.raises(OtherHost):
                asyncio.run(backend().cluster("demo").stop())
            with pytest.raises(NameInUse):
                asyncio.run(backend().create("demo", ClusterSpec(engine="toy"), CreateOptions(tied=True)))
            assert directory.exists
        assert asyncio.run(backend().cluster("demo").stop())
        assert not directory.path.exists()

    def test_damaged_record_is_not_removed_while_its_keeper_runs(self) -> None:
        directory = store().create(record("demo"), {})
        directory.record_file.write_text("{")
        with held(directory.keeper_lock), pytest.raises(OarsError, match="runs on another host"):
            asyncio.run(backend().cluster("demo").stop())
        assert directory.path.exists()
        assert asyncio.run(backend().cluster("demo").stop())


class TestReboot:
    def test_cluster_does_not_start_again(self) -> None:
        """A keeper would start new members."""
        directory = store().create(record("demo", host=EARLIER), {})
        handle = backend().cluster("demo")
        for change in CHANGES[0], CHANGES[3], CHANGES[4]:
            with pytest.raises(NotFound, match="was restarted"):
                change(handle)
        assert not directory.keeper_log.exists()
        assert asyncio.run(handle.report()).status.reason == "Rebooted"

    def test_renamed_host_keeps_its_clusters(self) -> None:
        """A laptop gets another name from each network."""
        directory = store().create(record("demo", host=replace(this_host(), name="dhcp-17")), {})
        backend().cluster("demo")._own_record()
        assert directory.exists
