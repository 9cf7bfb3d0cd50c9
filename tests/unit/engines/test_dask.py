"""Dask's shape, and how it reads a scheduler's replies. Starts nothing."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from oars.base.errors import EngineUnreachable, SpecError
from oars.engines.dask import engine
from oars.engines.dask.live import HEAD_HELPER
from oars.model import HEAD, Demand, Drained, DrainOutcome, MemberId, Process, View
from oars.spec.cluster import ClusterSpec
from oars.spec.load import build

TLS = "DASK_DISTRIBUTED__COMM__TLS__"


def spec(**data: Any) -> ClusterSpec:
    return build({"engine": "dask", **data}).spec


def worker(**group: Any) -> Process:
    return engine.shape(spec(workers=[group])).workers[0].process


def option(process: Process, name: str) -> str:
    return process.argv[process.argv.index(name) + 1]


def config_of(process: Process) -> Any:
    return json.loads(base64.urlsafe_b64decode(process.env["DASK_INTERNAL_INHERIT_CONFIG"]))


class TestShape:
    @pytest.mark.parametrize(("cpu", "threads"), [(0.2, "1"), (1, "1"), (1.5, "2"), (8, "8")])
    def test_cpu_sets_the_number_of_threads(self, cpu: float, threads: str) -> None:
        assert option(worker(cpu=cpu), "--nthreads") == threads

    def test_memory_limit_is_in_bytes_or_chosen_by_dask(self) -> None:
        assert option(worker(memory="2Gi"), "--memory-limit") == str(2 * 2**30)
        assert option(worker(), "--memory-limit") == "auto"

    def test_resources_and_gpus_are_passed_to_workers(self) -> None:
        process = worker(resources={"disk": 2.5, "licence": 1}, gpu=2)
        assert option(process, "--resources") == "disk=2.5,licence=1,GPU=2"
        assert "--resources" not in worker().argv

    def test_workers_have_the_name_of_their_member_and_no_nanny(self) -> None:
        process = worker()
        assert option(process, "--name") == "$(member)"
        assert "--no-nanny" in process.argv

    def test_groups_have_their_own_settings(self) -> None:
        shape = engine.shape(spec(workers=[{"name": "a", "replicas": 2, "cpu": 2}, {"name": "b", "env": {"X": "1"}}]))
        a, b = shape.workers
        assert (a.name, a.replicas, a.resources.cpu, b.replicas) == ("a", 2, 2, 1)
        assert "X" not in a.process.env and b.process.env["X"] == "1"

    def test_members_bind_their_own_address(self) -> None:
        shape = engine.shape(spec())
        assert option(shape.head.process, "--host") == "$(bind)"
        assert option(shape.head.process, "--dashboard-address") == "$(bind):$(port.dashboard)"
        assert option(shape.workers[0].process, "--host") == "$(host)"
        assert option(shape.workers[0].process, "--dashboard-address") == "$(bind):$(port.http)"

    def test_tls_is_the_default_and_secrets_are_paths(self) -> None:
        shape = engine.shape(spec())
        assert shape.secrets == ("tls",)
        assert shape.endpoints["client"] == "tls://$(head.host):$(head.client)"
        for env in (shape.head.process.env, shape.workers[0].process.env, shape.driver_env):
            assert env["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "True"
            assert env[f"{TLS}CA_FILE"] == "$(secret.ca.pem)"
            assert env[f"{TLS}CLIENT__KEY"] == "$(secret.key.pem)"
        assert not any("secret" in word for word in shape.head.process.argv)

    def test_tcp_switches_encryption_off(self) -> None:
        shape = engine.shape(spec(dask={"protocol": "tcp"}))
        assert shape.secrets == () and shape.endpoints["client"].startswith("tcp://")
        assert shape.driver_env["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "False"
        assert not any(name.startswith(TLS) for name in shape.driver_env)

    @pytest.mark.parametrize(("protocol", "secrets"), [("tls", ("tls", "token")), ("tcp", ("token",))])
    def test_dashboard_can_require_a_token(self, protocol: str, secrets: tuple[str, ...]) -> None:
        shape = engine.shape(spec(dask={"protocol": protocol, "dashboardAuth": "token"}))
        assert shape.secrets == secrets and shape.dashboard_secret == "token"
        head = shape.head.process
        assert option(head, "--preload") == "$(file.web_guard.py)", "before the scheduler has a web server"
        assert "web_guard.py" in head.files and "OARS_TOKEN_FILE" not in shape.workers[0].process.env
        assert engine.shape(spec()).dashboard_secret == ""

    def test_jupyter_requires_the_token(self) -> None:
        shape = engine.shape(spec(dask={"protocol": "tcp", "jupyter": True}))
        head = shape.head.process
        assert shape.secrets == ("token",) and shape.dashboard_secret == "", "Jupyter has a login of its own"
        assert "--jupyter" in head.argv and option(head, "--preload") == "$(file.jupyter_guard.py)"
        assert "jupyter_guard.py" in head.files and head.env["OARS_TOKEN_FILE"] == "$(secret.token)"
        assert shape.driver_env["OARS_TOKEN_FILE"] == "$(secret.token)", "for the link"
        with pytest.raises(SpecError, match="behind a dashboard that requires the token"):
            engine.check(spec(dask={"jupyter": True, "dashboardAuth": "token"}))

    @pytest.mark.parametrize("auth", ["none", "token"])
    def test_members_can_share_a_fork_server(self, auth: str) -> None:
        """They differ only in variables that Dask does not read when it is imported."""
        shape = engine.shape(spec(dask={"dashboardAuth": auth}))
        early = [
            {name: value for name, value in process.env.items() if name not in process.late_env}
            for process in (shape.head.process, shape.workers[0].process)
        ]
        assert early[0] == early[1] and shape.head.process.preload == shape.workers[0].process.preload
        assert set(shape.head.process.late_env) <= set(shape.head.process.env)

    def test_configuration_is_passed_to_members_and_driver(self) -> None:
        config = {"distributed": {"scheduler": {"work-stealing": False}}, "array": {"chunk-size": "8MiB"}}
        shape = engine.shape(spec(dask={"config": config}))
        assert config_of(shape.head.process) == config_of(shape.workers[0].process) == config
        assert shape.driver_env.keys() == engine.shape(spec()).driver_env.keys() | {"DASK_INTERNAL_INHERIT_CONFIG"}

    @pytest.mark.parametrize("named", ["mine", ["mine", "yours"]])
    def test_preloads_of_the_configuration_are_kept(self, named: str | list[str]) -> None:
        shape = engine.shape(spec(dask={"config": {"distributed": {"scheduler": {"preload": named}}}}))
        argv = shape.head.process.argv
        loaded = [argv[number + 1] for number, word in enumerate(argv) if word == "--preload"]
        own = ["$(file.oars_scheduler.py)", "$(file.oars_drain.py)"]
        assert loaded == [*own, *([named] if isinstance(named, str) else named)]

    def test_user_variables_override_defaults(self) -> None:
        shape = engine.shape(spec(env={"OMP_NUM_THREADS": "4"}, head={"env": {"OMP_NUM_THREADS": "2"}}))
        assert shape.head.process.env["OMP_NUM_THREADS"] == "2"
        assert shape.workers[0].process.env["OMP_NUM_THREADS"] == "4"
        assert worker().env["OMP_NUM_THREADS"] == "1"

    def test_files_contain_no_placeholders(self) -> None:
        shape = engine.shape(spec())
        assert not any("$(" in text for text in shape.head.process.files.values())

    def test_pins_match_the_optional_dependency(self) -> None:
        project = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text())
        assert list(engine.needs(spec()).requirements) == project["project"]["optional-dependencies"]["dask"]


class TestCheck:
    @pytest.mark.parametrize(
        ("data", "words"),
        [
            ({"workers": [{"labels": {"a": "b"}}]}, "labels"),
            ({"workers": [{"gpu": 1, "resources": {"GPU": 1}}]}, "GPU"),
            ({"dask": {"config": {"distributed": 3}}}, "dask.config.distributed"),
            ({"dask": {"config": {"array": {"chunk-size": float("nan")}}}}, "dask.config"),
        ],
    )
    def test_unsupported_spec_is_rejected(self, data: Mapping[str, Any], words: str) -> None:
        with pytest.raises(SpecError, match=words):
            engine.check(spec(**data))

    def test_supported_spec_is_accepted(self) -> None:
        engine.check(
            spec(workers=[{"gpu": 1, "resources": {"disk": 1}}], dask={"config": {"array.chunk-size": "1MiB"}})
        )


class FakeWire:
    """A head at 127.0.0.1:1 with its dashboard at 127.0.0.1:2."""

    def __init__(self, page: bytes | Exception = b"", answer: Any = None) -> None:
        self.addresses = {HEAD: {"client": "127.0.0.1:1", "dashboard": "127.0.0.1:2"}}
        self.incarnations: Mapping[MemberId, str] = {}
        self.requests: list[tuple[str, Mapping[str, Any]]] = []
        self._page, self._answer = page, answer

    def fill(self, text: str) -> str:
        return text

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        assert (port, path, method) == ("dashboard", "/oars/members.json", "GET")
        if isinstance(self._page, Exception):
            raise self._page
        return self._page

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = 120.0) -> Any:
        self.requests.append((script, request))
        self.seconds = seconds
        return self._answer


def look(page: bytes | Exception) -> View:
    return asyncio.run(engine.look(FakeWire(page)))


def page(*statuses: str, address: str = "tls://127.0.0.1:1") -> bytes:
    workers = [
        {"name": f"worker-{n}", "address": f"tls://127.0.0.1:{9 + n}", "status": status, "idle": 1.5, "held": n}
        | {"incarnation": str(n), "pinned": n == 1}
        | ({"tasks": 5} if n else {})
        for n, status in enumerate(statuses)
    ]
    demand = [{"needs": {"cpu": 1, "GPU": 2}, "count": 3, "running": 1, "seconds": 0.5}]
    return json.dumps({"address": address, "workers": workers, "demand": demand if statuses else []}).encode()


class TestLook:
    def test_members_have_state_and_incarnation(self) -> None:
        view = look(page("running", "paused", "closing_gracefully"))
        assert view.up and [m.ready for m in view.members.values()] == [True, True, False]
        member = view.members[MemberId("worker-1")]
        assert (member.address, member.idle, member.held, member.incarnation) == ("tls://127.0.0.1:10", 1.5, 1, "1")
        assert member.tasks == 5 and view.members[MemberId("worker-0")].tasks is None, "of a head that is older"
        assert member.pinned and not view.members[MemberId("worker-0")].pinned

    def test_demand_uses_the_names_of_oars(self) -> None:
        assert look(page("running")).demand == (Demand({"cpu": 1, "gpu": 2}, 3, running=1, seconds=0.5),)

    def test_head_without_workers_is_up(self) -> None:
        assert look(page()) == View(up=True, demand=())

    def test_head_without_reply_is_down(self) -> None:
        assert look(EngineUnreachable("refused")) == View(message="refused")

    @pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"{}", b'{"address": 1, "workers": []}', b"\xff"])
    def test_reply_of_another_program_is_rejected(self, content: bytes) -> None:
        view = look(content)
        assert not view.up and "not a scheduler started by Oars" in view.message

    def test_reply_of_another_scheduler_is_rejected(self) -> None:
        view = look(page("running", address="tls://127.0.0.1:77"))
        assert not view.up and "another scheduler" in view.message


class TestDrain:
    def test_drain_passes_the_deadline_and_returns_obstacles(self) -> None:
        wire = FakeWire(answer={"worker-0": "", "worker-1": "1 running task (sleep)"})
        members = [MemberId("worker-0"), MemberId("worker-1")]
        answers = asyncio.run(engine.drain(wire, members, 300, force=False))
        assert answers == [
            Drained(members[0], DrainOutcome.FINISHED),
            Drained(members[1], DrainOutcome.REFUSED, "1 running task (sleep)"),
        ]
        ((script, request),) = wire.requests
        assert script == HEAD_HELPER and request["names"] == members and not request["force"]
        assert request["seconds"] == 300 and wire.seconds > 300

    @pytest.mark.parametrize("answer", [None, "", [], {"worker-0": True}, {"worker-0": None}, {"another": ""}])
    def test_drain_rejects_replies_of_other_programs(self, answer: object) -> None:
        with pytest.raises(EngineUnreachable, match="not that of Oars"):
            asyncio.run(engine.drain(FakeWire(answer=answer), [MemberId("worker-0")], 60, force=False))

    def test_unknown_worker_is_drained(self) -> None:
        assert asyncio.run(engine.drain(FakeWire(answer={}), [MemberId("w")], 60, force=False)) == [
            Drained(MemberId("w"), DrainOutcome.FINISHED)
        ]


def test_import_of_the_engine_imports_neither_dask_nor_pydantic() -> None:
    code = "import sys, oars.engines.dask.session; print({'dask', 'distributed', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "set()"
