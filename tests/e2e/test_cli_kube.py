"""The command line on Kubernetes, as users have it: real processes and real pods. Dask, since it is the quickest."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from lab.kube import Kube

from tests.e2e.contract import until

pytestmark = pytest.mark.timeout(600)

OARS = str(Path(sys.executable).with_name("oars"))
SMALL = ("--cpu", "0.3", "--memory", "512Mi", "--set", "head.cpu=0.3", "--set", "head.memory=512Mi")
SECONDS = 120
TICKS = 40  # half a second each: longer than an outage and the pauses after it
SCRIPT = "from distributed import Client\nprint('sum', Client().submit(sum, range(10)).result())\nraise SystemExit(3)\n"


class Line:
    """`oars` with a namespace of the lab as its whereabouts."""

    def __init__(self, kube: Kube, state: Path) -> None:
        self.kube = kube
        self.env = {**os.environ, "KUBECONFIG": str(kube.kubeconfig), "OARS_STATE_DIR": str(state)}

    def __call__(self, *args: str, code: int = 0, text: str | None = None) -> subprocess.CompletedProcess[str]:
        stdin: dict[str, Any] = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
        words = [OARS, *args]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, env=self.env, **stdin)
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def begin(self, *args: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([OARS, *args], stdout=pipe, stderr=pipe, text=True, env=self.env)

    @property
    def at(self) -> tuple[str, str]:
        return "-n", self.kube.namespace

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", name, *self.at, "-o", "json").stdout)
        return found


@pytest.fixture(scope="class")
def oars(home: Kube, tmp_path_factory: pytest.TempPathFactory) -> Line:
    return Line(home, tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="class")
def description(home: Kube, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("files") / "cluster.yaml"
    small = "cpu: 0.3, memory: 512Mi"
    path.write_text(
        "apiVersion: oars.dev/v1alpha1\nkind: ComputeCluster\nmetadata: {name: demo}\n"
        f"spec:\n  engine: dask\n  image: {home.image('dask')}\n  place: kubernetes\n"
        f"  head: {{{small}}}\n  workers: [{{replicas: 1, {small}}}]\n"
    )
    return str(path)


@pytest.fixture(scope="class")
def demo(request: pytest.FixtureRequest, oars: Line, description: str) -> Iterator[str]:
    """One cluster for the tests of a class, in its mode."""
    mode = request.cls.mode
    up = oars("up", "-f", description, *oars.at, "--mode", mode)
    assert f"oars down demo {' '.join(oars.at)}" in up.stderr
    assert ("It keeps running without an operator" in up.stderr) is (mode == "direct")
    yield "demo"
    assert oars("down", "demo", *oars.at).stdout == "demo is stopped.\n"
    oars("status", "demo", *oars.at, code=3)


class TestDirect:
    mode = "direct"

    def test_cluster_is_listed_with_its_status(self, oars: Line, demo: str) -> None:
        found = oars.status(demo)
        assert (found["place"], found["mode"], found["namespace"]) == ("kubernetes", "direct", oars.kube.namespace)
        assert found["groups"] == [{"name": "default", "wanted": 1, "ready": 1}]
        listed = json.loads(oars("ls", *oars.at, "-o", "json").stdout)
        assert [(each["name"], each["phase"], each["mode"]) for each in listed] == [("demo", "Ready", "direct")]
        assert oars("ls", "--place", "local", "-o", "name").stdout == ""
        assert oars.kube.namespace in oars("ls", *oars.at, "-o", "wide").stdout
        assert "Mode:      direct" in oars("status", demo, *oars.at).stdout
        assert "Nothing is wrong" in oars("why", demo, *oars.at).stdout
        assert "exists already" in oars("up", demo, "--engine", "dask", *oars.at, code=1).stderr

    def test_programs_run_in_the_head_pod(self, oars: Line, demo: str, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        oars("cp", str(script), f"{demo}:/tmp/script.py", *oars.at)
        assert "sum 45" in oars("exec", demo, *oars.at, "--", "python", "/tmp/script.py", code=3).stdout
        assert oars("exec", demo, *oars.at, "--", "cat", text="a\nb\n").stdout == "a\nb\n"
        name = oars("exec", demo, *oars.at, "--", "sh", "-c", "echo $OARS_NAME; cat /etc/hostname").stdout.split()
        assert name[0] == "demo"
        assert name[1].startswith("demo-head-")
        told = oars("shell", demo, *oars.at, text="print('sum', client.submit(sum, [1, 2]).result())").stdout
        assert told == "sum 3\n"
        oars("exec", demo, *oars.at, "--", "no-such-program", code=127)

    def test_programs_run_in_any_container(self, oars: Line, demo: str) -> None:
        worker = next(member["id"] for member in oars.status(demo)["members"] if member["role"] == "worker")
        there = ("exec", demo, *oars.at, "--member", worker)
        assert oars(*there, "--", "sh", "-c", "echo $OARS_NAME; cat /etc/hostname").stdout.split() == ["demo", worker]
        beside = oars("exec", demo, *oars.at, "-c", "oars", "--", "sh", "-c", "echo $OARS_HELPER_PORT:$OARS_NAME")
        assert beside.stdout == "7070:\n"
        assert "Containers: worker." in oars(*there, "-c", "oars", "--", "true", code=3).stderr
        assert oars("logs", demo, *oars.at, "-c", "oars", "-o", "name").stdout == "head\n"
        assert "Containers: worker, head, oars." in oars("logs", demo, *oars.at, "-c", "nobody", code=3).stderr
        assert oars("logs", demo, "head", *oars.at, "-c", "oars").stdout == oars.kube.kubectl(
            "logs", "deploy/demo-head", "-c", "oars"
        )

    def test_local_programs_reach_the_cluster(self, oars: Line, demo: str, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        here = ("exec", demo, *oars.at, "--local", "--")
        assert "sum 45" in oars(*here, sys.executable, str(script), code=3).stdout
        told = oars("shell", demo, *oars.at, "--local", text="print('sum', client.submit(sum, [1, 2]).result())")
        assert told.stdout == "sum 3\n"

    def test_shell_opens_a_terminal_in_the_head_pod(self, oars: Line, demo: str) -> None:
        with Terminal(OARS, "shell", demo, *oars.at, env=oars.env) as terminal:
            terminal.until(b">>> ")
            terminal.type(b"client.submit(sum, [1, 2]).result() + 100\r", b"103")
            terminal.until(b">>> ")
            # The keys come back before the line is run: only what it prints says that it is.
            terminal.type(b"import sys, time; print('be' + 'gun'); time.sleep(60)\r", b"begun")
            terminal.type(b"\x03", b"KeyboardInterrupt")
            terminal.until(b">>> ")
            terminal.type(b"sys.exit(7)\r", b"exit(7)")
            assert terminal.ended() == 7

    def test_files_and_directories_are_copied(self, oars: Line, demo: str, tmp_path: Path) -> None:
        folder = tmp_path / "in"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep/data").write_bytes(os.urandom(300_000))
        worker = next(member["id"] for member in oars.status(demo)["members"] if member["role"] == "worker")
        oars("cp", str(folder), f"{demo}:{worker}:/tmp/in", *oars.at, "-q")
        oars("cp", f"{demo}:{worker}:/tmp/in", str(tmp_path / "out"), *oars.at, "-q")
        assert (tmp_path / "out/deep/data").read_bytes() == (folder / "deep/data").read_bytes()
        assert "has no member 'nobody'" in oars("cp", "x", f"{demo}:nobody:/x", *oars.at, code=3).stderr
        assert "No such file or directory: x" in oars("cp", "x", f"{demo}:/tmp/x", *oars.at, code=3).stderr
        oars("exec", demo, *oars.at, "-c", "oars", "--", "sh", "-c", "echo beside > /var/tmp/who")
        oars("cp", f"{demo}:/var/tmp/who", str(tmp_path), *oars.at, "-c", "oars", "-q")
        assert (tmp_path / "who").read_text() == "beside\n"
        assert "/var/tmp/who" in oars("cp", f"{demo}:/var/tmp/who", str(tmp_path), *oars.at, code=1).stderr
        refused = oars("cp", f"{demo}:/tmp/x", "x", *oars.at, "-c", "nobody", code=3).stderr
        assert "Containers: head, oars." in refused

    def test_dashboard_is_forwarded(self, oars: Line, demo: str) -> None:
        process = oars.begin("dashboard", demo, *oars.at, "--no-open")
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/status", address)
            with urllib.request.urlopen(address.replace("status", "health"), timeout=60) as answer:
                assert answer.status == 200
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        assert process.returncode == 0

    def test_scale_and_apply(self, oars: Line, demo: str, description: str) -> None:
        assert "Workers:   2/2 ready" in oars("scale", demo, "2", *oars.at).stdout
        assert "shrinks from 2 to 1" in oars("diff", "-f", description, *oars.at, code=1).stdout
        told = oars("apply", "-f", description, *oars.at, "--set", 'workers.default.env.ANSWER="42"')
        assert "rolled: The workers of 'default' are replaced" in told.stderr
        assert oars.status(demo)["groups"] == [{"name": "default", "wanted": 1, "ready": 1}]
        [worker] = [member["id"] for member in oars.status(demo)["members"] if member["role"] == "worker"]
        assert oars.kube.kubectl("exec", worker, "--", "printenv", "ANSWER") == "42\n"
        back = oars("diff", "-f", description, *oars.at, code=1).stdout
        assert "env[ANSWER]: 42 → nothing" in back
        refused = oars("apply", "-f", description, *oars.at, "--engine", "ray", code=2).stderr
        assert "engine cannot change" in refused

    def test_logs_are_followed_across_a_restart(self, oars: Line, demo: str) -> None:
        """Each line once, from before and after."""
        before = oars("logs", demo, "head", *oars.at).stdout
        assert before.count("Scheduler at:") == 1
        process = oars.begin("logs", demo, "head", *oars.at, "-f", "--tail", "1")
        shown = Shown(process)
        try:
            until(lambda: shown.text)
            oars.kube.kubectl("exec", "deploy/demo-head", "-c", "head", "--", "sh", "-c", "kill 1")
            until(lambda: _restarts(oars) == 1 and "Scheduler at:" in shown.text, 180)
            until(lambda: oars.status(demo)["phase"] == "Ready", 180)
            last = "echo the last line > /proc/1/fd/1"  # lines that come a second time come before it
            oars.kube.kubectl("exec", "deploy/demo-head", "-c", "head", "--", "sh", "-c", last)
            until(lambda: "the last line" in shown.text)
        finally:
            process.send_signal(signal.SIGINT)
            shown.end()
        assert shown.text.count("End scheduler") == 1
        assert shown.text.count("Scheduler at:") == 1
        previous = oars("logs", demo, "head", *oars.at, "--previous").stdout
        assert "End scheduler" in previous
        everyone = oars("logs", demo, *oars.at, "--tail", "1", "-o", "json").stdout
        assert {json.loads(line)["member"] for line in everyone.splitlines()} >= {"head"}

    @pytest.mark.parametrize("component", ["kube-apiserver", "kubelet"])
    def test_logs_are_followed_through_an_outage(
        self, oars: Line, demo: str, outage: Callable[[str], AbstractContextManager[None]], component: str
    ) -> None:
        """Each line once, those that were written meanwhile too."""
        tick = f"i=0; while [ $i -lt {TICKS} ]; do echo {component} $i; i=$((i+1)); sleep 0.5; done > /proc/1/fd/1 &"
        told = "The API server does not answer" if component == "kube-apiserver" else "The log cannot be read ("
        process = oars.begin("logs", demo, *oars.at, "-f", "--tail", "1")
        shown = Shown(process)
        try:
            until(lambda: "[head] " in shown.text)
            oars.kube.kubectl("exec", "deploy/demo-head", "-c", "head", "--", "sh", "-c", tick)
            until(lambda: f"{component} 0\n" in shown.text)
            with outage(component):
                until(lambda: told in shown.errors)
                assert process.poll() is None
            until(lambda: f"{component} {TICKS - 1}\n" in shown.text)
        finally:
            process.send_signal(signal.SIGINT)
            shown.end()
        ticks = [line for line in shown.text.splitlines() if f"] {component} " in line]
        assert ticks == [f"[head] {component} {number}" for number in range(TICKS)]


class Shown:
    """What a command that goes on has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.text = ""
        self.errors = ""
        self._process = process
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_text, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_text(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.text += line

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors += line

    def end(self) -> None:
        """To the last word, of a command that has been asked to end."""
        self._process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._process.stdout.close()
        self._process.stderr.close()


def _restarts(oars: Line) -> int:
    [pod] = oars.kube.pods("oars.dev/group=head")
    return sum(each["restartCount"] for each in pod["status"]["containerStatuses"] if each["name"] == "head")


@pytest.mark.usefixtures("operator")
class TestOperated:
    mode = "operator"

    def test_same_commands_work_with_the_operator(self, oars: Line, demo: str, description: str) -> None:
        assert oars.status(demo)["mode"] == "operator"
        assert oars("diff", "-f", description, *oars.at).stdout == "demo matches the spec.\n"
        assert "Workers:   2/2 ready" in oars("scale", demo, "2", *oars.at).stdout
        oars("apply", "-f", description, *oars.at, "-q")
        assert oars.status(demo)["groups"][0]["wanted"] == 1
        assert oars("exec", demo, *oars.at, "--", "printenv", "OARS_NAME").stdout == "demo\n"
        refused = oars("apply", "-f", description, *oars.at, "--set", "dask.protocol=tcp", code=2).stderr
        assert "dask.protocol cannot change" in refused

    def test_idle_cluster_ends_by_itself(self, oars: Line) -> None:
        """Nobody but the operator is there then."""
        image = ("--engine", "dask", "--image", oars.kube.image("dask"))
        oars("up", "brief", *image, *SMALL, *oars.at, "--workers", "1", "--set", "lifetime.idle=10s", "-q")
        assert "sum 45" in oars("exec", "brief", *oars.at, "--", "python", "-c", SCRIPT, code=3).stdout
        until(lambda: not oars.kube.pods("oars.dev/cluster=brief"), SECONDS)
        [gone] = json.loads(oars("ls", "--gone", *oars.at, "-o", "json").stdout)
        assert (gone["name"], gone["mode"], gone["reason"]) == ("brief", "operator", "Idle")


class TestAlone:
    def test_run_starts_a_cluster_for_a_script(self, oars: Line, tmp_path: Path) -> None:
        """The driver is here, the cluster there; afterwards nothing is."""
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        image = ("--engine", "dask", "--image", oars.kube.image("dask"))
        done = oars("run", *image, *SMALL, *oars.at, "--mode", "direct", "-q", str(script), code=3)
        assert "sum 45" in done.stdout
        assert oars("ls", *oars.at, "-o", "name").stdout == ""

    def test_new_namespace_is_created_and_deleted_with_the_cluster(self, oars: Line) -> None:
        name = f"own-{oars.kube.namespace}"
        image = ("--engine", "dask", "--image", oars.kube.image("dask"), "--workers", "0")
        up = oars("up", name, *image, *SMALL, "--set", "namespace.create=true", "--mode", "direct")
        assert f"oars down {name} -n {name}" in up.stderr
        listed = json.loads(oars("ls", "-A", "--place", "kubernetes", "-o", "json").stdout)
        assert (name, name) in {(each["name"], each["namespace"]) for each in listed}
        assert "contradict" in oars("ls", "-A", "-n", name, code=2).stderr
        oars("down", name, "-n", name)
        until(lambda: name not in oars.kube.kubectl("get", "namespaces", "-o", "name"), 180)

    def test_cluster_that_cannot_start_is_explained_and_removed(self, oars: Line) -> None:
        words = ("--engine", "dask", "--image", "oars.lab/no-such:1", *SMALL, *oars.at, "--mode", "direct")
        for name, seconds in (("bad", "30s"), ("worse", "60s")):  # more only if the node has not come to it
            told = oars("up", name, *words, "--timeout", seconds, code=4).stderr
            assert "was removed again" in told
            if "oars.lab/no-such:1" in told:
                break
        assert "oars.lab/no-such:1" in told
        assert oars("ls", *oars.at, "-o", "name").stdout == ""


class Terminal:
    """A program at a pseudo-terminal."""

    def __init__(self, *words: str, env: dict[str, str]) -> None:
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            os.execve(words[0], list(words), env)
        self._seen = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def type(self, keys: bytes, answer: bytes) -> None:
        os.write(self._descriptor, keys)
        self.until(answer)

    def until(self, text: bytes, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self._seen:
            assert time.monotonic() < deadline, self._seen.decode(errors="replace")
            self._read()
        self._seen = self._seen.partition(text)[2]

    def _read(self) -> bool:
        if not select.select([self._descriptor], [], [], 0.2)[0]:
            return True
        try:
            data = os.read(self._descriptor, 1 << 16)
        except OSError:  # the other side has ended
            return False
        self._seen += data
        return bool(data)

    def ended(self) -> int:
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
