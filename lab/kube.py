"""A test's view of a cluster: a namespace and helpers to work in it."""

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
    """A cluster for tests: the lab, or an external one."""

    api: Api
    kubeconfig: Path
    program: str
    lab: Lab | None = None

    def config(self) -> dict[str, Any]:
        """Content of the kubeconfig, minified."""
        return _config(self.program, self.kubeconfig)


@dataclass(frozen=True)
class Kube:
    """One test's namespace in a cluster."""

    cluster: Cluster
    namespace: str

    @property
    def api(self) -> Api:
        """Client with administrator rights."""
        return self.cluster.api

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig for the program under test."""
        return self.cluster.kubeconfig

    def path(self, resource: str, group: str = "api/v1") -> str:
        """Return the API path of a resource in this namespace: path("deployments", "apis/apps/v1")."""
        return f"/{group}/namespaces/{self.namespace}/{resource}"

    def kubectl(self, *words: str, text: str | None = None, seconds: float = 60) -> str:
        """Run kubectl in this namespace and return its output."""
        return run([*self.command(), *words], seconds, text)

    def popen(self, *words: str) -> subprocess.Popen[str]:
        """Start a long-running kubectl, such as port-forward."""
        words = (*self.command(), *words)
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def command(self) -> list[str]:
        """Return the kubectl command line for this cluster and namespace."""
        return [self.cluster.program, "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace]

    def apply(self, *objects: Object) -> None:
        """Apply manifests with kubectl."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", text=json.dumps(listed))

    def pods(self, selector: str = "") -> list[Object]:
        """Return the pods of the namespace, or those with a label, such as app=ray."""
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
        """Describe pods that should be Ready: status, events and last log lines."""
        states = self.kubectl("get", "pods", "-l", selector, "-o", "wide")
        words = self.kubectl("logs", "-l", selector, "--tail=5", "--prefix", "--ignore-errors")
        events = self.kubectl(
            "get", "events", "--sort-by=.lastTimestamp", "-o", "custom-columns=:.involvedObject.name,:.message"
        )
        return "\n".join([states, words, *events.splitlines()[-10:]])

    def runs(self, pod: str, *command: str) -> bool:
        """True if a command in a pod's first container succeeds. It fails for a moment after an outage of containerd,
        until the kubelet has reconnected."""
        try:
            self.kubectl("exec", pod, "--", *command)
        except LabError:
            return False
        return True

    def image(self, name: str) -> str:
        """Return the reference of one of the lab's images. Build and import it if necessary."""
        if not self.cluster.lab:
            pytest.skip("This test needs the lab's images, which are not available with OARS_TEST_KUBECONFIG.")
        return catalogue.provide(self.cluster.lab, [name])[0]


def is_ready(pod: Object) -> bool:
    """True if a pod is Ready and not being deleted."""
    conditions = pod["status"].get("conditions", [])
    ready = any(part["type"] == "Ready" and part["status"] == "True" for part in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def of_lab(lab: Lab) -> Cluster:
    """Return the lab as a cluster for tests."""
    return Cluster(lab.api, lab.settings.kubeconfig, str(lab.binaries["kubectl"]), lab)


def of_kubeconfig(path: str) -> Cluster:
    """Return an external cluster; kubectl must be on PATH."""
    api = connect(_config("kubectl", Path(path)))
    if not api.healthy():
        raise LabError(f"The API server in {path} does not answer.")
    return Cluster(api, Path(path), "kubectl")


@contextmanager
def fresh_namespace(cluster: Cluster, has_node: bool) -> Iterator[Kube]:
    """Create a namespace, wait for its service account, and delete it at the end."""
    name = f"t-{os.getpid()}-{secrets.token_hex(3)}"
    cluster.api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until("the namespace has its service account", lambda: cluster.api.exists(account))
        yield Kube(cluster, name)
    finally:
        if has_node:
            # Without a grace period: the test is over.
            cluster.api.request("DELETE", f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
        cluster.api.delete(f"/api/v1/namespaces/{name}")


def _config(program: str, kubeconfig: Path) -> dict[str, Any]:
    # kubectl normalizes every form of kubeconfig.
    words = [program, "--kubeconfig", kubeconfig, "config", "view", "--raw", "--minify", "--flatten", "-o", "json"]
    content: dict[str, Any] = json.loads(run(words))
    return content
