"""Failures with real processes of the toy engine, which starts quickly. The contract in oars.testing repeats the
important cases with real engines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from oars import Cluster
from oars.base import codec
from oars.base.errors import NameInUse, NotFound, OarsError, OtherHost, StartFailed
from oars.places.local import process
from oars.places.local.store import ClusterDir
from oars.places.process.ledger import read_ledger, write_json, write_ledger
from oars.spec.cluster import ClusterSpec
from oars.spec.load import build
from oars.spec.status import Phase
from oars.testing import processes

pytestmark = pytest.mark.live


@pytest.fixture
def toy() -> Iterator[Cluster]:
    with Cluster("toy", workers=2, name="demo", timeout="60s") as cluster:
        yield cluster


@pytest.fixture
def directory(own_state: Path) -> ClusterDir:
    return ClusterDir(own_state / "clusters/demo")


def until(condition: Callable[[], object], seconds: float = 60.0) -> float:
    """Wait for a condition; return the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "timed out waiting for a condition"
        time.sleep(0.01)
    return time.monotonic() - start


def pids(cluster: Cluster) -> dict[str, int | None]:
    return {member.id: member.pid for member in cluster.members()}


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def keeper_pid(directory: ClusterDir) -> int:
    for pid in process.all_pids():
        command = content(process.PROC / str(pid) / "cmdline")
        if b"oars.keeper" in command and command.rstrip(b"\0").endswith(str(directory.path).encode()):
            return pid
    raise AssertionError("there is no keeper")


def content(path: Path) -> bytes:
    """Return a file's content, or nothing if it has just disappeared."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def start_script(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


class TestHealing:
    def test_killed_worker_is_replaced_and_the_reason_is_reported(self, toy: Cluster) -> None:
        before = pids(toy)
        kill(before["worker-1"])
        until(lambda: pids(toy)["worker-1"] not in (None, before["worker-1"]))
        status = toy.wait(timeout="60s")
        member = next(m for m in status.members if m.id == "worker-1")
        assert member.phase is Phase.READY and "SIGKILL" in member.reason
        (cause,) = toy.why()
        assert cause.reason == "Replaced" and "worker-1 was killed by SIGKILL" in cause.message
        assert pids(toy)["worker-0"] == before["worker-0"]

    def test_killed_head_is_replaced_at_the_same_address_with_all_workers(self, toy: Cluster) -> None:
        before, address = pids(toy), toy.address
        kill(before["head"])
        until(lambda: pids(toy).get("head") not in (None, before["head"]))
        toy.wait(timeout="60s")
        assert toy.address == address
        assert set(toy.client().workers()) == {"worker-0", "worker-1"}
        assert not set(pids(toy).values()) & set(before.values())

    def test_crash_loop_backs_off_and_degrades_the_cluster(self) -> None:
        spec = {"engine": "toy", "workers": 2, "toy": {"crash": "3"}}
        with Cluster(_spec(spec), timeout="60s") as cluster:
            cluster.scale(4)
            with pytest.raises(StartFailed, match="keeps dying") as caught:
                cluster.wait(timeout="90s")
            assert "missing_thing" in str(caught.value) and "packages" in caught.value.hint
            until(lambda: cluster.status().ready == 3)
            status = cluster.status()
            assert status.phase is Phase.DEGRADED and status.reason == "CrashLoop"
            cluster.scale(3)
            assert cluster.wait(timeout="60s").phase is Phase.READY

    def test_cluster_that_cannot_start_is_explained_and_removed(self, own_state: Path) -> None:
        with pytest.raises(StartFailed) as caught:
            Cluster(_spec({"engine": "toy", "workers": 2, "toy": {"crash": "0"}}), timeout="60s")
        assert "worker-0 keeps dying" in caught.value.message
        assert any("missing_thing" in line for line in caught.value.details)
        assert list((own_state / "clusters").iterdir()) == []

    def test_wait_timeout_names_what_is_missing(self) -> None:
        spec = _spec({"engine": "toy", "workers": [{"replicas": 1, "env": {"TOY_WAIT": "300"}}], "minReady": 0})
        with Cluster(spec, timeout="60s") as cluster:
            until(lambda: any("worker-0 to join" in cause.message for cause in cluster.why()))
            with pytest.raises(OarsError) as caught:
                cluster.wait(timeout="10s")
        assert caught.value.exit_code == 4
        assert "0 of 1 workers ready" in caught.value.message and "worker-0" in caught.value.message
        assert any("toy worker worker-0 starts" in line for line in caught.value.details)


def test_cluster_made_in_a_task_does_not_belong_to_the_outer_cluster(
    directory: ClusterDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the outer cluster kills its keeper together with the worker that ran the task."""
    outer = {process.MARK: "outer", process.MEMBER: "worker-0:1", process.TAG: "outer-1", process.CLUSTER: "/outer"}
    for name, value in outer.items():
        monkeypatch.setenv(name, value)
    with Cluster("toy", workers=1, name="demo", timeout="60s") as cluster:
        for pid in (keeper_pid(directory), *filter(None, pids(cluster).values())):
            found = process.environment_of(pid)
            assert not set(outer.items()) & set(found.items()) and found[process.CLUSTER] == str(directory.path)
        assert not process.marked("outer") and not process.marked("/outer", process.CLUSTER)


