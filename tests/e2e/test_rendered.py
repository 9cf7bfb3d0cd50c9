"""Rendered manifests and kubectl alone: nothing of Oars looks after these clusters."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.kube import Kube, is_ready

from tests.contract import test_engines as engines

pytestmark = [pytest.mark.timeout(420)]
OARS = str(Path(sys.executable).with_name("oars"))

EXAMPLE = """
import os, socket, time
from collections import Counter
import ray
ray.init(address=os.path.expandvars("$RAY_HEAD_SERVICE_HOST:$RAY_HEAD_SERVICE_PORT_REDIS_PRIMARY"))
@ray.remote(num_cpus=1)
def f(x):
    time.sleep(0.01)
    return x + (socket.gethostname(),)
for _ in range(3):
    print(Counter(ray.get([f.remote(f.remote(())) for _ in range(20)])), flush=True)
print("Success!")
"""

# As the document's own: a driver in a pod of its own, which finds the cluster by the variables of its Service.
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {generateName: ray-test-job-}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: ray
        image: IMAGE
        command: [python, -c, SOURCE]
        env:
        - {name: RAY_AUTH_MODE, value: token}
        - {name: RAY_AUTH_TOKEN_PATH, value: /secrets/token}
        - {name: HOME, value: /tmp}
        volumeMounts: [{name: secrets, mountPath: /secrets}]
      securityContext: {fsGroup: 1000}
      volumes: [{name: secrets, secret: {secretName: ray-oars, defaultMode: 0440}}]
"""


def render(kube: Kube, engine: str, image: str, workers: int, *more: str) -> str:
    words = [OARS, "render", engine.partition("-")[0], "--engine", engine.partition("-")[0], "--workers", str(workers),
             "--image", kube.image(image), "--cpu", "0.3", "--memory", "1Gi", "--namespace", kube.namespace,
             "--set", "head.cpu=0.3", "--set", "head.memory=2Gi", "--set", "head.burst=true",
             "--set", "workers[0].burst=true", "--secrets", "inline", *more]  # fmt: skip
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def until(condition: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.3)  # kubectl is all there is to ask with
    return found


def pods(kube: Kube, role: str) -> list[str]:
    """Those that are Ready and stay."""
    return [pod["metadata"]["name"] for pod in kube.pods(f"oars.dev/role={role}") if is_ready(pod)]


def one_of_each(kube: Kube, workers: int, but: set[str] = frozenset()) -> Callable[[], bool]:  # type: ignore[assignment]
    def there() -> bool:
        heads, hands = pods(kube, "head"), pods(kube, "worker")
        return len(heads) == 1 and len(hands) == workers and not but & {*heads, *hands}

    return there


def head(kube: Kube) -> str:
    (name,) = pods(kube, "head")
    return name


def run_in_head(kube: Kube, source: str) -> str:
    return kube.kubectl("exec", head(kube), "-c", "head", "--", "python3", "-c", source, seconds=120)


def nothing_left(kube: Kube) -> bool:
    kinds = "pods,deployments,services,configmaps,secrets,pdb,networkpolicies,serviceaccounts"
    return not kube.kubectl("get", kinds, "-l", "app.kubernetes.io/managed-by=oars", "-o", "name").split()


