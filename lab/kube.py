"""A cluster as a test sees it: a namespace of its own, and the means to do things in it."""

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.api import Api, Object, connect
from lab.cluster import Lab
from lab.errors import LabError, Timeout
from lab.images import catalogue
from lab.run import run
from lab.wait import until


@dataclass(frozen=True)
class Cluster:
    """A cluster to test on: the lab, or one that somebody brought."""

    api: Api
    kubeconfig: Path
    program: str
    lab: Lab | None = None

    def config(self) -> dict[str, Any]:
        """The kubeconfig's content, minified."""
        return _config(self.program, self.kubeconfig)


@dataclass(frozen=True)
class Kube:
    """One test's share of a cluster."""

    cluster: Cluster
    namespace: str

    @property
    def api(self) -> Api:
        """A client with all rights."""
        return self.cluster.api

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig to give to the program under test."""
        return self.cluster.kubeconfig

    def path(self, resource: str, group: str = "api/v1") -> str:
        """Where a resource of this namespace lives: path("deployments", "apis/apps/v1")."""
        return f"/{group}/namespaces/{self.namespace}/{resource}"

    def kubectl(self, *words: str, text: str | None = None, seconds: float = 60) -> str:
        """Run kubectl in this namespace and return what it printed."""
        return run([*self.command(), *words], seconds, text)

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """Start a kubectl that goes on, such as port-forward."""
        words = (*self.command(), *words)
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def command(self) -> list[str]:
        """kubectl with this cluster and namespace."""
        return [self.cluster.program, "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace]

    def apply(self, *objects: Object) -> None:
        """Apply manifests with kubectl."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", text=json.dumps(listed))

    def pods(self, selector: str = "") -> list[Object]:
        """The pods of the namespace, or those with a label, such as app=ray."""
        found: list[Object] = self.api.get(f"{self.path('pods')}?labelSelector={selector.replace('=', '%3D')}")["items"]
        return found

    def await_ready(self, selector: str, count: int, seconds: float = 120) -> list[Object]:
        """Wait until `count` pods with this label are Ready."""

        def ready() -> list[Object]:
            found = [pod for pod in self.pods(selector) if is_ready(pod)]
            return found if len(found) >= count else []

        try:
            return until(f"{count} pods of {selector} are Ready", ready, seconds, 0.2)
        except Timeout as late:
            raise Timeout(f"{late}\n{self.story(selector)}") from None

    def story(self, selector: str) -> str:
        """What there is to know about pods that should be Ready: their state and last words."""
        states = self.kubectl("get", "pods", "-l", selector, "-o", "wide")
        words = self.kubectl("logs", "-l", selector, "--tail=5", "--prefix", "--ignore-errors")
        events = self.kubectl(
            "get", "events", "--sort-by=.lastTimestamp", "-o", "custom-columns=:.involvedObject.name,:.message"
        )
        return "\n".join([states, words, *events.splitlines()[-10:]])

    def runs(self, pod: str, *command: str) -> bool:
        """Whether a command in a pod's first container ends well by now. Not so at once after an outage of containerd:
        its kubelet connects to it again a moment later."""
        try:
            self.kubectl("exec", pod, "--", *command)
        except LabError:
            return False
        return True

    def image(self, name: str) -> str:
        """The reference of one of the lab's images, built and imported if need be."""
        if not self.cluster.lab:
            pytest.skip(
                "This test runs pods of the lab's images: they exist in the lab only, not with OARS_TEST_KUBECONFIG."
            )
        return catalogue.provide(self.cluster.lab, [name])[0]


def is_ready(pod: Object) -> bool:
    """Whether a pod is Ready and not on its way out."""
    conditions = pod["status"].get("conditions", [])
    ready = any(part["type"] == "Ready" and part["status"] == "True" for part in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def of_lab(lab: Lab) -> Cluster:
    """The lab as a cluster to test on."""
    return Cluster(lab.api, lab.settings.kubeconfig, str(lab.binaries["kubectl"]), lab)


def of_kubeconfig(path: str) -> Cluster:
    """Somebody's cluster, through kubectl on PATH."""
    api = connect(_config("kubectl", Path(path)))
    if not api.healthy():
        raise LabError(f"The cluster of {path} does not answer.")
    return Cluster(api, Path(path), "kubectl")


@contextmanager
def fresh_namespace(cluster: Cluster, has_node: bool) -> Iterator[Kube]:
    """A namespace that pods can start in, deleted at the end."""
    name = f"t-{os.getpid()}-{secrets.token_hex(3)}"
    cluster.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until("the namespace has its service account", lambda: cluster.api.exists(account))
        yield Kube(cluster, name)
    finally:
        if has_node:
            # At once: a pod of a finished test has nothing left to save.
            cluster.api.request("DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
        cluster.api.delete(f"/api/v1/namespaces/{name}")


def _config(program: str, kubeconfig: Path) -> dict[str, Any]:
    # kubectl reads every form a kubeconfig can have, and writes one.
    words = [program, "--kubeconfig", kubeconfig, "config", "view", "--raw", "--minify", "--flatten", "-o", "json"]
    content: dict[str, Any] = json.loads(run(words))
    return content
