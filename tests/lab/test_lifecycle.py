"""Start, repair and stop labs; nothing may be left behind."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.cluster import Lab
from lab.errors import LabError
from lab.kube import Kube, fresh_namespace, of_lab
from lab.loan import borrowed
from lab.process import Process
from lab.run import run
from lab.wait import until

from lab import cgroups, components, dns, network, process, settings

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def own_lab() -> Iterator[Lab]:
    """A separate lab for this test."""
    folder = Path(tempfile.mkdtemp(prefix="lab-"))
    lab = Lab(settings.load(str(folder / "lab")))
    try:
        yield lab
    finally:
        lab.reset()
        shutil.rmtree(folder)


def cli(lab: Lab, *words: str) -> str:
    return run([sys.executable, "-m", "lab", "--dir", lab.dir, *words], 120)


def status(lab: Lab) -> str:
    """Return the output of `status`, or an empty string while a component is not healthy."""
    try:
        return cli(lab, "status")
    except LabError:
        return ""


def processes_in(lab: Lab) -> list[Process]:
    """Return every process inside the lab, including containers."""
    assert lab.init
    space = os.readlink(f"/proc/{lab.init.pid}/ns/pid")
    found = [process.of(int(path.name)) for path in Path("/proc").glob("[0-9]*") if _space(path) == space]
    assert len(found) > len(lab.running())
    return found


def _space(path: Path) -> str:
    try:
        return os.readlink(path / "ns/pid")
    except OSError:
        return ""


def left_behind(lab: Lab, processes: list[Process]) -> list[str]:
    """Return everything that a stopped lab left behind."""
    found = [str(path) for path in cgroups.found(lab.name)]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(lab.dir) in line]
    if network.device_exists(network.device(lab.settings.id)):
        found.append("network device")
    found += [line for line in run(["ip", "route", "show", "table", "all"]).splitlines() if lab.settings.id in line]
    return found + [f"process {one.pid}" for one in processes if one.alive]


@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.long)])
def test_up_and_down_leave_nothing_behind(own_lab: Lab, times: int) -> None:
    rules = run(["nft", "list", "ruleset"])
    for number in range(times):
        # Every third time with the real node, which takes twice as long.
        own_lab.up(with_node=number % 3 == 0)
        processes = processes_in(own_lab)
        own_lab.down()
        assert left_behind(own_lab, processes) == []
        assert run(["nft", "list", "ruleset"]) == rules
    own_lab.down()


@pytest.mark.parametrize("component", [*components.CONTROL_PLANE, *components.NODE, "kwok"])
def test_up_restarts_a_killed_component(kube: Kube, lab: Lab, component: str) -> None:
    if component == "kwok":
        lab.start("kwok")
    victim = lab.component(component)
    assert victim
    victim.kill()
    assert component not in lab.running()
    lab.up()
    assert component in lab.running()
    until("all components are healthy", lambda: all(map(lab.healthy, lab.running())), 60)
    assert kube.api.exists(f"/api/v1/namespaces/{kube.namespace}")


@pytest.mark.parametrize("server", components.SERVERS)
def test_up_restarts_components_that_depend_on_a_killed_server(kube_api: Kube, lab: Lab, server: str) -> None:
    lab.start("kwok")
    before = {name: lab.component(name) for name in components.FOLLOWERS}
    victim = lab.component(server)
    assert victim
    victim.kill()
    lab.up(with_node=False)
    for name in components.FOLLOWERS:
        assert lab.component(name) not in (None, before[name]), f"{name} was not restarted"
    with fresh_namespace(
        of_lab(lab), has_node=False
    ) as another:  # waits for the service account, which a controller creates
        assert another.namespace != kube_api.namespace
    now = {name: lab.component(name) for name in components.ALL}
    lab.up(with_node=False)
    assert {name: lab.component(name) for name in components.ALL} == now, "healthy components were restarted"


def test_last_run_that_uses_a_lab_stops_it(own_lab: Lab) -> None:
    with borrowed(own_lab, with_node=False):
        with borrowed(Lab(own_lab.settings), with_node=False):
            assert set(own_lab.running()) == set(components.CONTROL_PLANE)
        assert own_lab.api.healthy(), "the lab was stopped while another run uses it"
    assert own_lab.running() == []


def test_runs_do_not_stop_a_lab_started_by_a_person(own_lab: Lab) -> None:
    own_lab.claim()
    (own_lab.dir / "started-by-tests").touch()  # by a killed run; a person stopped its lab
    own_lab.down()
    own_lab.up(with_node=False)
    with borrowed(own_lab, with_node=False):
        assert own_lab.api.healthy()
    assert set(own_lab.running()) == set(components.CONTROL_PLANE)


def test_up_recovers_after_the_cage_was_killed(own_lab: Lab) -> None:
    own_lab.up(with_node=False)
    name = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kept"}}
    own_lab.api.create("/api/v1/namespaces", name)
    assert own_lab.init
    own_lab.init.kill()
    until("all components are gone", lambda: not own_lab.running(), 60)
    own_lab.up(with_node=False)
    assert own_lab.api.exists("/api/v1/namespaces/kept")


@pytest.mark.parametrize("moment", ["cage.pid", "network.json", "pids/etcd", "pids/kube-apiserver"])
def test_up_recovers_after_an_interrupted_up(own_lab: Lab, moment: str) -> None:
    words = [sys.executable, "-m", "lab", "--dir", str(own_lab.dir), "up", "--control-plane"]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT) as first:
        until(f"{moment} is written", (own_lab.dir / moment).exists, 60, 0.001)
        first.kill()
    own_lab.up(with_node=False)
    until("the API server is healthy", own_lab.api.healthy, 60)
    processes = processes_in(own_lab)
    own_lab.down()
    assert left_behind(own_lab, processes) == []


def test_two_labs_do_not_interfere(kube: Kube, lab: Lab, own_lab: Lab) -> None:
    own_lab.up()
    assert own_lab.network.range != lab.network.range
    for one in (lab, own_lab):
        await_name(one)
    assert not own_lab.api.exists(f"/api/v1/namespaces/{kube.namespace}")
    own_lab.down()
    until("the other lab is healthy", lambda: all(map(lab.healthy, lab.running())), 60)
    await_name(lab)


def await_name(lab: Lab) -> None:
    where = lab.network.dns
    until("DNS answers", lambda: dns.resolves(where, "kubernetes.default.svc.cluster.local"), 60)


def test_command_line(kube: Kube, lab: Lab) -> None:
    assert cli(lab, "kubeconfig") == f"{lab.settings.kubeconfig}\n"
    until("the kubelet is reported healthy", lambda: "kubelet                   healthy" in status(lab), 60)
    assert cli(lab, "kubectl", "get", "namespace", kube.namespace, "-o", "name") == f"namespace/{kube.namespace}\n"
    assert cli(lab, "images", "base") == "oars.lab/base:1\n"
    assert "==> kubelet <==" in cli(lab, "logs", "kubelet", "-n", "1")
    assert "root                yes" in cli(lab, "doctor")
    assert cli(lab, "up").startswith("export KUBECONFIG=")
