"""Jobs on Kubernetes with real pods: submitted from the command line, run by the operator or by the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.faultproxy import FaultProxy
from lab.kube import Kube

from tests.e2e.contract import until
from tests.e2e.test_cli_kube import SMALL, Line, Shown

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("operator")]

MARS = """
import os
from xorbits._mars import tensor as mt
from xorbits._mars.deploy.oscar.session import new_session
new_session(os.environ["OARS_ADDRESS"])
print(int(mt.ones(42).sum().execute(show_progress=False).fetch()))
"""
PROGRAMS = {
    "dask": "from distributed import Client; print(Client().submit(sum, (20, 22)).result())",
    "ray": "import ray; ray.init(); print(ray.get(ray.remote(lambda: 42).remote()))",
    "mars": MARS,
}
IMAGES = {"mars": "mars-xorbits"}
# The first attempt waits to be stopped; later ones end at once.
WAIT_ONCE = """
import os, time
print("attempt", os.environ["OARS_ATTEMPT"], flush=True)
if os.environ["OARS_ATTEMPT"] == "1":
    time.sleep(600)
"""
# Counts until the test ends it.
COUNT = """
import os, time
number = 0
while not os.path.exists("/tmp/end"):
    print("line", number, flush=True)
    number += 1
    time.sleep(0.02)
print("end")
"""
CUTS = 20
# Ends with exit code 3 when the test wants it.
END_BADLY = """
import os, time
print("started", flush=True)
while not os.path.exists("/tmp/end"):
    time.sleep(0.1)
print("ended")
raise SystemExit(3)
"""
WAIT = ("python", "-c", "import time; time.sleep(600)")
# As KubeRay's sample: an actor, the code in a ConfigMap, and a variable of the runtime environment.
COUNTER = """
import os, ray
ray.init()
@ray.remote
class Counter:
    def __init__(self):
        self.name, self.counter = os.environ["counter_name"], 0
    def inc(self):
        self.counter += 1
    def get(self):
        return f"{self.name} got {self.counter}"
counter = Counter.remote()
for _ in range(5):
    ray.get(counter.inc.remote())
    print(ray.get(counter.get.remote()))
