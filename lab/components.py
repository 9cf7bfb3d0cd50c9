"""Command line and health address of each component."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.network import Network
from lab.pki import Pki

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("containerd", "kubelet", "kube-proxy", "coredns")
ALL = (*CONTROL_PLANE, *NODE, "kwok")
# Components to restart after one of the servers was restarted. In other clusters they lose their leases with the API
# server, exit and are restarted. Here they hold no leases; they would retry after a backoff of up to a minute, and the
# cluster would do nothing meanwhile.
SERVERS = CONTROL_PLANE[:2]
FOLLOWERS = (*CONTROL_PLANE[2:], "kwok")

PAUSE = "oars.lab/pause:1"
ETCD = "http://127.0.0.1:2379"
# Names under which the combined Kubernetes binary is called.
KUBERNETES_NAMES = (*CONTROL_PLANE[1:], "kubelet", "kube-proxy", "kubectl")


@dataclass(frozen=True)
class Site:
    """Values that command lines are made of."""

    dir: Path
    network: Network
    pki: Pki
    binaries: dict[str, Path]
    cgroup: str

    def values(self) -> dict[str, str]:
        """Return the variables that the files in lab/config may use."""
        network = self.network
        return {
            "dir": str(self.dir),
            "pki": str(self.pki.dir),
            "cgroup": self.cgroup,
            "pause": PAUSE,
            "node": network.node,
            "pods": network.pods,
            "dns": network.dns,
        }


def command(name: str, site: Site) -> list[str]:
    """Return the command line of a component."""
    program = str(site.binaries.get(name, name))
    return [program, *_ARGUMENTS[name](site)]


def health(name: str, network: Network) -> str | None:
    """Return a component's health address; containerd has none."""
    node = network.node
    return {
        "etcd": f"http://{node}:2381/health",
        "kube-apiserver": f"https://{node}:6443/readyz",
        "kube-controller-manager": f"https://{node}:10257/healthz",
        "kube-scheduler": f"https://{node}:10259/healthz",
        "kubelet": f"http://{node}:10248/healthz",
        "kube-proxy": f"http://{node}:10256/healthz",
        "coredns": f"http://{node}:8181/ready",
        "kwok": f"http://{node}:10247/healthz",
    }.get(name)


def _etcd(site: Site) -> list[str]:
    peer = "http://127.0.0.1:2380"
    return [
        f"--data-dir={site.dir}/etcd",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--listen-metrics-urls=http://{site.network.node}:2381",
        # The data need not survive a crash of the machine, and fsync would dominate the disk.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(site: Site) -> list[str]:
    pki, network = site.pki, site.network
    return [
        f"--etcd-servers={ETCD}",
        f"--advertise-address={network.node}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={network.services}",
        f"--tls-cert-file={pki.path('apiserver.crt')}",
        f"--tls-private-key-file={pki.path('apiserver.key')}",
        f"--client-ca-file={pki.path('ca.crt')}",
        f"--token-auth-file={pki.path('tokens.csv')}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki.path('service-accounts.pub')}",
        f"--service-account-signing-key-file={pki.path('service-accounts.key')}",
        # for exec, logs and port-forward, which the API server forwards to the kubelet
        f"--kubelet-certificate-authority={pki.path('ca.crt')}",
        f"--kubelet-client-certificate={pki.path('kubelet-client.crt')}",
        f"--kubelet-client-key={pki.path('kubelet-client.key')}",
        "--kubelet-preferred-address-types=InternalIP",
        "--shutdown-delay-duration=0s",
        "--profiling=false",
    ]


def _controller_manager(site: Site) -> list[str]:
    pki = site.pki
    return [
        f"--kubeconfig={site.dir}/kube-controller-manager.kubeconfig",
        f"--bind-address={site.network.node}",
        f"--root-ca-file={pki.path('ca.crt')}",
        f"--cluster-signing-cert-file={pki.path('ca.crt')}",
        f"--cluster-signing-key-file={pki.path('ca.key')}",
        f"--service-account-private-key-file={pki.path('service-accounts.key')}",
        "--use-service-account-credentials=true",
        # There is only one: leader election would only delay a restart.
        "--leader-elect=false",
        # With the default rate limit of 20 requests/s, 500 pods take half a minute.
        "--kube-api-qps=300",
        "--kube-api-burst=600",
        "--node-monitor-grace-period=60s",
    ]


def _scheduler(site: Site) -> list[str]:
    return [
        f"--kubeconfig={site.dir}/kube-scheduler.kubeconfig",
        f"--bind-address={site.network.node}",
        "--leader-elect=false",
        "--kube-api-qps=300",
        "--kube-api-burst=600",
    ]


def _kubelet(site: Site) -> list[str]:
    return [
        f"--config={site.dir}/kubelet.yaml",
        f"--kubeconfig={site.dir}/kubelet.kubeconfig",
        f"--root-dir={site.dir}/kubelet",
        "--hostname-override=node1",
        f"--node-ip={site.network.node}",
        "--node-labels=oars.dev/lab=real",
    ]


def _kwok(site: Site) -> list[str]:
    return [
        f"--kubeconfig={site.dir}/kubeconfig",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--node-ip={site.network.node}",
        f"--server-address={site.network.node}:10247",
        "--node-lease-duration-seconds=40",
    ]


_ARGUMENTS: dict[str, Callable[[Site], list[str]]] = {
    "etcd": _etcd,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
    "containerd": lambda site: ["--config", f"{site.dir}/containerd.toml"],
    "kubelet": _kubelet,
    "kube-proxy": lambda site: [f"--config={site.dir}/kube-proxy.yaml"],
    "coredns": lambda site: ["-conf", f"{site.dir}/Corefile"],
    "kwok": _kwok,
}
