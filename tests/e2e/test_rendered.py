"""Rendered manifests and kubectl alone: nothing of Oars looks after these clusters."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from lab.kube import Kube, is_ready

from oars import engines
from oars.base.settings import Settings
from oars.envs import Environments
from oars.spec.load import build
from tests.e2e.contract import SELECTORS, ours, until

pytestmark = [pytest.mark.timeout(900)]
Outage = Callable[[str], AbstractContextManager[None]]
OARS = str(Path(sys.executable).with_name("oars"))

PAGE = (Path(__file__).parents[2] / "docs/how-to/ray-by-kubectl.md").read_text()

# As the document has it for those who type it in.
TYPED = """
import os, socket, time
from collections import Counter
import ray
ray.init(address=os.path.expandvars("$RAY_HEAD_SERVICE_HOST:$RAY_HEAD_SERVICE_PORT_REDIS_PRIMARY"))
@ray.remote
def f(x):
    time.sleep(0.01)
    return x + (socket.gethostname(),)
print(Counter(ray.get([f.remote(f.remote(())) for _ in range(20)])))
print("Success!")
"""


def of_page(language: str) -> str:
    """The one example in that language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def render(kube: Kube, engine: str, image: str, workers: int, *more: str) -> str:
    words = [OARS, "render", engine.partition("-")[0], "--engine", engine.partition("-")[0], "--workers", str(workers),
             "--image", kube.image(image), "--cpu", "0.3", "--memory", "1Gi", "--namespace", kube.namespace,
             "--set", "head.cpu=0.3", "--set", "head.memory=2Gi", "--set", "head.burst=true",
             "--set", "workers[0].burst=true", "--secrets", "inline", *more]  # fmt: skip
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


def pods(kube: Kube, role: str) -> list[str]:
    """Those that are Ready and stay."""
    return [pod["metadata"]["name"] for pod in kube.pods(SELECTORS[role]) if is_ready(pod)]


def one_of_each(kube: Kube, workers: int, but: set[str] = frozenset()) -> Callable[[], bool]:  # type: ignore[assignment]
    def there() -> bool:
        heads, hands = pods(kube, "head"), pods(kube, "worker")
        return len(heads) == 1 and len(hands) == workers and not but & {*heads, *hands}

    return there


def restart_containerd(kube: Kube, outage: Outage) -> None:
    """By force; no pod is replaced."""
    members = [*pods(kube, "head"), *pods(kube, "worker")]
    with outage("containerd"):
        pass
    until(lambda: [*pods(kube, "head"), *pods(kube, "worker")] == members, 120)
    until(lambda: kube.runs(members[0], "echo", "back"), 90)


def head(kube: Kube) -> str:
    (name,) = pods(kube, "head")
    return name


def run_in_head(kube: Kube, source: str, *words: str) -> str:
    return kube.kubectl("exec", head(kube), "-c", "head", "--", "python3", "-c", source, *words, seconds=120)


def run_as_job(kube: Kube, example: Path) -> None:
    """A driver in a pod of its own, as the page has it."""
    job = yaml.safe_load(of_page("yaml"))
    job["spec"]["template"]["spec"]["containers"][0]["image"] = kube.image("ray")
    kube.kubectl("create", "configmap", "example", f"--from-file={example}")
    created = kube.kubectl("create", "-f", "-", "-o", "name", text=yaml.safe_dump(job)).strip()
    until(lambda: kube.kubectl("get", created, "-o", "jsonpath={.status.succeeded}") == "1", 180)
    assert "Success!" in kube.kubectl("logs", created)
    kube.kubectl("delete", created)


