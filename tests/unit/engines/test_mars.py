"""Mars' shape, what it makes of a supervisor's answers, and the executor on a desk without Mars; nothing is started."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from oars.base.errors import ClusterLost, EngineUnreachable, SpecError
from oars.engines.mars import engine, executor
from oars.engines.mars.executor import Desk, MarsExecutor, RemoteTraceback, Worker
from oars.engines.mars.shape import LATE_ENV
from oars.model import HEAD, Drained, MemberId, MemberView, Process, View
from oars.spec.cluster import ClusterSpec
from oars.spec.load import build


def spec(**data: Any) -> ClusterSpec:
    return build({"engine": "mars", **data}).spec


def worker(**group: Any) -> Process:
    return engine.shape(spec(workers=[group])).workers[0].process


def head(**data: Any) -> Process:
    return engine.shape(spec(**data)).head.process


def option(process: Process, name: str) -> str:
    return process.argv[process.argv.index(name) + 1]


def config(process: Process) -> Any:
    return json.loads(process.files["config.yml"].replace("$(port.web)", "1"))


class TestShape:
    @pytest.mark.parametrize(("cpu", "slots"), [(0.2, 1), (1, 1), (1.5, 2), (8, 8)])
    def test_a_process_for_each_processor_and_one_for_transfers(self, cpu: float, slots: int) -> None:
        process = worker(cpu=cpu)
        assert option(process, "--n-cpu") == process.env["MARS_CPU_TOTAL"] == str(slots)
        assert [port.name for port in process.ports] == ["worker", "joined", *(f"sub{n}" for n in range(slots + 1))]
        assert option(process, "-p") == ",".join(f"$(port.sub{n})" for n in range(slots + 1))

    def test_no_two_ports_of_a_member_are_the_same_where_it_has_its_own_address(self) -> None:
        for process in (head(head={"cpu": 4}), worker(cpu=4)):
            defaults = [port.default for port in process.ports]
            assert len(set(defaults)) == len(defaults)

    def test_the_supervisor_is_one_process_unless_it_is_given_more(self) -> None:
        assert option(head(), "--n-process") == "0" and "-p" not in head().argv
        assert option(head(head={"cpu": 3}), "-p") == "$(port.sub0),$(port.sub1)"

    def test_memory_is_told_twice_or_left_to_mars(self) -> None:
        process = worker(memory="2Gi")
        assert option(process, "--mem-bytes") == process.env["MARS_MEMORY_TOTAL"] == str(2 * 2**30)
        assert "--mem-bytes" not in worker().argv and "MARS_MEMORY_TOTAL" not in worker().env

    def test_graphics_processors_are_hidden_from_those_who_have_none(self) -> None:
        assert worker().env["CUDA_VISIBLE_DEVICES"] == "" and option(worker(), "--cuda-devices") == ""
        process = worker(gpu=2)
        assert option(process, "--cuda-devices") == "0,1" and "CUDA_VISIBLE_DEVICES" not in process.env
        assert len(process.ports) == 2 + 1 + 2 + 1

    def test_everything_binds_the_member_s_own_address(self) -> None:
        assert option(head(), "-e") == "$(host):$(port.supervisor)"
        assert option(worker(), "-e") == "$(host):$(port.worker)"
        assert option(worker(), "--joined") == "$(host):$(port.joined)"
        assert config(head())["web"]["host"] == "$(bind)"
        assert "$(port.web)," in head().files["config.yml"], "the port must be a number in YAML"

    def test_configuration_is_merged_and_reaches_everyone(self) -> None:
        given = {"scheduling": {"mem_quota_size": "50%"}, "cluster": {"node_timeout": 7}}
        shape = engine.shape(spec(mars={"config": given}))
        for process in (shape.head.process, shape.workers[0].process):
            found = config(process)
            assert found["@inherits"] == "@default" and found["cluster"] == {"node_timeout": 7}
            assert found["scheduling"] == {"mem_quota_size": "50%", "submit_period": 0.5}
        assert "web" not in config(shape.workers[0].process)

    @pytest.mark.parametrize(("distribution", "package"), [("xorbits", "xorbits._mars."), ("pymars", "mars.")])
    def test_both_distributions(self, distribution: str, package: str) -> None:
        shape = engine.shape(spec(mars={"distribution": distribution}))
        assert shape.driver_env == {"OARS_MARS_DISTRIBUTION": distribution}
        assert shape.endpoints["client"] == shape.endpoints["dashboard"] == "http://$(head.host):$(head.web)"
        for process in (shape.head.process, shape.workers[0].process):
            assert process.argv[process.argv.index("--") + 1] == distribution
            assert f"{package}deploy.oscar.worker" in process.preload
            assert all(name.startswith((package, "sqlalchemy", "uvloop")) for name in process.preload)

    def test_members_differ_only_in_what_is_read_late(self) -> None:
        """So that one Python with Mars imported serves all of them."""
        shape = engine.shape(spec(head={"cpu": 2, "memory": "1Gi"}, workers=[{"cpu": 3}, {"name": "gpu", "gpu": 1}]))
        processes = [shape.head.process, *(group.process for group in shape.workers)]
        early = [{n: v for n, v in process.env.items() if n not in LATE_ENV} for process in processes]
        assert early[0] == early[1] == early[2]
        assert len({process.preload for process in processes}) == 1

    def test_the_user_s_variables_win(self) -> None:
        shape = engine.shape(spec(env={"OMP_NUM_THREADS": "4"}, head={"env": {"OMP_NUM_THREADS": "2"}}))
        assert shape.head.process.env["OMP_NUM_THREADS"] == "2"
        assert shape.workers[0].process.env["OMP_NUM_THREADS"] == "4"
        assert worker().env["OMP_NUM_THREADS"] == "1"

    def test_litter_can_only_be_a_member_s_own(self) -> None:
        assert all("/oars-$(tag)-*" in pattern or "/sem.oars-$(tag)-*" in pattern for pattern in worker().litter)

    def test_pins_are_those_of_the_extra(self) -> None:
        project = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text())
        assert list(engine.needs(spec()).requirements) == project["project"]["optional-dependencies"]["mars"]
        needs = engine.needs(spec(mars={"distribution": "pymars"}))
        assert needs.distribution == "pymars" and "cython<3" in needs.build_requirements


class TestCheck:
    @pytest.mark.parametrize(
        ("data", "words"),
        [
            ({"workers": [{"labels": {"a": "b"}}]}, "labels"),
            ({"workers": [{"resources": {"disk": 1}}]}, "resources"),
            ({"mars": {"config": {"web": {"port": 1}}}}, "mars.config.web.port"),
        ],
    )
    def test_what_mars_cannot_do(self, data: Mapping[str, Any], words: str) -> None:
        with pytest.raises(SpecError, match=words):
            engine.check(spec(**data))

    def test_what_it_can(self) -> None:
        engine.check(spec(workers=[{"gpu": 1}], mars={"config": {"web": {"debug": True}}}))


class FakeWire:
    """A head at 127.0.0.1:1 and two workers, each started for the second time."""

    def __init__(self, pages: Mapping[str, Any] | Exception) -> None:
        self.addresses = {
            HEAD: {"supervisor": "127.0.0.1:1", "web": "127.0.0.1:2"},
            MemberId("worker-0"): {"worker": "127.0.0.1:10", "sub0": "127.0.0.1:11"},
            MemberId("worker-1"): {"worker": "127.0.0.1:20", "sub0": "127.0.0.1:21"},
        }
        self.incarnations = dict.fromkeys(self.addresses, "2")
        self.posted: list[tuple[str, Any]] = []
        self._pages = pages

    @property
    def answering(self) -> frozenset[MemberId]:
        return frozenset(self.incarnations)

    def fill(self, text: str) -> str:
        return text

    async def http(self, port: str, path: str, *, method: str = "GET", body: bytes = b"") -> bytes:
        assert port == "web"
        if isinstance(self._pages, Exception):
            raise self._pages
        if method == "POST":
            self.posted.append((path, json.loads(body)))
        page = self._pages[path]
        return page if isinstance(page, bytes) else json.dumps(page).encode()

    async def ask(self, script: str, request: Mapping[str, Any]) -> Any:
        raise AssertionError("there is nothing beside the head")


@dataclass(frozen=True)
class Node:
    who: str
    status: str = "READY"
    age: float = 0.5
    idle: float = 3.0
    held: int = 7


def wire(**nodes: Node) -> FakeWire:
    """Nodes by the last part of their port: n10=Node(…)."""
    found = {"n1": Node("head:2"), **nodes}
    page = {f"127.0.0.1:{name[1:]}": vars(node) for name, node in found.items()}
    return FakeWire({"/api/oars/nodes": page})


def look(at: FakeWire) -> View:
    return asyncio.run(engine.look(at))


class TestLook:
    def test_who_is_there(self) -> None:
        at = wire(n10=Node("worker-0:2"), n20=Node("worker-1:2", "STOPPING"))
        view = look(at)
        assert view.up and not at.posted
        assert view.members[MemberId("worker-0")] == MemberView(True, "127.0.0.1:10", 3.0, 7, "2")
        assert not view.members[MemberId("worker-1")].ready

    def test_an_older_one_at_the_same_address_does_not_count_and_is_dropped(self) -> None:
        at = wire(n10=Node("worker-0:1"), n20=Node("worker-1:2"))
        assert set(look(at).members) == {HEAD, "worker-1"}
        assert at.posted == [("/api/oars/nodes", {"STOPPED": {"127.0.0.1:10": "worker-0:1"}, "READY": {}})]

    def test_one_that_was_removed_is_dropped(self) -> None:
        at = wire(n30=Node("worker-2:1", "STOPPING"))
        look(at)
        assert at.posted == [("/api/oars/nodes", {"STOPPED": {"127.0.0.1:30": "worker-2:1"}, "READY": {}})]

    def test_one_that_fell_silent_is_not_ready(self) -> None:
        at = wire(n10=Node("worker-0:2", age=11.0))
        assert not look(at).members[MemberId("worker-0")].ready
        assert at.posted[0][1]["STOPPED"] == {"127.0.0.1:10": "worker-0:2"}

    def test_one_that_mars_gave_up_though_it_speaks_is_taken_back(self) -> None:
        at = wire(n1=Node("head:2", "STOPPED"), n10=Node("worker-0:2", "STOPPED"))
        view = look(at)
        assert view.up and not view.members[MemberId("worker-0")].ready
        ready = {"127.0.0.1:1": "head:2", "127.0.0.1:10": "worker-0:2"}
        assert at.posted == [("/api/oars/nodes", {"STOPPED": {}, "READY": ready})]

    def test_what_is_gone_for_good_is_left_alone(self) -> None:
        at = wire(n10=Node("worker-0:2"), n30=Node("worker-2:1", "STOPPED", age=99.0))
        assert set(look(at).members) == {HEAD, "worker-0"} and not at.posted

    def test_another_supervisor_answers(self) -> None:
        for who in ("head:1", "", "nobody"):
            view = look(wire(n1=Node(who)))
            assert not view.up and "supervisor" in view.message

    def test_nobody_answers(self) -> None:
        assert look(FakeWire(EngineUnreachable("refused"))) == View(message="refused")

    @pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"a": 1}', b'{"a": {}}', b"\xff"])
    def test_somebody_else_answers(self, content: bytes) -> None:
        view = look(FakeWire({"/api/oars/nodes": content}))
        assert not view.up and "not Mars as Oars starts it" in view.message


def test_drain_passes_on_what_the_supervisor_says() -> None:
    at = FakeWire({"/api/oars/leave": {"127.0.0.1:10": "", "127.0.0.1:20": "work that still runs on it"}})
    members = [MemberId("worker-0"), MemberId("worker-1"), MemberId("worker-9")]
    assert asyncio.run(engine.drain(at, members, force=False)) == [
        Drained(members[0], True),
        Drained(members[1], False, "work that still runs on it"),
        Drained(members[2], True),
    ]
    assert at.posted == [("/api/oars/leave", {"workers": ["127.0.0.1:10", "127.0.0.1:20"], "force": False})]


STRANGE = [
    b"",
    b"<html>",
    b"[]",
    b"null",
    b'{"127.0.0.1:10": ',
    b"\xff",
    b'{"127.0.0.1:10": null}',
    b'{"error": "busy"}',
]


@pytest.mark.parametrize("content", STRANGE)
def test_what_is_no_answer_lets_nobody_go(content: bytes) -> None:
    with pytest.raises(EngineUnreachable, match="not Mars as Oars starts it"):
        asyncio.run(engine.drain(FakeWire({"/api/oars/leave": content}), [MemberId("worker-0")], force=False))


def test_a_worker_that_the_supervisor_does_not_know_may_go() -> None:
    at = FakeWire({"/api/oars/leave": {}})
    assert asyncio.run(engine.drain(at, [MemberId("worker-0")], force=False)) == [Drained(MemberId("worker-0"), True)]


@dataclass
class FakeMars:
    """Runs what is spawned, each parcel in the caller's thread, and remembers where and how many calls it held."""

    workers: Mapping[str, Worker] = field(default_factory=lambda: {"a": Worker(1.0, 0.0), "b": Worker(1.0, 0.0)})
    alive: bool = True
    fails: list[Exception] = field(default_factory=list)
    parcels: list[tuple[str, int]] = field(default_factory=list)
    renewed: int = 0
    closed: int = 0
    gate: threading.Event = field(default_factory=threading.Event)

    def desk(self) -> Desk:
        return Desk("demo", self, self.spawn, lambda: self.workers, lambda: self.alive, self.close, self.renew)

    def spawn(self, run: Callable[..., bytes], args: tuple[Any, ...], expect_worker: str) -> Any:
        return run, args, expect_worker

    def execute(self, remote: Any, show_progress: bool) -> None:
        self.gate.wait(10)
        self.parcels.append((remote[2], len(pickle.loads(remote[1][0]))))
        if self.fails:
            raise self.fails.pop(0)

    def fetch(self, remote: Any) -> bytes:
        run, args, _ = remote
        return bytes(run(*args))

    def renew(self) -> Desk:
        self.renewed += 1
        self.alive = True
        return self.desk()

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def mars() -> Iterator[FakeMars]:
    fake = FakeMars()
    fake.gate.set()
    yield fake
    fake.gate.set()


