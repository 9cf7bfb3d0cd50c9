"""Targets from an ApiClient of the `kubernetes` package."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from oars.base.errors import UsageError
from oars.compat.mars.api_client import make_target
from oars.kube.auth import Credentials

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "lab",
    "clusters": [{"name": "lab", "cluster": {"server": "https://10.0.0.1:6443/", "certificate-authority": "ca.pem"}}],
    "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "ann", "namespace": "team"}}],
    "users": [{"name": "ann", "user": {"token": "secret"}}],
}


def test_client_of_a_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("pem")
    (tmp_path / "config").write_text(yaml.safe_dump(KUBECONFIG))
    found = make_target(config.new_client_from_config(str(tmp_path / "config")), "mars-ns-1")
    assert found is not None
    assert (found.server, found.namespace, found.insecure) == ("https://10.0.0.1:6443", "mars-ns-1", False)
    assert found.ca.text() == "pem" and not found.cert
    assert found.read_token is not None and found.read_token() == "secret"
    assert "secret" not in repr(found)


def test_no_client_means_own_discovery() -> None:
    assert make_target(None) is None


def configuration(**fields: Any) -> Any:
    found = client.Configuration()
    for name, value in {"host": "10.0.0.1:6443", **fields}.items():
        setattr(found, name, value)
    return client.ApiClient(found)


def test_other_credentials() -> None:
    given = configuration(username="ann", password="pw", verify_ssl=False, cert_file="/c.pem", key_file="/k.pem",
                          tls_server_name="kubernetes", proxy="http://proxy:1")  # fmt: skip
    found = make_target(given)
    assert found is not None
    assert (found.server, found.namespace) == ("https://10.0.0.1:6443", "default")
    assert (found.username, found.password, found.insecure) == ("ann", "pw", True)
    assert (found.cert.path, found.key.path) == ("/c.pem", "/k.pem")
    assert (found.tls_server_name, found.proxy_url) == ("kubernetes", "http://proxy:1")


@pytest.mark.parametrize("key", ["authorization", "BearerToken"])
@pytest.mark.parametrize("text", ["Bearer one", "bearer one", "one"])
def test_token_in_every_form(key: str, text: str) -> None:
    found = make_target(configuration(api_key={key: text}))
    assert found is not None and found.read_token is not None and found.read_token() == "one"


def test_token_is_renewed_by_the_hook_of_the_client() -> None:
    """As those of pods and exec plugins."""
    numbers = iter(range(1, 9))

    def renew(configuration: Any) -> None:
        configuration.api_key["authorization"] = f"Bearer token{next(numbers)}"

    found = make_target(configuration(refresh_api_key_hook=renew))
    assert found is not None

    async def sent() -> list[str]:
        credentials = Credentials(found, {})
        return [dict(await credentials.headers())["Authorization"] for _ in range(2)]

    assert asyncio.run(sent()) == ["Bearer token1", "Bearer token2"]


def test_namespace_of_the_client() -> None:
    given = configuration()
    given.configuration.namespace = "team"
    found = make_target(given)
    assert found is not None and found.namespace == "team"


@pytest.mark.parametrize("given", ["https://host", 7, SimpleNamespace(host="h"), SimpleNamespace(host="", api_key={})])
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"is no ApiClient of the kubernetes package\."):
        make_target(given)


def test_unchecked_host_name_is_refused() -> None:
    with pytest.raises(UsageError, match="assert_hostname=False is not supported"):
        make_target(configuration(assert_hostname=False))