def test_user_values_are_not_expanded_as_templates() -> None:
    said = {"PATH_X": "$(HOME)/bin", "TEXT": "$$(host)"}
    with Cluster(_spec({"engine": "toy", "workers": 1, "env": said}), timeout="60s") as cluster:
        for pid in pids(cluster).values():
            variables = content(process.PROC / str(pid) / "environ").split(b"\0")
            assert {f"{name}={text}".encode() for name, text in said.items()} <= set(variables)


class TestScaling:
    def test_data_of_removed_workers_is_kept(self, toy: Cluster) -> None:
        client = toy.client()
        client.put("worker-0", "a")
        client.put("worker-1", "b")
        toy.scale(1)
        toy.wait(timeout="60s")
        (left,) = client.workers().values()
        assert sorted(left["items"]) == ["a", "b"]

    def test_worker_that_cannot_be_drained_is_kept_until_forced(self, toy: Cluster) -> None:
        client = toy.client()
        for name in ("worker-0", "worker-1"):
            client.put(name, "pinned")
        toy.scale(1)
        until(lambda: any("a pinned item" in cause.message for cause in toy.why()))
        assert len(client.workers()) == 2
        assert toy.status().groups[0].ready == 1
        toy.scale(1, force=True)
        toy.wait(timeout="60s")
        assert len(client.workers()) == 1

    def test_groups_scale_independently(self) -> None:
        spec = _spec({"engine": "toy", "workers": [{"replicas": 1}, {"name": "gpu", "replicas": 0}]})
        with Cluster(spec, timeout="60s") as cluster:
            cluster.scale(2, group="gpu")
            assert {g.name: g.ready for g in cluster.wait(timeout="60s").groups} == {"default": 1, "gpu": 2}
            assert {"gpu-0", "gpu-1", "worker-0"} <= set(pids(cluster))
            with pytest.raises(NotFound, match="no worker group 'cpu'"):
                cluster.scale(2, group="cpu")


class TestOwners:
    CODE = (
        "from oars import Cluster; c = Cluster('toy', workers=2, name='demo', timeout='60s'); print('up', flush=True);"
    )

    def _run(self, then: str) -> subprocess.Popen[str]:
        script = start_script(self.CODE + then)
        assert script.stdout is not None and script.stdout.readline() == "up\n"
        return script

    def _all_gone(self, state: Path) -> bool:
        return not processes(state) and not list((state / "clusters").iterdir())

    def _ended_with(self, state: Path) -> None:
        """The owner stopped the cluster; the keeper and its last files disappear a moment later."""
        assert not ClusterDir(state / "clusters/demo").exists
        until(lambda: self._all_gone(state))

    def test_cluster_stops_when_its_owner_is_killed(self, own_state: Path) -> None:
        with self._run("input()") as script:
            script.kill()
        until(lambda: self._all_gone(own_state))

    @pytest.mark.parametrize("then", ["", "del c", "c.close()", "raise SystemExit(3)", "1/0"])
    def test_cluster_stops_when_its_owner_exits(self, own_state: Path, then: str) -> None:
        with self._run(then) as script:
            script.communicate(timeout=60)
        self._ended_with(own_state)

    def test_ctrl_c_during_start_leaves_nothing_behind(self, own_state: Path) -> None:
        script = start_script(
            "from oars import Cluster; Cluster('toy', workers=2, name='demo', timeout='60s'); input()"
        )
        with script:
            until(lambda: (own_state / "clusters/demo/cluster.json").exists())
            script.send_signal(signal.SIGINT)
            script.wait(60)
        until(lambda: self._all_gone(own_state))

    def test_exit_of_a_forked_child_does_not_stop_the_cluster(self, own_state: Path) -> None:
        fork = "import os; pid = os.fork();\nif pid == 0: raise SystemExit\n"
        fork += "os.waitpid(pid, 0); print(c.status().phase, flush=True)"
        with self._run(fork) as script:
            assert script.stdout is not None and script.stdout.readline() == "Ready\n"
            script.communicate(timeout=60)
        self._ended_with(own_state)

    def test_attach_from_another_process(self, toy: Cluster) -> None:
        code = "from oars import Cluster; c = Cluster.attach('demo'); c.scale(3); print(c.wait().ready); c.close()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout == "3\n"
        assert toy.status().ready == 3
        with pytest.raises(NotFound, match="no cluster 'dmeo'") as caught:
            Cluster.attach("dmeo")
        assert "demo" in caught.value.hint


