"""Pod templates: what users write, and the pods that come of it."""

from __future__ import annotations

import ast
import copy
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import dask
import pytest

from oars.base.errors import SpecError
from oars.compat.dask_kubernetes import clean_pod_template, make_pod_from_dict, make_pod_spec, templates
from oars.compat.dask_kubernetes.classic.bounds import memory_per_worker, option_of, threads_per_worker
from oars.compat.dask_kubernetes.classic.source import configured_template, read_template
from oars.compat.dask_kubernetes.common.model import Model, camel_case, model, plain, snake_case
from oars.compat.dask_kubernetes.templates import SHIM, Settings, cluster_name, scheduler_pod, service, worker_pod

SETTINGS = Settings("demo", "lab", "ann")


class V1Thing:
    """As the objects of the `kubernetes` package: an attribute map, and attributes that may be None."""

    def __init__(self, attribute_map: dict[str, str], **fields: Any) -> None:
        self.attribute_map = attribute_map
        self.__dict__ |= {name: fields.get(name) for name in attribute_map}


def v1_pod() -> V1Thing:
    container = V1Thing(
        {"image": "image", "name": "name", "args": "args", "image_pull_policy": "imagePullPolicy", "env": "env"},
        image="i:1", name="main", args=["dask-worker"], image_pull_policy="Never",
    )  # fmt: skip
    spec = V1Thing({"containers": "containers", "restart_policy": "restartPolicy"}, containers=[container])
    return V1Thing({"spec": "spec", "metadata": "metadata"}, spec=spec)


# model


@pytest.mark.parametrize(
    ("snake", "camel"),
    [
        ("image_pull_policy", "imagePullPolicy"),
        ("pod_ip", "podIP"),
        ("host_i_ps", "hostIPs"),
        ("api_version", "apiVersion"),
        ("spec", "spec"),
        ("termination_grace_period_seconds", "terminationGracePeriodSeconds"),
        ("host_pid", "hostPID"),
        ("set_hostname_as_fqdn", "setHostnameAsFQDN"),
    ],
)
def test_names_of_fields(snake: str, camel: str) -> None:
    assert camel_case(snake) == camel and snake_case(camel) == snake


def test_model_has_attributes_and_entries() -> None:
    pod = make_pod_spec("i:1", labels={"a": "b"})
    pod.spec.containers[0].image_pull_policy = "Never"
    pod.metadata.labels["c"] = "d"
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == "Never"
    assert pod.metadata.labels == {"a": "b", "c": "d"}
    assert pod.spec.node_selector is None
    assert pod.to_dict()["spec"]["containers"][0]["image_pull_policy"] == "Never"
    assert copy.deepcopy(pod) == pod and type(copy.deepcopy(pod).spec) is Model
    del pod.spec.containers[0].image_pull_policy
    assert "imagePullPolicy" not in pod.spec.containers[0]
    with pytest.raises(AttributeError):
        pod.__len_hint__  # noqa: B018


def test_objects_of_the_kubernetes_package_are_accepted() -> None:
    expected = {"spec": {"containers": [{"image": "i:1", "name": "main", "args": ["dask-worker"],
                                         "imagePullPolicy": "Never"}]}}  # fmt: skip
    assert plain(v1_pod(), "x") == expected
    inside = {"spec": {"containers": [v1_pod().__dict__["spec"].containers[0]]}}
    assert plain(inside, "x") == expected
    assert plain({"at": datetime.datetime(2026, 1, 2)}, "x") == {"at": "2026-01-02T00:00:00"}


