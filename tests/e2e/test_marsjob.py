"""The MarsJob of KubeDL's document with real pods: from `kubectl create` to a result on its web service, and its page
as users inside and outside of the Kubernetes cluster see it."""

from __future__ import annotations

import json
import re
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import pytest
from lab.kube import Kube, is_ready

from oars.places.kube import names
from tests.e2e.contract import until
from tests.ingress import Rules, proxy
from tests.marsjob import small_document

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("operator")]

NAME = "mars-test-demo"
HOST = "mars.domain.com"
MIB = 2**20
WORKERS = f"{names.CLUSTER}={NAME},{names.GROUP}=default"
# The work of the document's snippet, with a session of today's Mars.
SNIPPET = """
import socket, sys, urllib.request, urllib.error
import mars.dataframe as md
import mars.tensor as mt
from mars.deploy.oscar.session import new_session
for address in sys.argv[1:]:
    new_session(address, default=True)
    a = mt.ones((2000, 2000), chunk_size=1000)
    b = mt.inner(a, a).execute(show_progress=False)
    df = md.DataFrame(a).sum().execute(show_progress=False)
    print(int(b.fetch()[0, 0]), int(df.fetch().iloc[0]))
    try:
        urllib.request.urlopen(address)
    except urllib.error.HTTPError as error:
        print(error.code)
for number in range(2):
    print(socket.gethostbyname(f"mars-test-demo-worker-{number}"))
"""
# In a pod that is none of the job's. Arguments: the address, how many results, and the file with the token, if any.
OUTSIDE = """
import sys, time
import numpy as np
import mars
from mars import remote
address, count, *path = sys.argv[1:]
def add_token(request):
    with open(path[0]) as file:
        request.headers["Authorization"] = f"Bearer {file.read()}"
    return request
mars.new_session(address, default=True, **({"request_rewriter": add_token} if path else {}))
def make(number):
    time.sleep(0.5)
    return np.append(float(number), np.random.default_rng().random(10 * 2**17))
made = [remote.spawn(make, args=(number,)) for number in range(int(count))]
remote.ExecutableTuple(made).execute(show_progress=False)
firsts = remote.ExecutableTuple([remote.spawn(lambda part: float(part[0]), args=(part,)) for part in made])
print("sum", sum(firsts.execute(show_progress=False).fetch()), flush=True)
input()
"""
Get = Callable[..., tuple[int, Mapping[str, str], bytes]]


def create(home: Kube, *, annotations: dict[str, str] | None = None, workers: int = 2, **spec: Any) -> None:
    """The document's job on the small node; returns when its pods are ready."""
    job = small_document(home.image("mars-pymars"))
    job["metadata"]["annotations"] = annotations or {}
    job["spec"] |= spec
    worker = job["spec"]["marsReplicaSpecs"]["Worker"]
    worker["replicas"] = workers
    if workers == 1:  # it does all the work
        worker["template"]["spec"]["containers"][0]["resources"]["limits"].pop("cpu")
    home.kubectl("create", "-f", "-", text=json.dumps(job))
    until(lambda: state(home) == "Running", 240)
    until(lambda: len(list(filter(is_ready, pods(home)))) == 1 + workers, 240)


def pods(home: Kube) -> list[Any]:
    return home.pods(f"job-name={NAME}")


def status(home: Kube) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(home.kubectl("get", "marsjob", NAME, "-o", "json")).get("status", {})
    return found


def state(home: Kube) -> str:
    return str((status(home).get("conditions") or [{"type": ""}])[-1]["type"])


def delete(home: Kube) -> None:
    home.kubectl("delete", "marsjob", NAME)
    until(lambda: not pods(home), 240)


def rules(home: Kube) -> Rules:
    """Of the job's Ingress; the node's machine reaches the addresses of Services, as a controller does."""
    ingress = json.loads(home.kubectl("get", "ingress", f"{NAME}-head", "-o", "json"))

    def find(service: str, port: int) -> tuple[str, int]:
        return home.api.get(f"{home.path('services')}/{service}")["spec"]["clusterIP"], port

    return Rules(ingress, find)


def page_of(home: Kube) -> str:
    return f"http://{HOST}/mars/{home.namespace}/{NAME}-webservice-0"


def other_pod(home: Kube, name: str) -> str:
    """A pod of a user in the namespace, which has the Secret with the token."""
    container = {
        "name": "user",
        "image": home.image("mars-pymars"),
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "volumeMounts": [{"name": "token", "mountPath": "/etc/mars"}],
    }
    volume = {"name": "token", "secret": {"secretName": f"{NAME}-oars", "items": [{"key": "token", "path": "token"}]}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 0}
    home.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    home.kubectl("wait", "pod", name, "--for=condition=Ready", "--timeout=55s")
    return name


