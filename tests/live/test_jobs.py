"""Jobs on this machine with real processes, mostly with the toy engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from oars import Job
from oars.base.errors import NotFound, TimedOut
from oars.places.local.process import Identity, marked
from oars.spec.job_status import JobState
from tests.live.test_cli import OARS, oars, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SECONDS = 90.0
FAST = {"backoff": {"first": "0.1s"}}
TOY = {"engine": "toy", "workers": 1}


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory; afterwards all jobs are removed."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    yield directory
    names = oars("jobs", "ls", "--place", "local", "-o", "name").stdout.split()
    if names:
        oars("jobs", "rm", *names)


def status(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(oars("jobs", "status", name, "-o", "json").stdout)
    return found


def clusters() -> list[str]:
    return oars("ls", "--place", "local", "-o", "name").stdout.split()


def script(work: Path, text: str) -> str:
    (work / "job.py").write_text(text)
    return "job.py"


def wait_for(path: Path | Callable[[], Path], seconds: float = SECONDS) -> str:
    until(lambda: (path() if callable(path) else path).exists(), seconds)
    return (path() if callable(path) else path).read_text()


def directory(state: Path, name: str, attempt: int = 1) -> Path:
    return state / "jobs" / name / "attempts" / str(attempt)


# The first attempt waits to be killed; later ones end at once.
WAIT_ONCE = """
import os, pathlib, time
print("attempt", os.environ["OARS_ATTEMPT"], flush=True)
if os.environ["OARS_ATTEMPT"] == "1":
    pathlib.Path("running").write_text("yes")
    time.sleep(600)
"""


def test_submit_runs_a_copy_and_ends_with_the_exit_code(work: Path) -> None:
    (work / "helper.py").write_text("NAME = 'helper'")
    (work / "big.bin").write_text("ignored")
    (work / ".oarsignore").write_text("*.bin")
    text = "import helper, os, sys; print(helper.NAME, sorted(os.listdir()), sys.argv[1:]); sys.exit(3)"
    done = oars("submit", "--engine", "toy", "--name", "one", "--", "python", script(work, text), "a b", code=3)
    assert done.stdout == "helper ['helper.py', 'job.py'] ['a b']\n"
    assert "sending 2 files" in done.stderr
    found = status("one")
    assert (found["state"], found["exit_code"], found["reason"]) == ("Failed", 3, "BadExit")
    assert not (work / "running").exists()
    assert oars("jobs", "logs", "one").stdout == done.stdout
    assert "exited with code 3" in oars("jobs", "why", "one").stdout
    assert oars("jobs", "wait", "one", code=3).stdout.startswith("NAME")
    until(lambda: not clusters())
    oars("jobs", "rm", "one")
    oars("jobs", "status", "one", code=3)


def test_job_file_with_retries_secrets_and_existing_cluster(work: Path, own_state: Path) -> None:
    oars("up", "demo", "--engine", "toy", "-q")
    (own_state / "secrets/hf").mkdir(parents=True)
    (own_state / "secrets/hf/token").write_text("s3cret\n")
    (work / "job.yaml").write_text(
        "apiVersion: oars.dev/v1alpha1\nkind: ComputeJob\nmetadata: {name: twice}\nspec:\n"
        "  cluster: {name: demo}\n"
        '  entrypoint: "test ${#TOKEN} = 6 && test $A = b && test $OARS_NAME = demo && exit $((2 - OARS_ATTEMPT))"\n'
        "  env: {A: b}\n  secrets: [{name: hf, key: token, as: TOKEN}]\n"
        "  retries: 1\n  backoff: {first: 0.1s}\n"
    )
    done = oars("submit", "-f", "job.yaml")
    assert "attempt 1 ended" in done.stderr
    found = status("twice")
    assert [each["exit_code"] for each in found["attempts"]] == [1, 0]
    assert (found["state"], found["failed"], found["cluster"]) == ("Succeeded", 1, "demo")
    assert "s3cret" not in (own_state / "jobs/twice/job.json").read_text()
    assert clusters() == ["demo"]
    oars("down", "demo", "-q")
    lost = oars("submit", "--cluster", "demo", "--", "true", code=3)
    assert "no cluster 'demo'" in lost.stderr


def test_killed_head_gives_another_attempt_on_a_fresh_cluster(work: Path, own_state: Path) -> None:
    job = Job(script(work, WAIT_ONCE), cluster=TOY, name="lost", fields=FAST)
    wait_for(directory(own_state, "lost") / "work/running")
    members = json.loads(oars("status", "lost-1", "-o", "json").stdout)["members"]
    os.kill(next(each["pid"] for each in members if each["id"] == "head"), signal.SIGKILL)
    result = job.result(SECONDS)
    assert (result.state, result.exit_code) == (JobState.SUCCEEDED, 0)
    assert [(each.n, each.cluster, each.reason) for each in result.attempts] == [
        (1, "lost-1", "HeadLost"),
        (2, "lost-2", ""),
    ]
    assert job.status().lost == 1
    assert list(job.logs(follow=True)) == ["attempt 2"]
    assert job.logs(1) == "attempt 1"
    job.remove()
    with pytest.raises(NotFound):
        Job.attach("lost", place="local")


def test_keeper_and_wrapper_may_die_at_any_time(work: Path, own_state: Path) -> None:
    job = Job(script(work, WAIT_ONCE), cluster=TOY, name="shaken", fields=FAST)
    home = own_state / "jobs/shaken"
    wait_for(directory(own_state, "shaken") / "work/running")
    kill_keeper(home)
    claim = json.loads((directory(own_state, "shaken") / "claim").read_text())
    assert Identity(**claim).alive(), "the driver continues without the keeper"
    os.kill(claim["pid"], signal.SIGKILL)  # its exit code is lost
    result = job.result(SECONDS)
    assert [each.reason for each in result.attempts] == ["DriverLost", ""]
    assert result.state is JobState.SUCCEEDED


def test_driver_that_ends_without_a_keeper_is_noticed_without_a_command(work: Path, own_state: Path) -> None:
    text = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\nprint('done')"
    Job(script(work, text), cluster=TOY, name="alone")
    attempt, home = directory(own_state, "alone"), own_state / "jobs/alone"
    until((attempt / "claim").exists)
    kill_keeper(home)
    (attempt / "work/go").touch()
    until(lambda: '"Succeeded"' in (home / "status.json").read_text(), SECONDS)
    until(lambda: not (own_state / "clusters/alone-1").exists(), SECONDS)


def kill_keeper(home: Path) -> None:
    """Kill the job's keeper, which holds the lock."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"oars.client.job_keeper" in command and os.fsencode(home) in command:
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError("there is no keeper")


