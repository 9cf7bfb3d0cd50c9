"""Load a Target by kubectl's rules.

The sources, in order: --kubeconfig; the files in KUBECONFIG, merged so that the first definition of a name wins;
~/.kube/config; the service account of the pod that this process runs in. Paths in a file are relative to that file.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from oars.base.text import suggest
from oars.kube.errors import ConfigError
from oars.kube.target import NO_PEM, ExecPlugin, Impersonation, Pem, Target

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")

Environ = Mapping[str, str]
Entry = tuple[Mapping[str, Any], Path]  # an entry of a kubeconfig, and the directory of its file


def load(
    environ: Environ, *, context: str | None = None, namespace: str | None = None, kubeconfig: str | Path | None = None
) -> Target:
    """Return the target of a context. The arguments take precedence over the kubeconfig."""
    if kubeconfig is not None:
        paths = [Path(kubeconfig).expanduser()]
        if not paths[0].exists():
            raise ConfigError(f"Kubeconfig {paths[0]} does not exist.", "Pass the path of an existing file.")
    elif listed := list(filter(None, environ.get("KUBECONFIG", "").split(":"))):
        paths = [Path(part) for part in dict.fromkeys(listed)]
    else:
        paths = [Path(environ["HOME"]) / ".kube" / "config"] if environ.get("HOME") else []
    config = _Config.merge(path for path in paths if path.exists())  # kubectl also skips missing files
    if config.clusters or config.contexts:
        return _from_kubeconfig(config, environ, context, namespace)
    if context is None and in_cluster(environ):
        return _from_service_account(environ, namespace)
    searched = tuple(f"searched {path}" for path in paths)
    hint = "Set KUBECONFIG, or give the path of a kubeconfig. `--place local` runs a cluster or job on this machine."
    raise ConfigError("No kubeconfig found, and this process does not run in a pod.", hint, searched)


def in_cluster(environ: Environ) -> bool:
    """True if this process runs in a pod with a service account token."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


@dataclass
class _Config:
    """Merged kubeconfigs."""

    current: str = ""
    clusters: dict[str, Entry] = field(default_factory=dict)
    users: dict[str, Entry] = field(default_factory=dict)
    contexts: dict[str, Entry] = field(default_factory=dict)
    source: str = ""

    @classmethod
    def merge(cls, paths: Iterable[Path]) -> _Config:
        merged = cls()
        for path in paths:
            content = _read(path)
            merged.source += f", {path}" if merged.source else str(path)
            merged.current = merged.current or content.get("current-context") or ""
            for kind in ("cluster", "user", "context"):
                for entry in content.get(f"{kind}s") or ():
                    found = entry.get(kind) or {}, path.absolute().parent
                    getattr(merged, f"{kind}s").setdefault(entry["name"], found)
        return merged

    def find(self, kind: str, name: str) -> Entry:
        known: dict[str, Entry] = getattr(self, f"{kind}s")
        if name not in known:
            hint = f"Known names: {', '.join(sorted(known)) or 'none'}.{suggest(name, known)}"
            raise ConfigError(f"No {kind} {name!r} in {self.source}.", hint)
        return known[name]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        hint = "Correct its permissions, or use another kubeconfig."
        raise ConfigError(f"Cannot read kubeconfig {path}: {error.strerror}.", hint) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        hint = f"Run `kubectl config view --kubeconfig {path}` to check it."
        lines = tuple(str(error).splitlines()[:4])
        raise ConfigError(f"Kubeconfig {path} is not valid YAML.", hint, lines) from error
    lists = ("clusters", "users", "contexts")
    if not isinstance(content, dict) or not all(_is_list_of_entries(content.get(key) or []) for key in lists):
        hint = "Check that clusters, users and contexts are lists and that each entry has a name."
        raise ConfigError(f"{path} is not a kubeconfig.", hint)
    return dict(content)


def _is_list_of_entries(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) and entry.get("name") for entry in value)


def _from_kubeconfig(config: _Config, environ: Environ, context_name: str | None, namespace: str | None) -> Target:
    # Unlike kubectl, we do not need current-context if there is one context.
    name = context_name or config.current or (next(iter(config.contexts)) if len(config.contexts) == 1 else "")
    if not name:
        hint = "Give a context, or choose one of the contexts below with `kubectl config use-context`."
        raise ConfigError(f"current-context is not set in {config.source}.", hint, tuple(sorted(config.contexts)))
    context, _ = config.find("context", name)
    cluster, cluster_dir = config.find("cluster", context.get("cluster", ""))
    user, user_dir = config.find("user", context["user"]) if context.get("user") else ({}, Path())
    if user.get("auth-provider"):
        hint = "Configure your provider's exec plugin. kubectl no longer supports auth-provider either."
        raise ConfigError(f"User {context['user']!r} in {config.source} uses auth-provider.", hint)
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("https://", "http://")):
        hint = f"Set clusters[].cluster.server in {config.source} to an http:// or https:// URL."
        raise ConfigError(f"The cluster of context {name!r} has no server.", hint)
    plugin, token_file, extra = user.get("exec"), user.get("tokenFile"), user.get("as-user-extra") or {}
    return Target(
        server=server,
        namespace=namespace or context.get("namespace") or "default",
        context=name,
        ca=_pem(cluster, "certificate-authority", cluster_dir),
        cert=_pem(user, "client-certificate", user_dir),
        key=_pem(user, "client-key", user_dir),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=cluster.get("tls-server-name", ""),
        token=user.get("token", ""),
        token_file=str(user_dir / token_file) if token_file else "",
        exec_plugin=_exec_plugin(plugin, user_dir, cluster, cluster_dir) if plugin else None,
        username=user.get("username", ""),
        password=user.get("password", ""),
        proxy_url=cluster.get("proxy-url") or proxy_from_environment(server, environ),
        impersonate=Impersonation(
            user=user.get("as", ""),
            uid=user.get("as-uid", ""),
            groups=tuple(user.get("as-groups") or ()),
            extra=tuple((key, tuple(values)) for key, values in extra.items()),
        ),
        source=config.source,
    )


