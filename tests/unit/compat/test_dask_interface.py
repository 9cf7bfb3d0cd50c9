"""Signatures, defaults and names of dask-kubernetes 2024.4.2, the last version with the classic KubeCluster."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from typing import Any, cast

import dask
import pytest
import yaml
from distributed.deploy.adaptive import Adaptive
from distributed.deploy.cluster import Cluster
from distributed.security import Security

import oars.compat.dask_kubernetes as compat
from oars.base.errors import UsageError
from oars.compat.dask_kubernetes import checks, classic, operator
from oars.compat.dask_kubernetes.classic import arguments
from oars.compat.dask_kubernetes.common import auth, objects
from tests.compat.blocks import DASK_KUBERNETES_CLASSIC, page
from tests.unit.compat.memory_handle import newer_cluster

NONE = inspect.Parameter.empty

KUBE_CLUSTER = {
    "pod_template": None,
    "name": None,
    "namespace": None,
    "n_workers": None,
    "host": None,
    "port": None,
    "env": None,
    "auth": compat.ClusterAuth.DEFAULT,
    "idle_timeout": None,
    "deploy_mode": None,
    "interface": None,
    "protocol": None,
    "dashboard_address": None,
    "security": None,
    "scheduler_service_wait_timeout": None,
    "scheduler_service_name_resolution_retries": None,
    "scheduler_pod_template": None,
    "apply_default_affinity": "preferred",
    "kwargs": NONE,
}
MAKE_POD_SPEC = {
    "image": NONE,
    "labels": {},
    "threads_per_worker": 1,
    "env": {},
    "extra_container_config": {},
    "extra_pod_config": {},
    "resources": None,
    "memory_limit": None,
    "memory_request": None,
    "cpu_limit": None,
    "cpu_request": None,
    "gpu_limit": None,
    "annotations": {},
}
ADAPT = {
    "minimum": 0,
    "maximum": math.inf,
    "minimum_cores": None,
    "maximum_cores": None,
    "minimum_memory": None,
    "maximum_memory": None,
    "kwargs": NONE,
}


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    found = inspect.signature(function).parameters
    return {name: each.default for name, each in found.items() if name not in ("self", "cls", "Adaptive")}


@pytest.mark.parametrize(
    ("function", "original"),
    [
        (compat.KubeCluster.__init__, KUBE_CLUSTER),
        (compat.KubeCluster.from_dict, {"pod_spec": NONE, "kwargs": NONE}),
        (compat.KubeCluster.from_yaml, {"yaml_path": NONE, "kwargs": NONE}),
        (compat.KubeCluster.scale, {"n": NONE}),
        (compat.KubeCluster.adapt, ADAPT),
        (compat.KubeCluster.get_logs, {"cluster": True, "scheduler": True, "workers": True}),
        (compat.KubeCluster.close, {"timeout": None}),
        (compat.KubeCluster.logs, {"pod": None}),
        (compat.KubeCluster.pods, {}),
        (compat.make_pod_spec, MAKE_POD_SPEC),
        (compat.make_pod_from_dict, {"dict_": NONE}),
        (
            compat.clean_pod_template,
            {"pod_template": NONE, "apply_default_affinity": "preferred", "pod_type": "worker"},
        ),
        (compat.KubeConfig.__init__, {"config_file": None, "context": None, "persist_config": True}),
        (compat.KubeAuth.__init__, {"host": NONE, "kwargs": NONE}),
        (compat.ClusterAuth.load_first, {"auth": None}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_signature_is_that_of_the_original(function: Callable[..., Any], original: dict[str, Any]) -> None:
    assert list(parameters(function).items()) == list(original.items())


# Each argument: a value, and where it arrives.
EFFECTS: dict[str, tuple[Any, Callable[[arguments.Arguments], Any], Any]] = {
    "pod_template": (compat.make_pod_spec("own:1"), lambda found: worker(found).containers[0].image, "own:1"),
    "name": ("mine", lambda found: found.plan("lab").settings.name, "mine"),
    "namespace": ("lab", lambda found: found.namespace, "lab"),
    "n_workers": (3, lambda found: found.plan("lab").workers, 3),
    "host": ("127.0.0.1", lambda found: found.host, "127.0.0.1"),
    "port": (8790, lambda found: found.port, 8790),
    "env": ({"A": 1}, lambda found: {"name": "A", "value": "1"} in worker(found).containers[0].env, True),
    "auth": (compat.InCluster(), lambda found: [type(each) for each in found.auth], [compat.InCluster]),
    "idle_timeout": ("5 minutes", lambda found: scheduler(found).containers[0].args[-2:],
                     ["--idle-timeout", "5 minutes"]),
    "deploy_mode": ("local", lambda found: found.plan("lab").scheduler, None),
    "interface": ("lo", lambda found: (found.interface, found.host), ("lo", None)),
    "protocol": ("tls://", lambda found: scheduler(found).containers[0].args[-2:], ["--protocol", "tls"]),
    "dashboard_address": (":8899", lambda found: found.dashboard_address, ":8899"),
    "security": (Security(require_encryption=True), lambda found: found.plan("lab").settings.protocol, "tls"),
    "scheduler_service_wait_timeout": (7, lambda found: found.plan("lab").patience.load_balancer, 7),
    "scheduler_service_name_resolution_retries": (9, lambda found: found.plan("lab").patience.name_attempts, 9),
    "scheduler_pod_template": (compat.make_pod_spec("head:1"), lambda found: scheduler(found).containers[0].image,
                               "head:1"),
    "apply_default_affinity": ("required", lambda found: [*worker(found).affinity.node_affinity],
                               ["requiredDuringSchedulingIgnoredDuringExecution"]),
}  # fmt: skip


def worker(found: arguments.Arguments) -> Any:
    return found.plan("lab").worker().spec


def scheduler(found: arguments.Arguments) -> Any:
    pod = found.plan("lab").scheduler
    assert pod is not None
    return pod.spec


def test_every_argument_arrives() -> None:
    assert [*EFFECTS] == [name for name in KUBE_CLUSTER if name != "kwargs"]
    given = {**KUBE_CLUSTER, "pod_template": compat.make_pod_spec("i:1")}
    default = arguments.resolve(given, {})
    for name, (value, arrives, expected) in EFFECTS.items():
        found = arguments.resolve({**given, name: value}, {})
        assert arrives(found) != arrives(default), name
        assert arrives(found) == expected, name


# Arguments of the class in 0.6 to 2024.4.2 and of its base class in distributed that it does not have: today's name.
GONE = {
    "scheduler_timeout": "Did you mean 'idle_timeout'?",  # 0.10
    "workers": "Did you mean 'n_workers'?",  # SpecCluster
    "image": "It is an argument of make_pod_spec and of oars.compat.dask_kubernetes.operator.KubeCluster.",
    "memory_limit": "It is an argument of make_pod_spec.",
    "worker_command": "It is an argument of oars.compat.dask_kubernetes.operator.KubeCluster.",
}
OF_ITS_BASE = "asynchronous loop silence_logs shutdown_on_close scheduler_sync_interval shutdown_scheduler".split()


@pytest.mark.parametrize(("name", "today"), GONE.items())
def test_argument_that_is_gone_or_elsewhere_gets_its_name(name: str, today: str) -> None:
    with pytest.raises(TypeError) as refused:
        arguments.resolve(KUBE_CLUSTER, {name: 1})
    assert str(refused.value) == f"KubeCluster() got an unexpected keyword argument {name!r}. {today}"


def test_arguments_of_the_base_class_are_known() -> None:
    assert {*OF_ITS_BASE} <= {*arguments.FURTHER} <= {*OF_ITS_BASE, "quiet"}


def test_arguments_that_are_elsewhere_are_those_of_the_signatures() -> None:
    names = {
        "make_pod_spec": {*parameters(compat.make_pod_spec)},
        "oars.compat.dask_kubernetes.classic.KubeCluster": {*parameters(compat.KubeCluster.__init__)},
        "oars.compat.dask_kubernetes.operator.KubeCluster": {*parameters(operator.KubeCluster.__init__)},
    }
    classes = [each for owner, each in names.items() if owner != "make_pod_spec"]
    common = {*arguments.FURTHER} | (classes[0] & classes[1])
    assert {owner: {*each} for owner, each in checks.ELSEWHERE.items()} == {
        owner: each - common for owner, each in names.items()
    }
    with pytest.raises(TypeError, match=r"'auth'\. It is an argument of oars\.\S+\.classic\.KubeCluster\."):
        operator.KubeCluster(**cast(Any, {"auth": None}))


def test_names_are_where_the_original_has_them() -> None:
    assert classic.KubeCluster is compat.KubeCluster and classic.make_pod_spec is compat.make_pod_spec
    assert objects.make_pod_from_dict is compat.make_pod_from_dict and auth.KubeAuth is compat.KubeAuth
    assert [type(each) for each in compat.ClusterAuth.DEFAULT] == [compat.InCluster, compat.KubeConfig]
    for each in (compat.InCluster, compat.KubeConfig, compat.KubeAuth):
        assert issubclass(each, compat.ClusterAuth)


def test_it_is_a_cluster_manager_of_distributed() -> None:
    assert issubclass(compat.KubeCluster, Cluster)
    default = inspect.signature(compat.KubeCluster.adapt).parameters["Adaptive"].default
    assert issubclass(default, Adaptive)


@pytest.mark.parametrize(
    "attribute",
    ["adapt", "from_dict", "from_yaml", "get_logs", "pods", "scale", "close", "scale_up", "scale_down", "logs",
     "dashboard_link", "scheduler_pod", "from_pod_spec", "workers", "name", "scheduler_address", "get_client",
     "wait_for_workers", "plan", "requested", "observed"],
)  # fmt: skip
def test_members_of_the_class(attribute: str) -> None:
    assert hasattr(compat.KubeCluster, attribute)


# What __init__ of the originals and their base classes sets, without a leading underscore. The classic class also has
# core_api and policy_api of the `kubernetes` package, and the internals of SpecCluster: not here.
COMMON = ("name namespace env shutdown_on_close loop quiet asynchronous status scheduler_info scheduler_comm "
          "periodic_callbacks scheduler_address dashboard_link forwarded_dashboard_port").split()  # fmt: skip
CLASSIC = ("pod_template scheduler_pod_template apply_default_affinity host port auth security kwargs scheduler "
           "workers plan requested observed").split()  # fmt: skip
NEWER = ("image n_workers resources worker_command port_forward_cluster_ip create_mode scheduler_service_type "
         "scheduler_forward_port jupyter idle_timeout").split()  # fmt: skip


@pytest.mark.parametrize("is_classic", [True, False], ids=["classic", "newer"])
def test_attributes_of_an_instance(is_classic: bool) -> None:
    async def body() -> None:
        cluster: Any = (
            compat.KubeCluster(compat.make_pod_spec("i:1"), asynchronous=True)
            if is_classic
            else operator.KubeCluster(image="i:1", worker_command="dask worker", asynchronous=True)
        )
        missing = [name for name in [*COMMON, *(CLASSIC if is_classic else NEWER)] if not hasattr(cluster, name)]
        await cluster.close()
        assert not missing
        assert is_classic or cluster.worker_command == ["dask", "worker"]

    asyncio.run(body())


def test_dashboard_port_of_a_connected_cluster() -> None:
    async def body() -> None:
        cluster, _ = newer_cluster()
        assert cluster.forwarded_dashboard_port == "8787"
        await cluster.close()

    asyncio.run(body())


@pytest.mark.parametrize("kind", [compat.KubeCluster, operator.KubeCluster])
def test_description_says_how_to_check_versions_and_add_packages(kind: type) -> None:
    text = kind.__doc__ or ""
    assert "get_versions(check=True)" in text and "oars image build --engine dask" in text


def test_scheduler_that_would_outlive_its_cluster_is_refused() -> None:
    template = compat.make_pod_spec("i:1")
    with pytest.raises(UsageError, match="shutdown_scheduler=False: the scheduler ends with its cluster"):
        compat.KubeCluster(template, shutdown_scheduler=False)
    given = {**KUBE_CLUSTER, "pod_template": template}
    assert arguments.resolve(given, {"shutdown_scheduler": True}).more["shutdown_scheduler"] is True


# From kubernetes.yaml of dask-kubernetes 2024.4.2. worker-name is the page's; it has no default there.
CONFIGURATION: dict[str, Any] = {
    "name": "dask-{user}-{uuid}",
    "namespace": None,
    "env": {},
    "count.start": 0,
    "count.max": None,
    "scheduler-service-type": "ClusterIP",
    "image": "ghcr.io/dask/dask:latest",
    "resources": {},
    "worker-command": "dask-worker",
    "port-forward-cluster-ip": None,
    "create-mode": "CREATE_OR_CONNECT",
    "shutdown-on-close": True,
    "resource-timeout": 60,
    "custom-cluster-spec": None,
    "scheduler-forward-port": None,
    "scheduler-jupyter": False,
    "controller.worker-allocation.batch-size": None,
    "controller.worker-allocation.delay": None,
    "controller.events.enabled": True,
    "controller.events.level": "INFO",
    "host": "0.0.0.0",
    "port": 0,
    "idle-timeout": None,
    "deploy-mode": "remote",
    "interface": None,
    "protocol": "tcp://",
    "dashboard_address": ":8787",
    "scheduler-service-wait-timeout": 30,
    "scheduler-service-name-resolution-retries": 20,
    "worker-template-path": None,
    "worker-template": {},
    "scheduler-template": {},
    "scheduler-pdb-template.spec.minAvailable": 1,
    "worker-name": None,
}


@pytest.mark.parametrize(("key", "default"), CONFIGURATION.items())
def test_configuration_has_the_original_defaults(key: str, default: Any) -> None:
    assert dask.config.get(f"kubernetes.{key}") == default


def test_default_service_has_the_original_ports() -> None:
    ports = dask.config.get("kubernetes.scheduler-service-template")["spec"]["ports"]
    assert [(port["name"], port["port"], port["targetPort"]) for port in ports] == [
        ("tcp-comm", 8786, 8786),
        ("http-dashboard", 8787, 8787),
    ]


def test_yaml_of_the_page_is_a_pod_template() -> None:
    pods = [
        yaml.safe_load(code)
        for language, code in page(DASK_KUBERNETES_CLASSIC)
        if language == "yaml" and "kind: Pod" in code
    ]
    assert len(pods) == 2
    for pod in pods:
        cleaned = compat.clean_pod_template(compat.make_pod_from_dict(pod))
        assert cleaned.spec.restart_policy == "Never" and cleaned.metadata.labels["foo"] == "bar"
