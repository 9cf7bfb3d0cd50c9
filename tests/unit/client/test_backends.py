"""Where a cluster is looked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from oars.base.errors import UsageError
from oars.client.backend import Location, make_location
from oars.client.backends import find_cluster, is_kubernetes_configured
from oars.client.kubernetes import KubeBackend, KubeHandle
from oars.kube import config
from oars.service import Service, clusters
from oars.spec.status import Phase, Status


def test_service_account_of_a_pod_configures_kubernetes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", tmp_path)
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert not is_kubernetes_configured(Location(), environ)
    (tmp_path / "token").write_text("secret")
    assert is_kubernetes_configured(Location(), environ)
    assert not is_kubernetes_configured(Location(), {"HOME": str(tmp_path)})


def test_namespace_or_kubeconfig_configures_kubernetes(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    assert is_kubernetes_configured(Location(namespace="team"), environ)
    assert is_kubernetes_configured(Location(), {**environ, "KUBECONFIG": "somewhere"})
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("{}")
    assert is_kubernetes_configured(Location(), environ)


@pytest.mark.parametrize(
    ("fields", "location"),
    [
        ({}, Location()),
        ({"place": "local"}, Location("local")),
        ({"namespace": "ns"}, Location("kubernetes", namespace="ns")),
        ({"mode": "direct", "place": "kubernetes"}, Location("kubernetes", mode="direct")),
    ],
)
def test_kubernetes_field_implies_the_place(fields: dict[str, str], location: Location) -> None:
    assert make_location(str, **fields) == location


def test_kubernetes_field_contradicts_another_place() -> None:
    with pytest.raises(UsageError, match="context= applies to Kubernetes only, but place= is 'local'"):
        make_location(lambda field: f"{field}=", place="local", context="c")


def test_login_does_not_count_towards_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person may have to type a password."""

    class SlowLogin(KubeBackend):
        async def login(self) -> None:
            await asyncio.sleep(0.3)

        async def list(self, *, all_namespaces: bool = False) -> list[KubeHandle]:
            return [] if all_namespaces else [KubeHandle(self, "demo", "team")]

        def where(self, *, all_namespaces: bool = False) -> str:
            return "in all namespaces" if all_namespaces else "in namespace 'team'"

    monkeypatch.setattr("oars.client.kubernetes.KubeBackend", SlowLogin)
    monkeypatch.setattr(clusters, "LIST_SECONDS", 0.1)
    location = Location("kubernetes")
    _, found = asyncio.run(find_cluster("demo", location, {}, 0.1))
    assert found.name == "demo"
    listing = asyncio.run(Service({}, location).list(all_namespaces=True))
    assert (list(listing.clusters), listing.problems, listing.where) == ([], {}, ["in all namespaces"])


def test_unreported_cluster_is_listed_with_the_problem() -> None:
    handle = KubeHandle.__new__(KubeHandle)
    handle.name, handle.namespace, handle._mode, handle._direct = "demo", "team", "operator", None
    assert handle.fallback_status("No answer.") == Status(
        "demo", "?", "kubernetes", Phase.PENDING, "Unseen", "No answer.", mode="operator", namespace="team"
    )