"""
REQUESTS = {"requests": {"cpu": "300m"}, "limits": {"memory": "1Gi"}}


def container(name: str, image: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "resources": REQUESTS, **more}


def pod(found: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"spec": {"containers": [found], **more}}


def ray_job(image: str) -> dict[str, Any]:
    code = {"name": "code", "configMap": {"name": "code", "items": [{"key": "code.py", "path": "sample.py"}]}}
    mount = {"mountPath": "/home/ray/samples", "name": "code"}
    head = pod(container("ray-head", image, volumeMounts=[mount]), volumes=[code])
    group = {"groupName": "small-group", "replicas": 1, "rayStartParams": {}}
    cluster = {
        "rayVersion": "2.52.0",
        "headGroupSpec": {"rayStartParams": {}, "template": head},
        "workerGroupSpecs": [{**group, "template": pod(container("ray-worker", image))}],
    }
    spec = {"entrypoint": "python /home/ray/samples/sample.py", "shutdownAfterJobFinishes": True}
    spec |= {"runtimeEnvYAML": "env_vars: {counter_name: test_counter}", "rayClusterSpec": cluster}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "rayjob"}, "spec": spec}


def dask_job(image: str) -> dict[str, Any]:
    code = "from dask.distributed import Client; print(Client().submit(sum, (20, 22)).result())"
    runner = pod(container("job", image, args=["python", "-c", code]))["spec"]
    worker = pod(container("worker", image, args=["dask-worker", "--name", "$(DASK_WORKER_NAME)"]))["spec"]
    service = {"type": "ClusterIP", "ports": [{"name": "tcp-comm", "port": 8786}]}
    scheduler = pod(container("scheduler", image, args=["dask-scheduler"]))
    cluster = {"worker": {"replicas": 1, "spec": worker}, "scheduler": {**scheduler, "service": service}}
    spec = {"job": {"spec": {**runner, "restartPolicy": "OnFailure"}}, "cluster": {"spec": cluster}}
    return {"apiVersion": "kubernetes.dask.org/v1", "kind": "DaskJob", "metadata": {"name": "daskjob"}, "spec": spec}


MANIFESTS = {"ray": (ray_job, [f"test_counter got {n}" for n in range(1, 6)]), "dask": (dask_job, ["42"])}


@pytest.fixture
def oars(home: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.chdir(tmp_path)
    return Line(home, tmp_path / "state")


def status(oars: Line, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(oars("jobs", "status", name, *oars.at, "-o", "json").stdout)
    return found


def state(oars: Line, name: str) -> str:
    """The state of a job; empty: there is none."""
    listed = json.loads(oars("jobs", "ls", *oars.at, "-o", "json").stdout)
    return next((str(each["state"]) for each in listed if each["name"] == name), "")


def wait_until(condition: Callable[[], object]) -> None:
    until(condition, 240)


class TestJobs:
    @pytest.mark.parametrize("engine", PROGRAMS)
    def test_job_of_each_engine(self, oars: Line, home: Kube, tmp_path: Path, engine: str) -> None:
        (tmp_path / "helper.py").write_text("print('helper')")
        (tmp_path / "job.py").write_text(f"import helper\n{PROGRAMS[engine]}\nraise SystemExit(3)\n")
        options = [
            "--engine",
            engine,
            "--image",
            home.image(IMAGES.get(engine, engine)),
            "--name",
            engine,
            *SMALL[:4],
            *oars.at,
        ]
        options += ["--set", "cluster.head.cpu=0.3", "--set", "cluster.head.memory=1Gi", "--set", "driver.cpu=0.2"]
        options += ["--memory", "1Gi", "--detach"]
        oars("submit", *options, "--", "python", "job.py")
        following = oars.begin("jobs", "logs", "-f", engine, *oars.at)
        wait_until(lambda: status(oars, engine)["state"] in ("Succeeded", "Failed"))
        output, errors = following.communicate(timeout=60)
        found = status(oars, engine)
        assert (found["state"], found["exit_code"], found["attempt"]) == ("Failed", 3, 1), (found, output, errors)
        assert [output.splitlines()[0], output.splitlines()[-1]] == ["helper", "42"]
        oars("jobs", "wait", engine, *oars.at, code=3)
        kept = oars("jobs", "logs", engine, *oars.at).stdout
        assert kept.splitlines() == output.splitlines()
        shown = home.kubectl("get", "computejobs", engine).splitlines()[1].split()
        assert (shown[1], shown[-2], shown[-1]) == ("Failed", engine, f"{engine}-1")
        oars("jobs", "rm", engine, *oars.at)

    def test_killed_head_gives_another_attempt(self, oars: Line, home: Kube, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_text(WAIT_ONCE)
        options = ["--engine", "dask", "--image", home.image("dask"), "--name", "lost", *SMALL[:4], *oars.at]
        options += ["--set", "cluster.head.cpu=0.3", "--set", "cluster.head.memory=512Mi", "--set", "backoff.first=1s"]
        oars("submit", *options, "--detach", "--", "python", "job.py")
        wait_until(lambda: status(oars, "lost")["state"] == "Running")
        wait_until(lambda: oars("jobs", "logs", "lost", *oars.at).stdout == "attempt 1\n")
        home.kubectl("delete", "pod", "-l", "oars.dev/cluster=lost-1,oars.dev/group=head", "--wait=false")
        wait_until(lambda: status(oars, "lost")["state"] == "Succeeded")
        found = status(oars, "lost")
        assert [each["reason"] for each in found["attempts"]] == ["HeadLost", ""]
        assert oars("jobs", "logs", "lost", "--attempt", "1", *oars.at).stdout == "attempt 1\n"
        assert oars("jobs", "logs", "lost", *oars.at).stdout == "attempt 2\n"
        oars("jobs", "rm", "lost", *oars.at)

    def test_followed_output_is_complete_though_its_connection_is_cut(
        self, oars: Line, home: Kube, tmp_path: Path, fault_proxy: Callable[..., FaultProxy]
    ) -> None:
        """It is cut twenty times, for the last time just before the driver ends."""
        (tmp_path / "job.py").write_text(COUNT)
        options = ["--engine", "dask", "--image", home.image("dask"), "--name", "cut", *SMALL[:4], *oars.at]
        options += ["--set", "cluster.head.cpu=0.3", "--set", "cluster.head.memory=512Mi", "--set", "driver.cpu=0.2"]
        oars("submit", *options, "--detach", "--", "python", "job.py")
        proxy = fault_proxy()
        proxied = Line(home, tmp_path / "proxied")
        proxied.env["KUBECONFIG"] = str(proxy.kubeconfig)
        process = proxied.begin("jobs", "logs", "-f", "cut", *oars.at)
        shown = Shown(process)

        def has_more(than: int) -> bool:
            return len(shown.text) > than

        try:
            for _ in range(CUTS):
                wait_until(partial(has_more, len(shown.text)))
                proxy.hang_up()
            home.kubectl("exec", "job/cut-1", "-c", "driver", "--", "touch", "/tmp/end")
            wait_until(lambda: process.poll() is not None)
        finally:
            process.kill()
            shown.end()
        lines = shown.text.splitlines()
        assert lines == [*(f"line {number}" for number in range(len(lines) - 1)), "end"]
        assert proxy.count(subresource="log") > CUTS
        assert oars("jobs", "logs", "cut", *oars.at).stdout == shown.text
        oars("jobs", "rm", "cut", *oars.at)

    def test_other_clients_follow_a_job_without_an_operator(self, oars: Line, home: Kube, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_text(END_BADLY)
        options = ["--engine", "dask", "--image", home.image("dask"), "--name", "alone", *SMALL[:4], *oars.at]
        options += ["--set", "cluster.head.cpu=0.3", "--set", "cluster.head.memory=512Mi", "--set", "driver.cpu=0.2"]
        command = oars.begin("submit", *options, "--mode", "direct", "--", "python", "job.py")
        wait_until(lambda: command.poll() is not None or state(oars, "alone") == "Running")
        wait_until(lambda: oars("jobs", "logs", "alone", *oars.at).stdout == "started\n")
        home.kubectl("exec", "job/alone-1", "-c", "driver", "--", "touch", "/tmp/end")
        output, errors = command.communicate(timeout=240)
        assert (command.returncode, output) == (3, "started\nended\n"), errors
        oars("jobs", "wait", "alone", *oars.at, code=3)
        assert oars("jobs", "logs", "alone", *oars.at).stdout == output, "though its pod is gone"
        oars("jobs", "rm", "alone", *oars.at)
        assert state(oars, "alone") == ""

    @pytest.mark.parametrize("target", ["existing", pytest.param("own", marks=pytest.mark.long)])
    def test_suspend_resume_cancel_deadlines_and_ttl(self, oars: Line, home: Kube, target: str) -> None:
        image = ("--engine", "dask", "--image", home.image("dask"))
        where = [*image, *SMALL[:4], "--set", "cluster.head.cpu=0.3", "--set", "cluster.head.memory=512Mi"]
        if target == "existing":
            oars("up", "shared", *image, *SMALL, *oars.at, "--workers", "0")
            where = ["--cluster", "shared"]

        def submit(name: str, *limits: str) -> None:
            options = [word for limit in (*limits, "driver.cpu=0.1") for word in ("--set", limit)]
            oars("submit", "--name", name, *where, *options, "--working-dir", "", *oars.at, "--detach", "--", *WAIT)

        submit("walk")
        submit("late", "attemptDeadline=3s")
        wait_until(lambda: state(oars, "walk") == "Running")
        oars("jobs", "suspend", "walk", *oars.at)
        wait_until(lambda: state(oars, "walk") == "Suspended")
        wait_until(lambda: not home.pods("oars.dev/job=walk"))
        oars("jobs", "resume", "walk", *oars.at)
        wait_until(lambda: state(oars, "late") == "Failed")
        assert status(oars, "late")["reason"] == "AttemptDeadlineExceeded"
        home.kubectl("patch", "computejob", "late", "--type", "merge", "-p", '{"spec":{"ttlAfterFinished":"1s"}}')
        submit("due", "deadline=6s")
        wait_until(lambda: (found := status(oars, "walk"))["attempt"] == 2 and found["state"] == "Running")
        oars("jobs", "cancel", "walk", *oars.at)
        attempts = status(oars, "walk")["attempts"]
        assert [(each["outcome"], each["reason"]) for each in attempts] == [
            ("Stopped", "Suspended"),
            ("Stopped", "Cancelled"),
        ]
        wait_until(lambda: state(oars, "due") == "Failed")
        assert status(oars, "due")["reason"] == "DeadlineExceeded"
        wait_until(lambda: state(oars, "late") == "")
        oars("jobs", "rm", "walk", "due", *oars.at)
        if target == "existing":
            oars("down", "shared", *oars.at)

    @pytest.mark.parametrize("engine", ["ray", pytest.param("dask", marks=pytest.mark.long)])
    def test_job_of_another_project_runs_to_its_end(self, oars: Line, home: Kube, tmp_path: Path, engine: str) -> None:
        make, lines = MANIFESTS[engine]
        manifest = make(home.image(engine))
        file, code, name = tmp_path / "job.json", tmp_path / "code.py", manifest["metadata"]["name"]
        file.write_text(json.dumps(manifest))
        code.write_text(COUNTER)
        home.kubectl("create", "configmap", "code", f"--from-file={code}")
        command = oars.begin("submit", "-f", str(file), "--working-dir", "", *oars.at)
        output, errors = command.communicate(timeout=400)
        assert command.returncode == 0, errors
        assert [line for line in output.splitlines() if line in lines] == lines, errors
        found = status(oars, name)
        assert (found["state"], found["exit_code"], found["engine"]) == ("Succeeded", 0, engine)
        wait_until(lambda: not home.pods(f"oars.dev/cluster={name}-1"))
        oars("jobs", "rm", name, *oars.at)
        home.kubectl("delete", "configmap", "code")
