"""Harm on purpose, each with its undoing: dead components, cut pods, full quotas, taints."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    pid = _process_of(lab, pod["metadata"]["uid"])
    inside = ["nsenter", "-t", str(pid), "-n", "nft"]
    run([*inside, "-f", "-"], text=_CUT)
    try:
        yield
    finally:
        # Gone with the pod, if the pod is gone.
        if Path(f"/proc/{pid}").exists():
            run([*inside, "delete", "table", "inet", "oars_cut"])


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


def _process_of(lab: Lab, uid: str) -> int:
    """Any process of a pod: it has the pod's network."""
    for top in cgroups.found(lab.name):
        for folder in top.rglob(f"pod{uid}"):
            for listing in folder.rglob("cgroup.procs"):
                for line in listing.read_text().split():
                    return int(line)
    raise LabError(f"Pod {uid} has no process on the lab's node.")
