"""The Helm chart, with the real Helm: what it renders, refuses, installs and leaves behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from lab.errors import LabError
from lab.kube import Kube
from lab.run import run
from lab.wait import until
from tests.api.test_install import RESTRICTED, connected

from lab import build, settings
from oars import engines
from oars.cli.kubernetes import operator
from oars.operator import NAME, admission, crd, installation, manifests
from oars.operator.manifests import InstallOptions

CHART = Path(__file__).parents[2] / "deploy/helm/oars"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICIES = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
STANDARD = {
    "app.kubernetes.io/name": "oars",
    "app.kubernetes.io/instance": "grid",
    "app.kubernetes.io/version": "0.1.0",
    "app.kubernetes.io/part-of": "oars",
    "app.kubernetes.io/managed-by": "Helm",
    "helm.sh/chart": "oars-0.1.0",
}
# Where Helm is built first, that takes two minutes.
pytestmark = pytest.mark.timeout(900)

Helm = Callable[..., str]
Object = dict[str, Any]


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """`helm("lint", CHART)`"""
    program = build.tool(settings.load().cache, "helm", print)
    home = tmp_path_factory.mktemp("helm")
    env = [f"{variable}={home}" for variable in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")]
    return lambda *words: run(["env", *env, program, *words], 400)


def rendered(helm: Helm, folder: Path, values: Object, *options: str) -> list[Object]:
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    text = helm("template", "grid", CHART, "-n", "ops", "-f", folder / "values.yaml", "-a", POLICIES, *options)
    return [document for document in yaml.safe_load_all(text) if document]


def by_name(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    found = {(o["kind"], o["metadata"]["name"], o["metadata"].get("namespace", "")): o for o in objects}
    assert len(found) == len(objects)
    return found


def plain(objects: list[Object]) -> dict[tuple[str, str, str], Object]:
    """Without the labels that only some manifests have; the chart has them on all."""
    for obj in objects:
        template = obj.get("spec", {}).get("template", {}) if obj["kind"] == "Deployment" else {}
        for labels in (obj["metadata"]["labels"], template.get("metadata", {}).get("labels", {})):
            for name in set(STANDARD) - {"app.kubernetes.io/part-of"}:
                labels.pop(name, None)
    return by_name(objects)


def test_chart_has_no_findings(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({}, InstallOptions()),
        ({"watchNamespaces": ["a", "b"], "nodes": False}, InstallOptions(watch_namespaces=("a", "b"), nodes=False)),
        ({"trustAuthors": True, "queues": True}, InstallOptions(trust_authors=True, queues=True)),
        ({"adopt": {"marsjob": True}}, InstallOptions(adopt=("marsjob",))),
        (
            {"adopt": {"marsjob": True}, "watchNamespaces": ["a"], "trustAuthors": True},
            InstallOptions(adopt=("marsjob",), watch_namespaces=("a",), trust_authors=True),
        ),
        (
            {"image": {"repository": "r", "tag": "1", "pullPolicy": "Always"}, "imagePullSecrets": [{"name": "s"}]},
            InstallOptions(image="r:1", pull_policy="Always", pull_secrets=("s",)),
        ),
        (
            {"replicas": 0, "logFormat": "text", "nodeSelector": {"a": "b"}, "priorityClassName": "p"},
            InstallOptions(replicas=0, log_format="text", node_selector={"a": "b"}, priority_class="p"),
        ),
    ],
)
def test_chart_renders_the_manifests(helm: Helm, tmp_path: Path, values: Object, options: InstallOptions) -> None:
    options = replace(options, namespace="ops", create_namespace=False)
    found = plain(rendered(helm, tmp_path, values))
    policy = admission.manifests(engines.BUILT_IN, trust_authors=options.trust_authors)
    definitions = [("CustomResourceDefinition", crd.NAME), ("CustomResourceDefinition", crd.JOB_NAME)]
    kept = [*definitions, *((obj["kind"], obj["metadata"]["name"]) for obj in policy)]
    if options.adopt:
        kept += [("CustomResourceDefinition", name) for name in crd.MARS_JOB_NAMES]
        kept += [(obj["kind"], crd.MARS_JOB_POLICY) for obj in admission.mars_job_manifests()]
    for kind, name in kept:
        metadata = found[kind, name, ""]["metadata"]
        assert metadata["annotations"].pop("helm.sh/resource-policy") == "keep"
        if not metadata["annotations"]:
            del metadata["annotations"]
    # The chart has the built-in engines; here the toy engine is installed too.
    installed = [manifests.definition("ops", engines.BUILT_IN), *policy]
    others = [obj for obj in manifests.install(options) if obj["metadata"]["name"] not in {*_names(installed)}]
    assert found == plain(json.loads(json.dumps([*others, *installed])))


def _names(objects: list[Object]) -> Iterator[str]:
    return (obj["metadata"]["name"] for obj in objects)


def test_all_objects_have_the_standard_labels(helm: Helm, tmp_path: Path) -> None:
    more = {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "dashboards")}
    for obj in rendered(helm, tmp_path, {"adopt": {"marsjob": True}, "queues": True, **more}):
        assert obj["metadata"]["labels"].items() >= STANDARD.items(), obj["metadata"]["name"]


@pytest.mark.parametrize(
    ("values", "name"), [({"fullnameOverride": "fleet"}, "fleet"), ({"nameOverride": "fleet"}, "grid-fleet")]
)
def test_names_can_be_chosen(helm: Helm, tmp_path: Path, values: Object, name: str) -> None:
    """Roles, accounts and bindings follow; the Lease and what selects the operator's pods stay."""
    objects = rendered(helm, tmp_path, {**values, "watchNamespaces": ["a"], "queues": True, "adopt": {"marsjob": True}})
    found = by_name(objects)
    assert not [each for each in _names(objects) if each.startswith(NAME)]
    deployment = found["Deployment", name, "ops"]["spec"]
    assert deployment["template"]["spec"]["serviceAccountName"] == name
    assert deployment["selector"]["matchLabels"]["app.kubernetes.io/name"] == "oars"
    for binding in objects:
        for subject in binding.get("subjects", ()):
            assert subject["kind"] != "ServiceAccount" or subject["name"] == name
        if role := binding.get("roleRef"):
            assert (role["kind"], role["name"], binding["metadata"].get("namespace", "")) in found
    lease_names = [rule.get("resourceNames") for rule in found["Role", f"{name}-leader", "ops"]["rules"]]
    assert [NAME] in lease_names


