"""The newer KubeCluster: its signatures, and what Oars makes of DaskCluster resources."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any, cast

import dask
import pytest

from oars.base.errors import OarsError, SpecError, UsageError
from oars.compat.dask_kubernetes import operator
from oars.compat.dask_kubernetes.operator import (
    CreateMode,
    KubeCluster,
    arguments,
    make_cluster_spec,
    make_scheduler_spec,
    make_worker_spec,
    manifest,
)
from tests.unit.compat.memory_handle import newer_cluster

NONE = inspect.Parameter.empty
NAMES = ("name namespace image n_workers resources env worker_command port_forward_cluster_ip create_mode "
         "shutdown_on_close idle_timeout resource_timeout scheduler_service_type custom_cluster_spec "
         "scheduler_forward_port").split()  # fmt: skip
IMAGE = "ghcr.io/dask/dask:latest"


def parameters(function: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters
    return {name: each.default for name, each in found.items() if name != "self"}


@pytest.mark.parametrize(
    ("function", "original"),
    [
        (
            KubeCluster.__init__,
            {**dict.fromkeys(NAMES), "jupyter": False, "loop": None, "asynchronous": False, "quiet": False,
             "kwargs": NONE},
        ),
        (KubeCluster.scale, {"n": NONE, "worker_group": "default"}),
        (KubeCluster.adapt, {"minimum": None, "maximum": None}),
        (
            KubeCluster.add_worker_group,
            {"name": NONE, "n_workers": 3, "image": None, "resources": None, "worker_command": None, "env": None,
             "custom_spec": None},
        ),
        (KubeCluster.delete_worker_group, {"name": NONE}),
        (KubeCluster.get_logs, {}),
        (KubeCluster.close, {"timeout": 3600}),
        (KubeCluster.from_name, {"name": NONE, "kwargs": NONE}),
        (
            make_cluster_spec,
            {"name": NONE, "image": IMAGE, "n_workers": None, "resources": None, "env": None,
             "worker_command": "dask-worker", "scheduler_service_type": "ClusterIP", "idle_timeout": 0,
             "jupyter": False},
        ),
        (
            make_worker_spec,
            {"image": IMAGE, "n_workers": 3, "resources": None, "env": None, "worker_command": "dask-worker"},
        ),
        (
            make_scheduler_spec,
            {"cluster_name": NONE, "env": None, "resources": None, "image": IMAGE,
             "scheduler_service_type": "ClusterIP", "jupyter": False},
        ),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)  # fmt: skip
def test_signature_is_that_of_the_original(function: Any, original: dict[str, Any]) -> None:
    assert list(parameters(function).items()) == list(original.items())


def test_manifest_is_that_of_the_original() -> None:
    found = make_cluster_spec("demo", n_workers=2, env={"A": "1"}, resources={"limits": {"cpu": "2"}}, idle_timeout=5)
    assert (found["apiVersion"], found["kind"], found["metadata"]) == (
        "kubernetes.dask.org/v1", "DaskCluster", {"name": "demo"},
    )  # fmt: skip
    spec = found["spec"]
    assert spec["idleTimeout"] == 5 and spec["worker"]["replicas"] == 2
    (worker,) = spec["worker"]["spec"]["containers"]
    assert worker["args"] == [
        "dask-worker",
        "--name",
        "$(DASK_WORKER_NAME)",
        "--dashboard",
        "--dashboard-address",
        "8788",
    ]
    assert worker["env"] == [{"name": "A", "value": "1"}] and worker["resources"] == {"limits": {"cpu": "2"}}
    (scheduler,) = spec["scheduler"]["spec"]["containers"]
    assert scheduler["args"] == ["dask-scheduler", "--host", "0.0.0.0"]
    assert [port["port"] for port in spec["scheduler"]["service"]["ports"]] == [8786, 8787]
    assert sorted(operator.__all__) == [
        "CreateMode", "KubeCluster", "discover", "make_cluster_spec", "make_scheduler_spec", "make_worker_spec",
    ]  # fmt: skip


def resolve(**given: Any) -> arguments.Arguments:
    known = {**parameters(KubeCluster.__init__)}
    known.pop("kwargs")
    more = {key: value for key, value in given.items() if key not in known}
    return arguments.resolve({**known, **{key: value for key, value in given.items() if key in known}}, more)


def test_packages_that_the_pods_do_not_install_are_reported() -> None:
    """Unlike the classic class, it does not run the entry point of Dask's images."""
    with pytest.warns(UserWarning, match="Oars does not run the entry point of Dask's images"):
        spec = resolve(image="i:1", env={"EXTRA_PIP_PACKAGES": "s3fs", "A": "1"}).spec
    assert spec.head.env == spec.workers[0].env == {"A": "1"}


