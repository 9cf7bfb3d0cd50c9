"""Which host and user a local cluster belongs to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from oars.places.local import host as hosts
from oars.places.local.host import Host, Residence, booted_at, residence, this_host
from oars.places.local.store import Store
from tests.unit.local_clusters import EARLIER, record

HERE = Host("laptop", "id-1", "boot-1", "pid:[1]", 1000)
BOOTED = 1000.0
BEFORE, SINCE = 900.0, 1100.0  # the cluster was created before this boot, or since
REBOOTED = replace(HERE, boot="boot-0")
HOLDER = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(); sys.stdin.read()"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """A lock that a process holds which does not belong to any cluster: as if it were on another host."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield


@pytest.mark.parametrize(
    ("host", "created", "expected"),
    [
        pytest.param(HERE, SINCE, Residence.HERE, id="this boot"),
        pytest.param(replace(HERE, name="dhcp-17"), SINCE, Residence.HERE, id="renamed while it runs"),
        pytest.param(replace(HERE, machine="id-2"), SINCE, Residence.HERE, id="new machine id while it runs"),
        pytest.param(REBOOTED, BEFORE, Residence.ENDED, id="rebooted"),
        pytest.param(REBOOTED, SINCE, Residence.ENDED, id="a pod that moved to a node booted earlier"),
        pytest.param(replace(REBOOTED, machine=""), BEFORE, Residence.ENDED, id="rebooted, had no machine id"),
        pytest.param(replace(REBOOTED, name="dhcp-17"), BEFORE, Residence.ENDED, id="renamed and rebooted"),
        pytest.param(replace(REBOOTED, name="node-2"), SINCE, Residence.ELSEWHERE, id="a clone of the disk image"),
        pytest.param(replace(REBOOTED, machine="id-2"), BEFORE, Residence.ENDED, id="a new machine id with each boot"),
        pytest.param(replace(REBOOTED, machine="id-2"), SINCE, Residence.ELSEWHERE, id="another of that name"),
        pytest.param(replace(REBOOTED, name="b", machine="id-2"), BEFORE, Residence.ELSEWHERE, id="another machine"),
        pytest.param(replace(REBOOTED, name="b", machine=""), BEFORE, Residence.ELSEWHERE, id="another container"),
        pytest.param(replace(HERE, pid_namespace="pid:[2]"), SINCE, Residence.ENDED, id="restarted container"),
        pytest.param(
            replace(HERE, pid_namespace="pid:[2]", name="3f2a"), SINCE, Residence.ELSEWHERE, id="container beside"
        ),
        pytest.param(replace(HERE, uid=0), SINCE, Residence.ELSEWHERE, id="another user"),
    ],
)
def test_residence(host: Host, created: float, expected: Residence) -> None:
    assert residence(host, created, HERE, BOOTED, lambda: False) is expected


@pytest.mark.parametrize("host", [REBOOTED, replace(REBOOTED, name="x"), replace(HERE, pid_namespace="pid:[2]")])
def test_cluster_with_a_keeper_has_not_ended(host: Host) -> None:
    assert residence(host, BEFORE, HERE, BOOTED, lambda: True) is Residence.ELSEWHERE


def test_lock_of_a_keeper_is_seen(own_state: Path) -> None:
    directory = Store(own_state).create(record("demo", host=EARLIER), {})
    assert directory.residence(directory.read()) is Residence.ENDED
    with held(directory.keeper_lock):
        assert directory.residence(directory.read()) is Residence.ELSEWHERE
    assert directory.residence(directory.read()) is Residence.ENDED


def test_this_host_is_the_same_in_every_process() -> None:
    code = "from oars.places.local.host import this_host; print(repr(this_host()))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown.strip() == repr(this_host())
    assert this_host().uid == os.geteuid() and 0 < booted_at()


def test_machine_without_an_id_has_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new").write_text("uninitialized\n")
    monkeypatch.setattr(hosts, "MACHINE_ID", (tmp_path / "new", tmp_path / "missing"))
    monkeypatch.setattr(hosts, "PID_NAMESPACE", str(tmp_path / "missing"))
    assert (this_host().machine, this_host().pid_namespace) == ("", "")


def test_another_user_is_named() -> None:
    assert replace(HERE, name="a").describe(HERE) == "a"
    assert replace(HERE, pid_namespace="pid:[2]").describe(HERE) == "another host or container named laptop"
    assert replace(HERE, uid=0).describe(HERE) == "root@laptop"
    assert replace(HERE, uid=4711).describe(HERE) == "user 4711@laptop"