def test_values_of_the_pods(helm: Helm, tmp_path: Path) -> None:
    values = {
        "podAnnotations": {"a": "1"},
        "podLabels": {"team": "data"},
        "serviceAccount": {"annotations": {"role": "arn"}},
        "affinity": {"nodeAffinity": {}},
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraArgs": ["--lease-duration=30"],
        "networkPolicy": {"enabled": False},
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None},
    }
    found = by_name(rendered(helm, tmp_path, values))
    template = found["Deployment", NAME, "ops"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {"a": "1"}
    assert template["metadata"]["labels"]["team"] == "data"
    assert template["spec"]["affinity"] == {"nodeAffinity": {}}
    assert template["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    container = template["spec"]["containers"][0]
    assert {"name": "TZ", "value": "UTC"} in container["env"] and container["args"][-1] == "--lease-duration=30"
    assert found["ServiceAccount", NAME, "ops"]["metadata"]["annotations"] == {"role": "arn"}
    assert not [kind for kind, _, _ in found if kind == "NetworkPolicy"]


@pytest.mark.parametrize("value", ["serviceMonitor", "podMonitor", "dashboards"])
def test_monitoring_is_off_by_default(helm: Helm, tmp_path: Path, value: str) -> None:
    default = by_name(rendered(helm, tmp_path, {}))
    more = by_name(rendered(helm, tmp_path, {value: {"enabled": True, "labels": {"team": "data"}}}))
    ((kind, name, namespace),) = set(more) - set(default)
    assert more[kind, name, namespace]["metadata"]["labels"]["team"] == "data"
    if value == "dashboards":
        assert json.loads(more[kind, name, namespace]["data"]["oars.json"])["title"] == "Oars"
    else:
        assert kind == value[0].upper() + value[1:]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("replicas=11", "/replicas"),
        ("image.tga=1", "'tga' not allowed"),
        ("watchNamespaces=a", "/watchNamespaces"),
        ("logFormat=xml", "/logFormat"),
        ("extraArgs={adopt}", "/extraArgs/0"),
        ("podMonitor.interval=soon", "/podMonitor/interval"),
    ],
)
def test_wrong_values_are_refused(helm: Helm, values: str, message: str) -> None:
    with pytest.raises(LabError, match=message):
        helm("template", "grid", CHART, "--set", values)