def _pem(entry: Mapping[str, Any], key: str, directory: Path) -> Pem:
    data = entry.get(f"{key}-data")
    if not data:
        return Pem(path=str(directory / entry[key])) if entry.get(key) else NO_PEM
    try:
        return Pem(data=base64.b64decode(data).decode())
    except (binascii.Error, UnicodeDecodeError) as error:
        hint = "Download the kubeconfig again, or correct this field."
        raise ConfigError(f"{key}-data in the kubeconfig is not valid base64.", hint) from error


def _exec_plugin(entry: Mapping[str, Any], user_dir: Path, cluster: Mapping[str, Any], cluster_dir: Path) -> ExecPlugin:
    command, version = str(entry.get("command", "")), str(entry.get("apiVersion", ""))
    if version not in _EXEC_VERSIONS:
        hint = f"Set users[].user.exec.apiVersion to one of {', '.join(_EXEC_VERSIONS)}."
        raise ConfigError(f"Exec plugin {command!r} has the unsupported apiVersion {version!r}.", hint)
    mode = entry.get("interactiveMode") or "IfAvailable"
    if mode not in _INTERACTIVE_MODES:
        hint = f"Set it to one of {', '.join(_INTERACTIVE_MODES)}."
        raise ConfigError(f"Exec plugin {command!r} has the unknown interactiveMode {mode!r}.", hint)
    if "/" in command:  # a name without a slash is searched on PATH
        command = str(user_dir / command)
    info = None
    if entry.get("provideClusterInfo"):  # spec.cluster of the ExecCredential that is passed to the plugin
        plain = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
        info = {key: cluster[key] for key in plain if cluster.get(key)}
        if authority := _pem(cluster, "certificate-authority", cluster_dir):
            info["certificate-authority-data"] = base64.b64encode(authority.text().encode()).decode()
        for extension in cluster.get("extensions") or ():
            if extension.get("name") == "client.authentication.k8s.io/exec":
                info["config"] = extension.get("extension")
    return ExecPlugin(
        command=command,
        args=tuple(map(str, entry.get("args") or ())),
        env=tuple((part["name"], str(part.get("value", ""))) for part in entry.get("env") or ()),
        api_version=version,
        interactive_mode=mode,
        install_hint=str(entry.get("installHint") or ""),
        cluster_info=info,
    )


def _from_service_account(environ: Environ, namespace: str | None) -> Target:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace_file = SERVICE_ACCOUNT / "namespace"
    return Target(
        server=server,
        namespace=namespace or (namespace_file.read_text().strip() if namespace_file.exists() else "default"),
        ca=Pem(path=str(SERVICE_ACCOUNT / "ca.crt")),
        token_file=str(SERVICE_ACCOUNT / "token"),
        source="the pod's service account",
    )


def proxy_from_environment(server: str, environ: Environ) -> str:
    """Return HTTPS_PROXY or HTTP_PROXY, or "" if NO_PROXY excludes the server. The rules are those of Go's net/http."""
    url = urlsplit(server)
    host = (url.hostname or "").lower()
    proxy, rules = (
        environ.get(name.upper()) or environ.get(name) or "" for name in (f"{url.scheme}_proxy", "no_proxy")
    )
    address = _ip_address(host)
    if not proxy or host == "localhost" or (address is not None and address.is_loopback):
        return ""
    if any(_matches(host, url.port, rule.strip().lower()) for rule in rules.split(",") if rule.strip()):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _matches(host: str, port: int | None, rule: str) -> bool:
    """True if an entry of NO_PROXY matches: *, a CIDR, or an IP address or domain with an optional port."""
    address = _ip_address(host)
    if address is not None:
        with suppress(ValueError):  # the rule is neither a CIDR nor an address
            return address in ipaddress.ip_network(rule, strict=False)
    name, colon, digits = rule.rpartition(":")
    if colon and digits.isdigit():
        return int(digits) == port and _matches(host, port, name.strip("[]"))
    if address is not None:
        return rule == "*"
    domain = rule.removeprefix("*").lstrip(".")
    return rule == "*" or host.endswith(f".{domain}") or (host == domain and not rule.startswith((".", "*")))


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
