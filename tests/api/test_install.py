"""Rights and the installation on a real Kubernetes: what is granted, what is not, and that all of it comes and goes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from lab.api import ApiError
from lab.errors import LabError
from lab.kube import Kube
from lab.kwok import POD as PLAYED
from lab.run import run
from lab.wait import until

import oars
from oars.base.errors import NotFound, OarsError, TimedOut
from oars.cli.operator import operator
from oars.client import operator_client
from oars.kube import config
from oars.kube.client import Client
from oars.kube.lease import Elector
from oars.operator import NAME, crd, installed, manifests, rbac
from oars.operator.manifests import InstallOptions
from oars.operator.rbac import Subject
from oars.spec.cluster import API_VERSION, KIND

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/oars"
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}"
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
ANN = Subject("User", "ann")


@pytest.fixture
def crd_served(kube_api: Kube) -> Kube:
    kube_api.api.apply(DEFINITION, crd.compute_cluster())
    until("the kind is served", lambda: kube_api.api.raw("GET", clusters(kube_api))[0] == 200)  # first 404, then 429
    return kube_api


@pytest.fixture
def home(kube_api: Kube) -> Iterator[str]:
    """The name of a namespace that does not exist yet; afterwards nothing of an installation is left."""
    name = f"{kube_api.namespace}-ops"
    yield name
    asyncio.run(_remove(kube_api, name))


async def _remove(kube: Kube, namespace: str) -> None:
    async with connected(kube) as client:
        await installed.uninstall(client, namespace, 60, lambda _: None, force=True)


@asynccontextmanager
async def connected(kube: Kube) -> AsyncIterator[Client]:
    async with Client(config.load({}, kubeconfig=kube.kubeconfig, namespace=kube.namespace)) as client:
        yield client


def clusters(kube: Kube) -> str:
    return kube.path(crd.PLURAL, f"apis/{API_VERSION}")


def may(kube: Kube, subject: Subject, verb: str, resource: str, *, namespace: str = "", name: str = "") -> bool:
    """What the API server would answer to somebody."""
    group, _, resource = resource.rpartition(":")
    resource, _, subresource = resource.partition("/")
    wanted = {"verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name}
    groups = ["system:authenticated"] + ([subject.name] if subject.kind == "Group" else [])
    user = f"system:serviceaccount:{subject.namespace}:{subject.name}" if subject.namespace else subject.name
    spec = {"user": user, "groups": groups, "resourceAttributes": {**wanted, "namespace": namespace or kube.namespace}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = kube.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def everything_in(kube: Kube, subject: Subject, rules: tuple[rbac.Rule, ...]) -> list[str]:
    """The rights of a table that somebody does not have."""
    return [
        f"{verb} {rule.group}:{resource}"
        for rule in rules
        for resource in rule.resources
        for verb in rule.verbs
        if not may(kube, subject, verb, f"{rule.group}:{resource}", name=rule.names[0] if rule.names else "")
    ]


def granted(kube: Kube, subject: Subject, objects: list[dict[str, Any]], sign: tuple[str, str]) -> None:
    kube.apply(*objects)
    until("the right is there", lambda: may(kube, subject, *sign))


def test_direct_mode_has_its_rights_and_no_others(kube_api: Kube) -> None:
    granted(kube_api, ANN, rbac.direct_role(kube_api.namespace, ANN), ("list", "pods"))
    assert everything_in(kube_api, ANN, rbac.DIRECT) == []
    for verb, resource in [
        ("list", "secrets"), ("watch", "secrets"), ("create", "pods"), ("delete", "namespaces"), ("list", "nodes"),
        ("create", "serviceaccounts/token"), ("escalate", f"{rbac.API}:roles"), ("create", "oars.dev:computeclusters"),
    ]:  # fmt: skip
        assert not may(kube_api, ANN, verb, resource), (verb, resource)
    assert not may(kube_api, ANN, "list", "pods", namespace="kube-system")


def test_direct_mode_lets_a_cluster_end_itself_and_no_more(kube_api: Kube) -> None:
    granted(kube_api, ANN, rbac.direct_role(kube_api.namespace, ANN), ("create", f"{rbac.API}:roles"))
    as_ann = ("--as=ann", "create", "role")
    kube_api.kubectl(*as_ann, "end", "--verb=delete", "--resource=configmaps", "--resource-name=demo")
    with pytest.raises(LabError, match="attempting to grant RBAC permissions not currently held"):
        kube_api.kubectl(*as_ann, "more", "--verb=list", "--resource=secrets")


def test_a_user_of_the_operator_has_no_way_around_it(crd_served: Kube) -> None:
    granted(crd_served, ANN, rbac.user_role(crd_served.namespace, ANN), ("list", "pods"))
    assert everything_in(crd_served, ANN, rbac.USER) == []
    for verb, resource in [
        ("create", "apps:deployments"), ("delete", "pods"), ("list", "secrets"), ("create", "secrets"),
        ("patch", "oars.dev:computeclusters/status"),
    ]:  # fmt: skip
        assert not may(crd_served, ANN, verb, resource), (verb, resource)


def test_an_operator_of_one_namespace_has_its_rights_there_alone(crd_served: Kube) -> None:
    own = crd_served.namespace
    account = Subject("ServiceAccount", NAME, own)
    granted(crd_served, account, rbac.operator_roles(own, (own,), nodes=False), ("list", "pods"))
    assert everything_in(crd_served, account, (*rbac.OPERATOR, *rbac.LEASES)) == []
    assert not may(crd_served, account, "get", "coordination.k8s.io:leases", name="somebody-elses")
    assert not may(crd_served, account, "list", "secrets")
    assert not may(crd_served, account, "list", "pods", namespace="kube-system")


def test_kubernetes_own_roles_learn_of_clusters_and_everybody_finds_the_operator(crd_served: Kube) -> None:
    own = crd_served.namespace
    objects = rbac.shared_roles(own)
    crd_served.apply(*objects)
    try:
        for role in ("view", "edit"):
            crd_served.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er")
        viewer, editor = Subject("User", "viewer"), Subject("User", "editer")
        until("edit is aggregated", lambda: may(crd_served, editor, "create", "oars.dev:computeclusters"))
        until("view is aggregated", lambda: may(crd_served, viewer, "list", "oars.dev:computeclusters"))
        assert may(crd_served, editor, "patch", "oars.dev:computeclusters/scale")
        assert not may(crd_served, viewer, "create", "oars.dev:computeclusters")
        assert may(crd_served, ANN, "get", "coordination.k8s.io:leases", name=NAME)
        assert may(crd_served, ANN, "get", "apiextensions.k8s.io:customresourcedefinitions", name=crd.NAME)
        assert not may(crd_served, ANN, "get", "coordination.k8s.io:leases", name="other")
    finally:
        crd_served.kubectl("delete", "-f", "-", text=json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))


def test_the_installation_is_accepted_in_a_restricted_namespace_without_a_warning(crd_served: Kube) -> None:
    """Pod security answers with a warning where a Deployment's pods would be refused."""
    crd_served.api.patch(f"/api/v1/namespaces/{crd_served.namespace}", {"metadata": {"labels": RESTRICTED}})
    own = crd_served.namespace
    options = InstallOptions(namespace=own, create_namespace=False, watch_namespaces=(own,))
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--warnings-as-errors", "-f", "-")
    made = manifests.install(options)
    crd_served.kubectl(*words, text=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    del made[-1]["spec"]["template"]["spec"]["securityContext"]
    with pytest.raises(LabError, match="would violate PodSecurity"):
        crd_served.kubectl(*words, text=json.dumps(made[-1]))


def test_it_installs_says_so_and_goes(kube_api: Kube, kwok: Callable[[int], list[str]], home: str) -> None:
    """Its pods are played, and we stand for it; all else is real."""
    kwok(1)
    lines: list[str] = []
    played: dict[str, Any] = dict(PLAYED)
    tolerations = tuple(played["tolerations"])
    options = InstallOptions(namespace=home, node_selector=played["nodeSelector"], tolerations=tolerations)
    asyncio.run(_come_and_go(kube_api, options, lines.append))
    assert lines[0] == f"Namespace {home}"
    assert "waiting for a leader" in lines
    assert not kube_api.api.exists(DEFINITION) and not kube_api.api.exists(f"/api/v1/namespaces/{home}")
    found = kube_api.kubectl("get", "clusterroles,clusterrolebindings,crds", "-l", "app.kubernetes.io/part-of=oars")
    assert found == ""


async def _come_and_go(kube: Kube, options: InstallOptions, tell: Callable[[str], None]) -> None:
    async with connected(kube) as client:
        elector = Elector(client, options.namespace, NAME, "stand-in", duration=120, renew=90)
        installing = asyncio.create_task(installed.install(client, options, 90, tell))
        namespace = f"/api/v1/namespaces/{options.namespace}"
        await asyncio.to_thread(until, "the namespace", lambda: kube.api.exists(namespace))
        await elector.lead()
        assert await installing == "stand-in"
        assert await installed.install(client, replace(options, replicas=1), 60, tell) == "stand-in", "again, otherwise"
        await _looks(kube, client, options)
        await elector.release()
        await installed.uninstall(client, options.namespace, 60, tell, force=True)
        assert await installed.clusters(client) == []


async def _looks(kube: Kube, client: Client, options: InstallOptions) -> None:
    assert await operator_client.home(client) == options.namespace
    everywhere = f"/apis/{API_VERSION}/{crd.PLURAL}"
    others = len(kube.api.get(everywhere)["items"])  # of tests before, in namespaces that take their time to go
    await client.create(
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "demo"}, "spec": {"engine": "dask"}}
    )
    found = await installed.status(client, options.namespace)
    assert (found["leader"], found["replicas"]) == ("stand-in", 1)
    assert 1 <= found["clusters"] <= 1 + others
    assert found["ready"] >= 1
    with pytest.raises(OarsError, match=f"{kube.namespace}/demo"):
        await installed.uninstall(client, options.namespace, 10, lambda _: None)


