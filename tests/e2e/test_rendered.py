"""Rendered manifests and kubectl alone: no part of Oars reconciles these clusters."""

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
from tests.e2e.contract import SELECTORS, ours, until, workers_seen_from
from tests.e2e.images import RAY_WITH_IPYTHON, build_image
from tests.e2e.terminal import ENTER, terminal
from tests.pages import TEN_ITERATIONS

pytestmark = [pytest.mark.timeout(900)]
Outage = Callable[[str], AbstractContextManager[None]]
OARS = str(Path(sys.executable).with_name("oars"))

PAGE = (Path(__file__).parents[2] / "docs/how-to/ray-by-kubectl.md").read_text()


def of_page(language: str) -> str:
    """The one example in that language. tests/unit/compat/test_ray_page.py compares them with those of Ray's page."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def render(kube: Kube, engine: str, image: str, workers: int, *more: str) -> str:
    words = [OARS, "render", engine.partition("-")[0], "--engine", engine.partition("-")[0], "--workers", str(workers),
             "--image", image if ":" in image else kube.image(image), "--namespace", kube.namespace,
             "--cpu", "0.3", "--memory", "1Gi",
             "--set", "head.cpu=0.3", "--set", "head.memory=2Gi", "--set", "head.burst=true",
             "--set", "workers[0].burst=true", *more]  # fmt: skip
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


def use_remote_shell(kube: Kube, program: str) -> None:
    """`kubectl exec -it … bash` in a terminal, and there the example program and IPython."""
    with terminal([*kube.command(), "exec", "-it", head(kube), "--", "bash"]) as screen:
        screen.expect(r"[$#] ")
        screen.type("tty; python example.py", ENTER)
        screen.expect("/dev/pts/")
        screen.expect(rf"{TEN_ITERATIONS}[\s\S]*[$#] ", 180)
        screen.type("ipython", ENTER)
        screen.expect(r"In \[1\]: ")
        screen.paste(program)
        screen.type(ENTER)
        screen.expect(r"Wall time: [\s\S]*Counter\(\{[\s\S]*In \[2\]: ", 180)
        screen.type("exit", ENTER)
        screen.expect("[$#] ")
        screen.type("exit", ENTER)


def run_as_job(kube: Kube, program: str, folder: Path, result: str) -> None:
    """A driver in a pod of its own, with the Job of our page. IPython runs programs of Python, too."""
    file = folder / "example.ipy"
    file.write_text(program)
    job = yaml.safe_load(of_page("yaml").replace("python /program/example.py", "ipython /program/example.ipy"))
    job["metadata"]["namespace"] = kube.namespace
    kube.kubectl("create", "configmap", "example", f"--from-file={file}")
    created = kube.kubectl("create", "-f", "-", "-o", "name", text=yaml.safe_dump(job)).strip()
    until(lambda: kube.kubectl("get", created, "-o", "jsonpath={.status.succeeded}") == "1", 180)
    logs = kube.kubectl("logs", created)
    assert re.search(result, logs), logs
    kube.kubectl("delete", created, "configmap/example")


def test_ray_document_works_with_rendered_manifests(kube: Kube, tmp_path: Path, outage: Outage) -> None:
    """Command by command, as it stands in the document, with the programs of our page; and containerd is killed once on
    the way."""
    build_image(kube, RAY_WITH_IPYTHON, "--engine", "ray", "--package", "ipython")
    file = tmp_path / "ray-cluster.yaml"
    file.write_text(render(kube, "ray", RAY_WITH_IPYTHON, 3))
    kube.kubectl("apply", "-f", str(file))
    until(one_of_each(kube, 3), 180)
    assert [name.startswith("ray-head-") for name in pods(kube, "head")] == [True]
    assert all(name.startswith("ray-worker-") for name in pods(kube, "worker"))

    # Change `replicas` in the file and apply it again.
    for replicas in (4, 3):
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
    until(one_of_each(kube, 3, {victim}), 120)
    old = head(kube)
    kube.kubectl("delete", "pod", old, seconds=120)
    until(one_of_each(kube, 3, {old}), 180)
    everyone = {*pods(kube, "head"), *pods(kube, "worker")}
    kube.kubectl("delete", "pods", "--all", seconds=180)
    until(one_of_each(kube, 3, everyone), 180)

    restart_containerd(kube, outage)
    # A program by `kubectl cp` and `kubectl exec`, one in a remote shell, one in IPython, both as Jobs.
    example = tmp_path / "example.py"
    example.write_text(of_page("python"))
    kube.kubectl("cp", str(example), f"{head(kube)}:example.py")
    printed = kube.kubectl("exec", head(kube), "--", "python", "example.py", seconds=180)
    assert re.search(TEN_ITERATIONS, printed), printed
    use_remote_shell(kube, of_page("ipython"))
    typed = kube.kubectl("exec", "-i", head(kube), "--", "ipython", text=of_page("ipython"), seconds=180)
    assert "Wall time" in typed and "Counter({" in typed, typed
    assert [workers_seen_from(kube, pod, "ray") for pod in (head(kube), *pods(kube, "worker"))] == [3, 3, 3, 3]
    run_as_job(kube, of_page("python"), tmp_path, TEN_ITERATIONS)
    run_as_job(kube, of_page("ipython"), tmp_path, "Wall time")

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
import json, os, sys, urllib.request
token = {"Authorization": "Bearer " + open(os.environ["OARS_TOKEN_FILE"]).read()}
request = urllib.request.Request(sys.argv[1] + "/api/cluster/nodes?role=1", headers=token)
nodes = json.load(urllib.request.urlopen(request))["nodes"]
def add_token(request):
    request.headers.update(token)  # needed outside of the pods only
    return request
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
        else:
            self._env["OARS_TOKEN_FILE"] = str(manifests.parent / "token")

    def gets_it_from(self, workers: int) -> bool:
        """Whether the program has the right result by now: while members come back one by one, it may also fail."""
        try:
            program = self._case.program.replace("default=True", "default=True, request_rewriter=add_token")
            words = [self._python, "-c", program, self._address(), str(workers)]
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
    assert [workers_seen_from(kube, pod, case.image) for pod in (head(kube), *pods(kube, "worker"))] == [1, 1]
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
