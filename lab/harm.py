"""Disruptions for tests, each undone at the end of its block: killed components, cut pods, quotas, taints."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from lab import cgroups
from lab.api import Object
from lab.cluster import Lab
from lab.components import NODE
from lab.errors import LabError
from lab.kube import Kube
from lab.node import NAME, await_ready
from lab.run import run
from lab.wait import until

# Drop packets silently, like a broken cable; loopback still works.
_CUT = """
table inet oars_cut {
  chain in { type filter hook input priority -300; policy drop; iif lo accept; }
  chain out { type filter hook output priority -300; policy drop; oif lo accept; }
}
"""


@contextmanager
def outage(lab: Lab, component: str) -> Iterator[None]:
    """Kill a component; at the end start it again and wait until the cluster is healthy."""
    running = lab.component(component)
    if not running:
        raise LabError(f"{component} is not running.")
    running.kill()
    try:
        yield
    finally:
        lab.start(component)
        if component in NODE:
            await_ready(lab.api, lab.network)


@contextmanager
def cut(lab: Lab, pod: Object) -> Iterator[None]:
    """Drop all of a pod's network traffic, including the kubelet's probes."""
    pid = process_of(lab, pod["metadata"]["uid"])
    inside = ["nsenter", "-t", str(pid), "-n", "nft"]
    run([*inside, "-f", "-"], text=_CUT)
    try:
        yield
    finally:
        # If the pod is gone, so are the rules.
        if Path(f"/proc/{pid}").exists():
            run([*inside, "delete", "table", "inet", "oars_cut"])


def crash(lab: Lab, pod: Object, container: str) -> None:
    """Kill every process of a container; the kubelet restarts it in the same pod."""
    _signal(lab, pod, container, signal.SIGKILL)


@contextmanager
def frozen(lab: Lab, pod: Object, container: str) -> Iterator[None]:
    """Meanwhile the processes of a container exist, and do nothing. The kubelet can still kill them."""
    _signal(lab, pod, container, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(lab, pod, container, signal.SIGCONT)


def _signal(lab: Lab, pod: Object, container: str, number: signal.Signals) -> None:
    found = [each["containerID"] for each in pod["status"]["containerStatuses"] if each["name"] == container]
    if not found:
        raise LabError(f"Pod {pod['metadata']['name']} has no container {container}.")
    for process in _processes(lab, found[0].rpartition("/")[2]):
        with suppress(ProcessLookupError):  # it ended together with another one
            os.kill(process, number)


@contextmanager
def quota(kube: Kube, hard: Mapping[str, str]) -> Iterator[None]:
    """Create a ResourceQuota and wait until it is enforced."""
    path = kube.path("resourcequotas")
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "lab"}, "spec": {"hard": dict(hard)}}
    kube.api.create(path, body)
    until("the quota is in force", lambda: kube.api.get(f"{path}/lab").get("status", {}).get("hard") == dict(hard))
    try:
        yield
    finally:
        kube.api.delete(f"{path}/lab")


@contextmanager
def taint(kube: Kube, effect: str = "NoSchedule", node: str = NAME) -> Iterator[None]:
    """Put the taint `oars.dev/lab-taint` on a node."""
    kube.kubectl("taint", "node", node, f"oars.dev/lab-taint=yes:{effect}", "--overwrite")
    try:
        yield
    finally:
        kube.kubectl("taint", "node", node, f"oars.dev/lab-taint:{effect}-")


def process_of(lab: Lab, uid: str) -> int:
    """Return a process in a pod's network namespace. A process that has just started may still be in another one."""
    others = {_network_of(os.getpid()), _network_of(lab.init.pid) if lab.init else None, None}
    for process in sorted(_processes(lab, f"pod{uid}")):
        if _network_of(process) not in others:
            return process
    raise LabError(f"Pod {uid} has no process on the lab's node.")


def _network_of(process: int) -> str | None:
    try:
        return os.readlink(f"/proc/{process}/ns/net")
    except OSError:  # it has ended
        return None


def _processes(lab: Lab, part: str) -> set[int]:
    """Return all processes in cgroups whose path contains `part`. Try again if cgroups disappear meanwhile."""
    for _ in range(3):
        with suppress(OSError):
            listings = [each for top in cgroups.found(lab.name) for each in top.rglob("cgroup.procs")]
            return {int(line) for each in listings if part in str(each) for line in each.read_text().split()}
    raise LabError(f"The cgroups of {lab.name} changed during each of three attempts to read them.")
