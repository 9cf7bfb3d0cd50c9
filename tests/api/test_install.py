"""RBAC roles and the installation on a real Kubernetes: what they allow and deny, install and uninstall."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from lab.api import ApiError
from lab.errors import LabError
from lab.kube import Kube
from lab.kwok import POD as SIMULATED
from lab.wait import until
from tests.e2e import attacker

from lab import kube as kubes
from oars.base.errors import NotFound, OarsError, TimedOut
from oars.cli.kubernetes import operator
from oars.client import operator_client
from oars.kube import config
from oars.kube.client import Client
from oars.kube.lease import Elector
from oars.operator import NAME, crd, installation, manifests, rbac
from oars.operator.manifests import InstallOptions
from oars.operator.rbac import Subject
from oars.spec.cluster import API_VERSION, KIND

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
    """The name of a namespace that does not exist yet. Uninstalls the operator afterwards."""
    name = f"{kube_api.namespace}-ops"
    yield name
    asyncio.run(_remove(kube_api, name))


async def _remove(kube: Kube, namespace: str) -> None:
    async with connected(kube) as client:
        await installation.uninstall(client, namespace, 60, lambda _: None, force=True)


@asynccontextmanager
async def connected(kube: Kube) -> AsyncIterator[Client]:
    async with Client(config.load({}, kubeconfig=kube.kubeconfig, namespace=kube.namespace)) as client:
        yield client


def clusters(kube: Kube) -> str:
    return kube.path(crd.PLURAL, f"apis/{API_VERSION}")


def may(kube: Kube, subject: Subject, verb: str, resource: str, *, namespace: str = "", name: str = "") -> bool:
    """True if the API server authorizes the request of this subject."""
    group, _, resource = resource.rpartition(":")
    resource, _, subresource = resource.partition("/")
    wanted = {"verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name}
    groups = ["system:authenticated"] + ([subject.name] if subject.kind == "Group" else [])
    user = f"system:serviceaccount:{subject.namespace}:{subject.name}" if subject.namespace else subject.name
    spec = {"user": user, "groups": groups, "resourceAttributes": {**wanted, "namespace": namespace or kube.namespace}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = kube.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def missing_permissions(kube: Kube, subject: Subject, rules: tuple[rbac.Rule, ...]) -> list[str]:
    """Permissions of the table that the subject does not have."""
    return [
        f"{verb} {rule.group}:{resource}"
        for rule in rules
        for resource in rule.resources
        for verb in rule.verbs
        if not may(kube, subject, verb, f"{rule.group}:{resource}", name=rule.names[0] if rule.names else "")
    ]


def grant(kube: Kube, subject: Subject, objects: list[dict[str, Any]], permission: tuple[str, str]) -> None:
    kube.apply(*objects)
    until("the permission is effective", lambda: may(kube, subject, *permission))


def test_direct_role_allows_its_rules_and_nothing_else(kube_api: Kube) -> None:
    grant(kube_api, ANN, rbac.direct_role(kube_api.namespace, ANN), ("list", "pods"))
    assert missing_permissions(kube_api, ANN, rbac.DIRECT) == []
    for verb, resource in [
        ("list", "secrets"), ("watch", "secrets"), ("create", "pods"), ("delete", "namespaces"), ("list", "nodes"),
        ("create", "serviceaccounts/token"), ("escalate", f"{rbac.API}:roles"), ("create", "oars.dev:computeclusters"),
    ]:  # fmt: skip
        assert not may(kube_api, ANN, verb, resource), (verb, resource)
    assert not may(kube_api, ANN, "list", "pods", namespace="kube-system")


def test_direct_role_can_grant_only_its_own_permissions(kube_api: Kube) -> None:
    grant(kube_api, ANN, rbac.direct_role(kube_api.namespace, ANN), ("create", f"{rbac.API}:roles"))
    as_ann = ("--as=ann", "create", "role")
    kube_api.kubectl(*as_ann, "end", "--verb=delete", "--resource=configmaps", "--resource-name=demo")
    with pytest.raises(LabError, match="attempting to grant RBAC permissions not currently held"):
        kube_api.kubectl(*as_ann, "more", "--verb=list", "--resource=secrets")


def test_user_role_allows_only_clusters_of_the_operator(crd_served: Kube) -> None:
    grant(crd_served, ANN, rbac.user_role(crd_served.namespace, ANN), ("list", "pods"))
    assert missing_permissions(crd_served, ANN, rbac.USER) == []
    for verb, resource in [
        ("create", "apps:deployments"), ("delete", "pods"), ("list", "secrets"), ("create", "secrets"),
        ("patch", "oars.dev:computeclusters/status"),
    ]:  # fmt: skip
        assert not may(crd_served, ANN, verb, resource), (verb, resource)


def test_operator_role_is_restricted_to_watched_namespace(crd_served: Kube) -> None:
    own = crd_served.namespace
    account = Subject("ServiceAccount", NAME, own)
    grant(crd_served, account, rbac.operator_roles(own, (own,), nodes=False), ("list", "pods"))
    assert missing_permissions(crd_served, account, (*rbac.OPERATOR, *rbac.LEASES)) == []
    assert not may(crd_served, account, "get", "coordination.k8s.io:leases", name="another")
    assert not may(crd_served, account, "list", "secrets")
    assert not may(crd_served, account, "list", "pods", namespace="kube-system")


def test_aggregated_roles_extend_view_and_edit_and_show_the_operator(crd_served: Kube) -> None:
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


def test_installation_is_accepted_in_restricted_namespace(crd_served: Kube) -> None:
    """Pod security warns if it would reject the pods of a Deployment."""
    crd_served.api.patch(f"/api/v1/namespaces/{crd_served.namespace}", {"metadata": {"labels": RESTRICTED}})
    own = crd_served.namespace
    options = InstallOptions(namespace=own, create_namespace=False, watch_namespaces=(own,))
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--warnings-as-errors", "-f", "-")
    made = manifests.install(options)
    crd_served.kubectl(*words, text=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}))
    del made[-1]["spec"]["template"]["spec"]["securityContext"]
    with pytest.raises(LabError, match="would violate PodSecurity"):
        crd_served.kubectl(*words, text=json.dumps(made[-1]))


def test_install_status_and_uninstall(kube_api: Kube, kwok: Callable[[int], list[str]], home: str) -> None:
    """The operator's pods are simulated, and the test holds its Lease; everything else is real."""
    kwok(1)
    lines: list[str] = []
    simulated: dict[str, Any] = dict(SIMULATED)
    tolerations = tuple(simulated["tolerations"])
    options = InstallOptions(namespace=home, node_selector=simulated["nodeSelector"], tolerations=tolerations)
    asyncio.run(_install_and_uninstall(kube_api, options, lines.append))
    assert lines[0] == f"Namespace {home}"
    assert "waiting for a leader" in lines
    assert not kube_api.api.exists(DEFINITION) and not kube_api.api.exists(f"/api/v1/namespaces/{home}")
    kinds = "clusterroles,clusterrolebindings,crds,validatingadmissionpolicies,validatingadmissionpolicybindings"
    found = kube_api.kubectl("get", kinds, "-l", "app.kubernetes.io/part-of=oars")
    assert found == ""