def test_cancel_stops_the_driver_and_removes_the_cluster(work: Path, own_state: Path) -> None:
    text = "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('ending'), sys.exit(0)))\n"
    text += "open('running', 'w').close(); time.sleep(600)"
    job = Job(script(work, text), cluster=TOY, name="gone")
    wait_for(directory(own_state, "gone") / "work/running")
    with pytest.raises(TimedOut):
        job.wait(0.2)
    oars("jobs", "cancel", "gone")
    found = status("gone")
    assert (found["state"], found["reason"], found["attempts"][0]["outcome"]) == ("Cancelled", "Cancelled", "Stopped")
    assert oars("jobs", "logs", "gone").stdout == "ending\n"
    until(lambda: not clusters())


def test_deadline_ends_a_driver_that_ignores_signals(work: Path, own_state: Path) -> None:
    text = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    job = Job(script(work, text), cluster=TOY, name="late", attempt_deadline="1s")
    result = job.result(SECONDS)
    assert (result.state, result.reason) == (JobState.FAILED, "AttemptDeadlineExceeded")
    mark = json.loads((own_state / "jobs/late/job.json").read_text())["mark"]
    assert not marked(f"{mark}-1", "OARS_JOB_MARK")


def test_suspend_resume_and_ttl(work: Path, own_state: Path) -> None:
    job = Job(script(work, WAIT_ONCE), cluster=TOY, name="pause", ttl_after_finished="2s")
    wait_for(directory(own_state, "pause") / "work/running")
    suspended = json.loads(oars("jobs", "suspend", "pause", "-o", "json").stdout)
    assert (suspended["state"], suspended["message"]) == ("Suspended", "Continue it with `oars jobs resume pause`.")
    assert not clusters()
    assert json.loads(oars("jobs", "resume", "pause", "-o", "json").stdout)["state"] != "Suspended"
    found = job.wait(SECONDS)
    assert (found.state, found.attempt, found.failed, found.lost) == (JobState.SUCCEEDED, 2, 0, 0)
    until(lambda: not (own_state / "jobs/pause").exists(), SECONDS)


def test_job_that_has_ended_can_only_be_removed(work: Path) -> None:
    oars("submit", "--engine", "toy", "--name", "over", "--", "python", script(work, ""))
    for command in ("suspend", "resume"):
        assert "Job 'over' has ended: Succeeded." in oars("jobs", command, "over", code=1).stderr
    assert "Job over has ended before: Succeeded." in oars("jobs", "cancel", "over").stderr


