"""Pods that call themselves ours, and try every port of a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lab.kube import Kube

from oars.places.kube import names

Address = tuple[str, int]

# A refused connection counts: the packet arrived. Only silence is a closed door.
DIAL = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def dial(address):
    try:
        socket.create_connection(address, 3).close()
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
addresses = [tuple(each) for each in json.loads(sys.argv[1])]
with ThreadPoolExecutor(32) as pool:
    print(json.dumps([each for each, is_reached in zip(addresses, pool.map(dial, addresses)) if is_reached]))
"""
COSTUMES: dict[str, dict[str, str]] = {
    "stranger": {"app": "stranger"},
    "operator": {**names.OPERATOR, "app.kubernetes.io/part-of": "oars"},
    "head": {**names.labels("demo", "dask"), **names.pod_labels("demo")},
    "worker": {**names.labels("demo", "dask"), **names.pod_labels("demo", "default")},
}


def start_pod(home: Kube, name: str, labels: dict[str, str], image: str) -> None:
    container = {"name": "main", "image": image, "command": ["sleep", "600"]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    metadata = {"name": name, "labels": {**labels, "visitor": name}}
    home.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def start_all(home: Kube, image: str) -> None:
    """One pod for each set of labels that belongs to us."""
    for name, labels in COSTUMES.items():
        start_pod(home, name, labels, image)
    home.await_ready("visitor", len(COSTUMES))


def reached(home: Kube, pod: str, addresses: Iterable[Address]) -> set[Address]:
    """The addresses of which a packet of this pod gets an answer."""
    words = ("exec", pod, "--", "python3", "-c", DIAL, json.dumps(list(addresses)))
    return {(host, port) for host, port in json.loads(home.kubectl(*words))}


def all_reached(home: Kube, addresses: Iterable[Address]) -> dict[str, set[Address]]:
    """What each of `start_all` reaches, if anything."""
    found = {name: reached(home, name, addresses) for name in COSTUMES}
    return {name: doors for name, doors in found.items() if doors}


def addresses_of(home: Kube, pods: Iterable[dict[str, Any]]) -> set[Address]:
    """Every port of these pods, and of the head's Service."""
    found = {
        (pod["status"]["podIP"], port["containerPort"])
        for pod in pods
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
    }
    service = home.api.get(home.path("services/demo-head"))["spec"]
    return found | {(service["clusterIP"], port["port"]) for port in service["ports"]}
