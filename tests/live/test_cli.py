"""The command line with real processes, pipes and terminals, mostly with the toy engine."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

OARS = str(Path(sys.executable).with_name("oars"))
TOY = ("--engine", "toy")
SECONDS = 90


def oars(*args: str, code: int = 0, text: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command and check its exit code."""
    env = {**os.environ, **environ}
    stdin: dict[str, Any] = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    done = subprocess.run([OARS, *args], capture_output=True, text=True, timeout=SECONDS, env=env, **stdin)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr or code == 0
    return done


def begin(*args: str) -> subprocess.Popen[str]:
    """Start a command in a new session."""
    pipe = subprocess.PIPE
    return subprocess.Popen([OARS, *args], stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out waiting for a condition"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while we read
        return False


def status(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(oars("status", name, "-o", "json").stdout)
    return found


@pytest.fixture
def demo() -> Iterator[str]:
    oars("up", "demo", *TOY, "--workers", "2", "-q")
    yield "demo"
    oars("down", "--all", "-q")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


# life cycle


def test_life_cycle_from_up_to_down() -> None:
    up = oars("up", "demo", *TOY, "--workers", "2", "-o", "json")
    assert json.loads(up.stdout)["phase"] == "Ready"
    assert "oars shell demo" in up.stderr
    found = status("demo")
    fields = ["name", "engine", "place", "phase", "reason", "message", "endpoints", "groups", "members"]
    assert list(found) == [*fields, "mode", "namespace", "expires", "host", "created"]
    assert found["groups"] == [{"name": "default", "wanted": 2, "ready": 2}]
    assert [member["id"] for member in found["members"]] == ["head", "worker-0", "worker-1"]
    assert set(found["members"][0]) == {"id", "role", "group", "phase", "address", "pid", "reason", "tasks"}
    listed = json.loads(oars("ls", "-o", "json").stdout)
    assert listed == [{key: value for key, value in found.items() if key != "members"}]
    assert "Workers:   4/4 ready" in oars("scale", "demo", "4").stdout
    assert oars("scale", "demo", "1", "-o", "name").stdout == "demo\n"
    assert status("demo")["groups"] == [{"name": "default", "wanted": 1, "ready": 1}]
    assert "Nothing is wrong" in oars("why", "demo").stdout
    assert oars("down", "demo").stdout == "demo is stopped.\n"
    oars("status", "demo", code=3)


def test_output_formats(demo: str) -> None:
    head, row = oars("ls").stdout.splitlines()
    assert head.split()[:5] == ["NAME", "ENGINE", "PLACE", "PHASE", "WORKERS"]
    assert row.split()[:5] == ["demo", "toy", "local", "Ready", "2/2"]
    assert "CLIENT" in oars("ls", "-o", "wide").stdout
    assert oars("ls", "-o", "name").stdout == "demo\n"
    assert "name: demo" in oars("status", demo, "-o", "yaml").stdout
    assert "worker-1  Ready" in oars("status", demo).stdout


def test_options_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "apiVersion: oars.dev/v1alpha1\nkind: ComputeCluster\nmetadata: {name: filed}\n"
        "spec:\n  engine: toy\n  workers: [{name: a, replicas: 1}, {name: b, replicas: 1}]\n"
    )
    oars("up", "-f", str(path), "--workers", "2", "--set", "workers.b.replicas=0", "-q")
    try:
        assert [(g["name"], g["ready"]) for g in status("filed")["groups"]] == [("a", 2), ("b", 0)]
        oars("scale", "filed", "1", "--group", "b", "-q")
        assert [(g["name"], g["ready"]) for g in status("filed")["groups"]] == [("a", 2), ("b", 1)]
        assert "has no worker group 'c'" in oars("scale", "filed", "1", "--group", "c", code=3).stderr
    finally:
        oars("down", "filed", "-q")


def test_scale_says_that_autoscaling_ends(demo: str) -> None:
    for number in ("2", "1"):  # 2 are ready already: there is hardly any progress
        oars("adapt", demo, "1", "3")
        told = oars("scale", demo, number).stderr.splitlines()
        assert told[0] == "demo: autoscaling of group default is off from now on"
    told = oars("scale", demo, "2", "--group", "x", code=3).stderr.splitlines()
    assert told[0].startswith("error: Cluster 'demo' has no worker group 'x'.")


def test_why_reports_a_killed_worker(demo: str) -> None:
    victim = status(demo)["members"][1]["pid"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: status(demo)["members"][1]["pid"] not in (victim, None) and status(demo)["phase"] == "Ready")
    assert "worker-0 was killed by SIGKILL" in oars("why", demo).stdout
    assert [cause["reason"] for cause in json.loads(oars("why", demo, "-o", "json").stdout)] == ["Replaced"]


def test_next_command_replaces_a_killed_keeper(demo: str, own_state: Path) -> None:
    before = [member["pid"] for member in status(demo)["members"]]
    [keeper] = _processes(str(own_state / "clusters/demo"))
    os.kill(keeper, signal.SIGKILL)
    assert "Its keeper is gone" in oars("doctor").stdout
    assert json.loads(oars("ls", "-o", "json").stdout)[0]["phase"] == "Ready"
    assert [member["pid"] for member in status(demo)["members"]] == before


def _processes(word: str) -> list[int]:
    """Return the processes with this argument in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_down_stops_several_clusters_and_reports_missing_ones() -> None:
    for name in ("one", "two"):
        oars("up", name, *TOY, "-q", "--workers", "1")
    done = oars("down", "one", "nix", "two", "-o", "name", code=3)
    assert done.stdout.split() == ["one", "two"]
    assert "There is no cluster 'nix' on this machine." in done.stderr
    assert oars("ls", "-o", "name").stdout == ""


# failures leave nothing behind


def test_up_explains_a_crash_and_removes_the_cluster() -> None:
    done = oars("up", "bad", *TOY, "--workers", "2", "--set", "toy.crash='1'", code=1)
    assert "worker-1 keeps dying" in done.stderr
    assert "No module named 'missing_thing'" in done.stderr
    assert "was removed again" in done.stderr
    assert done.stdout == ""
    oars("status", "bad", code=3)


def test_up_removes_the_cluster_after_a_timeout() -> None:
    done = oars("up", "late", *TOY, "--timeout", "10ms", code=4)
    assert "error: Timed out after" in done.stderr
    oars("status", "late", code=3)


def test_only_one_of_two_clusters_gets_the_name() -> None:
    both = [begin("up", "twin", *TOY, "--workers", "1", "-q", "-o", "name") for _ in range(2)]
    outputs = [process.communicate(timeout=SECONDS) for process in both]
    assert sorted(process.returncode for process in both) == [0, 1]
    assert sorted(out for out, _ in outputs) == ["", "twin\n"]
    assert any("Cluster 'twin' exists already." in err for _, err in outputs)
    assert status("twin")["phase"] == "Ready"
    oars("down", "twin", "-q")


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [("up", signal.SIGINT, 130), ("up", signal.SIGTERM, 143), ("apply", signal.SIGINT, 130)],
)
def test_signal_during_creation_removes_the_cluster(
    command: str, number: signal.Signals, code: int, own_state: Path
) -> None:
    process = begin(command, "half", *TOY, "--workers", "3", "--set", "workers[0].env.TOY_WAIT='600'")
    until(lambda: (own_state / "clusters/half/report.json").exists())
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code, err
    assert "Cluster 'half' was removed again." in err
    assert out == ""
    assert not (own_state / "clusters/half").exists()


BAD = [
    (["--engine", "tyo"], 2, "There is no engine 'tyo'. Did you mean 'toy'?"),
    ([*TOY, "--workers", "-1"], 2, "Invalid value for '--workers': -1 is not in the range x>=0."),
    ([*TOY, "--workers", "1000000"], 2, "spec.workers[0].replicas must be at most"),
    ([*TOY, "--cpu", "0"], 2, "'0' processors: must be more than 0"),
    ([*TOY, "--memory", "12"], 2, "(is the unit missing?)"),
    ([*TOY, "--memory", "900Ti"], 2, "can be used here"),
    ([*TOY, "--place", "moon"], 2, "There is no place 'moon'"),
    ([*TOY, "--set", "head.cpux=1"], 2, "--set head.cpux=1: spec.head.cpux is not a known field; did you mean 'cpu'?"),
    ([*TOY, "--set", "nonsense"], 2, "expected path=value"),
    ([*TOY, "--name", "Not_A_Label"], 2, "'Not_A_Label' is not a valid name"),
    (["-f", "nix.yaml"], 3, "There is no file nix.yaml."),
]


@pytest.mark.parametrize(("args", "code", "said"), BAD, ids=[said[:30] for _, _, said in BAD])
def test_invalid_options_are_rejected(args: list[str], code: int, said: str, own_state: Path) -> None:
    name = () if "--name" in args else ("demo",)
    done = oars("up", *name, *args, code=code)
    lines = [line for line in done.stderr.splitlines() if line != "demo: starting"]  # printed if the machine is slow
    assert lines[0].startswith("error: ")
    assert said in lines[0]
    assert len(lines) >= 2, "the hint is missing"
    assert done.stdout == ""
    assert not list(own_state.glob("clusters/*"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("spec: [", ":2:1: a value is missing, or a bracket is never closed."),
        ("apiVersion: oars.dev/v1alpha1\nkind: ComputeCluster\nspec:\n  engine: toy\n  wokers: 3\n",
         ":5:3: spec.wokers is not a known field; did you mean 'workers'?"),
        ("", " is empty."),
    ],
)  # fmt: skip
def test_invalid_files_are_rejected(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    assert f"{path}{said}" in oars("up", "-f", str(path), code=2).stderr


def test_unwritable_state_directory_is_reported(own_state: Path) -> None:
    own_state.touch()
    done = oars("up", "demo", *TOY, code=1)
    assert f"error: The state directory {own_state} cannot be written" in done.stderr
    assert "OARS_STATE_DIR" in done.stderr
    oars("doctor", code=1)
    oars("ls", code=1)


def test_missing_script_is_reported(own_state: Path) -> None:
    done = oars("run", *TOY, "nix.py", code=3)
    assert done.stderr.startswith("error: There is no script 'nix.py'.")
    assert not own_state.exists()


def test_unknown_package_is_reported(own_state: Path, tmp_path: Path) -> None:
    package = "oars-has-no-such-package"
    done = oars("up", "demo", "--engine", "dask", "--package", package, code=1, OARS_CACHE_DIR=str(tmp_path / "cache"))
    assert package in done.stderr
    assert not list(own_state.glob("clusters/*"))


# programs that use a cluster


def test_run_forwards_arguments_output_and_exit_code(script: Callable[[str], str]) -> None:
    path = script(
        "import os, sys, oars\n"
        "sys.stdout.buffer.write(b'\\x00raw\\n')\n"
        "print(sorted(oars.connect().workers()), sys.argv[1:], os.environ['OARS_ENGINE'])\n"
        "print('to stderr', file=sys.stderr)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    done = oars("run", "--workers", "2", path, *TOY, "7", "--", "--workers", "9", code=7)
    assert done.stdout == "\x00raw\n['worker-0', 'worker-1'] ['7', '--workers', '9'] toy\n"
    assert "to stderr\n" in done.stderr
    done = oars("run", path, *TOY, "--workers", "1", "-q", "0", "--", "--engine")
    assert done.stdout.splitlines()[1] == "['worker-0'] ['0', '--engine'] toy"
    assert done.stderr == "to stderr\n"
    assert oars("ls", "-o", "name").stdout == ""


def test_run_of_a_module_and_in_a_running_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text("import sys, oars\nprint(len(oars.connect().workers()), sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    done = oars("run", "-q", "-m", "package.train", *TOY, "--workers", "2", "--epochs", "3", "--name", "demo")
    assert done.stdout == "2 ['--epochs', '3']\n"
    oars("up", "demo", *TOY, "-q")
    refused = oars("run", "-q", "-m", "package.train", *TOY, "--name", "demo", "a b", code=1).stderr
    assert "Run it there with `oars exec demo -- python -m package.train 'a b'`." in refused
    assert oars("exec", "demo", "--", "python", "-m", "package.train", "a b").stdout == "1 ['a b']\n"
    oars("down", "demo", "-q")


def test_run_forwards_stdin_and_signals(script: Callable[[str], str]) -> None:
    path = script("import os, sys\nprint(sys.stdin.read().upper(), flush=True)\nos.kill(os.getpid(), 9)\n")
    assert oars("run", *TOY, "--workers", "0", path, text="hello", code=137).stdout == "HELLO\n"


SLEEPER = "import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_stops_script_and_cluster(number: int, code: int, script: Callable[[str], str]) -> None:
    process = begin("run", *TOY, "--workers", "1", script(SLEEPER))
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(number)
    process.communicate(timeout=SECONDS)
    assert process.returncode == code
    assert not alive(pid)
    assert oars("ls", "-o", "name").stdout == ""


def test_killed_run_leaves_nothing_behind(script: Callable[[str], str], own_state: Path) -> None:
    process = begin("run", *TOY, "--workers", "2", script(SLEEPER))
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=SECONDS)
    until(lambda: not alive(pid) and not list(own_state.glob("clusters/*")))


def test_shell_has_the_cluster(demo: str) -> None:
    assert oars("shell", demo, text="cluster.scale(3); print(cluster.name, cluster.wait(3).ready)").stdout == "demo 3\n"


def test_watched_list_shows_a_cluster_that_starts_and_stops() -> None:
    watching = begin("ls", "-w", "--interval", "0.1", "-o", "json")
    assert watching.stdout is not None
    try:
        oars("up", "demo", *TOY, "--workers", "1", "-q")
        oars("down", "demo", "-q")
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["phase"] != "Stopped":
            seen.append(json.loads(watching.stdout.readline()))
        assert {each["name"] for each in seen} == {"demo"} and "Ready" in {each["phase"] for each in seen}
    finally:
        watching.terminate()
        watching.communicate(timeout=SECONDS)


def test_shell_and_exec(demo: str) -> None:
    assert oars("shell", demo, text="print(len(client.workers()))").stdout == "2\n"
    assert oars("shell", demo, text="import sys; sys.exit(5)", code=5).stdout == ""
    assert oars("shell", demo, "--", "sh", "-c", "echo $OARS_NAME $OARS_ENGINE").stdout == "demo toy\n"
    assert oars("exec", demo, "--", "python", "-c", "import oars; print(oars.connect().closed)").stdout == "False\n"
    oars("exec", demo, "--", "sh", "-c", "exit 9", code=9)
    assert "There is no program 'nixda'." in oars("exec", demo, "--", "nixda", code=3).stderr


def test_logs_of_all_and_of_one_member(demo: str) -> None:
    lines = oars("logs", demo).stdout.splitlines()
    assert "[head] toy head starts" in lines
    assert "[worker-1] toy worker worker-1 starts" in lines
    assert oars("logs", demo, "worker-1").stdout == "toy worker worker-1 starts\n"
    assert oars("logs", demo, "worker-1", "--since", "1h").stdout == "toy worker worker-1 starts\n"
    time.sleep(0.1)
    assert oars("logs", demo, "worker-1", "--since", "0").stdout == ""
    assert len(oars("logs", demo, "--tail", "1").stdout.splitlines()) == 3
    assert json.loads(oars("logs", demo, "worker-0", "-o", "json").stdout)["member"] == "worker-0"
    assert "Did you mean 'worker-1'?" in oars("logs", demo, "worker1", code=3).stderr


def test_logs_are_followed_until_the_cluster_is_gone(demo: str) -> None:
    following = begin("logs", demo, "-f", "--tail", "1")
    oars("scale", demo, "3", "-q")
    assert following.stdout is not None
    everyone = {"[head]", "[worker-0]", "[worker-1]", "[worker-2]"}
    heard: set[str] = set()
    while heard != everyone:  # the follower looks for new members once a second
        line = following.stdout.readline()
        assert line, f"it ended after {heard}"
        heard.add(line.split()[0])
    oars("down", demo, "-q")
    out, err = following.communicate(timeout=SECONDS)
    assert {line.split()[0] for line in out.splitlines()} <= everyone
    assert (following.returncode, err) == (0, "")


def test_closed_pipe_causes_no_error(demo: str) -> None:
    command = f"{OARS} logs {demo} -f | head -1; {OARS} ls | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=SECONDS)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2


# terminals


def on_terminal(args: Sequence[str], send: dict[str, str] | None = None, **environ: str) -> tuple[int, str]:
    """Run on a pseudo-terminal; return exit code and output. `send` maps expected output to the keys to type."""
    waiting, output = dict(send or {}), ""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(args[0], list(args), {**os.environ, "TERM": "xterm", "COLUMNS": "80", **environ})
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                output += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break  # Linux reports a closed terminal as an error
        for key in [key for key in waiting if key in output]:
            os.write(terminal, waiting.pop(key).encode())
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output


def test_terminal_shows_progress_and_colour() -> None:
    code, shown = on_terminal([OARS, "up", "demo", *TOY, "--workers", "2"])
    assert code == 0
    assert re.search(r"\r\x1b\[K. demo: .* \(\d+ s\)", shown)
    assert "\x1b[32mReady\x1b[0m" in shown
    _, plain = on_terminal([OARS, "status", "demo"], NO_COLOR="1")
    assert "\x1b" not in plain
    assert "Ready" in plain
    oars("down", "demo", "-q")


def test_ctrl_c_reaches_the_script_once(script: Callable[[str], str]) -> None:
    path = script(
        "import time\ntry:\n    print('begun', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    time.sleep(1)\n    print('tidied up')\n"
    )
    code, shown = on_terminal([OARS, "run", *TOY, "--workers", "1", path], {"begun": "\x03"})
    assert code == 130
    assert "tidied up" in shown
    assert "Interrupted." in shown


def test_interactive_shell(demo: str) -> None:
    keys = {">>> ": "print('found', len(client.workers()))\n", "found 2": "exit()\n"}
    code, shown = on_terminal([OARS, "shell", demo], keys, PYTHON_COLORS="0")
    assert code == 0
    assert "demo: toy at toy://127.0.0.1" in shown
    assert "`client` is a toy client. `cluster` scales it." in shown


def test_shell_says_that_its_environment_has_no_cluster(demo: str, tmp_path: Path) -> None:
    """An environment that Oars has built lacks what the control plane needs."""
    lines = ["import os, sys", "if 'OARS_SHELL_LOCATION' in os.environ:", "    sys.modules['pydantic'] = None"]
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines))
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    keys = {">>> ": "print('found', len(client.workers()), 'cluster' in globals())\n", "found 2 False": "exit()\n"}
    code, shown = on_terminal([OARS, "shell", demo], keys, PYTHON_COLORS="0", PYTHONPATH=path)
    assert code == 0
    assert "`client` is a toy client. `cluster` is not available: this environment has the engine, but not" in shown


# a real engine


def test_dask_script_imports_modules_from_its_directory(tmp_path: Path) -> None:
    """Workers find the modules in the script's directory, which is not the current one."""
    (tmp_path / "beside.py").write_text("def double(x):\n    return 2 * x\n")
    path = tmp_path / "script.py"
    path.write_text(
        "from beside import double\nfrom distributed import Client\n"
        "if __name__ == '__main__':\n    with Client() as client:\n"
        "        client.wait_for_workers(2)\n        print(sum(client.gather(client.map(double, range(10)))))\n"
    )
    done = oars("run", str(path), "--engine", "dask", "--workers", "2")
    assert done.stdout == "90\n"


def test_dask_shell() -> None:
    oars("up", "demo", "--engine", "dask", "--workers", "1", "-q")
    try:
        assert oars("shell", "demo", text="print(client.submit(sum, range(5)).result())").stdout == "10\n"
        assert "worker-0" in oars("status", "demo").stdout
    finally:
        oars("down", "demo", "-q")
