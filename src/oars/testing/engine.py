"""The contract of engines on a real place. Subclass it; the cluster is started once per class."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import ClassVar

import pytest

from oars import engines
from oars.client.sync import Cluster
from oars.model import HEAD, DrainOutcome, Shape
from oars.places.kube import helper
from oars.places.kube.render.values import head_values, pod_values, secret_files
from oars.places.local import process
from oars.places.local.store import ClusterDir
from oars.places.process.ledger import read_ledger
from oars.plan.fill import unfilled
from oars.spec.load import build
from oars.spec.status import Phase
from oars.testing.cluster import OneCluster, kill_and_wait, pids, settled, until
from oars.testing.driver import DriverProgram, run_driver
from oars.testing.leaks import listeners

LOOPBACK = re.compile(r"0100007F:.*|0{24}01000000:.*|0{16}FFFF00000100007F:.*")


class EngineContract(OneCluster):
    """Set `spec` and the three programs; they run as drivers and use the engine's own API."""

    work: ClassVar[str]  # prints "result …"
    # Makes results on every worker, prints "held"; after a line on stdin checks them, prints "intact".
    hold: ClassVar[str]
    hang: ClassVar[str]  # starts a call that takes minutes, prints "started"; prints `lost` when the call fails
    lost: ClassVar[str] = "failed:"
    drained: ClassVar[DrainOutcome] = DrainOutcome.MOVED  # FINISHED: the engine cannot move results

    def test_work_and_clients_are_told_from_our_own_requests(self, cluster: Cluster, state: Path) -> None:
        """What `lifetime.idle` and `lifetime.noClient` count, asked as the helper in a pod does."""
        if engines.get(self.spec["engine"]).shape(build(dict(self.spec)).spec).inquiry is None:
            pytest.skip("the engine does not report it")
        # Although the keeper and we ask all the time. Before other tests: a killed program of Mars leaves its session.
        until(lambda: min(self.figures(cluster, state).values()) > 1, 120)
        started = time.monotonic()
        with DriverProgram(cluster, self.hold) as program:
            program.expect("held")
            assert self.figures(cluster, state)["no_client"] == 0
            program.tell()
            program.expect("intact")
            program.tell("end")
            program.expect("(end)")
        after = self.figures(cluster, state)
        elapsed = time.monotonic() - started
        assert after.keys() == {"idle", "no_client"} and max(after.values()) < elapsed, (after, elapsed)

    def figures(self, cluster: Cluster, state: Path) -> dict[str, float]:
        """The helper's own code, next to the head and with its environment. On a busy machine an answer may come too
        late for it."""
        shape = engines.get(self.spec["engine"]).shape(build(dict(self.spec)).spec)
        directory, inquiry = ClusterDir(state / "clusters/contract"), shape.inquiry
        assert inquiry is not None
        (port,) = [each for each in shape.head.process.ports if each.name == inquiry.port]
        number = read_ledger(directory.ledger_file).entries[HEAD].ports[port.name]
        script = state / "inquiry.py"
        script.write_text(inquiry.script)
        arguments = {"script": str(script)} if inquiry.script else {"path": inquiry.path, "secret": port.secret}
        source = f"""
import json, runpy
helper = runpy.run_path({helper.__file__!r})
helper["Inquiry"].get.__globals__["TOKEN_FILE"] = {str(directory.secrets / "control")!r}
print(json.dumps(helper["Inquiry"]({number}, **{arguments!r}).ask()))
"""
        found: dict[str, float] = {}

        def ask() -> bool:
            found.update(json.loads(run_driver(cluster, source)[-1]))
            return bool(found)

        until(ask, 120)
        return found

    def test_every_template_can_be_filled(self) -> None:
        """A place does not change unknown names, so nothing else would detect a misspelt one."""
        shape = engines.get(self.spec["engine"]).shape(build(dict(self.spec)).spec)
        assert set(shape.endpoints) >= {"client"}
        assert unfilled_names(shape) == set()

    def test_shape_depends_on_the_spec_only(self) -> None:
        engine, spec = engines.get(self.spec["engine"]), build(dict(self.spec)).spec
        assert engine.shape(spec) == engine.shape(spec)

    def test_every_worker_is_a_separate_process(self, cluster: Cluster) -> None:
        status = cluster.status()
        assert status.phase is Phase.READY and status.ready == 2
        pids = [member.pid for member in status.members]
        assert len(set(pids)) == 3 and None not in pids

    def test_engine_s_own_api_finds_the_cluster(self, cluster: Cluster) -> None:
        assert any(line.startswith("result") for line in run_driver(cluster, self.work))

    def test_members_listen_on_loopback_only(self, cluster: Cluster, state: Path) -> None:
        mark = ClusterDir(state / "clusters/contract").read().mark
        addresses = listeners({found.identity.pid for found in process.marked(mark)})
        assert addresses and all(LOOPBACK.fullmatch(address) for address in addresses), addresses

    def test_secrets_are_in_private_files_only(self, cluster: Cluster, state: Path) -> None:
        directory = ClusterDir(state / "clusters/contract")
        secrets = [
            path.read_bytes().strip() for path in directory.secrets.iterdir() if path.name in ("token", "key.pem")
        ]
        for found in process.marked(directory.read().mark):
            for name in ("cmdline", "environ"):
                data = _read(process.PROC / str(found.identity.pid) / name)
                assert not any(secret in data for secret in secrets)
        for path in [p for p in directory.path.rglob("*") if p.is_file() and not p.is_symlink()]:
            assert _mode(path) & 0o077 == 0 or "members" in path.parts, path
            if path.parent != directory.secrets:
                data = _read(path)
                assert not any(secret in data for secret in secrets), path

    def test_results_survive_scale_down(self, cluster: Cluster, state: Path) -> None:
        """Results are moved, or the worker is kept and reported until it is safe to remove."""
        log = ClusterDir(state / "clusters/contract").keeper_log
        logged = len(log.read_text())
        cluster.scale(3)
        cluster.wait(timeout=self.timeout)
        with DriverProgram(cluster, self.hold) as program:
            program.expect("held")
            cluster.scale(1)
            until(lambda: settled(cluster) or any(c.hint for c in cluster.why() if c.reason == "Draining"), 120)
            program.tell()
            program.expect("intact")
            program.tell("end")
            program.expect("(end)")
        until(lambda: settled(cluster), 120)
        assert cluster.status().groups[0].wanted == 1
        outcomes = re.findall(r"drained member=\S+ outcome=(\w+)", log.read_text()[logged:])
        assert len(outcomes) == 2 and self.drained in outcomes, outcomes
        cluster.scale(2)
        cluster.wait(timeout=self.timeout)
        assert any(line.startswith("result") for line in run_driver(cluster, self.work))

    def test_drained_worker_is_replaced_and_results_survive(self, cluster: Cluster) -> None:
        """The successor starts before the worker leaves, and the worker leaves when nothing refers to its results."""
        cluster.scale(3)
        cluster.wait(timeout=self.timeout)
        victim = next(member.id for member in cluster.members() if member.id != "head")
        with DriverProgram(cluster, self.hold) as program:
            program.expect("held")
            cluster.drain(victim)
            until(lambda: victim not in pids(cluster) or "replaced" in " ".join(c.message for c in cluster.why()), 120)
            program.tell()
            program.expect("intact")
            program.tell("end")
            program.expect("(end)")
        until(lambda: settled(cluster) and victim not in pids(cluster), 120)
        assert cluster.status().groups[0].wanted == 3
        cluster.scale(2)
        until(lambda: settled(cluster), 120)
        assert any(line.startswith("result") for line in run_driver(cluster, self.work))

    def test_killed_worker_is_replaced_within_ten_seconds(self, cluster: Cluster) -> None:
        """One late replacement may be due to the machine; two are a failure."""
        took: list[float] = []
        for victim in [name for name in pids(cluster) if name != "head"][:2]:
            took.append(kill_and_wait(cluster, victim, pids(cluster)))
            assert any(victim in cause.message and "SIGKILL" in cause.message for cause in cluster.why())
            if took[-1] < self.replace_seconds:
                break
        assert min(took) < self.replace_seconds, took
        assert any(line.startswith("result") for line in run_driver(cluster, self.work))

    replace_seconds: ClassVar[float] = 10.0

    def test_killed_head_is_restarted_and_calls_in_flight_fail(self, cluster: Cluster) -> None:
        before, address = pids(cluster), cluster.address
        with DriverProgram(cluster, self.hang) as program:
            program.expect("started")
            kill_and_wait(cluster, "head", before)
            program.expect(self.lost, 90)
            program.end(120)
        assert cluster.address == address
        assert any(line.startswith("result") for line in run_driver(cluster, self.work))


def unfilled_names(shape: Shape) -> set[str]:
    """Names in the templates of a shape that no place fills in; see oars.model for those that all do."""
    secrets = {f"secret.{name}": "" for name in secret_files(shape)}
    for_drivers = {**head_values("", shape), **secrets}
    texts = [*shape.endpoints.values(), *shape.driver_env.values(), *shape.outside_env.values()]
    found = unfilled(texts, for_drivers)
    for group in (shape.head, *shape.workers):
        program, values = group.process, pod_values("", shape, group)
        found |= unfilled([*program.argv, *program.env.values(), *program.files.values(), program.entry], values)
        found |= unfilled(program.litter, {"tag": ""})
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # the process has just ended, or the file was replaced


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0  # it was replaced