class TestKeeper:
    def test_killed_keeper_is_replaced_and_members_keep_running(self, toy: Cluster, directory: ClusterDir) -> None:
        before, first = pids(toy), keeper_pid(directory)
        os.kill(first, signal.SIGKILL)
        until(lambda: process.start_of(first) is None)
        assert set(toy.client().workers()) == {"worker-0", "worker-1"}
        assert pids(toy) == before
        assert toy.status().phase is Phase.READY
        assert keeper_pid(directory) != first

    def test_member_that_died_without_a_keeper_is_replaced(self, toy: Cluster, directory: ClusterDir) -> None:
        before, first = pids(toy), keeper_pid(directory)
        os.kill(first, signal.SIGKILL)
        until(lambda: process.start_of(first) is None)
        kill(before["worker-0"])
        assert toy.wait(timeout="60s").phase is Phase.READY
        assert pids(toy)["worker-0"] != before["worker-0"]
        assert pids(toy)["worker-1"] == before["worker-1"]

    def test_keeper_uses_little_memory(self, toy: Cluster, directory: ClusterDir) -> None:
        text = (process.PROC / str(keeper_pid(directory)) / "status").read_text()
        (line,) = (line for line in text.splitlines() if line.startswith("VmRSS"))
        assert int(line.split()[1]) < 60 * 1024

    def test_ledger_from_before_a_reboot_kills_no_other_process(self, toy: Cluster, directory: ClusterDir) -> None:
        """The pids in the ledger belong to other processes now."""
        stranger = subprocess.Popen(["sleep", "60"])
        try:
            _pretend_reboot(directory, stranger.pid, toy)
            status = toy.status()
            assert (status.phase, status.reason) == (Phase.STOPPED, "Rebooted")
            toy.stop()
            assert not directory.path.exists()
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()

    @pytest.mark.parametrize("known", [True, False], ids=["another machine", "like this one before a reboot"])
    def test_running_cluster_of_another_host_is_not_touched(
        self, toy: Cluster, directory: ClusterDir, known: bool
    ) -> None:
        """As a host sees it that shares the home directory."""
        before, keeper, record = pids(toy), keeper_pid(directory), directory.read()
        host = replace(record.host, boot="another-boot")
        if known:
            host = replace(host, name="login-2", machine="another-machine")
        write_json(directory.record_file, codec.dump(replace(record, host=host)))
        assert toy.status().reason == "OtherHost"
        for change in (toy.stop, lambda: toy.scale(1), lambda: Cluster("toy", name="demo", timeout="20s")):
            with pytest.raises((OtherHost, NameInUse)):
                change()
        assert keeper_pid(directory) == keeper and all(process.start_of(pid) for pid in before.values() if pid)
        write_json(directory.record_file, codec.dump(record))
        assert pids(toy) == before

    def test_running_cluster_is_not_touched_from_another_process_namespace(
        self, toy: Cluster, directory: ClusterDir
    ) -> None:
        """As from a container that has the same home directory: it does not see the processes."""
        before, keeper = pids(toy), keeper_pid(directory)
        oars = ["unshare", "--pid", "--fork", "--mount-proc", str(Path(sys.executable).with_name("oars"))]
        listed = subprocess.run([*oars, "ls", "-o", "json", "--place", "local"], capture_output=True, timeout=60)
        assert [each["reason"] for each in json.loads(listed.stdout)] == ["OtherHost"], listed.stderr
        for command in (["down", "demo"], ["scale", "demo", "1"], ["up", "demo", "--engine", "toy"]):
            refused = subprocess.run([*oars, *command], capture_output=True, text=True, timeout=60)
            assert refused.returncode == 1 and "another host or container named" in refused.stderr
        assert keeper_pid(directory) == keeper and pids(toy) == before

    def test_reused_pid_is_not_taken_for_a_member(self, toy: Cluster, directory: ClusterDir) -> None:
        """The same within one boot: another process has the pid of a dead worker."""
        first, victim = keeper_pid(directory), pids(toy)["worker-0"]
        os.kill(first, signal.SIGKILL)
        kill(victim)
        stranger = subprocess.Popen(["sleep", "60"])
        try:
            book = read_ledger(directory.ledger_file)
            entries = {m: replace(e, pid=stranger.pid) if e.pid == victim else e for m, e in book.entries.items()}
            write_ledger(directory.ledger_file, replace(book, entries=entries))
            toy.wait(timeout="60s")
            assert pids(toy)["worker-0"] != stranger.pid
            toy.close()
            assert stranger.poll() is None
        finally:
            stranger.kill()
            stranger.wait()


