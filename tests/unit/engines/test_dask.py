"""Dask's shape and what it makes of a scheduler's answers; nothing is started."""

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
from oars.engines.dask.scripts import HEAD_HELPER
from oars.model import HEAD, Drained, MemberId, Process, View
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
    def test_processors_are_threads(self, cpu: float, threads: str) -> None:
        assert option(worker(cpu=cpu), "--nthreads") == threads

    def test_memory_is_given_in_bytes_or_left_to_dask(self) -> None:
        assert option(worker(memory="2Gi"), "--memory-limit") == str(2 * 2**30)
        assert option(worker(), "--memory-limit") == "auto"

    def test_resources_and_graphics_processors(self) -> None:
        process = worker(resources={"disk": 2.5, "licence": 1}, gpu=2)
        assert option(process, "--resources") == "disk=2.5,licence=1,GPU=2"
        assert "--resources" not in worker().argv

    def test_workers_are_named_after_their_member_and_have_no_nanny(self) -> None:
        process = worker()
        assert option(process, "--name") == "$(member)"
        assert "--no-nanny" in process.argv

    def test_groups_differ(self) -> None:
        shape = engine.shape(spec(workers=[{"name": "a", "replicas": 2, "cpu": 2}, {"name": "b", "env": {"X": "1"}}]))
        a, b = shape.workers
        assert (a.name, a.replicas, a.resources.cpu, b.replicas) == ("a", 2, 2, 1)
        assert "X" not in a.process.env and b.process.env["X"] == "1"

    def test_everything_binds_the_member_s_own_address(self) -> None:
        shape = engine.shape(spec())
        assert option(shape.head.process, "--host") == "$(bind)"
        assert option(shape.head.process, "--dashboard-address") == "$(bind):$(port.dashboard)"
        assert option(shape.workers[0].process, "--host") == "$(host)"
        assert option(shape.workers[0].process, "--dashboard-address") == "$(bind):$(port.http)"

    def test_tls_by_default_by_paths_only(self) -> None:
        shape = engine.shape(spec())
        assert shape.secrets == ("tls",)
        assert shape.endpoints["client"] == "tls://$(head.host):$(head.client)"
        for env in (shape.head.process.env, shape.workers[0].process.env, shape.driver_env):
            assert env["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "True"
            assert env[f"{TLS}CA_FILE"] == "$(secret.ca.pem)"
            assert env[f"{TLS}CLIENT__KEY"] == "$(secret.key.pem)"
        assert not any("secret" in word for word in shape.head.process.argv)

    def test_tcp_says_that_there_is_no_encryption(self) -> None:
        shape = engine.shape(spec(dask={"protocol": "tcp"}))
        assert shape.secrets == () and shape.endpoints["client"].startswith("tcp://")
        assert shape.driver_env["DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION"] == "False"
        assert not any(name.startswith(TLS) for name in shape.driver_env)

    def test_members_differ_only_in_what_is_read_late(self) -> None:
        """So that one Python with Dask imported serves all of them."""
        shape = engine.shape(spec())
        head, other = shape.head.process, shape.workers[0].process
        assert head.env == other.env and head.preload == other.preload
        assert set(head.late_env) <= set(head.env)

    def test_configuration_reaches_members_and_driver(self) -> None:
        config = {"distributed": {"scheduler": {"work-stealing": False}}, "array": {"chunk-size": "8MiB"}}
        shape = engine.shape(spec(dask={"config": config}))
        assert config_of(shape.head.process) == config_of(shape.workers[0].process) == config
        assert shape.driver_env.keys() == engine.shape(spec()).driver_env.keys() | {"DASK_INTERNAL_INHERIT_CONFIG"}

    @pytest.mark.parametrize("named", ["mine", ["mine", "yours"]])
    def test_preloads_of_the_configuration_are_kept(self, named: str | list[str]) -> None:
        shape = engine.shape(spec(dask={"config": {"distributed": {"scheduler": {"preload": named}}}}))
        argv = shape.head.process.argv
        loaded = [argv[number + 1] for number, word in enumerate(argv) if word == "--preload"]
        assert loaded == ["$(file.oars_scheduler.py)", *([named] if isinstance(named, str) else named)]

    def test_the_user_s_variables_win(self) -> None:
        shape = engine.shape(spec(env={"OMP_NUM_THREADS": "4"}, head={"env": {"OMP_NUM_THREADS": "2"}}))
        assert shape.head.process.env["OMP_NUM_THREADS"] == "2"
        assert shape.workers[0].process.env["OMP_NUM_THREADS"] == "4"
        assert worker().env["OMP_NUM_THREADS"] == "1"

    def test_files_hold_no_placeholders(self) -> None:
        shape = engine.shape(spec())
        assert not any("$(" in text for text in shape.head.process.files.values())

    def test_pins_are_those_of_the_extra(self) -> None:
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
    def test_what_dask_cannot_do(self, data: Mapping[str, Any], words: str) -> None:
        with pytest.raises(SpecError, match=words):
            engine.check(spec(**data))

    def test_what_it_can(self) -> None:
        engine.check(
            spec(workers=[{"gpu": 1, "resources": {"disk": 1}}], dask={"config": {"array.chunk-size": "1MiB"}})
        )


class FakeWire:
    """A head at 127.0.0.1:1 with its dashboard at 127.0.0.1:2."""

    def __init__(self, page: bytes | Exception = b"", answer: Any = None) -> None:
        self.addresses = {HEAD: {"client": "127.0.0.1:1", "dashboard": "127.0.0.1:2"}}
        self.incarnations: Mapping[MemberId, str] = {}
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self._page, self._answer = page, answer

    @property
    def answering(self) -> frozenset[MemberId]:
        return frozenset(self.incarnations)

    def fill(self, text: str) -> str:
        return text

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        assert (port, path, method) == ("dashboard", "/oars/members.json", "GET")
        if isinstance(self._page, Exception):
            raise self._page
        return self._page

    async def ask(self, script: str, request: Mapping[str, Any]) -> Any:
        self.asked.append((script, request))
        return self._answer


def look(page: bytes | Exception) -> View:
    return asyncio.run(engine.look(FakeWire(page)))


def page(*statuses: str, address: str = "tls://127.0.0.1:1") -> bytes:
    workers = [
        {"name": f"worker-{n}", "address": f"tls://127.0.0.1:{9 + n}", "status": status, "idle": 1.5, "held": n}
        | {"incarnation": str(n)}
        for n, status in enumerate(statuses)
    ]
    return json.dumps({"address": address, "workers": workers}).encode()


class TestLook:
    def test_who_is_there(self) -> None:
        view = look(page("running", "paused", "closing_gracefully"))
        assert view.up and [m.ready for m in view.members.values()] == [True, True, False]
        member = view.members[MemberId("worker-1")]
        assert (member.address, member.idle, member.held, member.incarnation) == ("tls://127.0.0.1:10", 1.5, 1, "1")

    def test_no_workers_yet(self) -> None:
        assert look(page()) == View(up=True)

    def test_nobody_answers(self) -> None:
        assert look(EngineUnreachable("refused")) == View(message="refused")

    @pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"{}", b'{"address": 1, "workers": []}', b"\xff"])
    def test_somebody_else_answers(self, content: bytes) -> None:
        view = look(content)
        assert not view.up and "no scheduler of Oars" in view.message

    def test_another_scheduler_answers(self) -> None:
        view = look(page("running", address="tls://127.0.0.1:77"))
        assert not view.up and "another scheduler" in view.message


