"""What any engine must do on Kubernetes, in each mode. The programs are those of the contract on one machine, run here
as drivers outside the cluster."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from lab.kube import Kube, is_ready

from oars.client.sync import Cluster
from oars.model import Cause
from oars.places.kube import names
from oars.spec.cluster import API_VERSION, KIND
from oars.spec.load import build
from oars.spec.status import Phase, Status
from oars.testing.driver import DriverProgram, run_driver
from tests.plain_clients import PROGRAMS

OARS = str(Path(sys.executable).with_name("oars"))
TIMEOUT = "180s"
SMALL = {"cpu": 0.3, "burst": True}
SELECTORS = {"head": "oars.dev/group=head", "worker": "oars.dev/group,oars.dev/group!=head"}


def ours(kube: Kube) -> list[str]:
    """All that Oars made in a namespace."""
    kinds = "pods,deployments,services,configmaps,secrets,leases,pdb,networkpolicies,serviceaccounts,roles,rolebindings"
    return kube.kubectl("get", kinds, "-l", names.CLUSTER, "-o", "name").split()


class KubeContract:
    """One cluster for all tests of a class, in the order in which they stand."""

    engine: ClassVar[type]  # a class of tests/contract/test_engines.py, for its spec and programs
    image: ClassVar[str]
    mode: ClassVar[str]
    more: ClassVar[dict[str, Any]] = {}  # besides the contract's own spec
    lost: ClassVar[str] = "failed:"

    @pytest.fixture(scope="class")
    @classmethod
    def needs_mode(cls, request: pytest.FixtureRequest) -> None:
        if cls.mode == "operator":
            request.getfixturevalue("operator")

    @classmethod
    def spec(cls, home: Kube, *groups: str) -> dict[str, Any]:
        """With a worker in each group."""
        return {
            **cls.engine.spec,  # type: ignore[attr-defined]
            **cls.more,
            "image": home.image(cls.image),
            "head": {**SMALL, "memory": "2Gi"},
            "workers": [{"name": name, "replicas": 1, "memory": "1Gi", **SMALL} for name in groups],
        }

    @pytest.fixture(scope="class")
    @classmethod
    def demo(cls, home: Kube, needs_mode: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OARS_STATE_DIR", str(tmp_path_factory.mktemp("state")))
            with Cluster(
                build(cls.spec(home, "default")).spec, name="demo", timeout=TIMEOUT, mode=cls.mode,
                namespace=home.namespace, kubeconfig=str(home.kubeconfig),
            ) as made:  # fmt: skip
                yield made

    def program(self, name: str) -> str:
        return str(getattr(self.engine, name))

    def test_ready_cluster_shows_its_mode(self, demo: Cluster, home: Kube) -> None:
        status = demo.status()
        assert (status.phase, status.ready, status.mode, status.namespace) == (
            Phase.READY, 1, self.mode, home.namespace,
        )  # fmt: skip
        assert len({member.id for member in status.members}) == 2

    def test_card_links_to_a_dashboard_that_opens(self, demo: Cluster) -> None:
        """A browser on this machine can open it, or the card has the command that sends the token."""
        if not demo.dashboard_link:
            pytest.skip("this cluster has no dashboard")
        where, card = urlsplit(demo.dashboard_link), demo._repr_html_()
        assert f'href="{demo.dashboard_link}"' in card or "oars dashboard demo" in card
        socket.create_connection((where.hostname or "", where.port or 0), 20).close()

    def test_plain_client_in_every_pod_finds_the_cluster(self, demo: Cluster, home: Kube) -> None:
        """By kubectl exec: no shell profile, nothing of Oars."""
        for pod in [*staying(home, "head"), *staying(home, "worker")]:
            assert workers_seen_from(home, pod["metadata"]["name"], self.image) == 1

    def test_results_survive_scaling_down(self, demo: Cluster, home: Kube) -> None:
        """A program outside holds results on all workers: either they are moved, or the worker is kept, and said so,
        until it is safe to remove. Nobody but the chosen one goes: no other pod is replaced on the way."""
        demo.scale(2)
        assert demo.wait(timeout=TIMEOUT).ready == 2
        before = {pod["metadata"]["name"] for pod in staying(home, "worker")}
        with DriverProgram(demo, self.program("hold")) as program:
            program.expect("held", 180)
            demo.scale(1)
            until(lambda: settled(demo) or any(draining(cause) for cause in demo.why()), 90)
            program.tell()
            program.expect("intact")
            program.tell("end")
            program.expect("(end)")
        until(lambda: settled(demo), 120)
        assert demo.status().wanted == 1
        until(lambda: len(staying(home, "worker")) == 1, 90)  # marked as going, it no longer counts, and is still there
        after = {pod["metadata"]["name"] for pod in staying(home, "worker")}
        assert after < before, f"{after} of {before}"

    def test_lost_worker_is_replaced(self, demo: Cluster, home: Kube) -> None:
        victim = staying(home, "worker")[0]["metadata"]["name"]
        delete_pod(home, victim)
        until(lambda: victim not in {member.id for member in demo.members()}, 60)
        assert demo.wait(timeout=TIMEOUT).ready == 1

    @pytest.mark.long
    def test_cluster_survives_a_containerd_restart(
        self, demo: Cluster, home: Kube, outage: Callable[[str], AbstractContextManager[None]]
    ) -> None:
        """Containers run on without it; if its kubelet restarts one on a busy machine, the test allows for it."""
        with outage("containerd"):
            pass
        until(lambda: settled(demo), 90)
        assert any(line.startswith("result") for line in run_driver(demo, self.program("work"), 180))

    def test_lost_head_is_replaced_with_its_workers(self, demo: Cluster, home: Kube) -> None:
        before = {pod["metadata"]["uid"] for pod in home.pods("oars.dev/cluster=demo")}
        (changes,) = head_changes(home)
        (lost,) = staying(home, "head")
        with DriverProgram(demo, self.program("hang")) as program:
            while program.expect("started", 120) != "started":
                pass  # Ray's warning that versions differ has the word in it
            begin = time.monotonic()
            delete_pod(home, lost["metadata"]["name"])
            await_renewed(demo, home, changes + 1, lost)
            assert demo.wait(timeout=TIMEOUT).ready == 1
            seconds = time.monotonic() - begin
            assert any("all results of the cluster are lost" in cause.message for cause in demo.why())
            program.expect(self.lost, 120)
        sys.stderr.write(f"{self.engine.__name__} {self.mode}: back after {seconds:.1f} s\n")  # shown with -s
        (head,) = staying(home, "head")
        kept = [pod for pod in staying(home, "worker") if pod["metadata"]["uid"] in before]
        assert head["metadata"]["uid"] not in before
        assert all(started(pod) >= started(head) for pod in kept), "workers of the old head stayed"
        assert any(line.startswith("result") for line in run_driver(demo, self.program("work"), 180))
        assert head_changes(home) <= {changes, changes + 1}, "the workers' template was changed once at most"

    @pytest.mark.long
    def test_head_container_restart_replaces_the_workers(
        self, demo: Cluster, home: Kube, crash: Callable[[Any, str], None]
    ) -> None:
        (head,) = staying(home, "head")
        (changes,) = head_changes(home)
        begin = time.monotonic()
        crash(head, "head")
        await_renewed(demo, home, changes + 1, head)
        sys.stderr.write(f"{self.engine.__name__} {self.mode}: followed after {time.monotonic() - begin:.1f} s\n")
        assert [pod["metadata"]["uid"] for pod in staying(home, "head")] == [head["metadata"]["uid"]]
        assert any(line.startswith("result") for line in run_driver(demo, self.program("work"), 180))

    def outlive_group(self, demo: Cluster, home: Kube, folder: Path) -> None:
        """Two groups hold results of a program outside; the newer one is no longer described, and goes without them."""
        self.describe(home, folder, "default", "second")
        (second,) = in_group(home, "second")
        with DriverProgram(demo, self.program("hold")) as program:
            program.expect("held", 180)
            until(lambda: held_by(demo, second) > 0, 120)  # workers tell now and then what they hold
            self.describe(home, folder, "default")
            assert [group.name for group in demo.status().groups] == ["default"]
            until(lambda: not in_group(home, "second"), 120)
            assert "second" not in home.kubectl("get", "deployments", "-o", "name")
            program.tell()
            program.expect("intact")
            program.tell("end")
            program.expect("(end)")

    def describe(self, home: Kube, folder: Path, *groups: str) -> None:
        """`oars apply`, which ends when the cluster is as described."""
        described = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "demo"}}
        file = folder / "cluster.json"
        file.write_text(json.dumps({**described, "spec": {**self.spec(home, *groups), "place": "kubernetes"}}))
        words = [OARS, "apply", "-f", str(file), "-n", home.namespace, "--timeout", TIMEOUT]
        env = {**os.environ, "KUBECONFIG": str(home.kubeconfig)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr


def workers_seen_from(home: Kube, pod: str, image: str) -> int:
    """How many workers a program in a pod sees that names no address."""
    printed = home.kubectl("exec", pod, "--", "python3", "-c", PROGRAMS[image], seconds=120)
    return int(printed.split("workers ")[-1])


def in_group(home: Kube, group: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in home.pods(f"oars.dev/group={group}")]


def held_by(demo: Cluster, member: str) -> int:
    """Bytes of results on one worker, on the page that the engine's head has for Oars."""
    path, key = {"dask": ("/oars/members.json", "name"), "mars": ("/api/oars/nodes", "identity")}[demo.engine]
    where = urlsplit(demo.dashboard_link)
    file = demo.driver().env.get("OARS_TOKEN_FILE")
    token = {"Authorization": f"Bearer {Path(file).read_text()}"} if file else {}
    request = urllib.request.Request(f"{where.scheme}://{where.netloc}{path}", headers=token)
    with urllib.request.urlopen(request, timeout=20) as answer:
        told = json.load(answer)
    workers = told["workers"] if demo.engine == "dask" else told.values()
    return sum(int(each["held"]) for each in workers if each[key].startswith(member))


