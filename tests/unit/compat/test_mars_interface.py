"""Signatures, defaults and names of `mars.deploy.kubernetes`, of 0.3, 0.6 and 0.10, and the arguments as a spec."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import platform
import re
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

import oars.compat.mars as compat
from oars import engines
from oars.base.errors import EngineMissing, NotFound, OarsError, SpecError, TimedOut, UsageError
from oars.cli.images import build_image
from oars.client.kubernetes import KubeBackend, KubeHandle
from oars.compat.mars import arguments, cluster, install, rights
from oars.compat.mars.arguments import Arguments
from oars.engines.mars.shape import IMAGES
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.objects import manifests
from oars.plan.desired import build
from oars.spec import load
from oars.spec.cluster import ClusterSpec
from tests.unit.compat.memory_handle import MemoryHandle

NONE = inspect.Parameter.empty
GI = 2**30

NEW_CLUSTER = {  # 0.3 and 0.6
    "kube_api_client": None,
    "image": None,
    "scheduler_num": 1,
    "scheduler_cpu": None,
    "scheduler_mem": None,
    "worker_num": 1,
    "worker_cpu": None,
    "worker_mem": None,
    "worker_spill_paths": None,
    "worker_cache_mem": None,
    "min_worker_num": None,
    "web_num": 1,
    "web_cpu": None,
    "web_mem": None,
    "service_type": None,
    "timeout": None,
    "kwargs": NONE,
}
CLIENT = {"kube_api_client": NONE, "namespace": NONE, "endpoint": NONE}  # 0.3, and the page
RESCALE = {"new_scale": NONE, "min_workers": None, "wait": True, "timeout": None}  # 0.6
# What the originals take from **kwargs.
KWARGS = {
    "0.3": "extra_volumes pre_stop_command scheduler_extra_modules worker_extra_modules web_extra_modules "
    "scheduler_extra_env worker_extra_env web_extra_env",
    "0.6": "namespace scheduler_mem_limit_ratio worker_min_cache_mem worker_mem_limit_ratio web_mem_limit_ratio "
    "extra_volumes pre_stop_command log_when_fail extra_modules extra_env extra_labels service_port "
    "scheduler_extra_modules scheduler_extra_env scheduler_extra_labels scheduler_service_port worker_extra_modules "
    "worker_extra_env worker_extra_labels worker_service_port web_extra_modules web_extra_env web_extra_labels "
    "web_service_port cluster_cls",
    "0.10": "namespace supervisor_num supervisor_cpu supervisor_mem supervisor_mem_limit_ratio worker_min_cache_mem "
    "worker_mem_limit_ratio web_port service_name extra_volumes pre_stop_command log_when_fail extra_modules "
    "extra_env extra_labels service_port supervisor_extra_modules supervisor_extra_env supervisor_extra_labels "
    "supervisor_service_port worker_extra_modules worker_extra_env worker_extra_labels worker_service_port "
    "cluster_cls",
}


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    found = inspect.signature(function).parameters
    return {name: each.default for name, each in found.items() if name != "self"}


def resolve(*, of: str = "pymars", **given: Any) -> Arguments:
    """As new_cluster(**given) in a Python with that distribution."""
    signature = {name: value for name, value in NEW_CLUSTER.items() if name not in ("kube_api_client", "kwargs")}
    named = {name: given.pop(name, default) for name, default in signature.items()}
    return arguments.resolve(named, given, lambda wanted: wanted or of)


def resolve_with(name: str, value: Any, of: str = "pymars") -> Arguments:
    given: dict[str, Any] = {name: value}
    return resolve(of=of, **given)


# Signatures


def test_rescaling_changes_the_number_of_workers() -> None:
    spec = load.build({"engine": "mars", "workers": 1}).spec
    connection, handle = cluster.Connection.__new__(cluster.Connection), MemoryHandle(spec)  # it needs no backend
    connection._handle = cast(KubeHandle, handle)
    asyncio.run(connection.rescale(3, None, None))
    assert handle.kept.workers[0].replicas == 3


@pytest.mark.parametrize(
    ("function", "original"),
    [
        (compat.new_cluster, NEW_CLUSTER),
        (compat.KubernetesClusterClient.__init__, CLIENT),
        (compat.KubernetesClusterClient.rescale_workers, RESCALE),
        (compat.KubernetesClusterClient.stop, {"wait": False, "timeout": 0}),
        (compat.KubernetesClusterClient.start, {}),
    ],
)
def test_signature_is_that_of_the_original(function: Callable[..., Any], original: dict[str, Any]) -> None:
    assert parameters(function) == original
    assert list(parameters(function)) == list(original), "positional arguments, too"


@pytest.mark.parametrize("name", ["namespace", "endpoint", "session"])
def test_client_has_the_attributes_of_the_original(name: str) -> None:
    assert isinstance(getattr(compat.KubernetesClusterClient, name), property)


@pytest.mark.parametrize("version", KWARGS)
def test_every_keyword_of_the_original_is_known(version: str) -> None:
    assert set(KWARGS[version].split()) <= set(arguments.FURTHER)


# Arguments

HEAD, WORKER = 0, 1


def template(args: Arguments, number: int) -> dict[str, Any]:
    """The pod template of the head or of a worker."""
    spec = build(args.name, args.spec, engines.get("mars"), DEFAULTS, namespace=args.namespace or "")
    found: dict[str, Any] = [each for each in manifests(spec) if each["kind"] == "Deployment"][number]["spec"][
        "template"
    ]
    return found


def main(args: Arguments, number: int) -> dict[str, Any]:
    return cast(dict[str, Any], template(args, number)["spec"]["containers"][0])


def variable(args: Arguments, number: int, name: str) -> Any:
    return {each["name"]: each.get("value") for each in main(args, number)["env"]}.get(name)


# What the head and a worker have.


def env(args: Arguments) -> tuple[Any, Any]:
    return variable(args, HEAD, "A"), variable(args, WORKER, "A")


def labels(args: Arguments) -> tuple[Any, ...]:
    return tuple(template(args, number)["metadata"]["labels"].get("team") for number in (HEAD, WORKER))


def modules(args: Arguments) -> tuple[Any, ...]:
    found = args.spec.engine_options.get("config", {}).get("third_party_modules", {})
    return tuple(found.get(role) for role in ("supervisor", "worker"))


def volumes(args: Arguments) -> list[Any]:
    return [each.get("hostPath", {}).get("path") for each in template(args, WORKER)["spec"]["volumes"]]


VOLUME = {"name": "data", "hostPath": {"path": "/data"}, "mountPath": "/data"}
# Each argument of each version: a value, where it arrives, and what is there.
EFFECTS: dict[str, tuple[Any, Callable[[Arguments], Any], Any]] = {
    "image": ("mars:1", lambda args: main(args, WORKER)["image"], "mars:1"),
    "scheduler_cpu": (3, lambda args: args.spec.head.cpu, 3.0),
    "scheduler_mem": ("3g", lambda args: args.spec.head.memory, 3 * GI),
    "worker_num": (3, lambda args: args.spec.workers[0].replicas, 3),
    "worker_cpu": (3, lambda args: main(args, WORKER)["resources"]["requests"]["cpu"], "3"),
    "worker_mem": ("3g", lambda args: main(args, WORKER)["resources"]["limits"]["memory"], str(3 * GI)),
    "worker_spill_paths": (["/disk"], lambda args: "/disk" in volumes(args), True),
    "worker_cache_mem": ("64m", lambda args: variable(args, WORKER, "MARS_CACHE_MEM_SIZE"), str(2**26)),
    "min_worker_num": (0, lambda args: args.spec.min_ready, 0),
    "web_cpu": (3, lambda args: args.spec.head.cpu, 3.0),
    "web_mem": ("3g", lambda args: args.spec.head.memory, 3 * GI),
    "service_type": ("LoadBalancer", lambda args: args.spec.expose.type, "LoadBalancer"),
    "timeout": (60, lambda args: args.timeout, 60.0),
    "namespace": ("team", lambda args: args.namespace, "team"),
    "extra_volumes": ([VOLUME], lambda args: "/data" in volumes(args), True),
    "pre_stop_command": ("sync", lambda args: main(args, WORKER).get("lifecycle"),
                         {"preStop": {"exec": {"command": ["sh", "-c", "sync"]}}}),
    "log_when_fail": (True, lambda args: args.log_when_fail, True),
    "extra_env": ({"A": 1}, env, ("1", "1")),
    "extra_labels": ({"team": "a"}, labels, ("a", "a")),
    "extra_modules": (["m"], modules, (["m"], ["m"])),
    "worker_extra_env": ({"A": 1}, env, (None, "1")),
    "worker_extra_labels": ({"team": "a"}, labels, (None, "a")),
    "worker_extra_modules": (["m"], modules, ([], ["m"])),
    **{f"{role}_extra_env": ({"A": 1}, env, ("1", None)) for role in ("scheduler", "web")},
    **{f"{role}_extra_labels": ({"team": "a"}, labels, ("a", None)) for role in ("scheduler", "web")},
    **{f"{role}_extra_modules": (["m"], modules, (["m"], [])) for role in ("scheduler", "web")},
}  # fmt: skip
EFFECTS |= {name.replace("scheduler_", "supervisor_"): each for name, each in EFFECTS.items()}
REFUSED = {"cluster_cls": "cluster_cls is not supported"} | {
    f"{role}_num": f"{role}_num is 2, but a cluster has exactly one: " for role in ("scheduler", "supervisor", "web")
}
ALL_NAMES = sorted({*NEW_CLUSTER, *(name for names in KWARGS.values() for name in names.split())})


@pytest.mark.parametrize("name", [name for name in ALL_NAMES if name not in ("kube_api_client", "kwargs")])
def test_each_argument_of_each_version_works_or_says_why_not(name: str) -> None:
    """tests/unit/compat/test_mars_api_client.py has kube_api_client."""
    if name in REFUSED:
        with pytest.raises(UsageError) as refused:
            resolve_with(name, 2)
        assert refused.value.message.startswith(REFUSED[name]) and refused.value.hint
    elif name in EFFECTS:
        value, arrives, expected = EFFECTS[name]
        assert arrives(resolve()) != expected and arrives(resolve_with(name, value)) == expected
    else:
        with pytest.warns(UserWarning, match=f"^new_cluster: {name} has no effect: "):
            resolve_with(name, 2)


@pytest.mark.parametrize("name", ["cpu", "mem", "extra_env", "extra_labels", "extra_modules"])
def test_errors_have_the_name_that_the_caller_used(name: str) -> None:
    for role in ("scheduler", "supervisor"):
        with pytest.raises(UsageError, match=f"^{role}_{name}: "):
            resolve_with(f"{role}_{name}", 1j)


def test_defaults() -> None:
    args = resolve()
    spec = args.spec
    assert (spec.engine, spec.place, spec.image) == ("mars", "kubernetes", None)
    assert spec.workers[0].replicas == spec.min_ready == 1
    assert spec.expose.type == "NodePort" and spec.namespace.create
    assert args.namespace is not None and args.namespace.startswith("mars-ns-")
    assert spec.engine_options["distribution"] == "pymars"
    assert args.timeout == arguments.START_SECONDS
    assert resolve().namespace != args.namespace


@pytest.mark.parametrize(
    ("given", "expected"),
    [("1g", GI), ("1G", GI), ("1gb", GI), ("1Gi", GI), ("512m", 2**29), (GI, GI), ("0.5g", 2**29), (f"{GI}", GI)],
)
def test_sizes_are_bytes_or_powers_of_1024(given: Any, expected: int) -> None:
    assert resolve(worker_mem=given).spec.workers[0].memory == expected


def test_supervisor_gets_what_scheduler_and_web_service_are_given() -> None:
    head = resolve(scheduler_cpu=1, scheduler_mem="1g", web_cpu=0.5, web_mem="512m").spec.head
    assert (head.cpu, head.memory) == (1.5, 1.5 * GI)
    assert resolve(scheduler_cpu=2).spec.head.cpu == 2


def test_processors_are_limited_as_in_the_original() -> None:
    """Those of the scheduler never, those of workers if their memory is limited."""
    free, limited = resolve(worker_cpu=2).spec, resolve(worker_cpu=2, worker_mem="1g").spec
    assert free.head.burst and free.workers[0].burst
    assert limited.head.burst and not limited.workers[0].burst


def test_supervisor_arguments_set_the_head() -> None:
    head = resolve(supervisor_num=1, supervisor_cpu=2, supervisor_mem="4G", supervisor_extra_env={"A": 1}).spec.head
    assert (head.cpu, head.memory, head.env) == (2, 4 * GI, {"A": "1"})


def test_supervisor_argument_that_is_none_changes_nothing() -> None:
    spec = resolve(scheduler_cpu=4, supervisor_cpu=None, supervisor_num=None).spec
    assert spec.head.cpu == 4
    assert resolve(scheduler_cpu=4, supervisor_cpu=4).spec.head.cpu == 4


def test_start_may_wait_for_no_worker() -> None:
    assert resolve(worker_num=5, min_worker_num=0).spec.min_ready == 0
    assert resolve(worker_num=5).spec.min_ready == 5


def test_further_arguments_reach_the_pods() -> None:
    volume = {"name": "data", "hostPath": {"path": "/data"}, "mountPath": "/data"}
    args = resolve(
        extra_env={"ALL": "1"}, worker_extra_env={"OWN": 2}, extra_labels={"team": "a"}, web_extra_labels={"web": "b"},
        extra_modules="one,two", worker_extra_modules=["three"], extra_volumes=[volume],
        pre_stop_command=["sleep", "1"], worker_spill_paths=["/disk1", "/disk2"], worker_cache_mem="40%",
    )  # fmt: skip
    rendered = manifests(build(args.name, args.spec, engines.get("mars"), DEFAULTS, namespace=args.namespace or ""))
    head, worker = (each["spec"]["template"] for each in rendered if each["kind"] == "Deployment")
    assert head["metadata"]["labels"]["web"] == "b" and worker["metadata"]["labels"]["team"] == "a"
    main = worker["spec"]["containers"][0]
    env = {each["name"]: each.get("value") for each in main["env"]}
    assert (env["ALL"], env["OWN"]) == ("1", "2")
    assert "/data" in {each["mountPath"] for each in main["volumeMounts"]}
    assert {"/disk1", "/disk2", "/data"} <= {each.get("hostPath", {}).get("path") for each in worker["spec"]["volumes"]}
    assert args.spec.workers[0].cache == "40%"
    assert int(env["MARS_CACHE_MEM_SIZE"]) == int(0.4 * DEFAULTS.worker_memory)
    assert main["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "1"]
    assert worker["spec"]["automountServiceAccountToken"] is True
    modules = args.spec.engine_options["config"]["third_party_modules"]
    assert modules == {"supervisor": ["one", "two"], "worker": ["one", "two", "three"]}


class Volume:
    """As Mars' VolumeConfig."""

    def build(self) -> dict[str, Any]:
        return {"name": "scratch", "emptyDir": {}}

    def build_mount(self) -> dict[str, Any]:
        return {"name": "scratch", "mountPath": "/scratch"}


