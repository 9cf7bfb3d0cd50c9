"""Creating a ComputeCluster gives its author no more rights than before. On a real API server, with two users: one may
create ComputeClusters, the other may also create Deployments, Services and Ingresses."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from lab.api import Api, ApiError
from lab.kube import Kube
from lab.wait import until
from tests.api.stage import Operator, Stage
from tests.overlays import harmful, harmless, of_pod, random_overlay

from oars.kube import config
from oars.kube.client import Client
from oars.kube.kinds import Object, kind_of
from oars.operator import admission, crd, rbac
from oars.operator.rbac import Rule, Subject
from oars.operator.safe_fields import AREAS, restricted_fields
from oars.places.kube import names
from oars.spec.cluster import API_VERSION, KIND

HOST_NETWORK = of_pod(hostNetwork=True)
MORE = (
    Rule("apps", ("deployments",), ("create",), "as the operator does"),
    Rule("", ("services",), ("create",), "as the operator does"),
    Rule("networking.k8s.io", ("ingresses",), ("create",), "as the operator does"),
)
DENIED = re.compile(r"denied request: (.*?): to set these fields")


@dataclass(frozen=True)
class User:
    """A person with a token of their own."""

    kube: Kube
    api: Api

    def _path(self, name: str = "") -> str:
        path = self.kube.path(crd.PLURAL, f"apis/{API_VERSION}")
        return f"{path}/{name}" if name else path

    def create(self, name: str, spec: dict[str, Any], *, dry_run: bool = False) -> Object:
        path = self._path() + ("?dryRun=All" if dry_run else "")
        metadata = {"name": name, "namespace": self.kube.namespace}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {"engine": "dask", **spec}}
        return self.api.create(path, body)

    def patch(self, name: str, body: Object) -> Object:
        return self.api.patch(self._path(name), body)

    def refused_fields(self, spec: dict[str, Any]) -> set[str]:
        """The fields for which the API server refuses such a cluster; empty if it would create it."""
        try:
            self.create("trial", spec, dry_run=True)
        except ApiError as error:
            assert error.status == 403, error
            found = DENIED.search(json.loads(str(error).partition(": ")[2])["message"])
            assert found, error
            return set(found[1].split(", "))
        return set()


def user(kube: Kube, name: str, *rules: Rule) -> User:
    kube.kubectl("create", "serviceaccount", name)
    subject = Subject("ServiceAccount", name, kube.namespace)
    kube.apply(*rbac.role_and_binding(name, (*rbac.USER, *rules), subject, kube.namespace))
    api = kube.api
    return User(kube, Api(api.server, api.trust, kube.kubectl("create", "token", name).strip()))


def remove_policy(kube: Kube) -> None:
    for obj in admission.manifests():
        path = kind_of(obj).path(None, obj["metadata"]["name"])
        if kube.api.exists(path):
            kube.api.delete(path)


@pytest.fixture
def served(kube_api: Kube) -> Kube:
    """The kind is served, without the policy."""
    kube_api.api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.NAME}", crd.compute_cluster())
    path = kube_api.path(crd.PLURAL, f"apis/{API_VERSION}")
    until("the kind is served", lambda: kube_api.api.raw("GET", path)[0] == 200)
    return kube_api


@pytest.fixture
def author(served: Kube) -> User:
    return user(served, "author")


@pytest.fixture
def editor(served: Kube) -> User:
    return user(served, "editor", *MORE)


@pytest.fixture
def policy(served: Kube, author: User) -> Iterator[None]:
    served.apply(*admission.manifests())
    try:
        until("the policy is enforced", lambda: author.refused_fields({"head": {"pod": HOST_NETWORK}}))
        yield
    finally:
        remove_policy(served)


def with_pod(block: str, overlay: dict[str, Any]) -> dict[str, Any]:
    return (
        {"head": {"pod": overlay}} if block == "head" else {"workers": [{"name": "a"}, {"name": "b", "pod": overlay}]}
    )


def test_author_needs_the_right_for_each_harmful_field(policy: None, author: User, editor: User) -> None:
    for block in ("head", "worker"):
        where = "head.pod" if block == "head" else "workers[].pod"
        for path, overlay in harmful(block).items():
            assert author.refused_fields(with_pod(block, overlay)) == {f"{where}.{path}"}
            assert editor.refused_fields(with_pod(block, overlay)) == set()
        for overlay in harmless(block):
            assert author.refused_fields(with_pod(block, overlay)) == set()
    exposures: list[dict[str, Any]] = [
        {"type": "NodePort"}, {"type": "LoadBalancer"}, {"annotations": {"a": "b"}}, {"host": "a.example.org"},
        {"tlsSecret": "wildcard"}, {"ingressClass": "nginx"},
    ]  # fmt: skip
    for expose in exposures:
        assert author.refused_fields({"expose": expose}) == {
            f"expose.{'.'.join([*expose, *expose.get('annotations', ())])}"
        }
        assert editor.refused_fields({"expose": expose}) == set()
    harmless_exposure = {"type": "ClusterIP", "clients": {"team": "a"}}
    assert author.refused_fields({"image": "x:1", "env": {"A": "1"}, "expose": harmless_exposure}) == set()


def test_directories_of_nodes_need_the_right_and_volumes_do_not(policy: None, author: User, editor: User) -> None:
    volumes = [{}, {"size": "10Gi"}, {"size": "1Gi", "medium": "memory"}, {"size": 2**30, "medium": "fast-ssd"}]
    for spill in volumes:
        assert author.refused_fields({"workers": [{"cache": "40%", "spill": spill}]}) == set()
    directories = {"workers": [{"name": "a"}, {"name": "b", "spill": {"paths": ["/mnt/a", "/mnt/b"], "size": "10Gi"}}]}
    assert author.refused_fields(directories) == {"workers[].spill.paths"}
    assert editor.refused_fields(directories) == set()


@pytest.mark.parametrize("seed", [1, 2])
def test_policy_and_operator_agree_on_random_overlays(policy: None, author: User, seed: int) -> None:
    rng = random.Random(seed)
    head, workers = AREAS[0].safe, AREAS[1].safe
    refused = 0
    for _ in range(300):
        overlays = [
            overlay if isinstance(overlay := random_overlay(rng, safe), dict) else {} for safe in (head, workers)
        ]
        spec = {"head": {"pod": overlays[0]}, "workers": [{"pod": overlays[1]}]}
        expected = {path for paths in restricted_fields(spec).values() for path in paths}
        found = author.refused_fields(spec)
        # The API server reports the first validation that fails: that of the head, if both do.
        heads = {path for path in expected if path.startswith("head")}
        assert found == (heads or expected), spec
        refused += bool(expected)
    assert 60 < refused < 280, "the overlays are of one kind"


def test_hundred_groups_with_large_overlays_are_within_the_cost_limit(policy: None, author: User, editor: User) -> None:
    overlay = harmless("worker")[-1]
    variables = [{"name": f"A{number}", "value": str(number)} for number in range(30)]
    container = {**overlay["spec"]["containers"][0], "env": variables}
    groups = [{"name": f"g{number}", "pod": of_pod(containers=[container])} for number in range(crd.MAX_GROUPS)]
    assert author.refused_fields({"workers": groups}) == set()
    groups[-1] = {"name": "last", "pod": HOST_NETWORK}
    assert author.refused_fields({"workers": groups}) == {"workers[].pod.spec.hostNetwork"}
    assert editor.refused_fields({"workers": groups}) == set()


def test_policy_counts_as_enforced_since_it_denies(served: Kube) -> None:
    """An installation that no longer trusts all authors creates the binding anew."""

    async def installed(*, trust_authors: bool = False) -> float | None:
        """As `oars operator install` does it."""
        async with Client(config.load({}, kubeconfig=str(served.kubeconfig))) as client:
            for obj in admission.manifests(trust_authors=trust_authors):
                await admission.apply(client, obj)
            return await admission.enforced_since(client)

    try:
        assert asyncio.run(installed(trust_authors=True)) is None
        began = time.time()
        time.sleep(2)  # the API server's clock has whole seconds
        first = asyncio.run(installed())
        assert first is not None and first > began
        time.sleep(2)
        assert asyncio.run(installed()) == first, "nothing changed"
    finally:
        remove_policy(served)


# updates


def refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except ApiError as error:
        assert error.status == 403 and "to set these fields" in str(error), error
        return True
    return False


def test_author_may_change_sizes_but_not_what_runs_with_fields_that_others_set(
    policy: None, author: User, editor: User, served: Kube
) -> None:
    groups: list[dict[str, Any]] = [{"name": "a", "pod": HOST_NETWORK}, {"name": "b", "replicas": 1}]
    spec = {"image": "x:1", "head": {"pod": HOST_NETWORK, "env": {"A": "1"}}, "workers": groups}
    assert refused(lambda: author.create("demo", spec))
    editor.create("demo", spec)

    def patched(spec: dict[str, Any]) -> bool:
        return not refused(lambda: author.patch("demo", {"spec": spec}))

    author.api.patch(author._path("demo") + "/scale", {"spec": {"replicas": 4}})
    assert served.kubectl("get", "computecluster", "demo", "-o", "jsonpath={.spec.replicas}") == "4"
    author.patch("demo", {"metadata": {"labels": {"team": "a"}, "annotations": {"oars.dev/force-generation": "1"}}})
    assert patched({"replicas": 2, "minReady": 1, "drain": {"timeout": "5s"}, "lifetime": {"orphaned": 0}})
    assert patched({"head": {"cpu": 2, "memory": "2Gi"}})
    assert patched({"workers": [{**groups[0], "cpu": 2}, {"name": "b", "replicas": 3}]})
    assert patched({"workers": [{**groups[0], "cpu": 2}]}), "a group is removed"

    assert not patched({"image": "mine:1"})
    assert not patched({"env": {"LD_PRELOAD": "/mine.so"}})
    assert not patched({"dask": {"config": {"distributed": {"scheduler": {"preload": ["mine"]}}}}})
    assert not patched({"head": {"env": {"A": "2"}}})
    assert not patched({"head": {"pod": of_pod(hostNetwork=True, hostPID=True)}})
    assert not patched({"workers": [{**groups[0], "env": {"A": "2"}}]})
    assert not patched({"workers": [groups[0], {"name": "mine", "pod": HOST_NETWORK}]})
    assert not patched({"workers": [{**groups[0], "name": "mine"}]})
    assert not patched({"expose": {"type": "LoadBalancer"}})

    editor.patch("demo", {"spec": {"image": "x:2", "expose": {"type": "NodePort"}}})
    assert patched({"replicas": 3}), "neither expose nor what runs changes"
    assert not patched({"expose": {"type": "LoadBalancer"}})
    assert patched({"head": {"pod": None}, "workers": [{"name": "a"}], "expose": {"type": "ClusterIP"}})
    assert patched({"image": "mine:1"}), "no restricted field is left"
    assert not patched({"head": {"pod": HOST_NETWORK}})


# ConfigMaps of clusters: scripts that pods run, and in direct mode the spec


def config_map(name: str, labels: dict[str, str], **fields: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, **fields}


def test_author_may_not_write_config_maps_of_clusters(policy: None, author: User, editor: User, served: Kube) -> None:
    """Neither scripts of an editor's pods nor a spec, which the next direct client would run with its own rights."""
    path, labels, script = served.path("configmaps"), names.labels("demo", "dask"), {"a.sh": "exit"}
    root = f"{path}/demo-oars"

    def is_refused(act: Callable[[], object]) -> bool:
        try:
            act()
        except ApiError as error:
            assert error.status == 403 and "you need the right to create deployments.apps" in str(error), error
            return True
        return False

    until("the policy is enforced", lambda: is_refused(lambda: author.api.create(path, config_map("trial", labels))))
    assert is_refused(lambda: author.api.create(path, config_map("demo-oars", labels, data=script)))
    editor.api.create(path, config_map("demo-oars", labels, data=script))
    changes: list[Object] = [
        {"data": {"a.sh": "mine"}},
        {"data": {"b.sh": "mine"}},
        {"data": None},
        {"binaryData": {"b.sh": "bWluZQ=="}},
        {"metadata": {"labels": {names.CLUSTER: None}}},
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}},
        {"metadata": {"annotations": {names.CREATED_NAMESPACE: "the uid of a namespace"}}},
    ]
    for change in changes:
        assert is_refused(partial(author.api.patch, root, change)), change
    assert editor.api.patch(root, {"data": {"a.sh": "changed"}})["data"] == {"a.sh": "changed"}

    author.api.create(path, config_map("oars-files-1", {"app.kubernetes.io/managed-by": "oars"}, data=script))
    author.api.patch(f"{path}/oars-files-1", {"data": {"a.sh": "changed"}})
    assert is_refused(lambda: author.api.patch(f"{path}/oars-files-1", {"metadata": {"labels": labels}}))


