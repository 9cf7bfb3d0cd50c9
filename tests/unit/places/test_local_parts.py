"""Identity, ledger, ports, logs and store."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from oars import engines
from oars.base import codec
from oars.base.errors import NameInUse, NotFound, OarsError, Replaced, StartFailed
from oars.model import Cause, Failure, LoopState, MemberId, Retiring, Role
from oars.places.intent import Intent
from oars.places.local import logs, ports
from oars.places.local.defaults import defaults
from oars.places.local.host import this_host
from oars.places.local.machine import remove_litter
from oars.places.local.process import exit_from_status, gone, identify, marked, send
from oars.places.local.store import ClusterRecord, Store
from oars.places.process.ledger import Entry, Ledger, read_ledger, write_ledger
from oars.places.process.machine import Exit
from oars.places.report import Report
from oars.plan.desired import build
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Phase, Status
from tests.unit.undeletable import undeletable

W0 = MemberId("worker-0")


def record(name: str = "demo") -> ClusterRecord:
    spec = ClusterSpec.model_validate({"engine": "toy"})
    desired = build(name, spec, engines.get("toy"), defaults(spec, 2**33))
    return ClusterRecord(name, Intent({"engine": "toy"}), desired, "python", "mark", 1.0, host=this_host())


class TestIdentity:
    def test_process_identity_survives_pid_reuse(self) -> None:
        me = identify(os.getpid())
        assert me is not None and me.alive()
        assert not replace(me, start=me.start + 1).alive()
        assert not replace(me, boot="another").alive()

    def test_signals_reach_only_the_one_that_is_meant(self) -> None:
        child = subprocess.Popen(["sleep", "60"])
        try:
            identity = identify(child.pid)
            assert identity is not None
            assert not send(replace(identity, start=1), signal.SIGKILL)
            assert child.poll() is None
            assert send(identity, signal.SIGKILL)
            assert asyncio.run(gone([identity], 5))
        finally:
            child.kill()
            child.wait()
        assert identify(child.pid) is None and not send(identity, signal.SIGTERM)

    def test_marked_processes_are_found_with_their_member(self) -> None:
        env = {**os.environ, "OARS_MARK": "a-mark-of-this-test", "OARS_MEMBER": "worker-0:1"}
        child = subprocess.Popen(["sleep", "60"], env=env)
        try:
            (found,) = marked("a-mark-of-this-test")
            assert (found.identity.pid, found.member) == (child.pid, "worker-0:1")
        finally:
            child.kill()
            child.wait()

    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            (9, Exit("was killed by SIGKILL", -9)),
            (256, Exit("exited with code 1", 1)),
            (0, Exit("exited with code 0", 0)),
            (34, Exit("was killed by SIGRTMIN", -34)),
            (40, Exit("was killed by signal 40", -40)),
            (64, Exit("was killed by SIGRTMAX", -64)),
        ],
    )
    def test_exit_status_is_described(self, status: int, expected: Exit) -> None:
        assert exit_from_status(status) == expected


def test_the_ledger_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    assert read_ledger(path) == Ledger()
    state = LoopState(
        {W0: Retiring(1.0, True, "x")}, {W0: Failure(2, 1.0, 3.0, "4", "died", ("a", "b"))}, "1", 3, ready_since=7.0
    )
    entry = Entry(
        W0, Role.WORKER, "default", 4, 1, 2.0, {"client": 20001}, 99, 5, "boot", "exited", 1, 3.0, litter=("/x-$(tag)",)
    )
    ledger = Ledger(state=state).with_entries([entry])
    write_ledger(path, ledger)
    assert read_ledger(path) == ledger and ledger.incarnations == 4
    assert path.stat().st_mode & 0o777 == 0o600
    assert ledger.without([W0]) == Ledger(state=state, incarnations=4), "an incarnation is never used twice"


class TestPorts:
    def test_claimed_and_busy_ports_are_not_given_away(self) -> None:
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", 0))
            claimed = set(range(ports.FIRST, ports.LAST - 5))
            found = ports.free_ports(3, claimed)
            assert len(set(found)) == 3 and not claimed & set(found)

    def test_none_left(self) -> None:
        with pytest.raises(StartFailed, match="No 1 free ports"):
            ports.free_ports(1, range(ports.FIRST, ports.LAST + 1))


class TestLogs:
    def lines(self, path: Path, tail: int | None = None, since: float | None = None) -> list[str]:
        async def collect() -> list[str]:
            return [line async for line in logs.lines(path, tail=tail, since=since)]

        return asyncio.run(collect())

    def test_all_and_the_last(self, tmp_path: Path) -> None:
        path = tmp_path / "x.log"
        assert self.lines(path) == [] and logs.last_lines(path, 3) == ()
        path.write_bytes(b"one\ntwo\nthr\xffee")
        assert self.lines(path) == ["one", "two", "thr\ufffdee"]
        assert self.lines(path, tail=2) == ["two", "thr\ufffdee"]

    @pytest.mark.parametrize(
        ("since", "tail", "shown"),
        [
            ("2026-03-01 00:00:00", None, ["2026-03-01 10:00:00,5 - one", "more", "[2026-03-01 11:00:00] two"]),
            ("2026-03-01 10:00:00", None, ["2026-03-01 10:00:00,5 - one", "more", "[2026-03-01 11:00:00] two"]),
            ("2026-03-01 10:00:01", None, ["[2026-03-01 11:00:00] two"]),
            ("2026-03-01 10:00:00", 2, ["more", "[2026-03-01 11:00:00] two"]),
            ("2026-03-01 10:00:00", 0, []),
            ("2026-03-01 11:00:01", None, []),
        ],
    )
    def test_lines_since_a_time(self, since: str, tail: int | None, shown: list[str], tmp_path: Path) -> None:
        path = tmp_path / "x.log"
        path.write_text("begin\n2026-03-01 10:00:00,5 - one\nmore\n[2026-03-01 11:00:00] two\n")
        at = datetime.fromisoformat(since).timestamp()
        assert self.lines(path, tail, at) == shown

    def test_log_without_times_is_shown_if_it_was_written_since(self, tmp_path: Path) -> None:
        path = tmp_path / "x.log"
        path.write_text("one\n2026-13-99 10:00:00 is no time\n")
        os.utime(path, (1000.0, 1000.0))
        assert len(self.lines(path, since=1000.0)) == 2 and self.lines(path, since=1001.0) == []
        assert self.lines(tmp_path / "missing.log", since=0.0) == []

    def test_follow_ends_when_the_file_is_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "x.log"
        path.write_text("one\n")

        async def follow() -> list[str]:
            seen = []
            async for line in logs.lines(path, follow=True):
                seen.append(line)
                if line == "one":
                    with path.open("a") as stream:
                        stream.write("two\n")
                else:
                    path.unlink()
            return seen

        assert asyncio.run(follow()) == ["one", "two"]


class TestStore:
    def test_cluster_name_is_unique(self, own_state: Path) -> None:
        store = Store(own_state)
        directory = store.create(record(), {"token": b"secret"})
        assert directory.read() == record()
        assert (directory.secrets / "token").stat().st_mode & 0o777 == 0o600
        with pytest.raises(NameInUse, match="demo"):
            store.create(record(), {})
        assert store.names() == ["demo"]
        assert sorted(path.name for path in own_state.iterdir()) == ["clusters", "names.lock"]

    def test_changes_count_on(self, own_state: Path) -> None:
        directory = Store(own_state).create(record(), {})
        changed = directory.change(lambda record: record.changed(running=False))
        assert changed == directory.read()
        assert (changed.intent.generation, changed.intent.running) == (2, False)
        assert (changed.desired.generation, changed.desired.running) == (2, False)

    def test_concurrent_changes_are_not_lost(self, own_state: Path) -> None:
        directory = Store(own_state).create(record(), {})
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: directory.change(lambda before: before.changed()), range(20)))
        assert directory.read().intent.generation == 21

    def test_half_removed_directory_does_not_block_the_name(self, own_state: Path) -> None:
        store = Store(own_state)
        store.create(record(), {"token": b"secret"}).record_file.unlink()
        assert store.create(record(), {}).read() == record()
        assert not [path for path in own_state.rglob("token")]

    def test_interrupted_removal_is_completed_later(self, own_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Store(own_state)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if it was killed here
            store.create(record(), {"token": b"secret"}).remove()
        assert store.names() == [] and list(own_state.rglob("token"))
        store.create(record(), {})
        assert not list(own_state.rglob("token"))

    def test_file_that_cannot_be_removed_does_not_block_the_name(self, own_state: Path) -> None:
        store = Store(own_state)
        directory = store.create(record(), {})
        with undeletable(directory.path / "busy"):
            directory.remove()
            assert store.names() == [] and list(own_state.glob(".removed-*"))
            assert store.create(record(), {}).read() == record()
        store.remove_leftovers()
        assert not list(own_state.glob(".removed-*"))

    def test_directory_of_another_cluster_is_not_removed(self, own_state: Path) -> None:
        store = Store(own_state)
        store.create(record(), {})
        store.cluster("demo", "older").remove()
        assert store.cluster("demo").read() == record()

    def test_change_of_a_replaced_cluster_is_refused(self, own_state: Path) -> None:
        store = Store(own_state)
        store.create(record(), {})
        assert store.cluster("demo", "mark").exists and not store.cluster("demo", "older").exists
        with pytest.raises(Replaced, match="'demo' was deleted, and another one has its name"):
            store.cluster("demo", "older").change(lambda record: record)
        assert store.cluster("demo").read() == record()

    def test_missing_cluster_is_not_found(self, own_state: Path) -> None:
        store = Store(own_state)
        assert store.names() == []
        with pytest.raises(NotFound):
            store.cluster("demo").read()
        assert store.cluster("demo").read_report() is None

    def test_mode_of_an_existing_directory_is_left_alone(self, tmp_path: Path) -> None:
        """OARS_STATE_DIR may be a directory of the user's, such as /tmp."""
        tmp_path.chmod(0o1777)
        Store(tmp_path).create(record(), {})
        assert tmp_path.stat().st_mode & 0o7777 == 0o1777
        assert (tmp_path / "clusters").stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"entries": {"x": {"id": 3}}}'], ids=str)
    def test_damaged_ledger_of_another_cluster_stops_nobody(self, own_state: Path, text: str) -> None:
        """An empty file is what a power cut may leave."""
        store = Store(own_state)
        store.create(record("broken"), {}).ledger_file.write_text(text)
        sound = store.create(record("sound"), {})
        entry = Entry(W0, Role.WORKER, "default", ports={"client": 20001})
        newer = {"entries": {W0: {**codec.dump(entry), "a_new_field": 1}}, "another": {}}  # of a newer Oars
        sound.ledger_file.write_text(json.dumps(newer))
        with store.create(record("new"), {}).claim_ports() as claimed:
            assert claimed == {20001}

    def test_unusable_state_directory_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(OarsError, match="cannot be written") as caught:
            Store(tmp_path / "file").create(record(), {})
        assert "OARS_STATE_DIR" in caught.value.hint

    def test_reports_survive_the_way_through_json(self, own_state: Path) -> None:
        directory = Store(own_state).create(record(), {})
        report = Report(Status("demo", "toy", "local", Phase.READY, generation=3), (Cause("R", "m", "t", ("l",)),))
        directory.write_report(report)
        assert directory.read_report() == report