class NewThing:
    """As the objects of newer versions of the package: to_dict with the names of the API, and iterable."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def to_dict(self) -> dict[str, Any]:
        return self.fields

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fields.items())


def test_objects_of_newer_kubernetes_packages_are_accepted() -> None:
    mount = NewThing(name="v", mountPath="/v")
    template = make_pod_spec("i:1")
    template.spec.containers[0].volume_mounts = [mount]
    pod = worker_pod(template, SETTINGS)
    assert pod.spec.containers[0].volume_mounts == [{"name": "v", "mountPath": "/v"}]


def test_objects_of_the_installed_kubernetes_package_are_accepted() -> None:
    client = pytest.importorskip("kubernetes.client", reason="the kubernetes package is optional")
    container = client.V1Container(name="x", image="i:1", args=["dask-worker"], image_pull_policy="Never")
    pod = client.V1Pod(spec=client.V1PodSpec(restart_policy="Never", containers=[container]))
    found = read_template(pod, "pod_template")
    assert found is not None and found.spec.containers[0].image_pull_policy == "Never"
    serialized = client.ApiClient().sanitize_for_serialization(make_pod_spec("i:1"))
    assert serialized == make_pod_spec("i:1")


def test_a_model_is_serialized_like_objects_of_the_kubernetes_package() -> None:
    """Its ApiClient reads openapi_types and attribute_map."""
    pod = make_pod_spec("i:1")
    spec = pod.spec
    serialized = {spec.attribute_map[name]: getattr(spec, name) for name in spec.openapi_types}
    assert serialized == dict(spec)


@pytest.mark.parametrize("value", [float("nan"), b"bytes", {1, 2}, object(), lambda: 0, float("inf")])
def test_value_that_kubernetes_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(SpecError, match=r"^pod_template\.spec\.containers\[0\]\.x: .*Kubernetes can hold"):
        read_template({"spec": {"containers": [{"image": "i:1", "x": value}]}}, "pod_template")


def test_key_that_is_not_a_string_is_refused() -> None:
    with pytest.raises(SpecError, match="the key 1 is not a string"):
        plain({"labels": {1: "a"}}, "x")


# make_pod_spec, clean_pod_template


def test_make_pod_spec() -> None:
    pod = make_pod_spec(
        image="i:1", labels={"a": "b"}, threads_per_worker=3, env={"N": 1}, resources="GPU=2", memory_limit="4G",
        memory_request="3G", cpu_limit=2, cpu_request="500m", gpu_limit=1, annotations={"x": "y"},
        extra_container_config={"imagePullPolicy": "Never", "env": [{"name": "M", "value": "2"}],
                                "resources": {"limits": {"ephemeral-storage": "1G"}}},
        extra_pod_config={"serviceAccountName": "sa", "tolerations": [{"key": "k"}]},
    )  # fmt: skip
    assert pod == {
        "metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": "sa",
            "tolerations": [{"key": "k"}],
            "containers": [
                {
                    "name": "dask-container",
                    "image": "i:1",
                    "imagePullPolicy": "Never",
                    "args": ["dask-worker", "$(DASK_SCHEDULER_ADDRESS)", "--nthreads", "3", "--death-timeout", "60",
                             "--memory-limit", "4G", "--resources", "GPU=2"],
                    "env": [{"name": "N", "value": "1"}, {"name": "M", "value": "2"}],
                    "resources": {
                        "limits": {"cpu": 2, "memory": "4G", "nvidia.com/gpu": 1, "ephemeral-storage": "1G"},
                        "requests": {"cpu": "500m", "memory": "3G"},
                    },
                }
            ],
        },
    }  # fmt: skip


def test_automatic_memory_limit_is_none_for_kubernetes() -> None:
    container = make_pod_spec("i:1", memory_limit="auto").spec.containers[0]
    assert container.args[-2:] == ["--memory-limit", "auto"] and container.resources.limits == {}


@pytest.mark.parametrize(
    ("argument", "amount"), [("memory_limit", "4GB"), ("memory_request", "4 G"), ("cpu_limit", "two")]
)
def test_amount_that_kubernetes_does_not_know_is_refused(argument: str, amount: Any) -> None:
    with pytest.raises(SpecError, match=f"{argument}='{amount}' is not an amount"):
        make_pod_spec("i:1", **cast(Any, {argument: amount}))


@pytest.mark.parametrize("pod_type", ["worker", "scheduler"])
def test_pods_tolerate_dedicated_nodes(pod_type: str) -> None:
    pod = clean_pod_template(
        make_pod_spec("i:1", extra_pod_config={"tolerations": [{"key": "mine"}]}), pod_type=pod_type
    )
    taint = {"operator": "Equal", "value": pod_type, "effect": "NoSchedule"}
    assert pod.spec.tolerations == [
        {"key": "mine"},
        {"key": "k8s.dask.org/dedicated", **taint},
        {"key": "k8s.dask.org_dedicated", **taint},
    ]


def test_default_affinity() -> None:
    term = {"matchExpressions": [{"key": "k8s.dask.org/node-purpose", "operator": "In", "values": ["worker"]}]}
    given = make_pod_spec("i:1")
    preferred = clean_pod_template(given).spec.affinity.node_affinity
    assert preferred == {"preferredDuringSchedulingIgnoredDuringExecution": [{"preference": term, "weight": 100}]}
    required = clean_pod_template(given, "required").spec.affinity.node_affinity
    assert required == {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert clean_pod_template(given, "none").spec.affinity is None
    assert given.spec.affinity is None and given.spec.tolerations is None, "the template itself is not changed"
    with pytest.raises(SpecError, match=r"prefered.*Did you mean 'preferred'"):
        clean_pod_template(given, "prefered")


def test_containers_without_a_name_get_one() -> None:
    pod = make_pod_from_dict({"spec": {"containers": [{"image": "i:1"}, {"image": "j:1", "name": "side"}]}})
    assert [container.name for container in pod.spec.containers] == ["dask-0", "side"]


# where templates come from

POD: dict[str, Any] = {"spec": {"containers": [{"image": "i:1"}]}}


def pod_with(**fields: Any) -> dict[str, Any]:
    """A pod whose container has these fields."""
    return {"spec": {"containers": [{"image": "i:1", **fields}]}}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({}, "it has no `spec`"),
        ({"spec": {}}, "it has no containers"),
        ({"spec": {"containers": []}}, "it has no containers"),
        ({"spec": {"containers": [{"name": "x"}]}}, "it has no image"),
        (["a"], "it has no `spec`"),
        (3, "it has no `spec`"),
        ({**POD, "metadata": "x"}, r"pod_template.metadata: 'x' is not a dict"),
        ({**POD, "metadata": {"labels": ["x"]}}, r"pod_template.metadata.labels: \['x'\] is not a dict"),
        ({"spec": {**POD["spec"], "tolerations": "x"}}, "spec.tolerations: 'x' is not a list"),
        ({"spec": {**POD["spec"], "affinity": []}}, r"spec.affinity: \[\] is not a dict"),
        ({"spec": {**POD["spec"], "affinity": {"nodeAffinity": 1}}}, "spec.affinity.nodeAffinity: 1 is not a dict"),
        (pod_with(args="dask-worker --nthreads 2"), "args: 'dask-worker --nthreads 2' is not a list"),
        (pod_with(command="dask-worker"), "command: 'dask-worker' is not a list"),
        (pod_with(args=["dask-worker", "--nthreads", 2]), r"containers\[0\].args\[2\]: 2 is not text"),
        (pod_with(env={"A": "1"}), "env: {'A': '1'} is not a list"),
        (pod_with(env=["A=1"]), r"env\[0\]: 'A=1' has no name"),
        (pod_with(env=[{"value": "1"}]), r"env\[0\]: {'value': '1'} has no name"),
    ],
)
def test_template_that_is_no_pod_is_refused(template: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read_template(template, "pod_template")


def test_environment_variables_in_a_file_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "worker.yml"
    path.write_text("spec: {containers: [{image: $MY_IMAGE, args: ['${MY_WORD}', x]}]}")
    monkeypatch.setenv("MY_IMAGE", "i:9")
    monkeypatch.setenv("MY_WORD", "dask-worker")
    for given in (str(path), path):
        found = read_template(given, "pod_template")
        assert found is not None and found.spec.containers[0].image == "i:9"
        assert found.spec.containers[0].args == ["dask-worker", "x"]


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"pod_template: cannot read .*none.yml: No such file"):
        read_template(str(tmp_path / "none.yml"), "pod_template")
    (tmp_path / "bad.yml").write_text("{")
    with pytest.raises(SpecError, match=r"bad.yml is not valid YAML"):
        read_template(str(tmp_path / "bad.yml"), "pod_template")


def test_configured_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"spec": {"containers": [{"image": "$MY_IMAGE"}]}}
    path = tmp_path / "worker.yml"
    path.write_text(json.dumps(data))
    monkeypatch.setenv("MY_IMAGE", "i:9")
    monkeypatch.setenv("MY_FOLDER", str(tmp_path))
    assert configured_template("worker") is None
    with dask.config.set({"kubernetes.worker-template": data}):
        found = configured_template("worker")
        assert found is not None and found.spec.containers[0].image == "i:9"
    with dask.config.set({"kubernetes.worker-template-path": "{MY_FOLDER}/worker.yml"}):
        found = configured_template("worker")
        assert found is not None and found.spec.containers[0].image == "i:9"
        with dask.config.set({"kubernetes.worker-template": data}), pytest.raises(SpecError, match="has both"):
            configured_template("worker")
    with dask.config.set({"kubernetes.worker-template-path": "{NOT_SET}/worker.yml"}):
        with pytest.raises(SpecError, match=r"template-path '{NOT_SET}/.*' needs the environment variable NOT_SET"):
            configured_template("worker")


# names


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("dask-{user}-{uuid}", "dask-ann-1b2"),
        ("dask-{JUPYTERHUB_USER}-{uuid}", "dask-bobexample-1b2"),
        ("My_Cluster", "mycluster"),
        ("-x-", "x"),
    ],
)
def test_name_of_the_cluster(pattern: str, name: str) -> None:
    assert cluster_name(pattern, "ann", "1b2", {"JUPYTERHUB_USER": "Bob@example", "user": "no", "uuid": "no"}) == name


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("dask-{HUB}-{uuid}", "needs the environment variable HUB"),
        ("dask-{", "not a valid pattern"),
        ("1st", "'1st' cannot be the name"),
        ("x" * 58, "cannot be the name"),
        ("___", "'' cannot be the name"),
    ],
)
def test_impossible_name_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        cluster_name(pattern, "ann", "1b2", {})


# pods


def env_of(pod: Model) -> dict[str, Any]:
    found = pod.spec.containers[0].env
    assert len({each["name"] for each in found}) == len(found)
    return {each["name"]: each.get("value") for each in found}


def test_worker_pod() -> None:
    settings = Settings("demo", "lab", "ann", env={"A": 1, "EXTRA_PIP_PACKAGES": "x y"})
    pod = worker_pod(make_pod_spec("i:1", labels={"foo": "bar", "app": "mine"}, env={"A": "0", "B": "2"}), settings)
    assert pod.metadata.generate_name == "demo-" and pod.metadata.namespace == "lab"
    assert pod.metadata.labels == {
        "foo": "bar", "app": "dask", "user": "ann", "dask.org/cluster-name": "demo", "dask.org/component": "worker",
    }  # fmt: skip
    env = env_of(pod)
    assert env["DASK_SCHEDULER_ADDRESS"] == "tcp://demo.lab:8786"
    assert (env["A"], env["B"], env["EXTRA_PIP_PACKAGES"]) == ("1", "2", "x y")
    args = pod.spec.containers[0].args
    assert args[:4] == ["sh", "-c", SHIM, "oars"]
    assert args[4:6] == ["dask-worker", "$(DASK_SCHEDULER_ADDRESS)"] and args[-2:] == ["--name", "$(DASK_WORKER_NAME)"]
    assert pod.spec.restart_policy == "Never"


@pytest.mark.parametrize(
    ("command", "args", "program"),
    [
        (["dask-worker"], ["--nthreads", "2"], "command"),
        (["tini", "-g", "--"], ["dask-cuda-worker", "$(DASK_SCHEDULER_ADDRESS)"], "args"),
        (["tini", "-g", "--", "dask-worker"], None, "command"),
        (None, ["/opt/conda/bin/dask-worker", "x"], "args"),
        (None, ["dask", "worker"], None),
    ],
)
def test_shim_stands_before_the_old_program(command: Any, args: Any, program: str | None) -> None:
    container = {"image": "i:1", "command": command, "args": args}
    pod = worker_pod(make_pod_from_dict({"spec": {"containers": [container]}}), SETTINGS).spec.containers[0]
    for key, words in (("command", command), ("args", args)):
        found = list(pod.get(key) or ())
        if key == program:
            at = found.index(SHIM)
            assert found[at - 2 : at + 2] == ["sh", "-c", SHIM, "oars"]
            del found[at - 2 : at + 2]
        assert found == [*(words or ()), *(("--name", "$(DASK_WORKER_NAME)") if key == "args" else ())]


LINE = "pip list; exec {}dask-worker{} $(DASK_SCHEDULER_ADDRESS)"
NAMED = " --name '$(DASK_WORKER_NAME)'"
RUN = 'sh -c "$OARS_DASK" oars '


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (LINE.format("", ""), LINE.format(RUN, NAMED)),
        (LINE.format("/opt/bin/", ""), LINE.format(f"{RUN}/opt/bin/", NAMED)),
        ("dask worker x", f"dask worker{NAMED} x"),
        ("dask-worker x & dask-worker y; wait", f"{RUN}dask-worker x & {RUN}dask-worker y; wait"),
        ("echo my-dask-worker dask-workers", "echo my-dask-worker dask-workers"),
    ],
)
@pytest.mark.parametrize("split", [0, 2, 3])
def test_shim_stands_in_a_shell_line(line: str, expected: str, split: int) -> None:
    """Whether the words are a command, arguments, or both. Two workers cannot have the pod's name."""
    words = ["bash", "-ec", line]
    pod = worker_pod(pod_with(command=words[:split] or None, args=words[split:] or None), SETTINGS)
    found = [*(pod.spec.containers[0].command or ()), *(pod.spec.containers[0].args or ())]
    assert found[:3] == ["bash", "-ec", expected]
    assert env_of(pod).get("OARS_DASK") == (SHIM if "$OARS_DASK" in expected or "dask worker" in expected else None)