@contextmanager
def working(home: Kube, pod: str, *arguments: str) -> Iterator[IO[str]]:
    """OUTSIDE in a pod, whose output it yields. At the end the program may end, too."""
    command = [*home.command(), "exec", "-i", pod, "--", "python", "-c", OUTSIDE, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        yield program.stdout
        program.communicate("\n", 60)


def check_page(get: Get, page: str, workers: int, **headers: str) -> None:
    """Mars' page and its script, as a browser gets them, and the figures that the script shows."""
    code, found, html = get(f"{page}/", **headers)
    assert code == 200 and "text/html" in found["Content-Type"]
    (script,) = re.findall(r'<script[^>]* src="([^"/][^"]*bundle.js)"', html.decode())
    code, found, text = get(f"{page}/{script}", **headers)
    assert code == 200 and "javascript" in found["Content-Type"] and len(text) > 10_000
    nodes = json.loads(get(f"{page}/api/cluster/nodes?role=1&resource=1&exclude_statuses=-1", **headers)[2])["nodes"]
    assert len(nodes) == workers


def check_progress(get: Get, page: str, output: IO[str], count: int, **headers: str) -> None:
    """The script's requests for the status and the progress of tasks, while OUTSIDE works and afterwards. Sessions of
    earlier programs may be there, too."""

    def tasks(session: str) -> list[Any]:
        found: list[Any] = json.loads(get(f"{page}/api/session/{session}/task?progress=1", **headers)[2])["tasks"]
        return found

    def busy_session() -> str:
        sessions = [each["session_id"] for each in json.loads(get(f"{page}/api/session", **headers)[2])["sessions"]]
        return next((each for each in sessions if any(map(is_half_done, tasks(each)))), "")

    def is_half_done(task: Any) -> bool:
        return bool(0 < task["progress"] < 1 and task["status"] == 1)

    session = until(busy_session, 240)
    assert output.readline() == f"sum {float(sum(range(count)))}\n"
    until(lambda: [(task["progress"], task["status"]) for task in tasks(session)] == [(1.0, 2)] * 2, 60)


class TestMarsJob:
    """The document's job."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def job(cls, home: Kube) -> Iterator[None]:
        create(home)
        yield
        delete(home)

    def test_snippet_computes_on_the_web_service_of_the_document(self, home: Kube) -> None:
        (head,) = home.pods(f"{names.CLUSTER}={NAME},{names.GROUP}=head")
        web = f"http://{NAME}-webservice-0.{home.namespace}"
        words = ("exec", head["metadata"]["name"], "--", "python", "-c", SNIPPET, web, f"{web}:11111")
        *computed, first, second = home.kubectl(*words, seconds=240).split()
        assert computed == ["2000", "2000", "401"] * 2, "a program without the token is refused"
        assert {first, second} == {pod["status"]["podIP"] for pod in home.pods(WORKERS)}

    def test_others_see_the_page_and_the_progress_with_the_token(self, home: Kube) -> None:
        """As docs/migrate/marsjob.md says: from another pod, and through the Ingress."""
        web, user = f"http://{NAME}-webservice-0.{home.namespace}", other_pod(home, "user")
        token = b64decode(home.kubectl("get", "secret", f"{NAME}-oars", "-o", "jsonpath={.data.token}")).decode()
        with_token = {"Authorization": f"Bearer {token}"}
        with proxy(rules(home)) as get, working(home, user, web, "24", "/etc/mars/token") as output:
            page = page_of(home)
            assert [get(f"{page}{path}")[0] for path in ("/", "/static/bundle.js", "/api/session")] == [401] * 3
            check_page(get, page, 2, **with_token)
            check_progress(get, page, output, 24, **with_token)
        home.kubectl("delete", "pod", user)

    def test_worker_that_dies_is_not_replaced_with_the_policy_of_the_document(
        self, home: Kube, crash: Callable[[Any, str], None]
    ) -> None:
        """restartPolicy Never."""
        victim, other = home.pods(WORKERS)
        crash(victim, "worker")
        until(lambda: status(home)["replicaStatuses"]["Worker"] == {"active": 1, "failed": 1}, 120)
        until(lambda: [pod["metadata"]["uid"] for pod in home.pods(WORKERS)] == [other["metadata"]["uid"]], 240)
        assert state(home) == "Running" and status(home)["lostWorkers"] == {victim["metadata"]["name"]: "default"}


@pytest.mark.long
class TestOpenMarsJob:
    """The job of the document's second YAML block, without the token."""

    def test_work_beyond_the_cache_is_spilled_and_everybody_sees_its_progress(self, home: Kube) -> None:
        """Access "without any other additional configurations"."""
        tuning = {
            "plasmaStore": "/etc/pstore/x", "lockFreeFileIO": False, "spillDirs": ["/mnt/a", "/mnt/b"],
            "workerCachePercentage": 80, "workerCacheSize": "100Mi",
        }  # fmt: skip
        create(home, annotations={names.WEB_AUTH: "none"}, workers=1, memoryTuningPolicy=tuning)
        listed = {each.partition(":")[0] for each in status(home)["notHonoured"]}
        assert {f"spec.memoryTuningPolicy.{each}" for each in ("plasmaStore", "lockFreeFileIO")} <= listed
        user, web = other_pod(home, "anybody"), f"http://{NAME}-webservice-0.{home.namespace}"
        with proxy(rules(home)) as get, working(home, user, web, "40") as output:
            check_page(get, page_of(home), 1)
            check_progress(get, page_of(home), output, 40)
            (pod,) = home.pods(WORKERS)
            measure = ("-c", "worker", "--", "sh", "-c", "du -sbc /var/oars/spill-* | tail -n 1")
            spilled = int(home.kubectl("exec", pod["metadata"]["name"], *measure).split()[0])
        assert spilled > 200 * MIB, "of 400 MiB of results"
        home.kubectl("delete", "pod", user)
        delete(home)
