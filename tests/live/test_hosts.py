"""Clusters over several machines, started by hand. Network namespaces stand for the machines."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import OARS, Machine, machines, until

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

PORT = 8700


@pytest.fixture
def net(tmp_path: Path) -> Iterator[list[Machine]]:
    with machines(tmp_path, "main", "one", "two") as made:
        yield made


def start_head(machine: Machine, engine: str = "toy", *options: str) -> None:
    machine.start(OARS, "head", "--engine", engine, "--listen", f"{machine.address}:{PORT}", *options)


def token(head: Machine, name: str = "toy") -> str:
    """The file of the join token, which the head makes."""
    return str(head.state / "join" / name / "join.token")


def start_worker(machine: Machine, head: Machine, name: str = "toy", *options: str) -> None:
    size = ("--cpu", "1", "--memory", "600Mi")
    address = f"{head.address}:{PORT}"
    file = token(head, name)
    machine.start(OARS, "worker", "--head", address, "--token-file", file, "--name", machine.name, *size, *options)


def start_all(net: list[Machine], engine: str = "toy", *options: str) -> tuple[Machine, Machine, Machine]:
    head, one, two = net
    start_head(head, engine, *options)
    for machine in (one, two):
        start_worker(machine, head, engine)
    await_ready(head, engine)
    return head, one, two


def await_ready(head: Machine, name: str = "toy", seconds: float = 120.0) -> None:
    everyone = ["head", "one-0", "two-0"]
    try:
        until("all are ready", lambda: head.ready(name) == everyone, seconds)
    except AssertionError as error:
        logs = "".join(path.read_text() for path in head.state.parents[1].glob("*/*.log"))
        raise AssertionError(f"{error}\n{logs}") from None


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_workers_started_before_the_head_join_it(net: list[Machine]) -> None:
    """Also the first time, when the head has not made the token yet."""
    head, one, two = net
    start_worker(one, head)
    until("the worker waits", lambda: "there is no join token" in one.log.read_text())
    start_head(head)
    start_worker(two, head)
    await_ready(head)
    text = Path(token(head)).read_text()
    head.processes[0].terminate()
    head.processes[0].wait(60)
    start_head(head)
    assert Path(token(head)).read_text() == text, "the token belongs to the name"
    await_ready(head)
    until("the worker's machine sees it", lambda: one.ready("one") == ["head", "one-0"])


def test_dead_worker_is_restarted(net: list[Machine]) -> None:
    head, one, _ = start_all(net)
    pid = one.pid("one", "one-0")
    os.kill(pid, signal.SIGKILL)
    until("another one runs", lambda: one.ready("one") == ["head", "one-0"] and one.pid("one", "one-0") != pid)
    await_ready(head)


def test_head_that_comes_back_regains_its_workers(net: list[Machine]) -> None:
    """Also after its supervisors were killed, with another port."""
    head, _, _ = start_all(net)
    pid = head.pid("toy", "head")
    head.processes[0].kill()
    until("the keeper ends the head", lambda: is_gone(pid))
    until("its record is removed", lambda: not head.status("toy"))
    start_head(head, "toy", "--port", "http=7777")
    await_ready(head)
    client = head.status("toy")["endpoints"]["client"]
    assert client == f"toy://{head.address}:7777"


def test_head_with_another_spec_gets_new_workers(net: list[Machine]) -> None:
    head, one, _ = start_all(net)
    pid = one.pid("one", "one-0")
    head.processes[0].terminate()
    head.processes[0].wait(60)
    start_head(head, "toy", "--set", "env.CHANGED=other")
    await_ready(head)
    assert is_gone(pid)
    environ = Path(f"/proc/{one.pid('one', 'one-0')}/environ").read_bytes()
    assert b"CHANGED=other" in environ


def test_disconnected_machine_is_reported_and_regained(net: list[Machine]) -> None:
    head, one, _ = start_all(net)
    one.disconnect()
    until("the head reports it", lambda: head.ready("toy") == ["head", "two-0"])
    until("the worker's machine reports it", lambda: one.status("one")["reason"] == "HeadUnreachable")
    one.connect()
    await_ready(head)
    until("the worker's machine sees it", lambda: one.status("one")["phase"] == "Ready")


def test_ctrl_c_ends_everything(net: list[Machine]) -> None:
    head, one, two = start_all(net)
    pids = [head.pid("toy", "head"), one.pid("one", "one-0"), two.pid("two", "two-0")]
    for machine in (one, two, head):
        machine.processes[0].send_signal(signal.SIGINT)
    assert [machine.processes[0].wait(60) for machine in (one, two, head)] == [130] * 3
    assert all(is_gone(pid) for pid in pids)
    assert [path for machine in net for path in (machine.state / "clusters").glob("*")] == []


def test_worker_that_leaves_is_not_missed(net: list[Machine]) -> None:
    head, one, _ = start_all(net)
    one.processes[0].send_signal(signal.SIGINT)
    one.processes[0].wait(60)
    until("the head forgets it", lambda: [m["id"] for m in head.status("toy")["members"]] == ["head", "two-0"])
    assert head.status("toy")["phase"] == "Ready"


def test_limits_of_a_job_and_of_the_cluster_count_on_joined_machines(net: list[Machine]) -> None:
    """The job's deadline ends its driver only, and `lifetime.max` the cluster on all machines. `oars worker` waits for
    another head."""
    head, one, two = start_all(net, "toy", "--set", "lifetime.max=30s")
    assert head.status("toy")["expires"]["reason"] == "MaxLifetime"
    pids = [head.pid("toy", "head"), one.pid("one", "one-0"), two.pid("two", "two-0")]
    options = ("--name", "late", "--cluster", "toy", "--working-dir", "", "--set", "attemptDeadline=1s")
    assert "did not end within attemptDeadline" in head.run(OARS, "submit", *options, "--", "sleep", "600", code=143)
    assert not any(map(is_gone, pids))
    until("the cluster ends", lambda: not head.status("toy"))
    assert head.processes[0].wait(60) == 0
    (gone,) = json.loads(head.run(OARS, "ls", "--gone", "-o", "json"))
    assert (gone["reason"], gone["message"]) == ("MaxLifetime", "30s after its creation (lifetime.max)")
    assert all(map(is_gone, pids))
    for machine in (one, two):
        found = machine.status(machine.name)
        assert (found["members"], found["reason"]) == ([], "HeadUnreachable")


def test_killed_supervisor_leaves_nothing(net: list[Machine]) -> None:
    head, one, _ = start_all(net)
    pid = one.pid("one", "one-0")
    one.processes[0].kill()
    until("its worker ends", lambda: is_gone(pid), 30)
    os.kill(head.pid("toy", "head"), 0)


def test_wrong_token_is_refused(net: list[Machine], tmp_path: Path) -> None:
    head, one, _ = net
    start_head(head)
    until("the head listens", lambda: head.ready("toy") == ["head"])
    secret, _, fingerprint = Path(token(head)).read_text().strip().partition(".")
    address = f"{head.address}:{PORT}"
    cases = {
        f"{'0' * 64}.{fingerprint}": "its join token is not this head's",
        f"{secret}.{'0' * 64}": "is not the one that made this join token",
        "nonsense": "This is not a join token",
    }
    for number, (text, problem) in enumerate(cases.items()):
        file = tmp_path / f"token{number}"
        file.write_text(text)
        command = (OARS, "worker", "--head", address, "--token-file", str(file), "--name", "one")
        code = 2 if text == "nonsense" else 5
        assert problem in one.run(*command, code=code)
    assert [each["id"] for each in head.status("toy")["members"]] == ["head"]


def test_token_is_in_no_command_line_and_no_log(net: list[Machine]) -> None:
    head, one, _ = start_all(net)
    secret = Path(token(head)).read_text().strip()[:64].encode()
    for machine, name in ((head, "toy"), (one, "one")):
        for path in machine.state.rglob("*.log"):
            assert secret not in path.read_bytes()
        assert secret not in machine.log.read_bytes()
        pid = machine.pid(name, "head" if name == "toy" else "one-0")
        for name_of_file in ("cmdline", "environ"):
            assert secret not in Path(f"/proc/{pid}/{name_of_file}").read_bytes()


def test_daemons_run_until_down(net: list[Machine]) -> None:
    head, one, _ = net
    listen = f"{head.address}:{PORT}"
    file = head.run(OARS, "head", "--engine", "toy", "--listen", listen, "--daemon").strip()
    one.run(OARS, "worker", "--head", listen, "--token-file", file, "--name", "one", "--memory", "600Mi", "--daemon")
    until("both run", lambda: head.ready("toy") == ["head", "one-0"])
    pid = one.pid("one", "one-0")
    one.run(OARS, "down", "one")
    assert is_gone(pid)
    head.run(OARS, "down", "toy")
    assert not head.status("toy")


DASK = """
import time
from distributed import Client, wait
def work(number):
    time.sleep(0.5)
    return number