def test_image_s_own_command_is_left_alone() -> None:
    pod = worker_pod(make_pod_from_dict({"spec": {"containers": [{"image": "i:1"}]}}), SETTINGS)
    assert pod.spec.containers[0].args is None and pod.spec.containers[0].command is None


def test_scheduler_pod_has_the_workers_template_by_default() -> None:
    template = make_pod_spec("i:1", memory_limit="4G", env={"B": "2"})
    settings = Settings("demo", "lab", "ann", idle_timeout="5 minutes", orphaned=120.0)
    pod = scheduler_pod(None, template, settings)
    container = pod.spec.containers[0]
    assert container.args[4:] == ["dask-scheduler", "--idle-timeout", "5 minutes"]
    assert container.resources.limits == {"memory": "4G"} and env_of(pod)["B"] == "2"
    assert pod.metadata.labels["dask.org/component"] == "scheduler"
    assert env_of(pod)["OARS_ORPHANED"] == "120" and "DASK_SCHEDULER_ADDRESS" not in env_of(pod)
    assert {each["value"] for each in pod.spec.tolerations} == {"scheduler"}
    template.spec.restart_policy = "Always"
    assert scheduler_pod(None, template, settings).spec.restart_policy == "Never", "an idle scheduler ends for good"
    assert worker_pod(template, settings).spec.restart_policy == "Always"