def test_arguments_become_a_spec() -> None:
    with pytest.warns(UserWarning, match="args.nthreads: a worker has as many threads as processors"):
        found = resolve(
            name="demo", image="i:1", n_workers=3, env={"A": "1"}, scheduler_service_type="NodePort",
            resources={"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi", "nvidia.com/gpu": 1}},
            worker_command=["dask-worker", "--nthreads", "2", "--resources", "A=1 B=2.5"],
        )  # fmt: skip
    spec = found.spec
    assert (spec.engine, spec.place, spec.image, spec.expose.type) == ("dask", "kubernetes", "i:1", "NodePort")
    (group,) = spec.workers
    assert (group.name, group.replicas, group.cpu, group.memory, group.gpu) == ("default", 3, 0.5, 2 << 30, 1)
    assert group.burst and group.resources == {"A": 1.0, "B": 2.5} and group.env == {"A": "1"}
    assert spec.head.cpu == 0.5 and spec.head.env == {"A": "1"} and not group.pod


def test_jupyter_is_an_option_of_the_head() -> None:
    assert resolve(name="demo", jupyter=True).spec.engine_options == {"jupyter": True}
    assert (
        not resolve(name="demo").jupyter
        and resolve(custom_cluster_spec=make_cluster_spec("demo", jupyter=True)).jupyter
    )
    with dask.config.set({"kubernetes.scheduler-jupyter": True}):
        assert resolve(name="demo").jupyter


def test_link_to_jupyter_has_the_token(tmp_path: Path) -> None:
    async def body() -> None:
        cluster, handle = newer_cluster(name="demo", image="i:1", jupyter=True)
        (tmp_path / "token").write_text("secret")
        handle.env["OARS_TOKEN_FILE"] = str(tmp_path / "token")
        link = cluster.jupyter_link
        await cluster.close()
        assert link == "http://127.0.0.1:8787/jupyter/lab?token=secret"
        other, _ = newer_cluster()
        with pytest.raises(UsageError, match="'demo' has no Jupyter"):
            _ = other.jupyter_link
        await other.close()

    asyncio.run(body())


def test_command_without_resources_sets_the_sizes() -> None:
    group = resolve(name="demo", worker_command="dask-worker --nthreads 3 --memory-limit 4GiB").spec.workers[0]
    assert (group.cpu, group.memory) == (3.0, 4 << 30)


def test_other_options_of_the_worker_are_variables_of_its_group() -> None:
    command = "dask worker --preload a.py --preload=b --lifetime 1h --lifetime-stagger=5m --lifetime-restart --no-nanny"
    group = resolve(name="demo", worker_command=f"{command} --nthreads 3", env={"A": "1"}).spec.workers[0]
    worker = "DASK_DISTRIBUTED__WORKER__"
    assert group.cpu == 3 and group.env == {
        "A": "1", f"{worker}PRELOAD": '["a.py", "b"]', f"{worker}LIFETIME__DURATION": "1h",
        f"{worker}LIFETIME__STAGGER": "5m", f"{worker}LIFETIME__RESTART": "True",
    }  # fmt: skip
    keys = [key.removeprefix("DASK_").lower().replace("__", ".").replace("_", "-") for key in group.env if key != "A"]
    assert all(dask.config.get(key, "none") != "none" for key in keys), "Dask has these settings"


def test_times_are_those_of_dask() -> None:
    found = resolve(idle_timeout="5 minutes", resource_timeout="2 m")
    assert (found.idle_timeout, found.resource_timeout) == (300.0, 120.0)