def test_ray_document_works_with_rendered_manifests(kube: Kube, tmp_path: Path, outage: Outage) -> None:
    """Command by command, as it stands in the document, with the programs of our page; and containerd is killed once on
    the way."""
    file = tmp_path / "ray-cluster.yaml"
    file.write_text(render(kube, "ray", "ray", 3))
    kube.kubectl("apply", "-f", str(file))
    until(one_of_each(kube, 3), 180)
    assert [name.startswith("ray-head-") for name in pods(kube, "head")] == [True]
    assert all(name.startswith("ray-worker-") for name in pods(kube, "worker"))

    # Change `replicas` in the file and apply it again.
    for replicas in (4, 2):
        documents = list(yaml.safe_load_all(file.read_text()))
        worker = next(d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"] == "ray-worker")
        worker["spec"]["replicas"] = replicas
        file.write_text(yaml.safe_dump_all(documents))
        said = kube.kubectl("apply", "-f", str(file))
        assert "service/ray-head unchanged" in said and "deployment.apps/ray-head unchanged" in said, said
        assert "deployment.apps/ray-worker configured" in said
        until(one_of_each(kube, replicas), 120)

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

    restart_containerd(kube, outage)
    # A program by `kubectl cp` and `kubectl exec`, one in a remote shell, one typed in, one as a Job.
    example = tmp_path / "example.py"
    example.write_text(of_page("python").replace("range(100)", "range(20)"))
    kube.kubectl("cp", str(example), f"{head(kube)}:example.py")
    assert "Success!" in kube.kubectl("exec", head(kube), "--", "python", "example.py", seconds=180)
    shell = kube.kubectl("exec", "-i", head(kube), "--", "bash", text="python example.py\n", seconds=180)
    assert "Success!" in shell
    assert "Success!" in kube.kubectl("exec", "-i", head(kube), "--", "python", text=TYPED, seconds=180)
    run_as_job(kube, example)

    kube.kubectl("delete", "-f", str(file), seconds=120)
    until(lambda: not ours(kube), 90)


# Both end without a result unless as many workers as told have joined.
DASK = """
import sys
from distributed import Client
if __name__ == "__main__":
    with Client(sys.argv[1]) as client:
        client.wait_for_workers(int(sys.argv[2]), timeout=30)
        print("result", sum(client.gather(client.map(lambda number: number * number, range(10)))))
"""
MARS = """
import json, sys, urllib.request
nodes = json.load(urllib.request.urlopen(sys.argv[1] + "/api/cluster/nodes?role=1"))["nodes"]
if len(nodes) == int(sys.argv[2]):
    import PACKAGE.tensor as mt, PACKAGE as package
    package.new_session(sys.argv[1], default=True)
    a = mt.ones((4, 3))
    print("result", mt.inner(a, a).sum().execute().fetch())
"""


@dataclass(frozen=True)
class Case:
    """What is rendered, the program for it, and what that says."""

    spec: dict[str, Any]
    image: str
    program: str
    inside: str  # the head's address in the cluster
    result: str


CASES = {
    "dask": Case({"engine": "dask"}, "dask", DASK, "tls://dask-head:8786", "285"),
    "mars-xorbits": Case(
        {"engine": "mars"}, "mars-xorbits", MARS.replace("PACKAGE", "xorbits._mars"), "http://mars-head:7104", "48.0"
    ),
    "mars-pymars": Case(
        {"engine": "mars", "mars": {"distribution": "pymars"}}, "mars-pymars", MARS.replace("PACKAGE", "mars"),
        "http://mars-head:7104", "48.0",
    ),
}  # fmt: skip


class Outside:
    """The engine's own client on this machine, in a Python that has it: it knows a port of the node, and what is in the
    Secret."""

    def __init__(self, kube: Kube, case: Case, manifests: Path) -> None:
        self._kube, self._case = kube, case
        described = build(case.spec).spec
        needs = engines.get(described.engine).needs(described)
        cache = Settings.from_environ(os.environ).cache_dir
        self._python = str(Environments(cache).prepare(described.engine, needs, (), lambda _: None).python)
        self._env = {"PATH": os.defpath, "HOME": str(manifests.parent)}
        for name, content in secrets_in(manifests).items():
            (manifests.parent / name).write_bytes(content)
        if described.engine == "dask":
            tls = "DASK_DISTRIBUTED__COMM__TLS__"
            files = {"CA_FILE": "ca.pem", "CLIENT__CERT": "cert.pem", "CLIENT__KEY": "key.pem"}
            self._env |= {f"{tls}{key}": str(manifests.parent / name) for key, name in files.items()}

    def gets_it_from(self, workers: int) -> bool:
        """Whether the program has the right result by now: while members come back one by one, it may also fail."""
        try:
            words = [self._python, "-c", self._case.program, self._address(), str(workers)]
            done = subprocess.run(
                words, env=self._env, cwd="/", capture_output=True, text=True, timeout=60, check=False
            )
        except (ValueError, subprocess.TimeoutExpired):  # ValueError: no head is ready
            return False
        return f"result {self._case.result}\n" in done.stdout

    def _address(self) -> str:
        """The head's port for clients, as the node has it."""
        [pod] = [pod for pod in self._kube.pods(SELECTORS["head"]) if is_ready(pod)]
        listed = self._kube.api.get(self._kube.path("services"))["items"]
        opened = {port["port"]: port["nodePort"] for each in listed for port in each["spec"]["ports"]}
        inside = urlsplit(self._case.inside)
        return f"{inside.scheme}://{pod['status']['hostIP']}:{opened[inside.port]}"


def secrets_in(manifests: Path) -> dict[str, bytes]:
    documents = [each for each in yaml.safe_load_all(manifests.read_text()) if each["kind"] == "Secret"]
    return {name: base64.b64decode(text) for each in documents for name, text in each["data"].items()}


def change_replicas(kube: Kube, manifests: Path, replicas: int) -> None:
    """In the file, which is applied again."""
    documents = list(yaml.safe_load_all(manifests.read_text()))
    [workers] = [d for d in documents if d["kind"] == "Deployment" and d["metadata"]["name"].endswith("-worker")]
    workers["spec"]["replicas"] = replicas
    manifests.write_text(yaml.safe_dump_all(documents))
    kube.kubectl("apply", "-f", str(manifests))


@pytest.mark.parametrize("name", ["dask", "mars-xorbits", pytest.param("mars-pymars", marks=pytest.mark.long)])
def test_rendered_cluster_runs_without_oars(kube: Kube, tmp_path: Path, outage: Outage, name: str) -> None:
    """A client outside has its results all the time: with more workers, another worker, no containerd, another head."""
    case, file = CASES[name], tmp_path / "cluster.yaml"
    more = ("--set", "mars.distribution=pymars") if "mars" in case.spec else ()
    file.write_text(render(kube, case.spec["engine"], case.image, 1, "--set", "expose.type=NodePort", *more))
    kube.kubectl("apply", "-f", str(file))
    until(one_of_each(kube, 1), 180)
    assert f"result {case.result}" in run_in_head(kube, case.program, case.inside, "1"), (
        "a worker whose pod is ready has joined"
    )
    client = Outside(kube, case, file)
    assert client.gets_it_from(1)
    change_replicas(kube, file, 2)
    until(one_of_each(kube, 2), 120)
    assert client.gets_it_from(2)
    victim = pods(kube, "worker")[0]
    kube.kubectl("delete", "pod", victim, seconds=120)
    until(lambda: one_of_each(kube, 2, {victim})() and client.gets_it_from(2), 120)
    restart_containerd(kube, outage)
    until(lambda: client.gets_it_from(2), 120)
    old = head(kube)
    kube.kubectl("delete", "pod", old, "--grace-period=0", "--force", seconds=60)
    until(lambda: one_of_each(kube, 2, {old})() and client.gets_it_from(2), 120)
    kube.kubectl("delete", "-f", str(file), seconds=120)
    until(lambda: not ours(kube), 90)
