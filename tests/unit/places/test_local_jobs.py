"""The directory of a local job, and the wrapper of its driver."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from oars.places.local.host import this_host
from oars.places.local.job_driver import KeptLog, run
from oars.places.local.jobs import CLOSED, AttemptDir, JobDir, JobRecord, JobStore, LogReader
from oars.places.local.process import Identity, identify
from oars.spec.job_status import JobStatus

SHOW = "import time, sys; print('started', flush=True); time.sleep(60)"


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    found = AttemptDir(tmp_path / "1")
    found.work.mkdir(parents=True)
    return found


def output(attempt: AttemptDir) -> str:
    reader = LogReader(attempt)
    try:
        return reader.read().decode()
    finally:
        reader.close()


def test_equal_files_are_stored_once_until_the_last_job_is_removed(own_state: Path) -> None:
    store = JobStore(own_state)

    def create(name: str, archive: bytes) -> JobDir:
        return store.create(JobRecord(name, {}, name, 0.0, this_host()), archive)

    first, second, other = create("first", b"same"), create("second", b"same"), create("other", b"another")
    assert first.archive.samefile(second.archive)
    assert not first.archive.samefile(other.archive)
    first.remove()
    assert second.archive.read_bytes() == b"same"
    second.remove()
    assert [path.read_bytes() for path in (own_state / "files").iterdir()] == [b"another"]


@pytest.mark.parametrize("cluster", [{"name": "demo"}, {"engine": "dask"}])
def test_job_has_its_first_status_as_soon_as_it_is_seen(own_state: Path, cluster: dict[str, str]) -> None:
    """Otherwise a keeper that somebody's look at the job starts would not know the cluster of the job."""
    store = JobStore(own_state)
    store.create(JobRecord("train", {"cluster": cluster}, "m", 0.0, this_host(), "dask"), b"")
    assert store.job("train").read_status() == JobStatus(engine="dask", cluster=cluster.get("name", ""))


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["sh", "-c", "echo out; echo err >&2; exit 7"], 7, "out\nerr\n"),
        (["sh", "-c", "pwd | grep -c work"], 0, "1\n"),
        (["sh", "-c", "kill -KILL $$"], 137, ""),
        (["sh", "-c", "kill -40 $$"], 168, ""),  # a real-time signal, which has no name
        (
            ["/missing/program"],
            127,
            "The command '/missing/program' could not be started: No such file or directory.\n",
        ),
    ],
)
def test_exit_code_and_output_are_stored(attempt: AttemptDir, command: list[str], code: int, text: str) -> None:
    assert run(attempt, 2**20, command) == code
    ended = attempt.read_exit()
    assert ended is not None
    assert (ended.code, output(attempt)) == (code, text)


def test_attempt_is_claimed_once(attempt: AttemptDir) -> None:
    won = []
    threads = [threading.Thread(target=lambda: won.append(attempt.claim(identify(os.getpid())))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert isinstance(attempt.claimed_by(), Identity)
    assert run(attempt, 2**20, ["true"]) is None
    assert attempt.read_exit() is None


def test_closed_attempt_starts_no_driver(attempt: AttemptDir) -> None:
    assert attempt.claim(None)
    assert attempt.claimed_by() == CLOSED
    assert run(attempt, 2**20, ["touch", "started"]) is None
    assert not (attempt.work / "started").exists()


def start_wrapper(attempt: AttemptDir) -> subprocess.Popen[bytes]:
    code = (
        "import sys; from pathlib import Path; from oars.places.local.job_driver import run; "
        "from oars.places.local.jobs import AttemptDir; run(AttemptDir(Path(sys.argv[1])), 10000, sys.argv[2:])"
    )
    wrapper = subprocess.Popen([sys.executable, "-c", code, attempt.path, sys.executable, "-c", SHOW])
    deadline = time.monotonic() + 30
    while "started" not in output(attempt):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return wrapper


def test_termination_reaches_the_driver_and_its_exit_code_is_stored(attempt: AttemptDir) -> None:
    wrapper = start_wrapper(attempt)
    wrapper.send_signal(signal.SIGTERM)
    wrapper.wait(30)
    ended = attempt.read_exit()
    assert ended is not None
    assert (ended.code, ended.message) == (143, "The driver was killed by SIGTERM.")


def test_killed_wrapper_takes_the_driver_with_it(attempt: AttemptDir) -> None:
    wrapper = start_wrapper(attempt)
    children = Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children").read_text().split()
    wrapper.kill()
    wrapper.wait(30)
    deadline = time.monotonic() + 30
    while any(identify(int(child)) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert attempt.read_exit() is None


def test_end_of_the_output_is_kept_and_followed_without_gaps(attempt: AttemptDir) -> None:
    log, reader = KeptLog(attempt, 2000), LogReader(attempt)
    lines = [f"line {number}\n".encode() for number in range(1000)]
    followed = b""
    for number, line in enumerate(lines):
        log.write(line)
        if number % 7 == 0:
            followed += reader.read()
    followed += reader.read()
    reader.close()
    log.close()
    assert followed == b"".join(lines)
    kept = output(attempt)
    assert 900 <= len(kept) <= 2000
    assert kept.endswith("line 999\n")


FULL = """
import resource, sys
from pathlib import Path
from oars.places.local.job_driver import run
from oars.places.local.jobs import AttemptDir

attempt = AttemptDir(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
run(attempt, 10**6, [sys.executable, "-c", "for n in range(2000): print(n)\\nraise SystemExit(3)"])
"""


def test_driver_continues_on_a_full_disk(attempt: AttemptDir) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, attempt.path], timeout=60, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    ended = attempt.read_exit()
    assert ended is not None and ended.code == 3
    assert output(attempt).startswith("0\n1\n2\n") and len(output(attempt)) == 4096


def test_exit_code_that_cannot_be_stored_is_stored_later(attempt: AttemptDir) -> None:
    obstacle = attempt.path / "exit.json"
    obstacle.mkdir()

    def remove() -> None:
        """After two attempts, each of which writes a temporary file first."""
        deadline = time.monotonic() + 30
        seen: set[Path] = set()
        while len(seen) < 2 and time.monotonic() < deadline:
            seen |= set(attempt.path.glob(".exit.json.*"))
            time.sleep(0.001)
        obstacle.rmdir()

    remover = threading.Thread(target=remove)
    remover.start()
    assert run(attempt, 2**20, ["sh", "-c", "echo done; exit 3"]) == 3
    remover.join()
    ended = attempt.read_exit()
    assert ended is not None and ended.code == 3


def test_dropped_output_is_mentioned_when_there_is_space_again(attempt: AttemptDir) -> None:
    log = KeptLog(attempt, 2**20)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        log.write(b"one\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
        log.write(b"two\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    log.write(b"three\n")
    log.close()
    assert output(attempt) == "one\n\n(4 bytes of output could not be written)\nthree\n"


def test_processes_that_hold_the_pipe_do_not_delay_the_end(attempt: AttemptDir) -> None:
    started = time.monotonic()
    assert run(attempt, 2**20, ["sh", "-c", "sleep 60 & echo $! > pid; echo done"]) == 0
    assert time.monotonic() - started < 30
    assert output(attempt) == "done\n"
    os.kill(int((attempt.work / "pid").read_text()), signal.SIGKILL)