@pytest.mark.parametrize(
    "words",
    [
        ["dask-worker"],
        ["/bin/dask-worker"],
        ["dask"],
        ["dask", "worker"],
        ["bash", "-c"],
        ["sh", "-c", "dask-worker x"],
    ],
)
def test_scheduler_does_not_inherit_the_workers_command(words: list[str]) -> None:
    template = pod_with(command=words, args=["--nthreads", "2"])
    made = scheduler_pod(None, make_pod_from_dict(template), SETTINGS).spec.containers[0]
    assert made.command is None and made.args[4:] == ["dask-scheduler"]


def test_scheduler_s_own_template() -> None:
    own = {"spec": {"containers": [{"image": "s:1", "args": ["dask-scheduler", "--preload", "mine"]}]}}
    container = scheduler_pod(own, make_pod_spec("i:1"), SETTINGS).spec.containers[0]
    assert container.image == "s:1" and container.args[4:] == ["dask-scheduler", "--preload", "mine"]
    for words in (["dask", "scheduler", "--preload", "mine"], ["/opt/bin/dask", "scheduler", "--preload", "mine"]):
        for split in (0, 1, 2):
            own = pod_with(command=words[:split] or None, args=words[split:])
            made = scheduler_pod(own, make_pod_spec("i:1"), SETTINGS).spec.containers[0]
            assert [*(made.command or ()), *made.args] == words
    line = pod_with(command=["sh", "-c", "mkdir x && dask scheduler --preload mine"])
    settings = Settings("demo", "lab", "ann", idle_timeout="5 minutes")
    made = scheduler_pod(line, make_pod_spec("i:1"), settings).spec.containers[0]
    assert made.command[2] == "mkdir x && dask scheduler --idle-timeout '5 minutes' --preload mine"
    other = {"spec": {"containers": [{"image": "s:1", "args": ["dask-worker"]}]}}
    assert scheduler_pod(other, make_pod_spec("i:1"), SETTINGS).spec.containers[0].args[4:] == ["dask-scheduler"]


