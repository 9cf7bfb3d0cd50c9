"""Fixtures for tests on a real Kubernetes: `pytest -p lab.fixtures`, or in the root conftest
`pytest_plugins = ["lab.fixtures"]`.

One lab serves the whole run. It is started on first use, reused if it is already up, and stopped at the end by the
last run that uses it, unless a person started it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from lab import faultproxy, harm, pki, policies, settings
from lab import kube as kubes
from lab import kwok as simulated
from lab.api import Object
from lab.cluster import Lab
from lab.errors import Unavailable
from lab.faultproxy import FaultProxy
from lab.faults import Rule, Script
from lab.kube import Cluster, Kube
from lab.loan import borrowed


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane: the lab's, or the cluster of OARS_TEST_KUBECONFIG."""
    chosen = settings.load()
    try:
        if chosen.foreign_kubeconfig:
            yield kubes.of_kubeconfig(chosen.foreign_kubeconfig)
            return
        with borrowed(Lab(chosen, print), with_node=False) as lab:
            yield kubes.of_lab(lab)
    except Unavailable as reason:
        pytest.fail(f"{reason} Or set OARS_TEST_KUBECONFIG to use another cluster.", pytrace=False)


@pytest.fixture(scope="session")
def cluster_with_node(cluster: Cluster) -> Cluster:
    """The same cluster with a real node."""
    if cluster.lab:
        cluster.lab.up()
    return cluster


@pytest.fixture
def kube_api(cluster: Cluster) -> Iterator[Kube]:
    """A new namespace on a real control plane without a node: pods do not run."""
    with kubes.fresh_namespace(cluster, has_node=False) as kube:
        yield kube


@pytest.fixture
def kube(cluster_with_node: Cluster) -> Iterator[Kube]:
    """A new namespace on a cluster with a real node: pods run."""
    with kubes.fresh_namespace(cluster_with_node, has_node=True) as kube:
        yield kube


@pytest.fixture
def lab(cluster: Cluster) -> Lab:
    """The lab itself, for tests that break it."""
    if not cluster.lab:
        pytest.skip("This test disrupts its cluster: it runs in the lab only, not with OARS_TEST_KUBECONFIG.")
    return cluster.lab


@pytest.fixture
def kwok(lab: Lab) -> Iterator[Callable[[int], list[str]]]:
    """`kwok(n)`: create n simulated nodes. Pods for them need `lab.kwok.POD` in their spec."""
    yield lambda count: simulated.up(lab, count)
    simulated.down(lab)


@pytest.fixture
def outage(lab: Lab) -> Callable[[str], AbstractContextManager[None]]:
    """`with outage("kubelet"):` kill a component; it runs again when the block ends."""
    return lambda component: harm.outage(lab, component)


@pytest.fixture
def crash(lab: Lab) -> Callable[[Object, str], None]:
    """`crash(pod, "head")`: kill a container, which the kubelet restarts."""
    return lambda pod, container: harm.crash(lab, pod, container)


@pytest.fixture
def frozen(lab: Lab) -> Callable[[Object, str], AbstractContextManager[None]]:
    """`with frozen(pod, "worker"):` the processes of the container hang."""
    return lambda pod, container: harm.frozen(lab, pod, container)


@pytest.fixture
def cut(lab: Lab) -> Callable[[Object], AbstractContextManager[None]]:
    """`with cut(pod):` the pod has no network."""
    return lambda pod: harm.cut(lab, pod)


@pytest.fixture
def enforced(lab: Lab) -> Iterator[None]:
    """Enforce NetworkPolicies during the test."""
    with policies.enforced(lab):
        yield


@pytest.fixture
def quota() -> Callable[[Kube, Mapping[str, str]], AbstractContextManager[None]]:
    """`with quota(kube, {"pods": "2"}):` the namespace has this quota."""
    return harm.quota


@pytest.fixture
def taint() -> Callable[..., AbstractContextManager[None]]:
    """`with taint(kube, "NoExecute"):` the real node is tainted."""
    return harm.taint


@pytest.fixture
def fault_proxy(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., FaultProxy]]:
    """`fault_proxy(rules, seed=0)`: a proxy before the API server; clients use its `kubeconfig`."""
    with ExitStack() as stack:

        def start(rules: Sequence[Rule] = (), seed: int = 0) -> FaultProxy:
            proxy = FaultProxy(cluster.api, Script(tuple(rules), seed), certificate=_certificate(cluster))
            stack.enter_context(faultproxy.running(proxy))
            proxy.write_kubeconfig(cluster.config(), tmp_path / f"kubeconfig-{id(proxy)}")
            return proxy

        yield start


def _certificate(cluster: Cluster) -> tuple[Path, Path] | None:
    """Return the API server's certificate: it is valid for 127.0.0.1 and clients already trust it."""
    if not cluster.lab:
        return None
    files = pki.folder(cluster.lab.dir, cluster.lab.network)
    return files / "apiserver.crt", files / "apiserver.key"
