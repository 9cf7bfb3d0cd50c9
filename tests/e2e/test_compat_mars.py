"""`new_cluster` and `KubernetesClusterClient` of Mars on real pods, with the code blocks of their page."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from lab.api import Object
from lab.kube import Kube
from lab.wait import until

import oars
from lab import node
from oars import engines
from oars.base.settings import Settings
from oars.client.backend import Driver
from oars.engines.mars.shape import IMAGES, JOINED_PORT, PACKAGES, WEB_PORT
from oars.envs.build import Environments
from oars.operator import rbac
from oars.operator.rbac import Subject
from oars.spec.load import build
from oars.testing.driver import DriverProgram
from tests.api.stage import Stage
from tests.api.test_rbac_modes import account, cluster_wide, kubeconfig_of, may
from tests.compat.blocks import MARS_KUBERNETES, page
from tests.compat.edits import MARS, MARS_SIZES, edited, edits
from tests.e2e.images import build_image

pytestmark = pytest.mark.timeout(600)

SOURCE, SITE = str(Path(oars.__file__).parents[1]), sysconfig.get_paths()["purelib"]
ROOT = Path(__file__).parents[2]
BLOCKS = [code for language, code in page(MARS_KUBERNETES) if language == "python"]
QUICKSTART, ATTACH, HUNDRED, RESCALE = BLOCKS
LAST = "# after all jobs executed"
TENSOR = {"pymars": "import mars.tensor as mt", "xorbits": "import xorbits._mars.tensor as mt"}


def changed(code: str, distribution: str, *more: str) -> str:
    """The page's code with the changes that the migration page lists, and in a size for the lab. `more`: further rows
    of its table."""
    rows = ("import", *(["import, with xorbits"] if distribution == "xorbits" else []), *more)
    return edited(code, [*MARS_SIZES, *edits(MARS, *rows)])


@dataclass(frozen=True)
class Python:
    """The Python of a user who has this distribution, Oars and the kubernetes package."""

    distribution: str
    kube: Kube

    def driver(self) -> Driver:
        spec = build({"engine": "mars", "mars": {"distribution": self.distribution}}).spec
        needs = engines.get("mars").needs(spec)
        env = Environments(Settings.from_environ(os.environ).cache_dir).prepare("mars", needs, (), lambda _: None)
        return Driver(str(env.python), {**os.environ, "KUBECONFIG": str(self.kube.kubeconfig)})

    def program(self, source: str, **values: Any) -> DriverProgram:
        return DriverProgram(self, with_values(source, SOURCE, SITE, **values))


def with_values(source: str, *folders: str, **values: Any) -> str:
    named = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return f"import sys\nsys.path += {list(folders)!r}\n{named}{source}"


def provide_image(kube: Kube, distribution: str) -> str:
    """The lab's image under the name of the published one, which new_cluster uses by default."""
    own, published = kube.image(f"mars-{distribution}"), IMAGES[distribution]
    assert kube.cluster.lab is not None
    node.ctr(kube.cluster.lab.dir, "images", "tag", "--force", own, f"docker.io/{published}")
    return published


def namespaces(kube: Kube) -> set[str]:
    found = kube.api.get("/api/v1/namespaces")["items"]
    return {each["metadata"]["name"] for each in found if each["metadata"]["name"].startswith("mars-ns-")}


@pytest.fixture
def clean(kube: Kube) -> Iterator[None]:
    """Afterwards no namespace of Mars may be left."""
    before = namespaces(kube)
    yield
    try:
        until("nothing is left", lambda: namespaces(kube) <= before, 60)
    finally:
        for name in namespaces(kube) - before:
            kube.api.delete(f"/api/v1/namespaces/{name}")