def test_custom_cluster_spec(tmp_path: Path) -> None:
    body = make_cluster_spec("demo-{uuid}", image="i:1", n_workers=1, idle_timeout=30)
    container = body["spec"]["worker"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    from_secret = {"name": "P", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    container["env"] = [{"name": "A", "value": "1"}, from_secret]
    body["spec"]["worker"]["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    body["spec"]["worker"]["metadata"] = {"labels": {"team": "a"}}
    body["spec"]["worker"]["spec"]["containers"].append({"name": "side", "image": "s:1"})
    path = tmp_path / "cluster.yaml"
    path.write_text(json.dumps(body))
    for given in (body, str(path)):
        found = resolve(custom_cluster_spec=given)
        assert found.name.startswith("demo-") and found.idle_timeout == 30
        assert found.spec.lifetime.idle == 30
        group = found.spec.workers[0]
        assert group.env == {"A": "1"}
        assert group.pod == {
            "metadata": {"labels": {"team": "a"}},
            "spec": {
                "volumes": [{"name": "data", "emptyDir": {}}],
                "containers": [
                    {
                        "name": "worker",
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "env": [from_secret],
                    },
                    {"name": "side", "image": "s:1"},
                ],
            },
        }


@pytest.mark.parametrize(
    "given",
    [
        {"name": "mine"}, {"image": "j:1"}, {"n_workers": 0}, {"resources": {}}, {"env": {"A": "1"}},
        {"worker_command": "dask-worker"}, {"scheduler_service_type": "NodePort"}, {"jupyter": True},
    ],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_argument_that_a_custom_cluster_spec_replaces_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(given))}: no effect together with custom_cluster_spec"):
        resolve(custom_cluster_spec=make_cluster_spec("demo"), **given)


def test_attributes_are_those_of_a_custom_cluster_spec() -> None:
    body = make_cluster_spec("demo", image="i:1", n_workers=2)
    found = resolve(name="demo", custom_cluster_spec=body, idle_timeout=5)
    assert (found.name, found.image, found.n_workers, found.idle_timeout) == ("demo", "i:1", 2, 5.0)


def test_image_of_a_worker_group() -> None:
    group = manifest.worker_group("more", make_worker_spec("j:1", 2), "i:1")
    assert group["pod"] == {"spec": {"containers": [{"name": "worker", "image": "j:1"}]}} and group["replicas"] == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"worker_command": "dask-cuda-worker"}, r"with `dask worker`, not with 'dask-cuda-worker'"),
        ({"worker_command": "dask-worker --nworkers 2"}, "args.nworkers: a pod has one worker"),
        ({"worker_command": "dask-worker --foo"}, "args.foo: Oars has no field for this option"),
        ({"worker_command": 5}, "worker_command: 5 is not a command"),
        ({"worker_command": "dask-worker --resources A=x"}, "args.resources: 'A=x' are not names with numbers"),
        ({"env": 5}, "env: 5 is neither a dict nor a list"),
        ({"env": ["A=1"]}, r"env: \['A=1'\] is neither a dict nor a list"),
        ({"custom_cluster_spec": 5}, "custom_cluster_spec: 5 is not a dict"),
        ({"idle_timeout": "nonsense"}, "idle_timeout: 'nonsense' is not a time"),
        ({"resource_timeout": -1}, "resource_timeout: -1 is not a time"),
        ({"scheduler_forward_port": 70000}, "scheduler_forward_port: 70000 is not a port"),
        ({"namespace": "A B"}, "'A B' is not a valid namespace"),
        ({"resources": {"limit": {}}}, "'limit' is wrong. Did you mean 'limits'"),
        ({"create_mode": "CONNECT"}, "no create_mode='CONNECT'"),
        ({"custom_cluster_spec": {"spec": {}}}, "it has no spec.worker"),
        ({"custom_cluster_spec": "/none.yaml"}, "cannot read /none.yaml"),
        ({"scheduler_service_type": "Ingress"}, "expose"),
        ({"name": "x" * 55}, "is not a valid name"),
        ({"n_workers": -1}, "n_workers: -1 is not a number of workers"),
    ],
)
def test_mistake_is_refused_before_anything_starts(given: dict[str, Any], message: str) -> None:
    with pytest.raises((SpecError, UsageError, OarsError), match=message):
        resolve(**given)


def test_unknown_argument_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"'worker_comand'. Did you mean 'worker_command'"):
        KubeCluster(**cast(Any, {"worker_comand": "x"}))


def test_configuration_completes_the_arguments() -> None:
    with dask.config.set({"kubernetes.create-mode": "CREATE_ONLY", "kubernetes.shutdown-on-close": False,
                          "kubernetes.namespace": "lab", "kubernetes.resource-timeout": 5}):  # fmt: skip
        found = resolve()
        assert (found.create_mode, found.shutdown_on_close) == (CreateMode.CREATE_ONLY, False)
        assert (found.namespace, found.resource_timeout, found.n_workers) == ("lab", 5.0, 0)
    assert resolve().shutdown_on_close is None and resolve(shutdown_on_close=True).shutdown_on_close is True