def test_tls_reaches_the_scheduler_and_the_workers() -> None:
    settings = Settings("demo", "lab", "ann", protocol="tls")
    assert scheduler_pod(None, make_pod_spec("i:1"), settings).spec.containers[0].args[-2:] == ["--protocol", "tls"]
    assert env_of(worker_pod(make_pod_spec("i:1"), settings))["DASK_SCHEDULER_ADDRESS"] == "tls://demo.lab:8786"


def test_preload_is_a_module_and_keeps_the_user_s_preloads() -> None:
    text = env_of(scheduler_pod(None, make_pod_spec("i:1"), SETTINGS))[templates.PRELOAD]
    ast.parse(text)
    assert " " in text and not text.endswith(".py"), "else Dask takes it for a name or a path"
    for own in ("mine", '["mine"]'):
        pod = scheduler_pod(None, make_pod_spec("i:1", env={templates.PRELOAD: own}), SETTINGS)
        assert json.loads(env_of(pod)[templates.PRELOAD]) == ["mine", text]
    assert templates._unexpanded("a $(B) c") == "a $$(B) c"


def test_service_and_budget_select_the_scheduler_of_this_cluster_alone() -> None:
    found = service(dask.config.get("kubernetes.scheduler-service-template"), "ClusterIP", SETTINGS, "abc")
    selector = {"dask.org/cluster-name": "demo", "dask.org/component": "scheduler", "oars.dev/instance": "abc"}
    assert found["metadata"]["name"] == "demo" and found["metadata"]["namespace"] == "lab"
    assert found["spec"]["selector"] == selector and found["spec"]["type"] == "ClusterIP"
    budget = templates.disruption_budget(dask.config.get("kubernetes.scheduler-pdb-template"), SETTINGS, "abc")
    assert budget["spec"] == {"minAvailable": 1, "selector": {"matchLabels": selector}}
    assert budget["apiVersion"] == "policy/v1"