def test_for_an_operator_that_runs_elsewhere_all_is_ready_at_once(kube_api: Kube, home: str) -> None:
    words = ("install", "-n", home, "--kubeconfig", str(kube_api.kubeconfig), "--replicas", "0")
    result = CliRunner().invoke(operator, words, catch_exceptions=False)
    assert f"All is ready in namespace {home}" in result.stdout
    assert kube_api.kubectl("get", "crd", crd.NAME, "-o", "name")


def test_an_installation_that_does_not_start_says_why(kube_api: Kube, home: str) -> None:
    words = ("install", "-n", home, "--kubeconfig", str(kube_api.kubeconfig), "-q", "--timeout")

    def said_in_vain(seconds: str) -> str:
        result = CliRunner().invoke(operator, (*words, seconds))
        assert isinstance(result.exception, TimedOut)
        return str(result.exception)

    def said_by_kubernetes() -> bool:
        return "no nodes available" in kube_api.kubectl("get", "pods", "-n", home, "-o", "json")

    sentence = f"No operator leads in namespace {home}"
    # Again and again: in so short a time a busy server may not have taken all of it.
    until("it is told, and there are pods", lambda: sentence in said_in_vain("4s") and said_by_kubernetes(), 120)
    assert "no nodes available" in said_in_vain("8s"), "what Kubernetes says of the pods"