class TestDrain:
    def test_what_the_scheduler_says_is_passed_on(self) -> None:
        wire = FakeWire(answer={"worker-0": "", "worker-1": "1 running task (sleep)"})
        members = [MemberId("worker-0"), MemberId("worker-1")]
        answers = asyncio.run(engine.drain(wire, members, force=False))
        assert answers == [Drained(members[0], True), Drained(members[1], False, "1 running task (sleep)")]
        ((script, request),) = wire.asked
        assert script == HEAD_HELPER and request["names"] == members and not request["force"]

    @pytest.mark.parametrize("answer", [None, "", [], {"worker-0": True}, {"worker-0": None}, {"another": ""}])
    def test_nobody_goes_by_an_answer_that_is_not_the_scheduler_s(self, answer: object) -> None:
        with pytest.raises(EngineUnreachable, match="not as Oars"):
            asyncio.run(engine.drain(FakeWire(answer=answer), [MemberId("worker-0")], force=False))

    def test_one_that_the_scheduler_does_not_know_may_go(self) -> None:
        assert asyncio.run(engine.drain(FakeWire(answer={}), [MemberId("w")], force=False)) == [
            Drained(MemberId("w"), True)
        ]


def test_importing_the_engine_does_not_import_dask_nor_pydantic() -> None:
    code = "import sys, oars.engines.dask.session; print({'dask', 'distributed', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "set()"
