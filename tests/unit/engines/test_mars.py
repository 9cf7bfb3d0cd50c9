"""Mars' shape, how it reads a supervisor's replies, and its executor without Mars. Starts nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import tomllib
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from oars.base.errors import ClusterLost, EngineUnreachable, SpecError
from oars.engines.base import Access
from oars.engines.calls import RemoteTraceback, cloudpickled
from oars.engines.executor import EngineExecutor
from oars.engines.mars import connection, engine
from oars.engines.mars.connection import MarsConnection, MarsSession, Worker
from oars.engines.mars.shape import LATE_ENV
from oars.model import HEAD, Demand, Drained, DrainOutcome, MemberId, MemberView, Process, View
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
    def test_worker_has_a_process_per_cpu_and_one_for_transfers(self, cpu: float, slots: int) -> None:
        process = worker(cpu=cpu)
        assert option(process, "--n-cpu") == process.env["MARS_CPU_TOTAL"] == str(slots)
        assert [port.name for port in process.ports] == ["worker", "joined", *(f"sub{n}" for n in range(slots + 1))]
        assert option(process, "-p") == ",".join(f"$(port.sub{n})" for n in range(slots + 1))

    def test_default_ports_of_a_member_are_distinct(self) -> None:
        for process in (head(head={"cpu": 4}), worker(cpu=4)):
            defaults = [port.default for port in process.ports]
            assert len(set(defaults)) == len(defaults)

    def test_supervisor_has_a_process_per_cpu(self) -> None:
        assert option(head(), "--n-process") == "0" and "-p" not in head().argv
        assert option(head(head={"cpu": 3}), "-p") == "$(port.sub0),$(port.sub1)"

    def test_memory_is_set_or_chosen_by_mars(self) -> None:
        process = worker(memory="2Gi")
        assert option(process, "--mem-bytes") == process.env["MARS_MEMORY_TOTAL"] == str(2 * 2**30)
        assert "--mem-bytes" not in worker().argv and "MARS_MEMORY_TOTAL" not in worker().env

    def test_gpus_are_hidden_from_workers_without_any(self) -> None:
        assert worker().env["CUDA_VISIBLE_DEVICES"] == "" and option(worker(), "--cuda-devices") == ""
        process = worker(gpu=2)
        assert option(process, "--cuda-devices") == "0,1" and "CUDA_VISIBLE_DEVICES" not in process.env
        assert len(process.ports) == 2 + 1 + 2 + 1

    def test_members_bind_their_own_address(self) -> None:
        assert option(head(), "-e") == "$(host):$(port.supervisor)"
        assert option(worker(), "-e") == "$(host):$(port.worker)"
        assert option(worker(), "--joined") == "$(host):$(port.joined)"
        assert config(head())["web"]["host"] == "$(bind)"
        assert "$(port.web)," in head().files["config.yml"], "the port must be a number in YAML"

    def test_configuration_is_merged_and_passed_to_all_members(self) -> None:
        given = {"scheduling": {"mem_quota_size": "50%"}, "cluster": {"node_timeout": 7}}
        shape = engine.shape(spec(mars={"config": given}))
        for process in (shape.head.process, shape.workers[0].process):
            found = config(process)
            assert found["@inherits"] == "@default" and found["cluster"] == {"node_timeout": 7}
            assert found["scheduling"] == {"mem_quota_size": "50%", "submit_period": 0.5}
        assert "web" not in config(shape.workers[0].process)

    @pytest.mark.parametrize(("distribution", "package"), [("xorbits", "xorbits._mars."), ("pymars", "mars.")])
    def test_distribution_selects_the_package(self, distribution: str, package: str) -> None:
        shape = engine.shape(spec(mars={"distribution": distribution}))
        assert shape.driver_env["OARS_MARS_DISTRIBUTION"] == distribution
        assert shape.endpoints["client"] == shape.endpoints["dashboard"] == "http://$(head.host):$(head.web)"
        for process in (shape.head.process, shape.workers[0].process):
            assert process.argv[process.argv.index("--") + 1] == distribution
            assert f"{package}deploy.oscar.worker" in process.preload
            assert all(name.startswith((package, "sqlalchemy", "uvloop")) for name in process.preload)

    def test_web_server_requires_the_token(self) -> None:
        shape = engine.shape(spec())
        process = shape.head.process
        plugins = [process.argv[n + 1] for n, word in enumerate(process.argv) if word == "--plugin"]
        assert plugins == ["$(file.web_guard.py)", "$(file.head_plugin.py)"], "the guard comes first"
        assert plugins[0].removeprefix("$(file.").removesuffix(")") in process.files
        assert shape.secrets == ("token",) and shape.dashboard_secret == "token"
        assert process.env["OARS_WEB_BIND"] == "$(bind)"
        for env in (process.env, shape.workers[0].process.env, shape.driver_env):
            assert env["OARS_TOKEN_FILE"] == "$(secret.token)"
            assert env["OARS_MARS_ADDRESS"] == shape.endpoints["client"]

    def test_user_cannot_unset_the_token(self) -> None:
        mine = {"OARS_TOKEN_FILE": "/dev/null", "OARS_WEB_BIND": "0.0.0.0"}
        env = head(env=mine, head={"env": mine}).env
        assert (env["OARS_TOKEN_FILE"], env["OARS_WEB_BIND"]) == ("$(secret.token)", "$(bind)")

    def test_members_can_share_a_fork_server(self) -> None:
        """They differ only in variables that launch.py applies again."""
        shape = engine.shape(spec(head={"cpu": 2, "memory": "1Gi"}, workers=[{"cpu": 3}, {"name": "gpu", "gpu": 1}]))
        processes = [shape.head.process, *(group.process for group in shape.workers)]
        early = [{n: v for n, v in process.env.items() if n not in LATE_ENV} for process in processes]
        assert early[0] == early[1] == early[2]
        assert len({process.preload for process in processes}) == 1

    def test_user_variables_override_defaults(self) -> None:
        shape = engine.shape(spec(env={"OMP_NUM_THREADS": "4"}, head={"env": {"OMP_NUM_THREADS": "2"}}))
        assert shape.head.process.env["OMP_NUM_THREADS"] == "2"
        assert shape.workers[0].process.env["OMP_NUM_THREADS"] == "4"
        assert worker().env["OMP_NUM_THREADS"] == "1"

    def test_litter_patterns_contain_the_tag(self) -> None:
        assert all("/oars-$(tag)-*" in pattern or "/sem.oars-$(tag)-*" in pattern for pattern in worker().litter)

    def test_pins_match_the_optional_dependency(self) -> None:
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
    def test_unsupported_spec_is_rejected(self, data: Mapping[str, Any], words: str) -> None:
        with pytest.raises(SpecError, match=words):
            engine.check(spec(**data))

    def test_supported_spec_is_accepted(self) -> None:
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

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = 120.0) -> Any:
        raise AssertionError("Mars has no head helper")


@dataclass(frozen=True)
class Node:
    identity: str
    status: str = "READY"
    age: float = 0.5
    idle: float = 3.0
    held: int = 7


def wire(**nodes: Node) -> FakeWire:
    """Nodes by the last part of their port: n10=Node(…)."""
    found = {"n1": Node("head:2"), **nodes}
    page = {f"127.0.0.1:{name[1:]}": vars(node) for name, node in found.items()}
    demand = [{"needs": {"cpu": 1}, "count": 5, "running": 2}]
    return FakeWire({"/api/oars/nodes": {"nodes": page, "demand": demand}})


def look(at: FakeWire) -> View:
    return asyncio.run(engine.look(at))


class TestLook:
    def test_members_have_state_and_incarnation(self) -> None:
        at = wire(n10=Node("worker-0:2"), n20=Node("worker-1:2", "STOPPING"))
        view = look(at)
        assert view.up and not at.posted
        assert view.members[MemberId("worker-0")] == MemberView(True, "127.0.0.1:10", 3.0, 7, "2")
        assert not view.members[MemberId("worker-1")].ready
        assert view.demand == (Demand({"cpu": 1}, 5, running=2),)

    def test_old_incarnation_and_removed_worker_are_not_members(self) -> None:
        at = wire(n10=Node("worker-0:1"), n20=Node("worker-1:2"), n30=Node("worker-2:1", "STOPPING"))
        assert set(look(at).members) == {HEAD, "worker-1"}

    def test_silent_worker_is_not_ready(self) -> None:
        assert MemberId("worker-0") not in look(wire(n10=Node("worker-0:2", age=11.0))).members, "it hangs"

    def test_worker_that_mars_gave_up_is_not_ready(self) -> None:
        view = look(wire(n1=Node("head:2", "STOPPED"), n10=Node("worker-0:2", "STOPPED")))
        assert view.up and not view.members[MemberId("worker-0")].ready

    def test_look_never_writes(self) -> None:
        at = wire(n10=Node("worker-0:1"), n20=Node("worker-1:2", "STOPPED"), n30=Node("worker-2:1", age=99.0))
        look(at)
        assert not at.posted

    def test_reconcile_reports_the_running_incarnations(self) -> None:
        at = wire(n10=Node("worker-0:1"))
        asyncio.run(engine.reconcile(at, look(at)))
        current = ["head:2", "worker-0:2", "worker-1:2"]
        assert at.posted == [("/api/oars/nodes", {"current": current, "silent_seconds": 10.0})]

    def test_reply_of_another_supervisor_is_rejected(self) -> None:
        for identity in ("head:1", "", "nobody"):
            view = look(wire(n1=Node(identity)))
            assert not view.up and "supervisor" in view.message

    def test_head_without_reply_is_down(self) -> None:
        assert look(FakeWire(EngineUnreachable("refused"))) == View(message="refused")

    @pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"a": 1}', b'{"a": {}}', b"\xff"])
    def test_reply_of_another_program_is_rejected(self, content: bytes) -> None:
        view = look(FakeWire({"/api/oars/nodes": content}))
        assert not view.up and "not a Mars supervisor started by Oars" in view.message


def test_drain_passes_the_deadline_and_returns_obstacles() -> None:
    at = FakeWire({"/api/oars/drain": {"127.0.0.1:10": "", "127.0.0.1:20": "its running subtasks"}})
    members = [MemberId("worker-0"), MemberId("worker-1"), MemberId("worker-9")]
    assert asyncio.run(engine.drain(at, members, 30, force=False)) == [
        Drained(members[0], DrainOutcome.FINISHED),
        Drained(members[1], DrainOutcome.REFUSED, "its running subtasks"),
        Drained(members[2], DrainOutcome.FINISHED),
    ]
    assert at.posted == [
        ("/api/oars/drain", {"workers": ["127.0.0.1:10", "127.0.0.1:20"], "seconds": 30, "force": False})
    ]


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
def test_drain_rejects_replies_of_other_programs(content: bytes) -> None:
    with pytest.raises(EngineUnreachable, match="not a Mars supervisor started by Oars"):
        asyncio.run(engine.drain(FakeWire({"/api/oars/drain": content}), [MemberId("worker-0")], 60, force=False))


def test_unknown_worker_is_drained() -> None:
    at = FakeWire({"/api/oars/drain": {}})
    assert asyncio.run(engine.drain(at, [MemberId("worker-0")], 60, force=False)) == [
        Drained(MemberId("worker-0"), DrainOutcome.FINISHED)
    ]


@dataclass
class FakeMars:
    """Runs what is spawned, each batch in the caller's thread, and remembers where."""

    workers: Mapping[str, Worker] = field(default_factory=lambda: {"a": Worker(1.0, 0.0), "b": Worker(1.0, 0.0)})
    alive: bool = True
    fails: list[Exception] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    sessions: int = 0
    closed: int = 0

    def executor(self, **changes: Any) -> EngineExecutor:
        def connect() -> MarsConnection:
            self.sessions += 1
            self.alive = True
            session = MarsSession(self, self.spawn, lambda: self.workers, lambda: self.alive, self.close)
            return MarsConnection(replace(session, **changes), Access("demo", "mars", "", "", {}))

        return EngineExecutor(connect, cloudpickled)

    def spawn(self, run: Callable[..., bytes], args: tuple[Any, ...], expect_worker: str) -> Any:
        return run, args, expect_worker

    def execute(self, remote: Any, show_progress: bool) -> None:
        self.places.append(remote[2])
        if self.fails:
            raise self.fails.pop(0)

    def fetch(self, remote: Any) -> bytes:
        run, args, _ = remote
        return bytes(run(*args))

    def close(self) -> None:
        self.closed += 1


