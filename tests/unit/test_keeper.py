"""The keeper's lock: one keeper per cluster."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading

import pytest

from oars.places.local import store as local_store
from oars.places.local.store import ClusterDir, lock_keeper
from tests.unit.local_clusters import OTHER, record, store


@pytest.fixture
def directory() -> ClusterDir:
    return store().create(record("demo"), {})


def test_client_that_tests_for_a_keeper_does_not_keep_one_from_starting(directory: ClusterDir) -> None:
    directory.keeper_lock.touch()
    with open(directory.keeper_lock) as client:
        fcntl.flock(client, fcntl.LOCK_SH)
        timer = threading.Timer(0.2, fcntl.flock, (client, fcntl.LOCK_UN))
        timer.start()
        descriptor = lock_keeper(directory.keeper_lock)
        timer.join()
    assert descriptor is not None
    assert directory.has_keeper
    os.close(descriptor)
    assert not directory.has_keeper


def test_second_keeper_ends(directory: ClusterDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_store, "LOCK_SECONDS", 0.1)
    first = lock_keeper(directory.keeper_lock)
    assert first is not None and lock_keeper(directory.keeper_lock) is None
    os.close(first)


def test_lock_of_a_removed_cluster_is_worth_nothing(directory: ClusterDir) -> None:
    """The keeper opened the file, waited for the lock of the one before, and that one removed the cluster."""
    with open(directory.keeper_lock, "w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)

        def replace_cluster() -> None:
            shutil.rmtree(directory.path)
            store().create(record("demo", mark="another"), {}).keeper_lock.touch()
            fcntl.flock(first, fcntl.LOCK_UN)

        timer = threading.Timer(0.2, replace_cluster)
        timer.start()
        assert lock_keeper(directory.keeper_lock) is None
        timer.join()


def test_keeper_does_not_run_on_another_host() -> None:
    directory = store().create(record("demo", host=OTHER), {})
    code = "import os, sys; from oars.keeper.main import main; sys.exit(main(sys.argv[1], os.environ))"
    subprocess.run([sys.executable, "-c", code, str(directory.path)], check=True, timeout=60)
    assert not directory.ledger_file.exists() and "cluster of another host" in directory.keeper_log.read_text()