async def _install_and_uninstall(kube: Kube, options: InstallOptions, progress: Callable[[str], None]) -> None:
    async with connected(kube) as client:
        elector = Elector(client, options.namespace, NAME, "stand-in", lease_duration=120, renew_deadline=90)
        installing = asyncio.create_task(installation.install(client, options, 90, progress))
        namespace = f"/api/v1/namespaces/{options.namespace}"
        await asyncio.to_thread(until, "the namespace", lambda: kube.api.exists(namespace))
        await elector.lead()
        assert await installing == "stand-in"
        again = await installation.install(client, replace(options, replicas=1), 60, progress)
        assert again == "stand-in", "another installation changes the first"
        await _check_status(kube, client, options)
        await elector.release()
        await installation.uninstall(client, options.namespace, 60, progress, force=True)
        assert await installation.clusters(client) == []


async def _check_status(kube: Kube, client: Client, options: InstallOptions) -> None:
    assert await operator_client.operator_namespace(client) == options.namespace
    all_namespaces = f"/apis/{API_VERSION}/{crd.PLURAL}"
    others = len(kube.api.get(all_namespaces)["items"])  # of earlier tests, in namespaces that are being deleted
    await client.create(
        {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "demo"}, "spec": {"engine": "dask"}}
    )
    found = await installation.status(client, options.namespace)
    assert (found["leader"], found["replicas"], found["authors"]) == ("stand-in", 1, "checked")
    assert 1 <= found["clusters"] <= 1 + others
    assert found["ready"] >= 1
    with pytest.raises(OarsError, match=f"{kube.namespace}/demo"):
        await installation.uninstall(client, options.namespace, 10, lambda _: None)