class NoMatchingSlots(Exception):
    """Mars' own, by name."""


class TestExecutor:
    def test_results_errors_and_where_they_came_from(self, mars: FakeMars) -> None:
        with MarsExecutor(mars.desk()) as ex:
            assert ex.submit(pow, 2, 10).result(5) == 1024
            error = ex.submit(lambda: 1 // 0).exception(5)
            assert isinstance(error, ZeroDivisionError) and isinstance(error.__cause__, RemoteTraceback)
            assert "1 // 0" in str(error.__cause__) or "<lambda>" in str(error.__cause__)
            assert list(ex.map(lambda a, b: a + b, [1, 2], [3, 4], timeout=5)) == [4, 6]
        assert mars.closed == 1

    def test_short_calls_travel_together(self, mars: FakeMars) -> None:
        mars.gate.clear()
        with MarsExecutor(mars.desk()) as ex:
            answers = ex.map(abs, range(-5000, 0), timeout=20)
            mars.gate.set()
            assert list(answers) == list(range(5000, 0, -1))
        assert len(mars.parcels) < 20

    def test_the_first_of_a_kind_travels_alone_and_so_do_long_ones(self, mars: FakeMars) -> None:
        with MarsExecutor(mars.desk()) as ex:
            list(ex.map(time.sleep, [0.3] * 4, timeout=20))
        assert [size for _, size in mars.parcels] == [1, 1, 1, 1]
        assert sorted(place for place, _ in mars.parcels) == ["a", "a", "b", "b"]

    def test_what_a_parcel_has_no_time_for_is_sent_again(self, mars: FakeMars, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(executor, "PARCEL_SECONDS", 0.02)
        mars.workers = {"a": Worker(0.5, 0.0)}
        with MarsExecutor(mars.desk()) as ex:
            list(ex.map(time.sleep, [0.0] * 50, timeout=20))
            mars.parcels.clear()
            done = [f.result() for f in as_completed([ex.submit(time.sleep, 0.05) for _ in range(6)], 20)]
        assert done == [None] * 6 and len(mars.parcels) >= 3

    def test_waiting_calls_can_be_cancelled(self, mars: FakeMars) -> None:
        mars.gate.clear()
        ex = MarsExecutor(mars.desk())
        futures = [ex.submit(abs, -1) for _ in range(20)]
        assert futures[-1].cancel()
        ex.shutdown(wait=False, cancel_futures=True)
        mars.gate.set()
        ex.shutdown()
        assert all(future.done() for future in futures) and mars.closed == 1
        assert {future.result() for future in futures if not future.cancelled()} <= {1}
        with pytest.raises(RuntimeError, match="after shutdown"):
            ex.submit(abs, 1)

    def test_one_that_cannot_be_sent_does_not_harm_the_others(self, mars: FakeMars) -> None:
        with MarsExecutor(mars.desk()) as ex:
            list(ex.map(repr, range(50), timeout=10))
            mars.gate.clear()
            futures = [ex.submit(repr, x) for x in (1, 2, threading.Lock(), 3, 4, 5, 6, 7)]
            mars.gate.set()
            assert [f.exception(5) is None for f in futures] == [True, True, False, *[True] * 5]

    def test_what_mars_did_not_run_is_sent_to_another(self, mars: FakeMars) -> None:
        mars.fails = [NoMatchingSlots("cpu")]
        with MarsExecutor(mars.desk()) as ex:
            assert ex.submit(abs, -1).result(5) == 1
        assert [place for place, _ in mars.parcels] == ["a", "b"]

    def test_a_call_waits_for_a_worker(self, mars: FakeMars) -> None:
        mars.workers = {}
        with MarsExecutor(mars.desk()) as ex:
            future = ex.submit(abs, -1)
            assert not wait([future], 0.3).done
            mars.workers = {"c": Worker(1.0, 0.0)}
            assert future.result(5) == 1

    def test_a_page_that_fails_once_fails_no_call(self, mars: FakeMars) -> None:
        stumbles = [OSError("not JSON")] * 2

        def workers() -> Mapping[str, Worker]:
            if stumbles:
                raise stumbles.pop()
            return mars.workers

        with MarsExecutor(replace(mars.desk(), workers=workers)) as ex:
            assert ex.submit(abs, -1).result(5) == 1
        assert not stumbles

    def test_a_call_does_not_wait_for_ever(self, mars: FakeMars, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(executor, "WORKER_SECONDS", 0.3)
        mars.workers = {}
        with MarsExecutor(mars.desk()) as ex:
            error = ex.submit(abs, -1).exception(5)
        assert isinstance(error, ClusterLost) and "no worker within" in str(error)

    def test_a_lost_worker_fails_its_call_and_gets_no_other_until_it_speaks_again(self, mars: FakeMars) -> None:
        mars.fails = [ConnectionRefusedError("gone")]
        with MarsExecutor(mars.desk()) as ex:
            error = ex.submit(abs, -1).exception(5)
            assert isinstance(error, ClusterLost) and "Submit the call again" in error.hint
            assert [ex.submit(abs, n).result(5) for n in range(4)] == [0, 1, 2, 3]
            assert [place for place, _ in mars.parcels] == ["a", "b", "b", "b", "b"]
            mars.workers = {"a": Worker(1.0, 1.0)}
            mars.fails = [ConnectionRefusedError("gone")]
            assert ex.submit(abs, -1).exception(5)
            assert ex.submit(abs, -5).result(5) == 5
            assert mars.parcels[-1][0] == "a"
        assert mars.renewed == 0

    def test_a_lost_cluster_fails_all_that_was_submitted_and_then_is_used_again(self, mars: FakeMars) -> None:
        mars.gate.clear()
        with MarsExecutor(mars.desk()) as ex:
            futures = [ex.submit(abs, n) for n in range(20)]
            mars.alive, mars.fails = False, [ConnectionResetError("gone")] * 4
            mars.gate.set()
            errors = [future.exception(5) for future in futures]
            assert any(isinstance(error, ClusterLost) and "'demo' went away" in str(error) for error in errors)
            mars.fails.clear()
            assert ex.submit(abs, -3).result(5) == 3
        assert mars.renewed >= 1


def test_a_call_is_of_one_kind_whatever_it_is_called_with() -> None:
    call = executor.Call(Future(), abs, (1,), {})
    assert call.kind == replace(call, args=(2,)).kind == "abs"


def test_importing_the_engine_does_not_import_mars_nor_pydantic() -> None:
    code = "import sys, oars.engines.mars.session; print({'mars', 'xorbits', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "set()"