def settled(demo: Cluster) -> bool:
    status: Status = demo.status()
    return status.phase is Phase.READY and len(status.members) == 1 + status.wanted


def await_renewed(demo: Cluster, home: Kube, changes: int, lost: Any) -> None:
    try:
        until(lambda: renewed(demo, home, changes, lost), 180)
    except AssertionError as error:
        pods = [(pod["metadata"]["name"], epoch(pod), pod["status"]) for pod in home.pods("oars.dev/cluster=demo")]
        raise AssertionError(f"{demo.status()}, {demo.why()}, epoch {changes} expected, pods: {pods}") from error


def renewed(demo: Cluster, home: Kube, changes: int, lost: Any) -> bool:
    """True if the cluster is settled with a new head, and each worker was created for it, or the kubelet restarted it
    after the head started: it can have joined no other."""
    heads, workers = staying(home, "head"), staying(home, "worker")
    if len(heads) != 1 or not all(map(is_ready, [*heads, *workers])) or started(heads[0]) == started(lost):
        return False
    return all(epoch(pod) == changes or started(pod) >= started(heads[0]) for pod in workers) and settled(demo)


def staying(home: Kube, role: str) -> list[Any]:
    return [pod for pod in home.pods(SELECTORS[role]) if not pod["metadata"].get("deletionTimestamp")]


def head_changes(home: Kube) -> set[int]:
    """How many heads were lost before the one that the workers were made for."""
    return {epoch(pod) for pod in staying(home, "worker")}


def epoch(pod: Any) -> int:
    return int(pod["metadata"].get("annotations", {}).get(names.HEAD_EPOCH, 0))


def started(pod: Any) -> str:
    """When its main container started, in whole seconds; comparable as text."""
    statuses = {each["name"]: each for each in pod["status"].get("containerStatuses", ())}
    main = statuses[pod["spec"]["containers"][0]["name"]]
    return str(main["state"].get("running", {}).get("startedAt", ""))


def draining(cause: Cause) -> bool:
    return cause.reason == "Draining" and bool(cause.hint)


def delete_pod(home: Kube, name: str) -> None:
    subprocess.run([*home.command(), "delete", "pod", name, "--grace-period=0", "--force"], check=True, timeout=60,
                   capture_output=True)  # fmt: skip


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the condition said when it came true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.2)  # asking is the only way to know
    return found
