"""Kubeconfigs are loaded by kubectl's rules."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from oars.kube import config
from oars.kube.config import load, proxy_from_environment
from oars.kube.errors import ConfigError


def content(name: str, **changes: Any) -> dict[str, Any]:
    """Return a kubeconfig with one cluster, user and context, all of the same name."""
    return {
        "current-context": changes.get("current", name),
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443", **changes.get("cluster", {})}}],
        "users": [{"name": name, "user": changes.get("user", {"token": f"token-of-{name}"})}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **changes.get("context", {})}}],
    }


def write(path: Path, what: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(what))
    return path


def test_default_file_is_in_the_home_directory(tmp_path: Path) -> None:
    write(tmp_path / ".kube/config", content("a"))
    target = load({"HOME": str(tmp_path)})
    assert (target.server, target.context, target.namespace, target.token) == (
        "https://a:6443",
        "a",
        "default",
        "token-of-a",
    )


def test_kubeconfig_argument_takes_precedence_over_the_environment(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", content("a")), write(tmp_path / "b", content("b"))
    assert load({"KUBECONFIG": str(a), "HOME": str(tmp_path)}, kubeconfig=b).context == "b"


def test_files_are_merged_and_the_first_definition_wins(tmp_path: Path) -> None:
    first = content("a", current="")
    second = {
        **content("b"),
        "clusters": [*content("b")["clusters"], *content("a", cluster={"server": "https://no"})["clusters"]],
    }
    paths = [write(tmp_path / "one", first), tmp_path / "missing", write(tmp_path / "two", second)]
    environ = {"KUBECONFIG": ":".join(map(str, paths))}
    assert load(environ).context == "b"
    assert load(environ, context="a").server == "https://a:6443"


def test_relative_paths_refer_to_the_directory_of_their_file(tmp_path: Path) -> None:
    user = {"client-certificate": "c.pem", "client-key": "/abs/k.pem", "tokenFile": "../token"}
    one = write(tmp_path / "sub/one", content("a", user=user, cluster={"certificate-authority": "ca.pem"}))
    target = load({"KUBECONFIG": str(one)})
    assert target.ca.path == str(tmp_path / "sub/ca.pem")
    assert target.cert.path == str(tmp_path / "sub/c.pem")
    assert target.key.path == "/abs/k.pem"
    assert Path(target.token_file).resolve() == tmp_path / "token"


def test_inline_data_takes_precedence_over_a_path(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    cluster = {"certificate-authority": "ca.pem", "certificate-authority-data": data, "tls-server-name": "k"}
    one = write(tmp_path / "one", content("a", cluster={**cluster, "insecure-skip-tls-verify": True}))
    target = load({"KUBECONFIG": str(one)})
    assert (target.ca.text(), target.tls_server_name, target.insecure) == ("PEM", "k", True)


@pytest.mark.parametrize(
    ("argument", "of_context", "expected"), [("x", "y", "x"), (None, "y", "y"), (None, None, "default")]
)
def test_namespace_precedence(tmp_path: Path, argument: str | None, of_context: str | None, expected: str) -> None:
    one = write(tmp_path / "one", content("a", context={"namespace": of_context} if of_context else {}))
    assert load({"KUBECONFIG": str(one)}, namespace=argument).namespace == expected


def test_impersonation_and_basic_auth(tmp_path: Path) -> None:
    user = {
        "username": "u",
        "password": "p",
        "as": "ann",
        "as-uid": "7",
        "as-groups": ["g"],
        "as-user-extra": {"k": ["v"]},
    }
    target = load({"KUBECONFIG": str(write(tmp_path / "one", content("a", user=user)))})
    who = target.impersonate
    assert (target.username, target.password) == ("u", "p")
    assert (who.user, who.uid, who.groups, who.extra) == ("ann", "7", ("g",), (("k", ("v",)),))


def test_repr_does_not_show_secrets(tmp_path: Path) -> None:
    user = {
        "token": "hidden-1",
        "username": "u",
        "password": "hidden-2",
        "client-key-data": base64.b64encode(b"hidden-3").decode(),
    }
    one = write(tmp_path / "one", content("a", user=user, cluster={"proxy-url": "http://u:hidden-4@p"}))
    assert "hidden-" not in repr(load({"KUBECONFIG": str(one)}))


def test_exec_plugin_entry_is_read(tmp_path: Path) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./bin/plugin",
        "args": ["a", 1],
        "env": [{"name": "K", "value": "V"}],
        "interactiveMode": "Never",
        "provideClusterInfo": True,
        "installHint": "install it",
    }
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}]
    data = base64.b64encode(b"CA").decode()
    cluster = {"certificate-authority-data": data, "extensions": extensions}
    target = load({"KUBECONFIG": str(write(tmp_path / "d/one", content("a", user={"exec": plugin}, cluster=cluster)))})
    found = target.exec_plugin
    assert found is not None
    assert found.command == str(tmp_path / "d/bin/plugin")
    assert (found.args, found.env, found.interactive_mode, found.install_hint) == (
        ("a", "1"),
        (("K", "V"),),
        "Never",
        "install it",
    )
    expected = {"server": "https://a:6443", "certificate-authority-data": data, "config": {"audience": "x"}}
    assert found.cluster_info == expected


def test_service_account_is_used_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "SERVICE_ACCOUNT", tmp_path)
    for name, text in {"token": "t", "namespace": "team\n", "ca.crt": "CA"}.items():
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "HOME": "/nonexistent"}
    target = load(environ)
    assert (target.server, target.namespace) == ("https://[fd00::1]:443", "team")
    assert (target.token_file, target.ca.text()) == (str(tmp_path / "token"), "CA")
    with pytest.raises(ConfigError):
        load(environ, context="a")


INVALID = {
    "no file": ({}, {}, "No kubeconfig found"),
    "unknown context": (content("prod-eu"), {"context": "prod-ue"}, "Did you mean 'prod-eu'"),
    "no server": (content("a", cluster={"server": ""}), {}, "has no server"),
    "auth-provider": (content("a", user={"auth-provider": {"name": "gcp"}}), {}, "uses auth-provider"),
    "unsupported plugin version": (
        content("a", user={"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}),
        {},
        "v1alpha1",
    ),
    "unknown interactive mode": (
        content("a", user={"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Maybe"}}),
        {},
        "'Maybe'",
    ),
    "no user": ({**content("a"), "users": []}, {}, "No user 'a'"),
    "bad base64": (content("a", cluster={"certificate-authority-data": "x"}), {}, "not valid base64"),
    "wrong structure": ({"clusters": {"a": 1}}, {}, "is not a kubeconfig"),
    "two contexts, none selected": (
        {**content("a", current=""), "contexts": [*content("a")["contexts"], *content("b")["contexts"]]},
        {},
        "current-context is not set",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_kubeconfig_raises_an_error_with_a_hint(tmp_path: Path, case: str) -> None:
    what, arguments, message = INVALID[case]
    path = write(tmp_path / "one", what) if what else tmp_path / "one"
    with pytest.raises(ConfigError) as error:
        load({"KUBECONFIG": str(path)}, **arguments)
    assert message in str(error.value)
    assert error.value.hint


def test_missing_kubeconfig_leads_to_this_machine() -> None:
    """A manifest of another project asks for Kubernetes, and its reader may have none."""
    with pytest.raises(ConfigError) as error:
        load({})
    assert "`--place local` runs a cluster or job on this machine" in error.value.hint


def test_unreadable_kubeconfig_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load({}, kubeconfig=tmp_path / "one")
    with pytest.raises(ConfigError, match="does not exist"):
        load({}, kubeconfig=tmp_path / "two")
    with pytest.raises(ConfigError, match="Cannot read kubeconfig"):
        load({}, kubeconfig=tmp_path)


def test_only_context_is_the_default(tmp_path: Path) -> None:
    assert load({}, kubeconfig=write(tmp_path / "one", content("a", current=""))).context == "a"


PROXIES = [
    ("https://k:6443", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
    ("https://k:6443", {"https_proxy": "p:1"}, "http://p:1"),
    ("http://k:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
    ("https://localhost:1", {"HTTPS_PROXY": "http://p:1"}, ""),
    ("https://127.0.0.9:1", {"HTTPS_PROXY": "http://p:1"}, ""),
    ("https://a.corp:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "x, .corp"}, ""),
    ("https://corp:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".corp"}, "http://p:1"),
    ("https://a.corp:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "corp"}, ""),
    ("https://acorp:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "corp"}, "http://p:1"),
    ("https://10.1.2.3:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, ""),
    ("https://11.1.2.3:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://p:1"),
    ("https://10.1.2.3:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.1.2.3:2"}, "http://p:1"),
    ("https://10.1.2.3:2", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.1.2.3:2"}, ""),
    ("https://k:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, ""),
    ("https://10.1.2.3:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, ""),
    ("https://10.1.2.3:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "3, 10.1.2.0/99, .2.3"}, "http://p:1"),
    ("https://[fd00::1]:2", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "[fd00::1]:2"}, ""),
    ("https://[fd00::1]:2", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "[fd00::1]:3"}, "http://p:1"),
    ("https://[fd00::1]:2", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "fd00::/8"}, ""),
    ("https://a.corp:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "corp:1"}, ""),
    ("https://a.corp:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "corp:2"}, "http://p:1"),
    ("https://a.corp:1", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*.corp"}, ""),
]


@pytest.mark.parametrize(("server", "environ", "expected"), PROXIES)
def test_proxy_from_environment(server: str, environ: dict[str, str], expected: str) -> None:
    assert proxy_from_environment(server, environ) == expected
