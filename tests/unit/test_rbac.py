"""RBAC roles and the installation: the tables, the commands that print them, and the chart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from oars.cli.kubernetes import operator
from oars.cli.kubernetes import rbac as rbac_command
from oars.kube import kinds
from oars.kube.kinds import Kind
from oars.operator import NAME, NAMESPACE, manifests, rbac
from oars.operator.manifests import InstallOptions
from oars.operator.rbac import Rule, Subject
from oars.places.kube.kinds import COMPUTE_CLUSTER, COMPUTE_JOB

CHART = Path(__file__).parents[2] / "deploy/helm/oars"
ANN = Subject("User", "ann")
TABLES = {"direct": rbac.DIRECT, "user": rbac.USER, "operator": rbac.OPERATOR, "lease": rbac.LEASES}
RULES = [pytest.param(rule, id=f"{name}-{'+'.join(rule.resources)}") for name, t in TABLES.items() for rule in t]
READERS = {"get", "list", "watch"}


def printed(command: Any, *words: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


@pytest.mark.parametrize("rule", RULES)
def test_rules_have_no_wildcards_and_no_privileged_verbs(rule: Rule) -> None:
    assert "*" not in (rule.group, *rule.resources, *rule.verbs)
    assert rule.why
    assert len(set(rule.verbs)) == len(rule.verbs)
    assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule.verbs)


@pytest.mark.parametrize("rule", [p for p in RULES if "secrets" in p.values[0].resources])  # type: ignore[union-attr]
def test_secrets_are_never_listed(rule: Rule) -> None:
    assert not {"list", "watch"} & set(rule.verbs)
    assert rule.resources == ("secrets",)


@pytest.mark.parametrize("rule", RULES)
def test_rules_name_only_kinds_that_oars_uses(rule: Rule) -> None:
    known = {
        COMPUTE_CLUSTER.plural,
        COMPUTE_JOB.plural,
        *(kind.plural for kind in vars(kinds).values() if isinstance(kind, Kind)),
    }
    assert {resource.partition("/")[0] for resource in rule.resources} <= known


def test_replica_sets_are_not_needed() -> None:
    """The conditions of Deployments explain missing pods."""
    assert not [rule for table in TABLES.values() for rule in table if "replicasets" in rule.resources]


@pytest.mark.parametrize("rule", RULES)
def test_rules_that_apply_have_both_verbs(rule: Rule) -> None:
    """Server-side apply of a new object needs both; the operator's Lease has separate rules for them."""
    not_applied = {"pods/exec", "pods/portforward", "leases", "jobs", "events"}
    if rule.why.startswith("the clusters of jobs"):
        not_applied |= {"computeclusters"}  # created once, never changed
    if "create" in rule.verbs and not not_applied & set(rule.resources):
        assert "patch" in rule.verbs


def test_client_has_the_permissions_that_it_grants_to_the_cluster() -> None:
    """Otherwise Kubernetes rejects the Role that reads the Lease and deletes the ConfigMap."""
    held = {(resource, verb) for rule in rbac.DIRECT for resource in rule.resources for verb in rule.verbs}
    assert {("leases", "get"), ("configmaps", "delete"), ("configmaps", "patch")} <= held


def test_role_and_binding_have_the_same_namespace() -> None:
    role, binding = rbac.direct_role("team", ANN)
    assert role["kind"] == "Role"
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "team"
    assert binding["roleRef"] == {"apiGroup": rbac.API, "kind": "Role", "name": role["metadata"]["name"]}
    assert binding["subjects"] == [{"kind": "User", "name": "ann", "apiGroup": rbac.API}]


def test_minimal_role_has_no_optional_rules() -> None:
    whole, least = (rbac.direct_role("team", ANN, minimal=flag)[0]["rules"] for flag in (False, True))
    assert [rule for rule in whole if rule not in least]
    assert not [rule for rule in least if rbac.why(rule).startswith("optional")]


def test_operator_of_some_namespaces_has_no_cluster_role() -> None:
    objects = rbac.operator_roles("oars-system", ("a", "b"), nodes=False)
    assert {obj["kind"] for obj in objects} == {"Role", "RoleBinding"}
    assert {obj["metadata"]["namespace"] for obj in objects} == {"oars-system", "a", "b"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--user", "ann", "-n", "team"], rbac.direct_role("team", ANN)),
        (["--user", "ann", "-n", "team", "--minimal"], rbac.direct_role("team", ANN, minimal=True)),
        (["--user", "ann", "--create-namespace"], rbac.namespaces_role(ANN)),
        (["--mode", "user", "--group", "g", "-n", "x"], rbac.user_role("x", Subject("Group", "g"))),
        ([], rbac.direct_role("default", Subject("ServiceAccount", "default", "default"))),
        (["--service-account", "ci:runner"], rbac.direct_role("default", Subject("ServiceAccount", "runner", "ci"))),
        (["--user", "ann", "--nodes"], [*rbac.direct_role("default", ANN), *rbac.nodes_role(ANN)]),
        (["--mode", "operator"], rbac.operator_roles(NAMESPACE)),
        (["--mode", "operator", "-n", "team"], rbac.operator_roles(NAMESPACE, ("team",))),
    ],
)
def test_command_prints_the_roles(words: list[str], expected: list[dict[str, Any]]) -> None:
    assert printed(rbac_command, *words) == expected


def test_command_prints_the_reasons() -> None:
    text = CliRunner().invoke(rbac_command, []).stdout
    assert all(f"{rule.why}\n" in text for rule in rbac.DIRECT)