@pytest.mark.parametrize(("written", "used"), [("ClusterIp", "ClusterIP"), ("nodeport", "NodePort")])
def test_service_type_is_known_in_any_spelling(written: str, used: str) -> None:
    """The page has ClusterIp."""
    template = dask.config.get("kubernetes.scheduler-service-template")
    assert service(template, written, SETTINGS, "abc")["spec"]["type"] == used
    with pytest.raises(SpecError, match="there is no type 'Ingress'"):
        service(template, "Ingress", SETTINGS, "abc")


def test_sizes_of_a_worker() -> None:
    template = make_pod_spec("i:1", threads_per_worker=4, memory_limit="2G")
    assert threads_per_worker(template) == 4 and memory_per_worker(template) == 2_000_000_000
    joined = make_pod_from_dict({"spec": {"containers": [{"image": "i", "command": ["dask-worker", "--nthreads=3"]}]}})
    assert option_of(joined, "--nthreads") == "3" and option_of(joined, "--memory-limit") is None


# the shim, with real programs


def run_shim(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{folder}:/usr/bin:/bin"}
    return subprocess.run(["sh", "-c", SHIM, "oars", *words], env=env, capture_output=True, text=True, timeout=20)


def program(path: Path) -> None:
    path.write_text(f'#!/bin/sh\necho "{path.name} $*"\n')
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("programs", "words", "output"),
    [
        (["dask-worker", "dask"], ["dask-worker", "--nthreads", "2 3"], "dask-worker --nthreads 2 3"),
        (["dask"], ["dask-worker", "a", "--name", "b"], "dask worker a --name b"),
        (["dask"], ["dask-scheduler"], "dask scheduler"),
        (["dask"], ["dask-cuda-worker", "a"], "dask cuda worker a"),
    ],
)
def test_shim_runs_what_the_image_has(tmp_path: Path, programs: list[str], words: list[str], output: str) -> None:
    for each in programs:
        program(tmp_path / each)
    assert run_shim(tmp_path, *words).stdout == f"{output}\n"