def test_where_nothing_is_installed(kube_api: Kube) -> None:
    words = ("status", "-n", kube_api.namespace, "--kubeconfig", str(kube_api.kubeconfig))
    result = CliRunner().invoke(operator, words)
    assert isinstance(result.exception, NotFound)


def test_a_namespace_of_others_stays_as_it_is(kube_api: Kube) -> None:
    options = InstallOptions(namespace=kube_api.namespace)
    where = f"/api/v1/namespaces/{kube_api.namespace}"
    before = kube_api.api.get(where)["metadata"]["labels"]

    async def come_and_go() -> None:
        async with connected(kube_api) as client:
            with pytest.raises(TimedOut):
                await installed.install(client, options, 2, lambda _: None)
            await installed.uninstall(client, options.namespace, 30, lambda _: None, force=True)

    asyncio.run(come_and_go())
    found = kube_api.api.get(where)
    assert found["metadata"]["labels"] == before
    assert "deletionTimestamp" not in found["metadata"]
    with pytest.raises(ApiError, match="404"):
        kube_api.api.get(kube_api.path(f"deployments/{NAME}", "apis/apps/v1"))


@pytest.mark.timeout(600)
def test_the_operator_itself(kube: Kube, home: str, enforced: None) -> None:
    """The real image on the real node: two replicas, one leader, and a cluster behind its policy."""
    target = ("--kubeconfig", str(kube.kubeconfig), "-o", "json")
    words = ("install", "-n", home, "--image", kube.image("operator"), "-q", *target)
    result = CliRunner().invoke(operator, words, catch_exceptions=False)
    assert json.loads(result.stdout)["leader"].startswith(NAME)
    found = json.loads(CliRunner().invoke(operator, ("status", *target), catch_exceptions=False).stdout)
    assert (found["namespace"], found["clusters"]) == (home, 0)
    kube.apply(small_dask(kube))
    path = f"{clusters(kube)}/demo"
    until("the cluster is ready", lambda: kube.api.get(path)["status"]["phase"] == "Ready", 240)
    kube.kubectl("delete", "computecluster/demo")


