"""Where the operator's tests run: a namespace with the kind served, simulated nodes, and operators as processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.api import ApiError, Object
from lab.errors import Timeout
from lab.faultproxy import FaultProxy
from lab.kube import Kube, is_ready
from lab.kwok import POD
from lab.wait import until

from oars.operator.crd import PLURAL
from oars.places.kube import names
from oars.spec.cluster import API_VERSION, KIND

OARS = str(Path(sys.executable).with_name("oars"))
SECONDS = 90
LEASE = "15s"
SHORT_LEASE = "5s"  # for tests that wait for it to run out; on a busy machine it may do so by itself
SIMULATED_POD: dict[str, Any] = {"spec": POD}  # as a pod overlay: it may land on a simulated node
OWNED = (
    ("pods", "api/v1"), ("services", "api/v1"), ("secrets", "api/v1"), ("configmaps", "api/v1"),
    ("serviceaccounts", "api/v1"), ("deployments", "apis/apps/v1"), ("replicasets", "apis/apps/v1"),
    ("poddisruptionbudgets", "apis/policy/v1"), ("networkpolicies", "apis/networking.k8s.io/v1"),
    ("roles", "apis/rbac.authorization.k8s.io/v1"), ("rolebindings", "apis/rbac.authorization.k8s.io/v1"),
)  # fmt: skip


def group(name: str = "default", replicas: int | None = 3, **more: Any) -> dict[str, Any]:
    """A worker group of simulated pods."""
    counted = {} if replicas is None else {"replicas": replicas}
    return {"name": name, **counted, "cpu": "0.1", "memory": "64Mi", "pod": SIMULATED_POD, **more}


def sized(*groups: dict[str, Any]) -> dict[str, Any]:
    """The fields of a spec with these groups: the number of the first one is the cluster's."""
    first = {key: value for key, value in groups[0].items() if key != "replicas"}
    numbers = {"replicas": groups[0]["replicas"]} if "replicas" in groups[0] else {}
    return {"workers": [first, *groups[1:]], **numbers}


def resource(name: str, *groups: dict[str, Any], **spec: Any) -> Object:
    """A ComputeCluster of simulated pods."""
    head = {"cpu": "0.1", "memory": "64Mi", "pod": SIMULATED_POD}
    body = {"engine": "simulated", "head": head, **sized(*(groups or (group(),))), **spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": body}


@dataclass(frozen=True)
class Stage:
    """One test's namespace."""

    kube: Kube

    def create(self, body: Object) -> Object:
        return self.kube.api.create(self._path(), body)

    def edit(self, name: str, spec: dict[str, Any]) -> Object:
        """Merge into the spec, as `kubectl patch --type=merge` does."""
        return self.kube.api.patch(self._path(name), {"spec": spec})

    def get(self, name: str) -> Object:
        return self.kube.api.get(self._path(name))

    def delete(self, name: str) -> None:
        self.kube.api.delete(self._path(name))

    def _path(self, name: str = "") -> str:
        path = self.kube.path(PLURAL, f"apis/{API_VERSION}")
        return f"{path}/{name}" if name else path

    def is_ready(self, name: str) -> Object | None:
        """Its status, if that tells of the newest spec that it holds."""
        found = self.get(name)
        status = found.get("status") or {}
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return status if current and status.get("phase") == "Ready" else None

    def await_ready(self, name: str, seconds: float = SECONDS) -> Object:
        status: Object = self.until(name, "is ready", lambda: self.is_ready(name), seconds)
        return status

    def await_guarded(self, name: str) -> None:
        """Its head has a budget, the last thing that a cluster gets."""
        budget = f"poddisruptionbudgets/{name}-head"
        self.until(name, "is guarded", lambda: budget in self.left(name))

    def until(self, name: str, what: str, check: Callable[[], Any], seconds: float = SECONDS) -> Any:
        try:
            return until(f"{name} {what}", check, seconds, 0.1)
        except Timeout as late:
            raise Timeout(f"{late}\nstatus: {self.get(name).get('status')}\npods: {self.brief()}") from None

    def pods(self, name: str, role: str = "", of_group: str = "") -> list[Object]:
        """Those that stay, the oldest first."""
        of_role = {"": names.GROUP, "head": f"{names.GROUP}=head", "worker": f"{names.GROUP}!=head,{names.GROUP}"}[role]
        query = f"{names.CLUSTER}={name}," + (f"{names.GROUP}={of_group}" if of_group else of_role)
        found = [pod for pod in self.kube.pods(query) if "deletionTimestamp" not in pod["metadata"]]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def workers(self, name: str, of_group: str = "") -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods(name, "worker", of_group) if is_ready(pod)}

    def deployments(self, name: str) -> dict[str, Object]:
        query = f"{names.CLUSTER}%3D{name}"
        listed = self.kube.api.get(f"{self.kube.path('deployments', 'apis/apps/v1')}?labelSelector={query}")
        return {each["metadata"]["name"]: each for each in listed["items"]}

    def left(self, name: str = "") -> list[str]:
        """Every object of a cluster, or of any, that is there, as kind/name."""
        query = f"{names.CLUSTER}%3D{name}" if name else names.CLUSTER
        found = []
        for plural, version in OWNED:
            listed = self.kube.api.get(f"{self.kube.path(plural, version)}?labelSelector={query}")
            found += [f"{plural}/{each['metadata']['name']}" for each in listed["items"]]
        return found

    def brief(self) -> list[str]:
        return [f"{pod['metadata']['name']} {pod['status'].get('phase')}" for pod in self.kube.pods()]

    def events(self, name: str) -> list[Object]:
        listed: list[Object] = self.kube.api.get(self.kube.path("events"))["items"]
        return [each for each in listed if each["involvedObject"].get("name") == name]


def oars(stage: Stage, *words: str, code: int = 0) -> str:
    """What a command prints, on both streams."""
    env = {**os.environ, "KUBECONFIG": str(stage.kube.kubeconfig)}
    done = subprocess.run([OARS, *words], env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


class Operator:
    """An operator process."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path, identity: str, *options: str) -> None:
        self.identity = identity
        self.log = log
        self.port = _free_port()  # of its pages, all of them
        words = ["operator", "run", "--kubeconfig", str(kubeconfig), "-n", namespace, "--lease-namespace", namespace]
        words += ["--metrics-port", str(self.port), "--health-port", str(self.port)]
        words += ["--identity", identity, *options]
        with log.open("a") as out:
            self.process = subprocess.Popen([OARS, *words], stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ))

    def stop(self) -> int:
        """In good order."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def page(self, path: str) -> tuple[int, str]:
        """What it answers; 0: nobody does."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metrics(self) -> dict[str, float]:
        """As Prometheus reads them: name and labels → value."""
        code, text = self.page("/metrics")
        assert code == 200
        rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in rows}

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def says(self, words: str) -> bool:
        return any(words in line for line in self.lines)


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def holder(kube: Kube) -> str:
    """Who leads the operators of this namespace."""
    try:
        lease = kube.api.get(kube.path("leases/oars-operator", "apis/coordination.k8s.io/v1"))
    except ApiError:
        return ""
    return str(lease["spec"].get("holderIdentity") or "")


def requests(proxy: FaultProxy) -> int:
    """How many were made, but for those of Leases, which go on at rest."""
    return len([record for record in proxy.records if record.request.resource != "leases"])


def quiet_for(seconds: float, check: Callable[[], int]) -> int:
    """How much a count grew in so many seconds. (That nothing happens can only be waited for.)"""
    before = check()
    time.sleep(seconds)
    return check() - before
