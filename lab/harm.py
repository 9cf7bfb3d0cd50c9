"""Harm on purpose, each with its undoing: dead components, cut pods, full quotas, taints."""

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

# Dropped without a word, as a broken cable does; the pod can still talk to itself.
_CUT = """
table inet oars_cut {
  chain in { type filter hook input priority -300; policy drop; iif lo accept; }
  chain out { type filter hook output priority -300; policy drop; oif lo accept; }
}
"""


@contextmanager
def outage(lab: Lab, component: str) -> Iterator[None]:
    """Kill -9 a component; bring it back, and wait until the cluster is whole again."""
    running = lab.component(component)
    if not running:
        raise LabError(f"{component} does not run.")
    running.kill()
    try:
        yield
    finally:
        lab.start(component)
        if component in NODE:
            await_ready(lab.api, lab.network)


@contextmanager
def cut(lab: Lab, pod: Object) -> Iterator[None]:
    """Cut all of a pod's network, kubelet probes included."""
    pid = process_of(lab, pod["metadata"]["uid"])
    inside = ["nsenter", "-t", str(pid), "-n", "nft"]
    run([*inside, "-f", "-"], text=_CUT)
    try:
        yield
    finally:
        # Gone with the pod, if the pod is gone.
        if Path(f"/proc/{pid}").exists():
            run([*inside, "delete", "table", "inet", "oars_cut"])


def crash(lab: Lab, pod: Object, container: str) -> None:
    """Kill -9 every process of a container; its kubelet starts it again in the same pod."""
    found = [each["containerID"] for each in pod["status"]["containerStatuses"] if each["name"] == container]
    if not found:
        raise LabError(f"The pod {pod['metadata']['name']} has no container {container}.")
    for process in _processes(lab, found[0].rpartition("/")[2]):
        with suppress(ProcessLookupError):  # it went with another
            os.kill(process, signal.SIGKILL)


@contextmanager
def quota(kube: Kube, hard: Mapping[str, str]) -> Iterator[None]:
    """A ResourceQuota, in force when the block begins."""
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
    """A taint `oars.dev/lab-taint` on a node."""
    kube.kubectl("taint", "node", node, f"oars.dev/lab-taint=yes:{effect}", "--overwrite")
    try:
        yield
    finally:
        kube.kubectl("taint", "node", node, f"oars.dev/lab-taint:{effect}-")


def process_of(lab: Lab, uid: str) -> int:
    """A process in the network of a pod. One that has just begun may still be in that of its node, or in ours."""
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
    """All in cgroups with this in their path. Others come and go while one looks: then one looks again."""
    for _ in range(3):
        with suppress(OSError):
            listings = [each for top in cgroups.found(lab.name) for each in top.rglob("cgroup.procs")]
            return {int(line) for each in listings if part in str(each) for line in each.read_text().split()}
    raise LabError(f"The cgroups of {lab.name} changed each time they were looked through.")