def test_damaged_ledger_is_reported_and_the_cluster_can_be_stopped(toy: Cluster, directory: ClusterDir) -> None:
    marked_pids = pids_without_keeper(directory)
    kill(keeper_pid(directory))
    directory.ledger_file.write_text("{")
    status = toy.status()
    assert (
        status.phase is Phase.FAILED
        and "ledger" in status.message
        and "oars down" in toy.why()[0].message + toy.why()[0].hint
    )
    toy.stop()
    assert not directory.exists and not any(process.start_of(pid) for pid in marked_pids)


@pytest.mark.parametrize("text", ["{", '{"name": 1}'], ids=["damaged", "of another version"])
@pytest.mark.parametrize("keeper", [True, False], ids=["keeper", "no keeper"])
def test_cluster_with_an_unreadable_record_can_be_stopped(
    toy: Cluster, directory: ClusterDir, own_state: Path, text: str, keeper: bool
) -> None:
    first = keeper_pid(directory)
    if not keeper:
        kill(first)
        until(lambda: process.start_of(first) is None)
    directory.record_file.write_text(text)
    assert toy.status().reason == "Damaged"
    toy.stop()
    assert not directory.path.exists() and not processes(own_state)


def test_keeper_leaves_the_directory_to_the_cluster_that_took_it(own_state: Path) -> None:
    first = Cluster("toy", workers=1, name="demo", timeout="60s")
    everyone = [keeper_pid(ClusterDir(own_state / "clusters/demo")), *filter(None, pids(first).values())]
    shutil.rmtree(own_state / "clusters/demo")
    with Cluster("toy", workers=1, name="demo", timeout="60s") as second:
        until(lambda: not any(map(process.start_of, everyone)))
        assert second.wait(timeout="60s").phase is Phase.READY
    first.close()


class TestManyAtOnce:
    @pytest.mark.parametrize("count", [6, pytest.param(30, marks=pytest.mark.long)])
    def test_clusters_started_at_the_same_time_share_nothing(self, own_state: Path, count: int) -> None:
        ports: list[set[int]] = []
        lock = threading.Lock()

        def one(number: int) -> int:
            with Cluster("toy", workers=2, name=f"c{number}", timeout="60s") as cluster:
                book = read_ledger(own_state / f"clusters/c{number}/ledger.json")
                claimed = [port for entry in book.entries.values() for port in entry.ports.values()]
                assert len(claimed) == len(set(claimed))
                with lock:
                    ports.append(set(claimed))
                return cluster.status().ready

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(one, range(count))) == [2] * count
        assert list((own_state / "clusters").iterdir()) == []

    def test_only_one_of_several_clusters_gets_the_name(self, own_state: Path) -> None:
        def attempt(_: int) -> Cluster | NameInUse:
            try:
                return Cluster("toy", workers=1, name="same", timeout="60s")
            except NameInUse as error:
                return error

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(attempt, range(4)))
        winners = [result for result in results if isinstance(result, Cluster)]
        assert len(winners) == 1
        winners[0].close()
        assert [entry.name for entry in own_state.iterdir()] != [] and not list((own_state / "clusters").iterdir())


class TestPrivacy:
    def test_files_are_readable_by_the_owner_only(self, toy: Cluster, own_state: Path) -> None:
        for path in own_state.rglob("*"):
            if not path.is_symlink() and not path.is_socket():
                assert mode(path) & 0o077 == 0, f"{path} can be read by others"

    def test_secrets_are_only_in_files(self, toy: Cluster, directory: ClusterDir) -> None:
        token = (directory.secrets / "token").read_text()
        for pid in pids(toy).values():
            for name in ("cmdline", "environ"):
                assert token.encode() not in (process.PROC / str(pid) / name).read_bytes()
        others = [path for path in directory.path.rglob("*") if path.is_file() and path.parent != directory.secrets]
        assert not [path for path in others if token.encode() in content(path)]