def test_volume_objects_of_mars_are_volumes() -> None:
    pod = resolve(extra_volumes=[Volume()]).spec.workers[0].pod
    assert pod["spec"]["volumes"] == [{"name": "scratch", "emptyDir": {}}]


@pytest.mark.parametrize("name", arguments.NO_EFFECT)
def test_argument_without_effect_is_reported(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name} has no effect: "):
        resolve_with(name, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"worker_mem": "16q"}, "worker_mem: '16q' is not a size."),
        ({"worker_mem": 16}, "worker_mem: 16 is not between 1 MiB and 1024 TiB."),
        ({"worker_mem": True}, "worker_mem: True is not a size."),
        ({"worker_cpu": "many"}, "worker_cpu: 'many' is not a number of processors"),
        ({"worker_num": -1}, "worker_num: -1 is not a number of pods."),
        ({"worker_num": 1.5}, "worker_num: 1.5 is not a number of pods."),
        ({"worker_num": 2, "min_worker_num": 3}, "min_worker_num is 3, but worker_num is 2."),
        ({"worker_cache_mem": "400%"}, "worker_cache_mem: '400%' is not a share of the memory."),
        ({"worker_spill_paths": ["data"]}, "worker_spill_paths: 'data' is not an absolute path."),
        ({"service_type": "NodePorts"}, "There is no service_type 'NodePorts'. Did you mean 'NodePort'?"),
        ({"namespace": "No"}, "'No' is not a valid namespace"),
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"extra_env": ["A=1"]}, "extra_env: ['A=1'] is not a dict."),
        ({"extra_volumes": ["/data"]}, "extra_volumes: '/data' is not a volume."),
        ({"extra_modules": [1]}, "extra_modules: [1] is not a list of modules."),
        ({"cluster_cls": dict}, "cluster_cls is not supported"),
        ({"extra_volumes": 5}, "extra_volumes: 5 is not a list."),
        ({"pre_stop_command": 5}, "pre_stop_command: 5 is not a list."),
        ({"worker_spill_paths": 5}, "worker_spill_paths: 5 is not a list."),
        ({"extra_modules": 5}, "extra_modules: 5 is not a list."),
        ({"scheduler_cpu": 2, "supervisor_cpu": 3}, "supervisor_cpu and scheduler_cpu are the same argument"),
        ({"scheduler_cpu": 1, "supervisor_cpu": 8}, "supervisor_cpu and scheduler_cpu are the same argument"),
        ({"scheduler_num": 2, "supervisor_num": 1}, "supervisor_num and scheduler_num are the same argument"),
        ({"supervisor_extra_env": {"A": 1}, "scheduler_extra_env": {"A": 2}},
         "supervisor_extra_env and scheduler_extra_env are the same argument"),
    ],
)  # fmt: skip
def test_bad_argument_is_one_clear_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        resolve(**given)
    assert refused.value.message.startswith(message) and "\n" not in refused.value.message