def test_chart_can_omit_the_definition(helm: Helm, tmp_path: Path) -> None:
    kinds = {obj["kind"] for obj in rendered(helm, tmp_path, {"crds": {"install": False}})}
    assert "CustomResourceDefinition" not in kinds
    assert "Deployment" in kinds


def test_chart_omits_the_policy_on_an_older_server(helm: Helm) -> None:
    """Helm assumes that a server has few kinds, unless `-a` names more."""
    text = helm("template", "grid", CHART)
    assert "kind: Validating" not in text and "kind: Deployment" in text


@pytest.fixture
def restricted(kube: Kube, helm: Helm) -> Iterator[str]:
    """A namespace that enforces the restricted standard. The release `grid` is removed from it afterwards, and what it
    leaves."""
    name = f"{kube.namespace}-helm"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}
    kube.api.create("/api/v1/namespaces", namespace)
    yield name
    helm("uninstall", "grid", "-n", name, "--kubeconfig", kube.kubeconfig, "--ignore-not-found")
    asyncio.run(_remove(kube, name))
    kube.api.request("DELETE", f"/api/v1/namespaces/{name}")


async def _remove(kube: Kube, namespace: str) -> None:
    async with connected(kube) as client:
        await installation.uninstall(client, namespace, 60, lambda _: None, force=True)


def test_release_is_installed_upgraded_and_removed(kube: Kube, helm: Helm, restricted: str) -> None:
    """With the real image on a real node. `--take-ownership`: an earlier test may have left the definitions."""
    repository, tag = kube.image("operator").rsplit(":", 1)
    chosen = f"image.repository={repository},image.tag={tag},replicas=1,fullnameOverride=fleet"
    target = ("-n", restricted, "--kubeconfig", kube.kubeconfig, "--wait", "--timeout", "5m")
    helm("install", "grid", CHART, *target, "--take-ownership", "--set", chosen)

    def is_up() -> bool:
        """As `oars operator status` says. Helm looks at the ReplicaSet, whose Deployment follows a moment later."""
        words = ("status", "-n", restricted, "--kubeconfig", str(kube.kubeconfig), "-o", "json")
        found = json.loads(CliRunner().invoke(operator, words, catch_exceptions=False).stdout)
        is_leading = (found["leader"] or "").startswith("fleet-")
        return is_leading and (found["replicas"], found["ready"], found["authors"]) == (1, 1, "checked")

    until("one replica is ready and leads", is_up, 60)
    in_pod = kube.kubectl("exec", "-n", restricted, "deployment/fleet", "--", "id", "-u")
    assert in_pod.strip() == "65532"
    helm("upgrade", "grid", CHART, *target, "--reuse-values", "--set", "logFormat=text")
    container = kube.api.get(f"/apis/apps/v1/namespaces/{restricted}/deployments/fleet")["spec"]["template"]["spec"]
    assert "--log-format=text" in container["containers"][0]["args"]
    helm("uninstall", "grid", *target)
    left = kube.kubectl("get", "deployments,services,networkpolicies,serviceaccounts", "-n", restricted, "-o", "name")
    assert left.split() == ["serviceaccount/default"]
    for name in (crd.NAME, crd.JOB_NAME):
        assert "deletionTimestamp" not in kube.api.get(f"{DEFINITIONS}/{name}")["metadata"]