@contextmanager
def small_disk(tmp_path: Path, size: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of that size with the state directory."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(small)], check=True)
    monkeypatch.setenv("OARS_STATE_DIR", str(small / "state"))
    try:
        yield small
    finally:
        until(lambda: not processes(small / "state"))
        subprocess.run(["umount", str(small)], check=True)


def fill(disk: Path) -> Path:
    """Write a file until the file system is full."""
    with suppress(OSError), (disk / "filler").open("wb", 0) as filler:
        while True:
            filler.write(b"x" * 4096)
    return disk / "filler"


class TestDisk:
    @pytest.mark.parametrize("keeper", [True, False], ids=["keeper", "no keeper"])
    def test_cluster_can_be_stopped_on_a_full_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeper: bool
    ) -> None:
        with small_disk(tmp_path, "3m", monkeypatch) as small:
            directory = ClusterDir(small / "state/clusters/demo")
            with Cluster("toy", workers=1, name="demo", timeout="60s") as cluster:
                first = keeper_pid(directory)
                if not keeper:
                    kill(first)
                    until(lambda: process.start_of(first) is None)
                fill(small)
                cluster.stop()
                assert not directory.path.exists() and not processes(small / "state")

    def test_disk_that_fills_up_is_reported_and_healing_goes_on_when_there_is_space(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with (
            small_disk(tmp_path, "3m", monkeypatch) as small,
            Cluster("toy", workers=2, name="demo", timeout="60s") as cluster,
        ):
            keeper, before = keeper_pid(ClusterDir(small / "state/clusters/demo")), pids(cluster)
            filler = fill(small)
            kill(before["worker-0"])
            until(lambda: "No space left" in cluster.status().message)
            assert cluster.status().phase is not Phase.READY
            filler.unlink()
            cluster.wait(timeout="90s")
            assert pids(cluster)["worker-0"] not in (None, before["worker-0"])
            assert pids(cluster)["worker-1"] == before["worker-1"]
            assert keeper_pid(ClusterDir(small / "state/clusters/demo")) == keeper, "it was not replaced"

    def test_full_disk_is_reported_and_leaves_nothing_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with small_disk(tmp_path, "64k", monkeypatch) as small:
            (small / "filler").write_bytes(b"x" * 60 * 1024)
            with pytest.raises(OarsError, match="No space left on device") as caught:
                Cluster("toy", workers=1, name="demo", timeout="20s")
            assert "Free some space" in caught.value.hint
            assert not list((small / "state").glob("clusters/*"))


def test_logs_of_one_and_all_members_can_be_followed(toy: Cluster) -> None:
    assert toy.logs("worker-0") == "toy worker worker-0 starts"
    assert "[head] toy head starts" in toy.logs()
    lines = toy.logs("head", follow=True)
    assert next(lines) == "toy head starts"
    toy.client().workers()
    assert any("GET /workers" in line for line in [next(lines) for _ in range(3)])
    with pytest.raises(NotFound, match="no member 'worker-9'"):
        toy.logs("worker-9")


def mode(path: Path) -> int:
    """Return the mode of a file; 0 if it has just disappeared."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def _spec(data: dict[str, object]) -> ClusterSpec:
    return build(data).spec


def _pretend_reboot(directory: ClusterDir, stranger: int, cluster: Cluster) -> None:
    """Kill all processes, then write an earlier boot of this host into the record, and another process's pid into the
    ledger."""
    os.kill(keeper_pid(directory), signal.SIGKILL)
    for pid in pids_without_keeper(directory):
        with suppress(ProcessLookupError):  # a zygote ends with its keeper
            os.kill(pid, signal.SIGKILL)
    record = directory.read()
    write_json(directory.record_file, codec.dump(replace(record, host=replace(record.host, boot="an-earlier-boot"))))
    book = json.loads(directory.ledger_file.read_text())
    for entry in book["entries"].values():
        entry["pid"], entry["boot"] = stranger, "an-earlier-boot"
    write_json(directory.ledger_file, book)


def pids_without_keeper(directory: ClusterDir) -> list[int]:
    mark = directory.read().mark
    return [found.identity.pid for found in process.marked(mark)]