def test_namespace_that_exists_may_be_that_of_the_client() -> None:
    """tests/unit/compat/test_mars_api_client.py reads it from an ApiClient."""
    args = resolve(create_namespace=False)
    assert args.namespace is None and args.spec.namespace.name is None and not args.has_own_namespace


@pytest.mark.parametrize("distribution", ["pymars", "xorbits"])
@pytest.mark.parametrize("name", ["scheduler_num", "supervisor_num", "web_num"])
def test_second_supervisor_is_refused_with_the_reason(distribution: str, name: str) -> None:
    with pytest.raises(SpecError, match=f"a cluster has exactly one: .*{distribution}"):
        resolve_with(name, 2, of=distribution)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("worker_memory", "worker_mem"), ("workers", "worker_num"), ("scheduler_number", "scheduler_num"),
     ("worker_spill_dirs", "worker_spill_paths"), ("extra_envs", "extra_env")],
)  # fmt: skip
def test_unknown_argument_gets_the_nearest_name(wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '{wrong}'\. Did you mean '{right}'\?"):
        resolve_with(wrong, 1)


@pytest.mark.parametrize(
    ("given", "expected"), [("4g", 4 * GI), ("40%", "40%"), (0.4, "40%"), (GI, GI), ("0.25", "25%")]
)
def test_cache_is_a_size_or_a_share(given: Any, expected: Any) -> None:
    assert arguments.size_or_share("worker_cache_mem", given) == expected


# Distributions


@pytest.mark.parametrize(
    ("imported", "installed", "expected"),
    [((), ("mars",), "pymars"), ((), ("xorbits",), "xorbits"), (("mars",), ("xorbits",), "pymars"),
     (("xorbits",), ("mars",), "xorbits")],
)  # fmt: skip
def test_distribution_is_that_of_this_python(
    imported: tuple[str, ...], installed: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mars", "xorbits"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in imported:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in (*imported, *installed) or None)
    assert cluster.find_distribution(None) == expected


@pytest.mark.parametrize(
    ("distribution", "python", "warned"),
    [("pymars", "3.11", True), ("xorbits", "3.11", False), ("xorbits", "3.12", True)],
)
def test_default_image_with_another_python_is_reported(
    distribution: str, python: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image that Mars 0.10 published has Python 3.8, in which Oars does not run. What the warning says works."""

    def stop(kube_api_client: Any, namespace: str | None) -> None:
        raise InterruptedError

    monkeypatch.setattr(cluster, "find_distribution", lambda wanted: distribution)
    monkeypatch.setattr(cluster, "_backend", stop)
    monkeypatch.setattr(platform, "python_version_tuple", lambda: (*python.split("."), "7"))
    with warnings.catch_warnings(record=True) as found, pytest.raises(InterruptedError):
        warnings.simplefilter("always")
        compat.new_cluster()
    with pytest.raises(InterruptedError):
        compat.new_cluster(image="registry/mars:1")
    assert [each.filename for each in found] == [__file__] * warned
    for each in found:
        assert f"the default image {IMAGES[distribution]} has Python" in str(each.message)
        (words,) = re.findall(r"`oars image build (.*)`", str(each.message))
        given = build_image.make_context("build", words.split()).params
        assert (given["distribution"], given["python"]) == (distribution, python) and given["tag"]


def test_missing_distribution_is_refused_before_anything_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineMissing, match="This Python has neither"):
        compat.new_cluster(image="x")
    with pytest.raises(EngineMissing, match="This Python has no pymars") as missing:
        compat.new_cluster(distribution="pymars")
    assert missing.value.hint == install.hint("pymars")
    with pytest.raises(UsageError, match="There is no distribution 'pymar'"):
        compat.new_cluster(distribution="pymar")


@pytest.mark.parametrize(
    ("namespace", "endpoint"),
    [("", "http://a:1"), (None, "http://a:1"), ("ns", "a"), ("ns", None), ("ns", "http://a:b")],
)
def test_attach_needs_a_namespace_and_an_endpoint(namespace: Any, endpoint: Any) -> None:
    with pytest.raises(UsageError, match=r"is not an? (namespace|endpoint)\."):
        compat.KubernetesClusterClient(None, namespace, endpoint)


# Attaching


@dataclass
class Running:
    """A cluster of the namespace. `url` None: its load balancer is pending."""

    name: str
    url: str | None
    service_type: str = "NodePort"
    engine: str = "mars"

    async def spec(self) -> ClusterSpec:
        return load.build({"engine": self.engine, "place": "kubernetes", "expose": {"type": self.service_type}}).spec

    async def address(self, seconds: float) -> str:
        if self.url is None:
            raise TimedOut(f"Service {self.name!r} has no address after {seconds:.0f} s.")
        return self.url


def find(endpoint: str, *clusters: Running) -> str:
    """The name of the cluster that KubernetesClusterClient connects to."""

    class Backend:
        namespace = "team"

        async def list(self) -> list[Running]:
            return list(clusters)

        async def close(self) -> None:
            pass

    async def body() -> str:
        connection = cluster.Connection(cast(KubeBackend, Backend()))
        try:
            return (await connection.find(endpoint)).name
        finally:
            await connection.close()

    return asyncio.run(body())


def test_attach_refuses_the_successor_of_a_cluster() -> None:
    """Also if it is the only one: stop() would delete it."""
    with pytest.raises(
        NotFound, match=r"No Mars cluster in namespace 'team' has the endpoint http://10\.0\.0\.1:30000"
    ):
        find("http://10.0.0.1:30000", Running("new", "http://10.0.0.1:31000"))


def test_attach_finds_a_cluster_beside_one_without_an_address() -> None:
    pending, good = Running("pending", None, "LoadBalancer"), Running("good", "http://10.0.0.1:31000")
    assert find("http://10.0.0.1:31000", pending, good) == "good"
    with pytest.raises(NotFound) as refused:
        find("http://10.0.0.1:30000", pending)
    assert refused.value.hint == "Endpoints: none yet."


def test_attach_needs_the_host_unless_every_node_serves_the_port() -> None:
    """A node port stays when the head moves to another node."""
    assert find("http://10.0.0.2:31000", Running("moved", "http://10.0.0.1:31000")) == "moved"
    one, two = (Running(f"s{n}", f"http://10.96.0.{n}:7103", "ClusterIP") for n in (1, 2))
    assert find("http://10.96.0.2:7103/", one, two) == "s2"
    with pytest.raises(NotFound, match="has the endpoint"):
        find("http://10.96.0.3:7103", one, two)


def test_attach_ignores_other_engines() -> None:
    with pytest.raises(NotFound, match="There is no Mars cluster in namespace 'team'"):
        find("http://10.0.0.1:31000", Running("dask", "http://10.0.0.1:31000", engine="dask"))


# Rights


def test_role_reads_pods_and_nothing_else() -> None:
    role, binding = rights.manifests("mars-1", "mars-ns-1")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "watch", "list"]}]
    assert {each["name"] for each in binding["subjects"]} == {"default", "mars-1-oars"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_api_client_that_is_none_of_kubernetes_is_refused() -> None:
    with pytest.raises(OarsError, match="is no ApiClient of the kubernetes package"):
        compat.KubernetesClusterClient("https://host", "mars-ns-1", "http://node:30000")
