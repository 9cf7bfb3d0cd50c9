"""Ray's shape, and how it reads a head's replies. Starts nothing."""

from __future__ import annotations

import asyncio
import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from oars import engines
from oars.base.errors import EngineUnreachable, SpecError
from oars.engines.ray import launch
from oars.engines.ray.shape import GROUP_LABEL, INCARNATION_LABEL, MEMBER_LABEL
from oars.model import HEAD, MemberId, Process, Shape
from oars.places.local.store import tag
from oars.plan.fill import fill
from oars.spec.cluster import ClusterSpec

ray = engines.get("ray")


def spec(**fields: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"engine": "ray", **fields})


def shape(**fields: Any) -> Shape:
    return ray.shape(spec(**fields))


def option(process: Process, name: str) -> str | None:
    values = [word.partition("=")[2] for word in process.argv if word.startswith(f"{name}=")]
    assert len(values) < 2
    return values[0] if values else None


class TestHead:
    def test_head_with_workers_runs_no_tasks(self) -> None:
        assert option(shape(workers=2, head={"cpu": 3}).head.process, "--num-cpus") == "0"

    def test_head_without_workers_runs_tasks(self) -> None:
        assert option(shape(workers=0, head={"cpu": 3}).head.process, "--num-cpus") == "3"

    def test_dashboard_can_be_switched_off(self) -> None:
        with_it, without = shape(), shape(ray={"dashboard": False})
        assert option(with_it.head.process, "--include-dashboard") is None
        assert option(without.head.process, "--include-dashboard") == "false"
        assert with_it.endpoints["dashboard"] == "http://$(head.host):$(head.dashboard)"
        assert "dashboard" not in without.endpoints


class TestWorkers:
    def worker(self, **group: Any) -> Process:
        return shape(workers=[group]).workers[0].process

    def test_sizes_and_resources_are_passed_to_raylets(self) -> None:
        process = self.worker(cpu=2, memory="1Gi", gpu=1, resources={"disk": 3, "arm": 1})
        assert option(process, "--num-cpus") == "2"
        assert option(process, "--num-gpus") == "1"
        assert option(process, "--memory") == str(2**30 - int(2**30 * 0.3))  # the object store has the rest
        assert option(process, "--resources") == '{"arm": 1, "disk": 3}'

    @pytest.mark.parametrize(("cpu", "shown"), [(0.5, "1"), (1, "1"), (1.5, "2")])
    def test_cpu_is_rounded_up(self, cpu: float, shown: str) -> None:
        assert option(self.worker(cpu=cpu), "--num-cpus") == shown

    @pytest.mark.parametrize(("memory", "store"), [(2**30, int(2**30 * 0.3)), (2**27, 80 * 2**20)])
    def test_object_store_is_a_share_of_the_memory_with_a_minimum(self, memory: int, store: int) -> None:
        assert option(self.worker(memory=memory), "--object-store-memory") == str(store)

    def test_object_store_size_can_be_set(self) -> None:
        process = shape(ray={"objectStoreMemory": "200Mi"}, workers=[{"memory": "1Gi"}]).workers[0].process
        assert option(process, "--object-store-memory") == str(200 * 2**20)
        assert option(process, "--memory") == str(824 * 2**20)
        process = shape(ray={"objectStoreMemory": "200Mi"}).workers[0].process
        assert option(process, "--object-store-memory") == str(200 * 2**20)

    def test_ray_chooses_sizes_without_memory(self) -> None:
        assert option(self.worker(), "--memory") is None
        assert option(self.worker(), "--object-store-memory") is None

    def test_labels_identify_the_member(self) -> None:
        labels = option(self.worker(name="gpu", labels={"zone": "a"}), "--labels")
        assert labels is not None
        assert dict(pair.split("=") for pair in labels.split(",")) == {
            "zone": "a",
            MEMBER_LABEL: "$(member)",
            INCARNATION_LABEL: "$(incarnation)",
            GROUP_LABEL: "gpu",
        }

    def test_every_port_is_passed_to_ray(self) -> None:
        for group in (shape().head, *shape().workers):
            text = " ".join(group.process.argv)
            assert all(f"$(port.{port.name})" in text for port in group.process.ports)
            assert text.count("$(port.") == len(group.process.ports)


class TestSecurity:
    def test_token_is_the_default_and_passed_as_a_path(self) -> None:
        made = shape()
        assert made.secrets == ("token",)
        assert made.dashboard_secret == "token"
        for env in (made.driver_env, made.head.process.env, made.workers[0].process.env):
            assert env["RAY_AUTH_MODE"] == "token"
            assert env["RAY_AUTH_TOKEN_PATH"] == "$(secret.token)"
            assert env["RAY_AUTH_TOKEN"] == ""

    def test_auth_none_overrides_a_token_in_the_environment(self) -> None:
        made = shape(ray={"auth": "none"})
        assert made.secrets == ()
        assert made.dashboard_secret == ""
        assert made.driver_env["RAY_AUTH_MODE"] == made.head.process.env["RAY_AUTH_MODE"] == "disabled"

    def test_usage_statistics_are_off(self) -> None:
        assert "--disable-usage-stats" in shape().head.process.argv


