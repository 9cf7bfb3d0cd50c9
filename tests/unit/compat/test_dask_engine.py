"""Dask workers and the pods that they run in; arguments; credentials."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import dask
import pytest
from distributed import Scheduler
from distributed.core import rpc
from distributed.security import Security

from oars.base.errors import SpecError, UsageError
from oars.compat.dask_kubernetes import ClusterAuth, InCluster, KubeAuth, KubeCluster, KubeConfig, make_pod_spec
from oars.compat.dask_kubernetes.classic import arguments
from oars.compat.dask_kubernetes.engine import PodWorkers, pod_of
from oars.compat.dask_kubernetes.scheduler_preload import install
from oars.engines.base import Wire
from oars.engines.dask import live
from oars.engines.dask.shape import HEAD_PLUGIN
from oars.kube import config as kube_config
from oars.kube.errors import ConfigError
from oars.model import HEAD, MemberId
from oars.places.http import request

HOSTS = {MemberId("demo-a"): "10.0.0.1", MemberId("demo-b"): "10.0.0.2", MemberId("demo-2222"): "10.0.0.3"}


@pytest.mark.parametrize(
    ("worker", "address", "pod"),
    [
        ("demo-a", "tcp://10.0.0.9:1", "demo-a"),
        ("demo-a-0", "tcp://10.0.0.9:1", "demo-a"),
        ("demo-2222", "tcp://10.0.0.3:1", "demo-2222"),
        ("tcp://10.0.0.2:41", "tcp://10.0.0.2:41", "demo-b"),
        ("mine", "tcp://10.0.0.2:41", "demo-b"),
        ("mine", "tcp://10.0.0.8:41", None),
    ],
)
def test_pod_of_a_worker(worker: str, address: str, pod: str | None) -> None:
    assert pod_of(worker, address, HOSTS) == pod


def test_pods_that_share_an_address_are_identified_by_name_only() -> None:
    shared = {MemberId("demo-a"): "10.0.0.1", MemberId("demo-b"): "10.0.0.1"}
    assert pod_of("mine", "tcp://10.0.0.1:41", shared) is None
    assert pod_of("demo-b", "tcp://10.0.0.1:41", shared) == "demo-b"


class FakeWire:
    """A scheduler's replies. `waits_for`: what drains of Dask workers wait for."""

    def __init__(self, workers: list[dict[str, Any]], waits_for: Mapping[str, str] | None = None) -> None:
        self.workers = workers
        self.waits_for = waits_for or {}
        self.asked: list[str] = []
        self.incarnations = {HEAD: "h", MemberId("demo-a"): "1", MemberId("demo-b"): "2"}
        self.addresses = {
            HEAD: {"client": "10.0.0.9:8786"},
            MemberId("demo-a"): {"any": "10.0.0.1:0"},
            MemberId("demo-b"): {"any": "10.0.0.2:0"},
        }

    async def http(self, port: str, path: str) -> bytes:
        return json.dumps({"address": "tcp://10.0.0.9:8786", "workers": self.workers, "demand": []}).encode()

    async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = 0) -> Any:
        self.asked = list(request["names"])
        return {name: self.waits_for.get(name, "") for name in request["names"]}


def worker(name: str, host: str, idle: float = 0.0, held: int = 0, status: str = "running") -> dict[str, Any]:
    address = f"tcp://{host}:4000"
    own = {"name": name, "address": address, "status": status, "idle": idle, "held": held}
    return {**own, "incarnation": "", "pinned": False}


def test_workers_of_one_pod_are_one_member() -> None:
    wire = FakeWire(
        [
            worker("demo-a-0", "10.0.0.1", idle=5.0, held=1),
            worker("demo-a-1", "10.0.0.1", held=2, status="closing"),
            worker("own name", "10.0.0.2", idle=3.0),
            worker("stranger", "10.0.0.7"),
        ],
        {"demo-a-1": "2 running tasks"},
    )
    engine = PodWorkers()

    async def run() -> None:
        view = await engine.look(cast(Wire, wire))
        assert set(view.members) == {"demo-a", "demo-b"}
        first = view.members[MemberId("demo-a")]
        assert (first.ready, first.idle, first.held) == (True, 0.0, 3)
        assert engine.workers_of("demo-a") == ["demo-a-0", "demo-a-1"] and engine.workers_of("demo-x") == ["demo-x"]
        replies = await engine.drain(cast(Wire, wire), [MemberId("demo-a"), MemberId("demo-b")], 1.0, False)
        assert [(each.member, each.done, each.waits_for) for each in replies] == [
            ("demo-a", False, "2 running tasks"),
            ("demo-b", True, ""),
        ]
        assert wire.asked == ["demo-a-0", "demo-a-1", "own name"]

    asyncio.run(run())