OUTSIDE = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s")
before, after = QUICKSTART.split(LAST)
exec(before)
import numpy as np
there = a.execute().fetch()
assert np.allclose(a.dot(a.T).execute().fetch(), there @ there.T)
print("namespace", cluster.namespace, flush=True)
print("endpoint", cluster.endpoint, flush=True)
exec(RESCALE)
data = mt.random.rand(300, 300, chunk_size=50).execute()
total = data.fetch().sum()
cluster.rescale_workers(1)
kept = [data.sum().execute().fetch(), data.fetch().sum()]
print("kept", np.allclose(kept, total), flush=True)
first = cluster
exec(ATTACH)
assert cluster is not first and cluster.namespace == first.namespace and cluster.endpoint == first.endpoint
print("again", mt.ones((10, 10)).sum().execute().fetch(), flush=True)
input()
exec(LAST + after)
print("stopped", flush=True)
"""
OTHER_PROCESS = """
exec(ATTACH.partition("\\n\\n")[2])
TENSOR
print("elsewhere", mt.ones((20, 20), chunk_size=5).sum().execute().fetch(), flush=True)
assert cluster.session is not None
"""


@pytest.mark.parametrize("distribution", ["pymars", "xorbits"])
def test_page_outside_the_cluster(kube: Kube, clean: None, distribution: str) -> None:
    """All blocks of the page: create and compute, rescale with the data kept, attach here and in another process."""
    provide_image(kube, distribution)
    python = Python(distribution, kube)
    blocks = {name: changed(code, distribution) for name, code in
              {"QUICKSTART": QUICKSTART, "ATTACH": ATTACH, "RESCALE": RESCALE}.items()}  # fmt: skip
    with python.program(OUTSIDE, LAST=LAST, **blocks) as first:
        namespace = first.expect("namespace ", 240).split()[-1]
        endpoint = first.expect("endpoint ").split()[-1]
        check_objects(kube, namespace, endpoint)
        first.expect("kept True", 300)
        first.expect("again 100.0", 120)
        source = OTHER_PROCESS.replace("TENSOR", TENSOR[distribution])
        with python.program(source, ATTACH=blocks["ATTACH"], namespace=namespace, endpoint=endpoint) as second:
            second.expect("elsewhere 400.0", 120)
        first.tell()
        first.expect("stopped", 120)
    until("the namespace is gone", lambda: namespace not in namespaces(kube), 60)


def check_objects(kube: Kube, namespace: str, endpoint: str) -> None:
    """What the page says about the objects."""
    at = f"/api/v1/namespaces/{namespace}"
    (service,) = [each for each in kube.api.get(f"{at}/services")["items"]]
    pods = kube.api.get(f"{at}/pods")["items"]
    (head,) = [pod for pod in pods if pod["metadata"]["labels"]["oars.dev/group"] == "head"]
    ports = {each["nodePort"] for each in service["spec"]["ports"]}
    host, _, port = endpoint.removeprefix("http://").partition(":")
    assert service["spec"]["type"] == "NodePort" and int(port) in ports and host == head["status"]["hostIP"]
    # A head is ready when Mars' web service answers, a worker when it has joined: then it opens this port.
    for pod in pods:
        probe = pod["spec"]["containers"][0]["readinessProbe"]
        checked = probe["httpGet"] if pod is head else probe["tcpSocket"]
        assert checked["port"] == (WEB_PORT if pod is head else JOINED_PORT), probe
        assert pod is not head or checked["path"] == "/api/oars/health"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    assert kube.api.get(f"{rbac}/roles/mars-pod-reader")["rules"][0]["resources"] == ["pods"]
    (binding,) = kube.api.get(f"{rbac}/rolebindings")["items"]
    accounts = {each["metadata"]["name"] for each in kube.api.get(f"{at}/serviceaccounts")["items"]}
    assert {each["name"] for each in binding["subjects"]} <= accounts


# Inside the cluster

INSIDE = """
from kubernetes import client, config
def in_cluster():
    config.load_incluster_config()
    return client.ApiClient()
exec(HUNDRED)
before, after = QUICKSTART.split(LAST)
exec(before)
names = [pod.metadata.name for pod in client.CoreV1Api(in_cluster()).list_namespaced_pod(cluster.namespace).items]
assert len([name for name in names if "worker" in name]) == 2, names
print("started with one of two workers", flush=True)

def list_pods():
    import json, os, ssl, urllib.request
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    token, namespace = (open(os.path.join(folder, name)).read() for name in ("token", "namespace"))
    url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}/api/v1/namespaces/{namespace}/pods"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    context = ssl.create_default_context(cafile=os.path.join(folder, "ca.crt"))
    pods = json.load(urllib.request.urlopen(request, context=context))["items"]
    return sorted(pod["status"]["phase"] for pod in pods)

import PACKAGE.remote as remote
print("a task sees", remote.spawn(list_pods).execute().fetch(), flush=True)
from oars.compat.mars import KubernetesClusterClient
again = KubernetesClusterClient(None, cluster.namespace, cluster.endpoint)  # the account of this pod
print("attached", again.endpoint == cluster.endpoint, flush=True)
exec(LAST + after)
print("stopped", flush=True)
"""


def driver_pod(kube: Kube, image: str, source: str) -> Object:
    """A pod of the account ann with Mars' image, in which Oars and the kubernetes package are installed."""
    folders = {"src": SOURCE, "site": SITE}
    mounts = [{"name": name, "mountPath": f"/oars/{name}", "readOnly": True} for name in folders]
    container = {"name": "driver", "image": image, "command": ["python3", "-c", source], "volumeMounts": mounts}
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()]
    spec = {"serviceAccountName": "ann", "restartPolicy": "Never", "containers": [container], "volumes": volumes}
    container["env"] = [{"name": "HOME", "value": "/tmp"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "driver"}, "spec": spec}