class TestLitter:
    """Files with predictable names in a directory that all users share, such as /tmp."""

    @pytest.fixture
    def shared(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as name:
            os.chmod(name, 0o1777)
            yield Path(name)

    def test_leftovers_are_removed(self, shared: Path) -> None:
        (shared / "x-m-1").touch()
        (shared / "x-m-2").mkdir()
        (shared / "x-m-3").symlink_to("nowhere")
        (shared / "x-other-1").touch()
        remove_litter([f"{shared}/x-$(tag)", f"{shared}/nothing-$(tag)"], "m-*")
        assert os.listdir(shared) == ["x-other-1"]

    def test_files_of_another_user_stay_and_stop_nothing(self, shared: Path) -> None:
        (shared / "x-m-1").touch()
        (shared / "x-m-2").mkdir()
        (shared / "x-m-3").symlink_to("nowhere")
        for path in shared.iterdir():
            os.chown(path, 12345, 12345, follow_symlinks=False)
        (shared / "x-m-4").touch()
        remove_litter([f"{shared}/x-$(tag)"], "m-*")
        assert sorted(os.listdir(shared)) == ["x-m-1", "x-m-2", "x-m-3"]

    def test_refused_removal_stops_nothing(self, shared: Path) -> None:
        """In a child that is not root: root may remove everything."""
        for name, uid in (("x-m-1", 12345), ("x-m-2", 12345), ("x-m-3", 0)):
            (shared / name).touch()
            os.chown(shared / name, uid, uid)
        os.chown(shared, 12346, 12346)
        os.chmod(shared, 0o755)  # the child owns some of the files but may not remove any
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setuid(12345)
                remove_litter([f"{shared}/x-$(tag)"], "m-*")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(os.listdir(shared)) == 3