class TestEnvironment:
    def test_ray_init_finds_the_cluster(self) -> None:
        assert shape().driver_env["RAY_ADDRESS"] == "$(head.host):$(head.client)"

    def test_user_variables_override_defaults(self) -> None:
        env = shape(env={"A": "1", "B": "1"}, workers=[{"env": {"B": "2"}}]).workers[0].process.env
        assert (env["A"], env["B"]) == ("1", "2")

    def test_new_head_waits_longer_than_drivers_of_the_old_one(self) -> None:
        made = shape()
        reconnect_timeout = float(made.driver_env["RAY_gcs_rpc_server_reconnect_timeout_s"])
        assert float(made.head.process.env["OARS_RAY_NEW_HEAD_DELAY"]) > reconnect_timeout


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"workers": [{"resources": {"CPU": 1}}]}, "reserved by Ray"),
        ({"workers": [{"resources": {"disk": 0.5}}]}, "whole numbers only"),
        ({"workers": [{"labels": {"a": "b,c=d"}}]}, "labels"),
        ({"workers": [{"labels": {"ray.io/node-id": "x"}}]}, "reserved"),
        ({"ray": {"objectStoreMemory": "10Mi"}}, "at least 80Mi"),
        ({"workers": [{"memory": "1Gi"}], "ray": {"objectStoreMemory": "2Gi"}}, "larger than"),
        (
            {"workers": [{"memory": "1Gi"}], "ray": {"objectStoreMemory": "1Gi"}},
            r"workers\[default\].memory must be larger",
        ),
        ({"head": {"memory": "1Gi"}, "ray": {"objectStoreMemory": "2Gi"}}, r"head.memory must be larger"),
        ({"workers": [{"memory": "64Mi"}]}, "object store, which takes 80Mi"),
    ],
)
def test_unsupported_spec_is_rejected(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        ray.check(spec(**fields))


def test_supported_spec_is_accepted() -> None:
    ray.check(spec(workers=[{"resources": {"disk": 2}, "labels": {"zone": "eu-1"}, "memory": "1Gi"}]))


def node(member: str, incarnation: str, **more: Any) -> dict[str, Any]:
    labels = {MEMBER_LABEL: member, INCARNATION_LABEL: incarnation, "ray.io/node-id": "x"}
    return {"node": f"{member}/{incarnation}", "labels": labels, "address": "127.0.0.1:1", **more}


class FakeWire:
    """A head that has these raylets and accepts drain requests for some of them."""

    def __init__(self, *nodes: dict[str, Any], drainable: tuple[str, ...] = (), error: str = "") -> None:
        self.nodes = list(nodes)
        self.drainable = drainable
        self.error = error
        self.demand: list[dict[str, Any]] = []
        self.requests: list[Mapping[str, Any]] = []
        self.addresses = {HEAD: {"client": "127.0.0.1:20001"}}
        self.incarnations = {HEAD: "1", MemberId("worker-0"): "2", MemberId("worker-1"): "5"}

    def fill(self, text: str) -> str:
        raise NotImplementedError

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        raise NotImplementedError

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = 120.0) -> Any:
        self.requests.append(request)
        if self.error:
            raise EngineUnreachable(self.error)
        if request["op"] == "look":
            return {"nodes": self.nodes, "demand": self.demand}
        return {name: name in self.drainable or request["force"] for name in request["nodes"]}


class TestLook:
    def test_members_are_the_labelled_raylets(self) -> None:
        stranger = {"node": "x", "labels": {}, "address": "10.0.0.1:1"}
        wire = FakeWire(node("head", "1"), node("worker-0", "2", idle=3.5, held=7), stranger)
        view = asyncio.run(ray.look(wire))
        assert view.up and set(view.members) == {"head", "worker-0"}
        worker = view.members[MemberId("worker-0")]
        assert (worker.ready, worker.idle, worker.held, worker.incarnation) == (True, 3.5, 7, "2")

    def test_head_without_its_raylet_is_down(self) -> None:
        view = asyncio.run(ray.look(FakeWire(node("worker-0", "2"))))
        assert not view.up and "raylet" in view.message

    def test_head_without_reply_is_down(self) -> None:
        view = asyncio.run(ray.look(FakeWire(error="refused")))
        assert not view.up and view.message == "refused"

    def test_head_without_address_is_down(self) -> None:
        wire = FakeWire()
        wire.addresses = {}
        assert not asyncio.run(ray.look(wire)).up

    def test_draining_raylet_is_not_ready(self) -> None:
        view = asyncio.run(ray.look(FakeWire(node("head", "1"), node("worker-0", "2", draining=True))))
        assert not view.members[MemberId("worker-0")].ready

    @pytest.mark.parametrize("newer_first", [True, False])
    def test_current_incarnation_of_a_replaced_worker_counts(self, newer_first: bool) -> None:
        both = [node("worker-1", "5"), node("worker-1", "3")]
        wire = FakeWire(node("head", "1"), *(both if newer_first else reversed(both)))
        assert asyncio.run(ray.look(wire)).members[MemberId("worker-1")].incarnation == "5"