def test_scheduler_answers_the_engine_s_requests() -> None:
    """The scripts of the engine, as they are now, in a real scheduler."""

    async def run() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0") as scheduler:
            install(scheduler, HEAD_PLUGIN, live.HEAD_HELPER)

            class InProcess(FakeWire):
                async def http(self, port: str, path: str) -> bytes:
                    return await request(f"127.0.0.1:{scheduler.http_server.port}", path)

                async def ask(self, script: str, request: Mapping[str, Any], *, seconds: float = 0) -> Any:
                    async with rpc(scheduler.address) as remote:
                        return await remote.oars_ask(request=dict(request))

            wire = InProcess([])
            wire.addresses[HEAD] = {"client": scheduler.address.partition("://")[2]}
            view = await PodWorkers().look(cast(Wire, wire))
            assert view.up and not any(member.ready for member in view.members.values())
            (reply,) = await PodWorkers().drain(cast(Wire, wire), [MemberId("demo-a")], 5.0, False)
            assert reply.done

    asyncio.run(run())


def test_pod_whose_worker_has_not_started_is_not_a_lost_one() -> None:
    """The loop replaces workers that run and are not listed; one that installs packages for minutes must stay."""
    wire = FakeWire([worker("demo-a", "10.0.0.1")])
    engine = PodWorkers()

    async def run() -> None:
        view = await engine.look(cast(Wire, wire))
        assert view.members[MemberId("demo-a")].ready and not view.members[MemberId("demo-b")].ready
        wire.workers = []
        view = await engine.look(cast(Wire, wire))
        assert set(view.members) == {"demo-b"}, "the other had joined, and is lost"

    asyncio.run(run())


# arguments


def resolve(**given: Any) -> arguments.Arguments:
    names = KubeCluster.__init__.__code__.co_varnames[1:19]
    template = {"pod_template": make_pod_spec("i:1"), "auth": ClusterAuth.DEFAULT, "apply_default_affinity": "none"}
    known = {name: template.get(name) for name in names}
    more = {key: value for key, value in given.items() if key not in names}
    return arguments.resolve({**known, **{key: value for key, value in given.items() if key in names}}, more)


def test_configuration_completes_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "bob")
    with dask.config.set({
        "kubernetes.worker-name": "dask-{JUPYTERHUB_USER}-{uuid}", "kubernetes.count.start": 3,
        "kubernetes.count.max": 2, "kubernetes.namespace": "spaces", "kubernetes.idle-timeout": "5 minutes",
        "kubernetes.env": {"A": "1"},
    }):  # fmt: skip
        found = resolve()
        assert found.name.startswith("dask-bob-") and found.n_workers == 2 and found.namespace == "spaces"
        assert found.idle_timeout == "5 minutes" and found.env == {"A": "1"}
        assert resolve(name="own", namespace="other").name == "own"
    found = resolve()
    assert found.name.startswith("dask-") and len(found.name.rsplit("-", 2)[1]) == 8
    assert (found.deploy_mode, found.protocol, found.n_workers, found.host) == ("remote", "tcp", 0, "0.0.0.0")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deploy_mode": "locla"}, "no deploy_mode='locla'. Did you mean 'local'"),
        ({"n_workers": -1}, "-1 is not a number of workers"),
        ({"n_workers": 2.5}, "2.5 is not a number of workers"),
        ({"security": True}, "security: True is not a distributed.security.Security"),
        ({"env": ["A=1"]}, r"env: \['A=1'\] is not a dict"),
        ({"protocol": 5}, "protocol: 5 is not a text"),
        ({"protocol": "tpc://"}, "no protocol 'tpc://'. Did you mean 'tcp'"),
        ({"port": "x"}, "port: 'x' is not a port"),
        ({"idle_timeout": "nonsense"}, "idle_timeout: 'nonsense' is not a time"),
        ({"namespace": "A B"}, "'A B' is not a valid namespace"),
        ({"scheduler_service_wait_timeout": "x"}, "scheduler_service_wait_timeout: 'x' is not a time"),
        ({"scheduler_service_name_resolution_retries": "x"}, "retries: 'x' is not a whole number"),
        ({"auth": "kubeconfig"}, "auth: 'kubeconfig' is no list of ClusterAuth"),
        ({"apply_default_affinity": "require"}, "no apply_default_affinity='require'. Did you mean 'required'"),
    ],
)
def test_wrong_argument_is_refused_before_anything_starts(given: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, SpecError), match=message):
        resolve(**given)