@pytest.mark.parametrize("distribution", ["xorbits", pytest.param("pymars", marks=pytest.mark.long)])
def test_page_inside_the_cluster(kube: Kube, clean: None, distribution: str) -> None:
    """As a pod with the rights of `oars rbac --create-namespace`: the cluster of the third block, of which one of two
    workers finds no room on the node, and the program of the first one."""
    stage, image = Stage(kube), provide_image(kube, distribution)
    account(stage, "ann")
    program = "".join(line for line in QUICKSTART.splitlines(keepends=True) if "new_cluster" not in line)
    blocks = {name: changed(code, distribution, "in a pod") for name, code in
              {"HUNDRED": HUNDRED, "QUICKSTART": program}.items()}  # fmt: skip
    source = INSIDE.replace("PACKAGE", PACKAGES[distribution])
    source = with_values(source, "/oars/site", "/oars/src", LAST=LAST, **blocks)
    with cluster_wide(stage, rbac.namespaces_role(Subject("ServiceAccount", "ann", kube.namespace))):
        until("ann has her rights", lambda: may(stage, "ann", "create", "namespaces"))
        kube.apply(driver_pod(kube, image, source))
        path = kube.path("pods/driver")
        until("it ends", lambda: kube.api.get(path)["status"]["phase"] in ("Succeeded", "Failed"), 400, 0.5)
        log = kube.kubectl("logs", "driver")
    for line in ("started with one of two workers", "['Pending', 'Running', 'Running']", "attached True", "stopped"):
        assert line in log, log


# Services and failures

BALANCED = """
from oars.compat.mars import new_cluster
TENSOR
cluster = new_cluster(namespace=NAMESPACE, service_type="LoadBalancer", scheduler_cpu=0.3, worker_cpu=0.3, timeout=240)
print("endpoint", cluster.endpoint, flush=True)
print("sum", mt.ones((10, 10)).sum().execute().fetch(), flush=True)
cluster.stop(wait=True, timeout=120)
print("stopped", flush=True)
"""


def test_load_balancer(kube: Kube, clean: None) -> None:
    """The lab has no controller for load balancers; the test assigns an address in its place."""
    provide_image(kube, "pymars")
    namespace = f"mars-ns-{kube.namespace}"
    source = BALANCED.replace("TENSOR", TENSOR["pymars"])
    with Python("pymars", kube).program(source, NAMESPACE=namespace) as program:
        services = f"/api/v1/namespaces/{namespace}/services"
        (service,) = until("there is a Service", lambda: kube.api.get(services)["items"], 120)
        address = service["spec"]["clusterIP"]
        status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
        kube.api.patch(f"{services}/{service['metadata']['name']}/status", status)
        assert program.expect("endpoint ", 240).split()[-1] == f"http://{address}:7104"
        program.expect("sum 100.0")
        program.expect("stopped", 180)
    assert not kube.api.exists(f"/api/v1/namespaces/{namespace}")


FAILING = """
import sys
from oars.base.errors import OarsError
from oars.compat.mars import new_cluster
TENSOR
try:
    new_cluster(image=IMAGE, scheduler_cpu=0.3, worker_cpu=0.3, timeout=60)
except OarsError as error:
    print("refused", type(error).__name__, error.message, flush=True)
"""


def test_image_without_mars_leaves_nothing(kube: Kube, clean: None) -> None:
    source = FAILING.replace("TENSOR", TENSOR["pymars"])
    with Python("pymars", kube).program(source, IMAGE=kube.image("dask")) as program:
        line = program.expect("refused ", 180)
    assert line.startswith("refused StartFailed") and line.endswith("the Python module mars is missing."), line


IN_NAMESPACE = """
from oars.compat.mars import KubernetesClusterClient, new_cluster
TENSOR
first = new_cluster(namespace=NAMESPACE, create_namespace=CREATE, scheduler_cpu=0.3, worker_cpu=0.3, timeout=240)
print("cluster", first.name, flush=True)
first.rescale_workers(2, min_workers=1)
cluster = KubernetesClusterClient(None, first.namespace, first.endpoint)
print("sum", mt.ones((10, 10)).sum().execute().fetch(), flush=True)
cluster.stop()
cluster.stop()
print("stopped", flush=True)
"""