def test_garbage_collector_may_release_config_maps_of_clusters(policy: None, served: Kube, editor: User) -> None:
    """It has no right to create Deployments."""
    path, labels = served.path("configmaps"), names.labels("demo", "dask")
    owner = editor.api.create(path, config_map("owner", {}))["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    owned = config_map("demo-oars", labels, data={"a": "b"})
    owned["metadata"]["ownerReferences"] = [reference]
    editor.api.create(path, owned)
    served.kubectl("delete", "configmap", "owner", "--cascade=orphan", "--wait=false")
    until("the owner is gone", lambda: not served.api.exists(f"{path}/owner"))
    assert not served.api.get(f"{path}/demo-oars")["metadata"].get("ownerReferences")


# the operator


def reason(stage: Stage, name: str) -> str:
    return str(stage.get(name).get("status", {}).get("reason", ""))


def message(stage: Stage, name: str) -> str:
    return str(stage.get(name)["status"]["conditions"][0]["message"])


def deployments(kube: Kube, name: str) -> list[str]:
    found = kube.kubectl("get", "deployments", "-l", f"oars.dev/cluster={name}", "-o", "name")
    return found.splitlines()


def test_operator_refuses_restricted_fields_that_no_policy_has_checked(
    stage: Stage, operators: Callable[..., Operator], author: User, editor: User
) -> None:
    kube, spec = stage.kube, {"image": "x:1", "head": {"pod": HOST_NETWORK}}
    remove_policy(kube)
    until("the policy of an earlier test is not enforced any more", lambda: not author.refused_fields(spec))
    author.create("sly", spec)
    author.create("plain", {"image": "x:1", "expose": {"type": "ClusterIP"}})
    operators(trust_authors=False)
    stage.until("sly", "is refused", lambda: reason(stage, "sly") == "AuthorNotChecked")
    assert message(stage, "sly").startswith("head.pod.spec.hostNetwork: nobody has checked that the author may create")
    assert "does not exist" in message(stage, "sly") and "oars operator install" in message(stage, "sly")
    assert stage.get("sly")["status"]["phase"] == "Failed"
    assert [event["reason"] for event in stage.events("sly")] == ["AuthorNotChecked"]
    stage.until("plain", "runs", lambda: deployments(kube, "plain"))
    try:
        kube.apply(*admission.manifests())
        until("the policy is enforced", lambda: author.refused_fields({"head": {"pod": HOST_NETWORK}}))
        time.sleep(admission.EFFECTIVE_SECONDS + 1)
        author.patch("sly", {"spec": {"replicas": 2}})
        stage.until("sly", "is refused again", lambda: "is older than" in message(stage, "sly"))
        assert deployments(kube, "sly") == [], "it was never checked"
        editor.create("checked", spec)
        stage.until("checked", "runs", lambda: deployments(kube, "checked"))
    finally:
        remove_policy(kube)


def test_operator_that_trusts_authors_accepts_restricted_fields(
    stage: Stage, operators: Callable[..., Operator], author: User
) -> None:
    remove_policy(stage.kube)
    restricted = {"head": {"pod": HOST_NETWORK}}
    until("the policy of an earlier test is not enforced any more", lambda: not author.refused_fields(restricted))
    author.create("demo", {"image": "x:1", **restricted})
    operators(trust_authors=True)
    stage.until("demo", "runs", lambda: deployments(stage.kube, "demo"))