def small_dask(kube: Kube) -> dict[str, Any]:
    size = {"cpu": 0.3, "burst": True}
    spec = {"engine": "dask", "image": kube.image("dask"), "head": size, "workers": [{"replicas": 1, **size}]}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "demo"}, "spec": spec}


# the chart


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Go's templates, which are Helm's; the lab needs Go as well."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("Go is not installed: the chart's templates cannot be rendered.")
    program = tmp_path_factory.mktemp("render") / "render"
    run([go, "build", "-o", program, Path(__file__).parent / "render_chart.go"], 170)
    return program


def rendered(renderer: Path, folder: Path, changes: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    values = yaml.safe_load((CHART / "values.yaml").read_text()) | changes
    (folder / "values.json").write_text(json.dumps(values))
    words = [str(renderer), str(CHART), str(folder / "values.json"), namespace]
    environ = {**os.environ, "APP_VERSION": oars.__version__}
    text = subprocess.run(words, env=environ, capture_output=True, text=True, check=True, timeout=30).stdout
    return [document for document in yaml.safe_load_all(text) if document]


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    found = {(o["kind"], o["metadata"]["name"], o["metadata"].get("namespace", "")): o for o in objects}
    assert len(found) == len(objects)
    return found


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({}, InstallOptions()),
        ({"watchNamespaces": ["a", "b"], "nodes": False}, InstallOptions(watch_namespaces=("a", "b"), nodes=False)),
        (
            {"image": {"repository": "r", "tag": "1", "pullPolicy": "Always"}, "imagePullSecrets": [{"name": "s"}]},
            InstallOptions(image="r:1", pull_policy="Always", pull_secrets=("s",)),
        ),
        (
            {"replicas": 1, "logFormat": "text", "resources": {}, "nodeSelector": {"a": "b"}, "priorityClassName": "p"},
            InstallOptions(replicas=1, log_format="text", resources={}, node_selector={"a": "b"}, priority_class="p"),
        ),
    ],
)
def test_the_chart_installs_the_same(
    renderer: Path, tmp_path: Path, values: dict[str, Any], options: InstallOptions
) -> None:
    options = replace(options, namespace="ops", create_namespace=False)
    found = by_name(rendered(renderer, tmp_path, values, "ops"))
    definition = found["CustomResourceDefinition", crd.NAME, ""]
    assert definition["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    assert found == by_name(manifests.install(options))


def test_the_chart_without_the_definition(renderer: Path, tmp_path: Path) -> None:
    kinds = {obj["kind"] for obj in rendered(renderer, tmp_path, {"crds": {"install": False}}, "ops")}
    assert "CustomResourceDefinition" not in kinds
    assert "Deployment" in kinds
