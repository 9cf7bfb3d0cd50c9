"""The real node: images, DNS and readiness."""

import json
import shutil
import tarfile
from pathlib import Path

from lab import dns
from lab.api import Api, Object
from lab.components import PAUSE, Site
from lab.errors import LabError
from lab.images import archive
from lab.network import Network
from lab.run import run
from lab.wait import until

NAME = "node1"
_DNS_PORTS = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]


def ctr(folder: Path, *words: str | Path, seconds: float = 60) -> str:
    """Run ctr against the lab's containerd in the kubelet's namespace."""
    return run(["ctr", "--address", folder / "containerd.sock", "--namespace", "k8s.io", *words], seconds)


def containerd_answers(folder: Path) -> bool:
    """True if containerd serves requests."""
    try:
        ctr(folder, "version", seconds=5)
    except LabError:
        return False
    return True


def images(folder: Path) -> set[str]:
    """Return the references of all imported images."""
    return set(ctr(folder, "images", "ls", "-q").split())


def furnish(site: Site) -> None:
    """Import the pause image and remove containers of an earlier cluster."""
    if PAUSE not in images(site.dir):
        _import_pause(site)
    # Once per cluster: `down` deletes the mark with etcd's data.
    mark = site.dir / "etcd" / "node-is-clean"
    if not mark.exists():
        containers = ctr(site.dir, "containers", "ls", "-q").split()
        if containers:
            ctr(site.dir, "containers", "rm", *containers, seconds=300)
        mark.touch()


def _import_pause(site: Site) -> None:
    folder = site.dir / "pause"
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "layer.tar", "w") as layer:
        layer.add(site.binaries["pause"], "pause")
    archive.write(folder / "image.tar", PAUSE, [folder / "layer.tar"], archive.Runtime(("/pause",), "65535:65535"))
    ctr(site.dir, "images", "import", folder / "image.tar")
    shutil.rmtree(folder)


def publish_dns(api: Api, network: Network) -> None:
    """Create the Service `kube-dns` for the CoreDNS that runs on the node."""
    base = "/api/v1/namespaces/kube-system/services"
    slices = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
    api.apply(f"{base}/kube-dns", _dns_service(network))
    api.apply(f"{slices}/kube-dns-lab", _dns_slice(network))


def await_ready(api: Api, network: Network) -> None:
    """Wait until the node accepts pods and a Service name resolves."""
    until(f"{NAME} is Ready", lambda: node_ready(api, NAME), 120)
    until("the kubelet knows its pods", lambda: _assigned(api) <= _known(api), 120)
    until("DNS answers", lambda: dns.resolves(network.dns, "kubernetes.default.svc.cluster.local"), 120)


def node_ready(api: Api, name: str) -> bool:
    """True if the node exists and is usable."""
    if not api.exists(f"/api/v1/nodes/{name}"):
        return False
    return usable(api.get(f"/api/v1/nodes/{name}"))


def _assigned(api: Api) -> set[str]:
    listed = api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NAME}")["items"]
    return {pod["metadata"]["uid"] for pod in listed if "deletionTimestamp" not in pod["metadata"]}


def _known(api: Api) -> set[str]:
    """Return the pods that the kubelet knows; after a restart it knows none at first."""
    status, text = api.raw("GET", f"/api/v1/nodes/{NAME}/proxy/pods")
    return {pod["metadata"]["uid"] for pod in json.loads(text)["items"] or []} if status == 200 else set()


def usable(node: Object) -> bool:
    """True if a node is Ready and has no not-ready taint."""
    ready = any(part["type"] == "Ready" and part["status"] == "True" for part in node["status"].get("conditions", []))
    # The controller removes this taint a moment after the condition changes.
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    return ready and "node.kubernetes.io/not-ready" not in taints


def _dns_service(network: Network) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": network.dns, "ports": _DNS_PORTS},
    }


def _dns_slice(network: Network) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns-lab", "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [network.node], "conditions": {"ready": True}, "nodeName": NAME}],
        "ports": _DNS_PORTS,
    }