def test_shim_finds_dask_beside_the_old_program(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    program(tmp_path / "beside" / "dask")
    assert run_shim(tmp_path, f"{tmp_path}/beside/dask-worker", "a").stdout == "dask worker a\n"
    program(tmp_path / "beside" / "dask-worker")
    assert run_shim(tmp_path, f"{tmp_path}/beside/dask-worker", "a").stdout == "dask-worker a\n"


def test_shim_runs_in_a_shell_line(tmp_path: Path) -> None:
    program(tmp_path / "dask")
    made = worker_pod(pod_with(command=["sh", "-c", "true && exec dask-worker 'a b'; echo no"]), SETTINGS)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OARS_DASK": env_of(made)["OARS_DASK"]}
    words = [word.replace("$(DASK_WORKER_NAME)", "pod-1") for word in made.spec.containers[0].command]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=20)
    assert done.stdout == "dask worker --name pod-1 a b\n"


def test_shim_says_that_the_image_has_no_dask(tmp_path: Path) -> None:
    done = run_shim(tmp_path, "dask-worker", "x")
    assert done.returncode == 127
    assert done.stderr == "This image contains no Dask: neither dask-worker nor dask is on its PATH.\n"


def test_importing_needs_neither_kubernetes_nor_an_event_loop() -> None:
    code = "import sys, oars.compat.dask_kubernetes; assert not {'kubernetes', 'kubernetes_asyncio'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=dict(os.environ))


def test_models_copy_their_content() -> None:
    source = {"a": [{"b": 1}]}
    copied = model(source)
    copied.a[0].b = 2
    assert source == {"a": [{"b": 1}]}