def test_two_subjects_are_rejected() -> None:
    result = CliRunner().invoke(rbac_command, ["--user", "a", "--group", "b"])
    assert "Several" in str(result.exception)


def test_objects_are_installed_in_order() -> None:
    kinds = [obj["kind"] for obj in manifests.install(InstallOptions())]
    policies = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] * 2
    assert kinds[:8] == [
        "Namespace",
        *policies,
        "CustomResourceDefinition",
        "CustomResourceDefinition",
        "ServiceAccount",
    ]
    assert kinds[-1] == "Deployment"


def test_command_prints_the_manifests() -> None:
    words = ["-n", "ops", "--image", "i:1", "--replicas", "3", "--watch", "a", "--watch", "b", "--pull-secret", "s"]
    options = InstallOptions(namespace="ops", image="i:1", replicas=3, watch_namespaces=("a", "b"), pull_secrets=("s",))
    assert printed(operator, "manifests", *words) == manifests.install(options)
    trusting = replace(options, trust_authors=True)
    assert printed(operator, "manifests", *words, "--trust-authors") == manifests.install(trusting)


def test_manifests_have_no_words_that_kubectl_takes_for_booleans() -> None:
    """The names of fields, such as n, are quoted: Go's YAML has more booleans than Python's."""
    words = re.compile(r"^\s*(- )?([\w.]+: )?(y|Y|n|N|yes|no|on|off)$|^\s*(y|Y|n|N|yes|no|on|off):", re.MULTILINE)
    text = CliRunner().invoke(operator, ["manifests", "--adopt", "marsjob"], catch_exceptions=False).stdout
    assert "'n':" in text and not words.search(text)
    for template in (CHART / "templates").iterdir():
        assert not words.search(template.read_text()), template.name


def test_operator_pods_are_restricted() -> None:
    pod = manifests.deployment(InstallOptions())["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_run_command_accepts_the_container_arguments() -> None:
    options = InstallOptions(watch_namespaces=("a",), trust_authors=True)
    container = manifests.deployment(options)["spec"]["template"]["spec"]["containers"]
    program, *words = container[0]["command"]
    assert (program, words) == ("oars", ["operator", "run"])
    run = operator.commands["run"]
    given = run.make_context("run", list(container[0]["args"])).params
    assert given["namespaces"] == ("a",) and given["trust_authors"] is True
    assert given["identity"] == "$(POD_NAME)"


def test_objects_have_the_namespace_and_label_of_the_operator() -> None:
    for obj in manifests.install(InstallOptions(namespace="ops")):
        assert obj["metadata"].get("namespace", "ops") == "ops"
        assert obj["metadata"]["labels"]["app.kubernetes.io/part-of"] == "oars"
    account = manifests.service_account(InstallOptions())["metadata"]["name"]
    assert account == NAME


def chart_roles(watched: tuple[str, ...], nodes: bool, queues: bool) -> list[dict[str, Any]]:
    """The operator's roles in the chart: rights.yaml has one branch for watched namespaces and one without any."""
    text = (CHART / "templates/rights.yaml").read_text()
    per_namespace, rest = text.partition("{{- else }}")[::2]
    everywhere, optional = rest.partition("{{- end }}")[::2]
    of_nodes, of_queues = optional.partition("{{- if .Values.queues }}")[::2]
    parts = [per_namespace.replace("{{ . }}", each) for each in watched] or [everywhere]
    parts += [of_nodes] if nodes else []
    parts += [of_queues] if queues else []
    names = {'{{ include "oars.fullname" $ }}': NAME, "{{ $.Release.Namespace }}": NAMESPACE}
    plain = []
    for part in parts:
        text = "\n".join(line for line in part.splitlines() if not line.lstrip().startswith("{{"))
        for found, wanted in names.items():
            text = text.replace(found, wanted)
        plain.append(text)
    return [each for part in plain for each in yaml.safe_load_all(part) if each]


@pytest.mark.parametrize("queues", [False, True])
@pytest.mark.parametrize(("watched", "nodes"), [((), True), ((), False), (("a", "b"), True), (("a",), False)])
def test_command_and_chart_give_the_operator_the_same_rules(
    watched: tuple[str, ...], nodes: bool, queues: bool
) -> None:
    """tests/api/test_install_chart.py renders the whole chart with Helm; it needs Go."""
    roles = rbac.operator_roles(NAMESPACE, watched, nodes=nodes, queues=queues)
    expected = _without_labels(obj for obj in roles if "-leader" not in obj["metadata"]["name"])
    found = _without_labels(chart_roles(watched, nodes, queues))
    rules = [[rule for obj in objects for rule in obj.get("rules", ())] for objects in (found, expected)]
    assert rules[0] == rules[1]
    assert found == expected
    if len(watched) < 2 and nodes and not queues:
        words = ["--mode", "operator", *(word for each in watched for word in ("-n", each))]
        printed_roles = (obj for obj in printed(rbac_command, *words) if "-leader" not in obj["metadata"]["name"])
        assert _without_labels(printed_roles) == found


def _without_labels(objects: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "metadata": {**each["metadata"], "labels": None}} for each in objects]


def test_lab_image_has_the_dependencies_of_oars() -> None:
    import tomllib

    root = Path(__file__).parents[2]
    wanted = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    installed = {
        line for line in (root / "lab/images/operator.in").read_text().splitlines() if not line.startswith("#")
    }
    assert installed == {each for each in wanted if not each.startswith(("uv", "packaging"))}