class TestDrain:
    def drain(
        self, wire: FakeWire, *members: str, deadline: float = 60, force: bool = False
    ) -> dict[str, tuple[bool, str]]:
        wire.nodes.append(node("head", "1"))
        answers = asyncio.run(ray.drain(wire, [MemberId(m) for m in members], deadline, force))
        return {answer.member: (answer.done, answer.waits_for) for answer in answers}

    def test_drain_is_done_when_ray_accepts_it(self) -> None:
        wire = FakeWire(node("worker-0", "2"), node("worker-1", "5"), drainable=("worker-0/2",))
        answers = self.drain(wire, "worker-0", "worker-1")
        assert answers["worker-0"] == (True, "")
        assert answers["worker-1"][0] is False

    @pytest.mark.parametrize(
        ("activity", "said"),
        [
            (["Resource: CPU currently in use.", "Busy workers on node."], "running tasks"),
            (["Busy workers on node."], "an actor or a running task"),
            (["Resource: object_store_memory currently in use."], "3.0 MiB of objects that are still referenced"),
            ([], "Ray to report it as idle"),
        ],
    )
    def test_drain_reports_what_a_raylet_waits_for(self, activity: list[str], said: str) -> None:
        wire = FakeWire(node("worker-0", "2", activity=activity, held=3 * 2**20))
        done, waits_for = self.drain(wire, "worker-0")["worker-0"]
        assert not done and said in waits_for

    def test_drain_waits_for_spilled_objects(self) -> None:
        """Ray reports one byte for all of them."""
        wire = FakeWire(node("worker-0", "2", activity=["Resource: object_store_memory currently in use."], held=1))
        assert self.drain(wire, "worker-0")["worker-0"] == (False, "objects on its disk that are still referenced")

    def test_dead_incarnation_is_not_drained(self) -> None:
        wire = FakeWire(node("worker-1", "3"))
        assert self.drain(wire, "worker-1") == {"worker-1": (True, "")}
        assert [request["op"] for request in wire.requests] == ["look"]

    def test_drain_by_force(self) -> None:
        wire = FakeWire(node("worker-0", "2", activity=["Busy workers on node."]))
        assert self.drain(wire, "worker-0", force=True) == {"worker-0": (True, "")}
        assert wire.requests[-1]["force"] is True

    @pytest.mark.parametrize(("deadline", "seconds"), [(2.0, 2.0), (600.0, 5.0)])
    def test_one_request_takes_at_most_the_deadline(self, deadline: float, seconds: float) -> None:
        """A longer deadline is several requests: the loop reports what the worker waits for in between."""
        wire = FakeWire(node("worker-0", "2"))
        self.drain(wire, "worker-0", deadline=deadline)
        assert wire.requests[-1]["seconds"] == seconds

    def test_list_without_the_head_proves_nothing(self) -> None:
        """The head has just started: raylets that it does not list yet may hold objects."""
        with pytest.raises(EngineUnreachable):
            asyncio.run(ray.drain(FakeWire(), [MemberId("worker-0")], 60, False))

    def test_drain_without_reply_raises(self) -> None:
        with pytest.raises(EngineUnreachable):
            self.drain(FakeWire(error="refused"), "worker-0")


class TestLink:
    """Ray's directory has a short name in /tmp, which all users share."""

    def test_link_cannot_be_taken_in_advance(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mine = f"test{os.getpid()}"
        names = ["taken", "taken", "free-"]
        monkeypatch.setenv("OARS_TAG", mine)
        monkeypatch.setenv("TMPDIR", "/tmp")
        monkeypatch.setattr("secrets.token_urlsafe", lambda _: names.pop(0))
        paths = [Path(f"/tmp/oars-ray-{mine}{end}") for end in ("", "-taken", "-free-")]
        try:
            for path in paths[:2]:  # by somebody else
                path.symlink_to("nowhere")
            assert launch.shorten(str(tmp_path)) == str(paths[2]) and paths[2].readlink() == tmp_path
            (pattern,) = shape().head.process.litter
            assert fnmatch.fnmatch(str(paths[2]), fill(pattern, {"tag": mine})), "it is removed with the member"
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def test_sockets_fit_below_the_link(self) -> None:
        """At most 107 characters, also after thousands of starts and with the longest process ids."""
        link = f"/tmp/oars-ray-{tag('0' * 32, 9999)}-{'x' * launch.RANDOM_LENGTH}"
        assert len(f"{link}/session_2026-11-18_07-27-39_123456_4194304/sockets/plasma_store-4194304.1") <= 107