class NoMatchingSlots(Exception):
    """Mars' own, by name."""


class Remote(list[Any]):
    """As Mars' object: its result is freed with it. A tuple has no weak references."""


class TestExecutor:
    def test_results_and_errors_with_remote_traceback(self) -> None:
        mars = FakeMars()
        with mars.executor() as ex:
            assert ex.submit(pow, 2, 10).result(5) == 1024
            error = ex.submit(lambda: 1 // 0).exception(5)
            assert isinstance(error, ZeroDivisionError) and isinstance(error.__cause__, RemoteTraceback)
            assert "<lambda>" in str(error.__cause__)
            assert list(ex.map(lambda a, b: a + b, [1, 2], [3, 4], timeout=5)) == [4, 6]
        assert mars.closed == mars.sessions == 1

    def test_calls_are_spread_over_workers(self) -> None:
        mars = FakeMars()
        with mars.executor() as ex:
            list(ex.map(time.sleep, [0.1] * 8, timeout=20))
        assert mars.places.count("a") == mars.places.count("b") == 4

    def test_call_that_mars_did_not_run_is_sent_to_another_worker(self) -> None:
        mars = FakeMars(fails=[NoMatchingSlots("cpu")])
        with mars.executor() as ex:
            assert ex.submit(abs, -1).result(5) == 1
        assert sorted(mars.places) == ["a", "b"]

    def test_result_is_freed_at_once_although_an_earlier_attempt_failed(self) -> None:
        """A worker that holds results cannot leave. The error stays, as in the futures of Mars' client."""
        error = NoMatchingSlots("cpu")
        mars, spawned = FakeMars(fails=[error]), []

        def spawn(*args: Any, **more: Any) -> Remote:
            remote = Remote(mars.spawn(*args, **more))
            spawned.append(weakref.ref(remote))
            return remote

        with mars.executor(spawn=spawn) as ex:
            assert ex.submit(abs, -1).result(5) == 1
            _, done = spawned
            assert error.__traceback__ is not None and done() is None

    def test_call_waits_for_a_worker(self) -> None:
        mars = FakeMars(workers={})
        with mars.executor() as ex:
            future = ex.submit(abs, -1)
            assert not wait([future], 0.3).done
            mars.workers = {"c": Worker(1.0, 0.0)}
            assert future.result(5) == 1

    def test_failed_request_for_workers_is_repeated(self) -> None:
        failures, mars = [OSError("not JSON")] * 2, FakeMars()

        def workers() -> Mapping[str, Worker]:
            if failures:
                raise failures.pop()
            return mars.workers

        with mars.executor(workers=workers) as ex:
            assert ex.submit(abs, -1).result(5) == 1
        assert not failures

    def test_call_times_out_without_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "WORKER_SECONDS", 0.3)
        with FakeMars(workers={}).executor() as ex:
            error = ex.submit(abs, -1).exception(5)
        assert isinstance(error, ClusterLost) and "no worker was ready" in str(error)

    def test_lost_worker_is_avoided_until_it_reports(self) -> None:
        mars = FakeMars(workers={"a": Worker(1.0, 0.0)}, fails=[ConnectionRefusedError("gone")])
        with mars.executor() as ex:
            future = ex.submit(abs, -1)
            assert not wait([future], 0.5).done
            mars.workers = {"a": Worker(1.0, 1.0)}
            assert future.result(5) == 1
        assert mars.places == ["a", "a"] and mars.sessions == 1

    def test_lost_supervisor_fails_all_calls_and_the_next_one_opens_a_session(self) -> None:
        mars = FakeMars()
        with mars.executor() as ex:
            assert ex.submit(abs, -3).result(5) == 3
            mars.alive, mars.fails = False, [ConnectionResetError("gone")]
            error = ex.submit(abs, -1).exception(5)
            assert isinstance(error, ClusterLost) and "'demo' was lost" in str(error)
            assert ex.submit(abs, -3).result(5) == 3
        assert mars.sessions == 2


def test_import_of_the_engine_imports_neither_mars_nor_pydantic() -> None:
    code = "import sys, oars.engines.mars.session; print({'mars', 'xorbits', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "set()"