def test_namespace_that_exists_needs_no_rights_in_the_whole_cluster(kube: Kube, tmp_path: Path) -> None:
    """With the rights of `oars rbac`: no namespace is created, and no Role."""
    provide_image(kube, "pymars")
    stage = Stage(kube)
    account(stage, "ann")
    kube.apply(*rbac.direct_role(kube.namespace, Subject("ServiceAccount", "ann", kube.namespace)))
    until("ann has her rights", lambda: may(stage, "ann", "create", "configmaps"))
    user = replace(kube, cluster=replace(kube.cluster, kubeconfig=kubeconfig_of(stage, "ann", tmp_path / "config")))
    source = IN_NAMESPACE.replace("TENSOR", TENSOR["pymars"])
    with Python("pymars", user).program(source, NAMESPACE=kube.namespace, CREATE=False) as program:
        name = program.expect("cluster ", 240).split()[-1]
        roles = kube.kubectl("get", "roles", "-o", "name").split()
        assert roles == ["role.rbac.authorization.k8s.io/oars-direct"]
        program.expect("sum 100.0", 180)
        program.expect("stopped", 120)
    until("nothing is left", lambda: name not in kube.kubectl("get", "deploy,pods,svc,cm,sa,secrets", "-o", "name"), 60)


def test_operator_reconciles_the_cluster(kube: Kube, clean: None, operator: Path) -> None:
    """If an operator watches the namespace, the cluster is one of its resources."""
    provide_image(kube, "pymars")
    namespace = f"mars-ns-{kube.namespace}"
    source = IN_NAMESPACE.replace("TENSOR", TENSOR["pymars"])
    with Python("pymars", kube).program(source, NAMESPACE=namespace, CREATE=True) as program:
        name = program.expect("cluster ", 240).split()[-1]
        found = kube.kubectl("get", "computeclusters", "-n", namespace, "-o", "name")
        assert found.strip() == f"computecluster.oars.dev/{name}"
        program.expect("sum 100.0", 180)
        program.expect("stopped", 120)


SPILLING = """
from oars.compat.mars import new_cluster
TENSOR
cluster = new_cluster(scheduler_cpu=0.3, worker_cpu=0.6, worker_mem="900m", worker_cache_mem=CACHE,
                      worker_spill_paths=[PATH], timeout=240)
data = mt.random.rand(4000, 4000, chunk_size=1000).execute()  # 128 MB
print("computed", flush=True)
input()
print("complete", data.sum().execute().fetch() > 7e6, flush=True)
cluster.stop()
print("stopped", flush=True)
"""


@pytest.mark.parametrize(
    ("distribution", "cache"), [("pymars", "48m"), pytest.param("xorbits", 0.05, marks=pytest.mark.long)]
)
def test_workers_spill_to_the_paths_of_their_hosts(
    kube: Kube, clean: None, tmp_path: Path, distribution: str, cache: str | float
) -> None:
    """The cache is a size or a share of the memory. The directory must exist and be writable for all."""
    provide_image(kube, distribution)
    tmp_path.chmod(0o777)
    source = SPILLING.replace("TENSOR", TENSOR[distribution])
    with Python(distribution, kube).program(source, PATH=str(tmp_path), CACHE=cache) as program:
        program.expect("computed", 240)
        spilled = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert 60e6 < spilled < 140e6
        program.tell()
        program.expect("complete True", 120)
        program.expect("stopped", 120)


# Images

BUILT = """
from oars.compat.mars import new_cluster
TENSOR
import PACKAGE.remote as remote
cluster = new_cluster(image=IMAGE, scheduler_cpu=0.3, worker_cpu=0.3, timeout=240)
a = mt.random.rand(10, 10)
a.dot(a.T).execute()

def speak():
    import cowsay
    return cowsay.__name__

print("package", remote.spawn(speak).execute().fetch(), flush=True)
cluster.stop()
print("stopped", flush=True)
"""


@pytest.mark.parametrize("distribution", ["xorbits", pytest.param("pymars", marks=pytest.mark.long)])
def test_image_that_oars_builds_runs(kube: Kube, clean: None, distribution: str) -> None:
    """`oars image build` with the lab's own tool as the builder; it builds the same image only once. pymars is compiled
    in a stage of its own."""
    tag, words = f"oars-test/{distribution}:1", ("--engine", "mars", "--distribution", distribution)
    printed = build_image(kube, tag, *words, "--package", "cowsay==6.1", "-o", "json")
    assert json.loads(printed)["tag"] == tag
    source = BUILT.replace("TENSOR", TENSOR[distribution]).replace("PACKAGE", PACKAGES[distribution])
    with Python(distribution, kube).program(source, IMAGE=tag) as program:
        program.expect("package cowsay", 240)
        program.expect("stopped", 120)