def test_install_without_replicas_does_not_wait(kube_api: Kube, home: str) -> None:
    words = ("install", "-n", home, "--kubeconfig", str(kube_api.kubeconfig), "--replicas", "0")
    result = CliRunner().invoke(operator, words, catch_exceptions=False)
    assert f"Namespace {home} is ready for `oars operator run`" in result.stdout
    assert kube_api.kubectl("get", "crd", crd.NAME, "-o", "name")


def test_install_that_times_out_says_why(kube_api: Kube, home: str) -> None:
    words = ("install", "-n", home, "--kubeconfig", str(kube_api.kubeconfig), "-q", "--timeout")
    sentence = f"waiting for an operator to lead in namespace {home}"
    seconds = itertools.count(4, 4)  # a busy server may not accept all objects within 4 s

    def reason() -> re.Match[str] | None:
        """Why its pods do not start: without a node, or on one that other tests left, which cannot get the image."""
        result = CliRunner().invoke(operator, (*words, f"{next(seconds)}s"))
        assert isinstance(result.exception, TimedOut)
        found = str(result.exception)
        return re.search("no nodes available|nodes are available|ImagePull", found) if sentence in found else None

    until("the error says what its pods wait for", reason, 240)


def test_status_without_operator_is_not_found(kube_api: Kube) -> None:
    words = ("status", "-n", kube_api.namespace, "--kubeconfig", str(kube_api.kubeconfig))
    result = CliRunner().invoke(operator, words)
    assert isinstance(result.exception, NotFound)


def test_existing_namespace_is_neither_labelled_nor_deleted(kube_api: Kube) -> None:
    options = InstallOptions(namespace=kube_api.namespace)
    where = f"/api/v1/namespaces/{kube_api.namespace}"
    before = kube_api.api.get(where)["metadata"]["labels"]

    async def scenario() -> None:
        async with connected(kube_api) as client:
            with pytest.raises(TimedOut):
                await installation.install(client, options, 2, lambda _: None)
            await installation.uninstall(client, options.namespace, 30, lambda _: None, force=True)

    asyncio.run(scenario())
    found = kube_api.api.get(where)
    assert found["metadata"]["labels"] == before
    assert "deletionTimestamp" not in found["metadata"]
    with pytest.raises(ApiError, match="404"):
        kube_api.api.get(kube_api.path(f"deployments/{NAME}", "apis/apps/v1"))


@pytest.mark.timeout(600)
def test_installed_operator_runs_a_cluster(kube: Kube, home: str, enforced: None) -> None:
    """With the real image on a real node: two replicas, one leader, and a cluster behind its network policy, which
    admits the operator's pods and no others that call themselves so."""
    target = ("--kubeconfig", str(kube.kubeconfig), "-o", "json")
    words = ("install", "-n", home, "--image", kube.image("operator"), "-q", *target)
    result = CliRunner().invoke(operator, words, catch_exceptions=False)
    assert json.loads(result.stdout)["leader"].startswith(NAME)
    found = json.loads(CliRunner().invoke(operator, ("status", *target), catch_exceptions=False).stdout)
    assert (found["namespace"], found["clusters"]) == (home, 0)
    kube.apply(small_dask(kube))
    path = f"{clusters(kube)}/demo"
    until("the cluster is ready", lambda: kube.api.get(path)["status"]["phase"] == "Ready", 240)
    with kubes.fresh_namespace(kube.cluster, has_node=True) as elsewhere:
        attacker.start_all(elsewhere, kube.image("dask"))
        addresses = attacker.addresses_of(kube, kube.pods("oars.dev/group"))
        until("all are shut out", lambda: not attacker.all_reached(elsewhere, addresses), 60)
    kube.kubectl("delete", "computecluster/demo")


def small_dask(kube: Kube) -> dict[str, Any]:
    size = {"cpu": 0.3, "burst": True}
    spec = {"engine": "dask", "image": kube.image("dask"), "head": size, "workers": [size]}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "demo"}, "spec": spec}