def test_the_ray_document(kube: Kube, tmp_path: Path) -> None:
    """Command by command, as it stands in the document."""
    file = tmp_path / "ray-cluster.yaml"
    file.write_text(render(kube, "ray", "ray", 3))
    kube.kubectl("apply", "-f", str(file))
    until(one_of_each(kube, 3), 180)
    assert [name.startswith("ray-head-") for name in pods(kube, "head")] == [True]
    assert all(name.startswith("ray-worker-") for name in pods(kube, "worker"))

    # Change `replicas` in the file and apply it again.
    documents = list(yaml.safe_load_all(file.read_text()))
    worker = next(d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == "ray-worker")
    worker["spec"]["replicas"] = 2
    file.write_text(yaml.safe_dump_all(documents))
    said = kube.kubectl("apply", "-f", str(file))
    assert "service/ray-head unchanged" in said and "deployment.apps/ray-head unchanged" in said, said
    assert "deployment.apps/ray-worker configured" in said
    until(one_of_each(kube, 2), 120)

    # Delete a worker pod, then the head pod, then all pods.
    victim = pods(kube, "worker")[0]
    kube.kubectl("delete", "pod", victim, seconds=120)
    until(one_of_each(kube, 2, {victim}), 120)
    old = head(kube)
    kube.kubectl("delete", "pod", old, seconds=120)
    until(one_of_each(kube, 2, {old}), 180)
    everyone = {*pods(kube, "head"), *pods(kube, "worker")}
    kube.kubectl("delete", "pods", "--all", seconds=180)
    until(one_of_each(kube, 2, everyone), 180)

    # A program by `kubectl cp` and `kubectl exec`, one in a remote shell, one as a Job.
    example = tmp_path / "example.py"
    example.write_text(EXAMPLE)
    kube.kubectl("cp", str(example), f"{head(kube)}:/tmp/example.py", "-c", "head")
    assert "Success!" in kube.kubectl("exec", head(kube), "-c", "head", "--", "python", "/tmp/example.py", seconds=180)
    shell = kube.kubectl(
        "exec", "-i", head(kube), "-c", "head", "--", "bash", text="cd /tmp && python example.py\n", seconds=180
    )
    assert "Success!" in shell
    job = yaml.safe_load(JOB.replace("IMAGE", kube.image("ray")))
    # Ray's driver must be one of its nodes by now, or speak through the server beside the head.
    outside = EXAMPLE.replace('"$RAY_HEAD_SERVICE_HOST:$RAY_HEAD_SERVICE_PORT_REDIS_PRIMARY"',
                              '"ray://$RAY_HEAD_SERVICE_HOST:$RAY_HEAD_SERVICE_PORT_RAY_CLIENT"')  # fmt: skip
    job["spec"]["template"]["spec"]["containers"][0]["command"][2] = outside
    created = kube.kubectl("create", "-f", "-", "-o", "name", text=yaml.safe_dump(job)).strip()
    until(lambda: kube.kubectl("get", created, "-o", "jsonpath={.status.succeeded}") == "1", 180)
    assert "Success!" in kube.kubectl("logs", created)
    kube.kubectl("delete", created)

    kube.kubectl("delete", "-f", str(file), seconds=120)
    until(lambda: nothing_left(kube), 90)


@pytest.mark.parametrize(
    ("engine", "image", "program"),
    [
        ("dask", "dask", engines.TestDask.work),
        pytest.param("mars", "mars-xorbits", "", marks=pytest.mark.long),
        ("mars", "mars-pymars", ""),
    ],
    ids=["dask", "mars-xorbits", "mars-pymars"],
)
def test_it_lives_without_oars(kube: Kube, tmp_path: Path, engine: str, image: str, program: str) -> None:
    more = ("--set", "mars.distribution=pymars") if image == "mars-pymars" else ()
    file = tmp_path / "cluster.yaml"
    file.write_text(render(kube, engine, image, 2, *more))
    kube.kubectl("apply", "-f", str(file))
    until(one_of_each(kube, 2), 180)
    program = program or MARS.replace("PACKAGE", "mars" if more else "xorbits._mars")
    until(lambda: "result" in run_in_head(kube, program), 120)
    old = head(kube)
    kube.kubectl("delete", "pod", old, "--grace-period=0", "--force", seconds=60)
    until(lambda: one_of_each(kube, 2, {old})() and "result" in run_in_head(kube, program), 120)
    kube.kubectl("delete", "-f", str(file), seconds=120)
    until(lambda: nothing_left(kube), 90)


# Waits for both workers: after the head's loss they are started again one by one.
MARS = """
import os, json, urllib.request
nodes = json.load(urllib.request.urlopen("http://127.0.0.1:7104/api/cluster/nodes?role=1"))["nodes"]
if len(nodes) == 2:
    import PACKAGE.tensor as mt, PACKAGE as package
    package.new_session("http://127.0.0.1:7104", default=True)
    a = mt.ones((4, 3))
    print("result", mt.inner(a, a).sum().execute().fetch())
"""
