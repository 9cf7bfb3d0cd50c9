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


# The ports on which the processes of a pod listen, on any address; 0A is LISTEN.
LISTENING = """
import json
rows = [row.split() for name in ("tcp", "tcp6") for row in open(f"/proc/net/{name}").readlines()[1:]]
print(json.dumps(sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"})))
"""


def addresses_of(home: Kube, pods: Iterable[dict[str, Any]]) -> set[Address]:
    """Every port that these pods declare or on which they listen, and those of the head's Service."""
    found = set()
    for pod in pods:
        containers, name = pod["spec"]["containers"], pod["metadata"]["name"]
        words = ("exec", name, "-c", containers[0]["name"], "--", "python3", "-c", LISTENING)
        declared = [port["containerPort"] for container in containers for port in container.get("ports", ())]
        found |= {(pod["status"]["podIP"], port) for port in (*declared, *json.loads(home.kubectl(*words)))}
    service = home.api.get(home.path("services/demo-head"))["spec"]
    return found | {(service["clusterIP"], port["port"]) for port in service["ports"]}