@pytest.mark.parametrize(
    ("name", "meant"), [("n_worker", "n_workers"), ("pod_templat", "pod_template"), ("asyncronous", "asynchronous")]
)
def test_unknown_argument_is_refused_with_the_nearest_name(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'. Did you mean '{meant}'"):
        KubeCluster(make_pod_spec("i:1"), **cast(Any, {name: 1}))


def test_no_template_at_all_is_refused() -> None:
    with pytest.raises(SpecError, match="There is no template for the worker pods"):
        KubeCluster()


def test_security_chooses_tls() -> None:
    assert resolve(security=Security(require_encryption=True)).protocol == "tls"
    assert resolve(protocol="tls://").protocol == "tls"
    assert resolve(security=Security()).protocol == "tcp"


def test_cluster_that_stays_has_no_orphan_timeout() -> None:
    assert resolve().plan("lab").settings.orphaned == 120
    assert resolve(shutdown_on_close=False).plan("lab").settings.orphaned == 0
    with dask.config.set({"kubernetes.orphan-timeout": None}):
        assert resolve().plan("lab").settings.orphaned == 0


@pytest.mark.parametrize("make", [KubeCluster.from_dict, KubeCluster.from_pod_spec, KubeCluster])
def test_template_of_a_cluster_that_is_not_started(make: Any) -> None:
    """from_dict and from_pod_spec warn, as in the original. Numbers of workers are capped from the beginning."""

    async def body() -> None:
        with warnings.catch_warnings(record=True) as caught, dask.config.set({"kubernetes.count.max": 2}):
            warnings.simplefilter("always", DeprecationWarning)
            cluster = make(dict(make_pod_spec("i:1", labels={"a": "b"})), asynchronous=True)
            assert [w for w in caught if "instead of from_" in str(w.message)] or make is KubeCluster
            assert cluster.pod_template.metadata.labels == {"a": "b"} and cluster.namespace is None
            await cluster.scale(5)
            assert len(cluster._expected()) == 2
            with pytest.raises(UsageError, match="n_workers: 'x' is not a number of workers"):
                cluster.scale(cast(Any, "x"))
            await cluster.close()

    asyncio.run(body())


# credentials


def load(method: ClusterAuth) -> Any:
    return asyncio.run(method.load())


KUBECONFIG = {
    "current-context": "one",
    "clusters": [{"name": "c", "cluster": {"server": "https://one:6443"}}],
    "contexts": [
        {"name": "one", "context": {"cluster": "c", "namespace": "first"}},
        {"name": "two", "context": {"cluster": "c", "namespace": "second"}},
    ],
}


def test_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps(KUBECONFIG))
    assert load(KubeConfig(str(path))).namespace == "first"
    assert load(KubeConfig(str(path), context="two")).namespace == "second"
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert load(KubeConfig()).server == "https://one:6443"
    assert asyncio.run(ClusterAuth.load_first()).server == "https://one:6443", "no pod: the kubeconfig"
    assert asyncio.run(ClusterAuth.load_first(KubeConfig(context="two"))).namespace == "second"


def test_service_account_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("mine")
    monkeypatch.setattr(kube_config, "SERVICE_ACCOUNT", tmp_path)
    with pytest.raises(ConfigError, match="does not run in a pod"):
        load(InCluster())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    target = asyncio.run(ClusterAuth.load_first())
    assert (target.server, target.namespace) == ("https://10.0.0.1:443", "mine")


def test_kube_auth() -> None:
    target = load(
        KubeAuth("https://api:6443/", username="ann", password="p", ssl_ca_cert="ca.pem", cert_file="c", key_file="k")
    )
    assert (target.server, target.username, target.password) == ("https://api:6443", "ann", "p")
    assert (target.ca.path, target.cert.path, target.key.path, target.insecure) == ("ca.pem", "c", "k", False)
    target = load(KubeAuth("api", verify_ssl=False, api_key={"authorization": "Bearer abc"}, assert_hostname="other"))
    assert (target.server, target.insecure, target.token) == ("https://api", True, "abc")
    assert target.tls_server_name == "other"


def test_wrong_credentials_are_refused() -> None:
    with pytest.raises(TypeError, match=r"'usrname'. Did you mean 'username'"):
        KubeAuth("api", usrname="x")
    with pytest.raises(UsageError, match="assert_hostname=False is not supported"):
        load(KubeAuth("api", assert_hostname=False))
    with pytest.raises(UsageError, match="is no list of ClusterAuth"):
        asyncio.run(ClusterAuth.load_first("kubeconfig"))
    with pytest.raises(ConfigError, match="the list is empty"):
        asyncio.run(ClusterAuth.load_first([]))