with Client() as client:
    futures = client.map(work, range(60))
    print("working", flush=True)
    print("sum", sum(client.gather(futures)), flush=True)
"""
RAY = """
import time, ray
ray.init(log_to_driver=False)
@ray.remote
def work(number):
    time.sleep(0.5)
    return number
found = [work.remote(number) for number in range(60)]
print("working", flush=True)
print("sum", sum(ray.get(found)), flush=True)
"""
MARS = """
import time
import oars
oars.connect()
from xorbits._mars.remote import spawn
def work(number):
    time.sleep(0.5)
    return number
found = [spawn(work, args=(number,)) for number in range(60)]
print("working", flush=True)
from xorbits._mars import execute, fetch
print("sum", sum(fetch(execute(*found, show_progress=False))), flush=True)
"""


@pytest.mark.parametrize(("engine", "program"), [("dask", DASK), ("ray", RAY), ("mars", MARS)])
def test_engine_survives_a_short_disconnection(net: list[Machine], engine: str, program: str) -> None:
    """A driver on the head's machine keeps its work while one of two machines is away for seven seconds."""
    head, one, two = start_all(net, engine)
    script = head.state.parent / "program.py"
    script.write_text(program)
    driver = head.start(OARS, "exec", engine, "--", "python", str(script))
    until("it works", lambda: "working" in head.log.read_text(), 120)
    time.sleep(2)  # into the middle of the work
    two.disconnect()
    until("the head notices", lambda: "two-0" not in head.ready(engine))
    two.connect()
    assert driver.wait(180) == 0, head.log.read_text()
    assert "sum 1770" in head.log.read_text()
    await_ready(head, engine)
    # A program on a worker's machine finds the cluster as well.
    assert one.ready("one") == ["head", "one-0"]