def test_interrupted_submit_leaves_the_job_running(work: Path, own_state: Path) -> None:
    command = [OARS, "submit", "--engine", "toy", "--name", "left", "--", "python", script(work, WAIT_ONCE)]
    pipe = subprocess.PIPE
    following = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    wait_for(directory(own_state, "left") / "work/running")
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=SECONDS)
    assert following.returncode == 130
    assert "oars jobs logs -f left" in errors
    assert status("left")["state"] == "Running"


@pytest.mark.parametrize(("answer", "state"), [("l", "Running"), ("c", "Cancelled")])
@pytest.mark.parametrize("verb", ["submit", "logs"])
def test_user_who_interrupts_at_a_terminal_is_asked_what_becomes_of_the_job(
    work: Path, own_state: Path, verb: str, answer: str, state: str
) -> None:
    command = [OARS, "submit", "--engine", "toy", "--name", "asked", "--", "python", script(work, WAIT_ONCE)]
    if verb == "logs":
        oars("submit", "-d", *command[2:])
        wait_for(directory(own_state, "asked") / "work/running")
        command = [OARS, "jobs", "logs", "-f", "asked"]
    terminal, end = os.openpty()
    following = subprocess.Popen(
        command, stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert following.stdout is not None
    assert following.stdout.readline() == b"attempt 1\n"
    following.send_signal(signal.SIGINT)
    os.write(terminal, f"{answer}\n".encode())
    _, errors = following.communicate(timeout=SECONDS)
    os.close(end)
    os.close(terminal)
    assert following.returncode == 130
    assert b"(l)eave it running or (c)ancel it?" in errors
    assert (b"oars jobs logs -f asked" in errors) is (answer == "l")
    assert status("asked")["state"] == state


# The driver and the worker both import it; the Python that runs the tests cannot.
SORT = """
from distributed import Client
import natsort

def work():
    import natsort
    return natsort.__version__, natsort.natsorted(["10", "9"])

if __name__ == "__main__":
    with Client() as client:
        print(natsort.__version__, *client.submit(work).result())
"""


def test_driver_and_workers_have_the_packages_of_the_job(work: Path) -> None:
    assert find_spec("natsort") is None
    cluster = {"engine": "dask", "workers": 1, "environment": {"packages": ["natsort==8.4.0"]}}
    job = Job(script(work, SORT), cluster=cluster, name="packed")
    assert job.result(240).state is JobState.SUCCEEDED, job.logs()
    assert str(job.logs()).splitlines()[-1] == "8.4.0 8.4.0 ['9', '10']"
    job.remove()


def test_job_whose_packages_do_not_exist_is_not_submitted(work: Path) -> None:
    options = ("--engine", "dask", "--package", "there-is-no-such-package==1", "--name", "bad")
    done = oars("submit", *options, "--", "python", script(work, "print('started')"), code=1)
    assert not done.stdout
    assert "there is no package 'there-is-no-such-package' in the package index" in done.stderr
    assert not oars("jobs", "ls", "--place", "local", "-o", "name").stdout


def test_zombie_wrapper_does_not_run_a_second_driver(work: Path, own_state: Path) -> None:
    job = Job(script(work, WAIT_ONCE), cluster=TOY, name="single", fields=FAST)
    attempt = directory(own_state, "single")
    wait_for(attempt / "work/running")
    code = "import os, sys; from oars.places.local.job_driver import main; sys.exit(main(sys.argv[1:], os.environ))"
    home = str(own_state / "jobs/single")
    argv = [sys.executable, "-c", code, home, "1", "9999", "touch", "second"]
    assert subprocess.run(argv, timeout=SECONDS).returncode == 75
    job.cancel()
    assert job.wait(SECONDS).state is JobState.CANCELLED
    assert not (attempt / "work/second").exists()


MARS = """
    import oars
    from xorbits._mars import tensor as mt
    oars.connect()
    print(int(mt.ones(42).sum().execute(show_progress=False).fetch()))
"""
ENGINES = [
    ("dask", "from distributed import Client; print(Client().submit(sum, (20, 22)).result())"),
    ("ray", "import ray; ray.init(); print(ray.get(ray.remote(lambda: 42).remote()))"),
    ("mars", MARS),
]


@pytest.mark.parametrize(("engine", "text"), ENGINES)
def test_job_of_each_engine(work: Path, engine: str, text: str) -> None:
    body = f"if __name__ == '__main__':\n    {text}\n"
    job = Job(
        script(work, body), cluster={"engine": engine, "workers": [{"replicas": 1, "memory": "1Gi"}]}, name=engine
    )
    result = job.result(240)
    assert result.state is JobState.SUCCEEDED, job.logs()
    assert str(job.logs()).splitlines()[-1] == "42"
    started = time.monotonic()
    job.remove()
    assert time.monotonic() - started < 60
