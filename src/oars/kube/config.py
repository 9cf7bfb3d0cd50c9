"""Load a Target by kubectl's rules.

The sources, in order: --kubeconfig; the files in KUBECONFIG, merged so that the first definition of a name wins;
~/.kube/config; the service account of the pod that this process runs in. Paths in a file are relative to that file.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from oars.base.text import suggest
from oars.kube.errors import ConfigError
from oars.kube.target import ExecPlugin, Impersonation, Pem, Target

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")

Environ = Mapping[str, str]


def load(
    environ: Environ, *, context: str | None = None, namespace: str | None = None, kubeconfig: str | Path | None = None
) -> Target:
    """Return the target of a context. The arguments take precedence over the kubeconfig."""
    paths = _paths(environ, kubeconfig)
    config = _merge(paths)
    if not (config.clusters or config.contexts):
        if context is None and in_cluster(environ):
            return _from_service_account(environ, namespace)
        hint = "Set KUBECONFIG, or pass --kubeconfig."
        searched = tuple(f"searched {path}" for path in paths)
        raise ConfigError("No kubeconfig found, and this process does not run in a pod.", hint, searched)
    return _from_kubeconfig(config, environ, context, namespace)


def in_cluster(environ: Environ) -> bool:
    """True if this process runs in a pod with a service account token."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


# Files


@dataclass
class _Config:
    """Merged kubeconfigs. Each entry has the directory of its file, which its relative paths refer to."""

    current: str = ""
    clusters: dict[str, tuple[Any, Path]] = field(default_factory=dict)
    users: dict[str, tuple[Any, Path]] = field(default_factory=dict)
    contexts: dict[str, tuple[Any, Path]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    @property
    def source(self) -> str:
        return ", ".join(map(str, self.files))


def _paths(environ: Environ, kubeconfig: str | Path | None) -> list[Path]:
    if kubeconfig is not None:
        path = Path(kubeconfig).expanduser()
        if not path.exists():
            raise ConfigError(f"Kubeconfig {path} does not exist.", "Pass the path of an existing file.")
        return [path]
    listed = [part for part in environ.get("KUBECONFIG", "").split(":") if part]
    if listed:
        return [Path(part) for part in dict.fromkeys(listed)]
    home = environ.get("HOME", "")
    return [Path(home) / ".kube" / "config"] if home else []


def _merge(paths: list[Path]) -> _Config:
    merged = _Config()
    for path in paths:
        if not path.exists():  # kubectl also skips missing files
            continue
        content = _read(path)
        merged.files.append(path)
        merged.current = merged.current or content.get("current-context") or ""
        for plural, singular in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            known = getattr(merged, plural)
            for entry in content.get(plural) or ():
                known.setdefault(entry["name"], (entry.get(singular) or {}, path.absolute().parent))
    return merged


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        hint = "Correct its permissions, or pass another file with --kubeconfig."
        raise ConfigError(f"Cannot read kubeconfig {path}: {error.strerror}.", hint) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        hint = f"Run `kubectl config view --kubeconfig {path}` to check it."
        lines = tuple(str(error).splitlines()[:4])
        raise ConfigError(f"Kubeconfig {path} is not valid YAML.", hint, lines) from error
    if content is None:
        return {}
    if not _is_kubeconfig(content):
        hint = "Check that clusters, users and contexts are lists and that each entry has a name."
        raise ConfigError(f"{path} is not a kubeconfig.", hint)
    return dict(content)


def _is_kubeconfig(content: object) -> bool:
    if not isinstance(content, dict):
        return False
    for plural in ("clusters", "users", "contexts"):
        entries = content.get(plural) or []
        if not isinstance(entries, list) or not all(isinstance(part, dict) and part.get("name") for part in entries):
            return False
    return True


# Kubeconfig to target


def _from_kubeconfig(config: _Config, environ: Environ, context_name: str | None, namespace: str | None) -> Target:
    name = context_name or config.current or _only_context(config)
    context, _ = _entry(config.contexts, name, "context", config)
    cluster, cluster_dir = _entry(config.clusters, context.get("cluster", ""), "cluster", config)
    user: dict[str, Any] = {}
    user_dir = Path()
    if context.get("user"):
        user, user_dir = _entry(config.users, context["user"], "user", config)
    if user.get("auth-provider"):
        hint = "Configure your provider's exec plugin. kubectl no longer supports auth-provider either."
        raise ConfigError(f"User {context['user']!r} in {config.source} uses auth-provider.", hint)
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("https://", "http://")):
        hint = f"Set clusters[].cluster.server in {config.source} to an http:// or https:// URL."
        raise ConfigError(f"The cluster of context {name!r} has no server.", hint)
    plugin = user.get("exec")
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
        token_file=_resolve(user.get("tokenFile", ""), user_dir),
        exec_plugin=_exec_plugin(plugin, user_dir, cluster, cluster_dir) if plugin else None,
        username=user.get("username", ""),
        password=user.get("password", ""),
        proxy_url=cluster.get("proxy-url") or proxy_from_environment(server, environ),
        impersonate=_impersonation(user),
        source=config.source,
    )


def _only_context(config: _Config) -> str:
    """Return the only context. Unlike kubectl, we do not need current-context if there is one context."""
    if len(config.contexts) == 1:
        return next(iter(config.contexts))
    hint = "Pass --context, or run `kubectl config use-context NAME`."
    raise ConfigError(f"current-context is not set in {config.source}.", hint, tuple(sorted(config.contexts)))


def _entry(known: Mapping[str, tuple[Any, Path]], name: str, what: str, config: _Config) -> tuple[dict[str, Any], Path]:
    if name not in known:
        hint = f"Known names: {', '.join(sorted(known)) or 'none'}.{suggest(name, known)}"
        raise ConfigError(f"No {what} {name!r} in {config.source}.", hint)
    content, directory = known[name]
    return dict(content), directory


def _resolve(path: str, directory: Path) -> str:
    return str(directory / path) if path else ""


def _pem(entry: Mapping[str, Any], key: str, directory: Path) -> Pem:
    data = entry.get(f"{key}-data")
    if not data:
        return Pem(path=_resolve(entry.get(key, ""), directory))
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
    info = _cluster_info(cluster, cluster_dir) if entry.get("provideClusterInfo") else None
    return ExecPlugin(
        command=command,
        args=tuple(map(str, entry.get("args") or ())),
        env=tuple((part["name"], str(part.get("value", ""))) for part in entry.get("env") or ()),
        api_version=version,
        interactive_mode=mode,
        install_hint=str(entry.get("installHint") or ""),
        cluster_info=info,
    )


def _cluster_info(cluster: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return spec.cluster of the ExecCredential that is passed to a plugin with provideClusterInfo."""
    plain = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    info = {key: cluster[key] for key in plain if cluster.get(key)}
    if authority := _pem(cluster, "certificate-authority", directory):
        info["certificate-authority-data"] = base64.b64encode(authority.text().encode()).decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info


def _impersonation(user: Mapping[str, Any]) -> Impersonation:
    extra = user.get("as-user-extra") or {}
    return Impersonation(
        user=user.get("as", ""),
        uid=user.get("as-uid", ""),
        groups=tuple(user.get("as-groups") or ()),
        extra=tuple((key, tuple(values)) for key, values in extra.items()),
    )


# Service account to target


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


# Proxy


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
    if rule == "*":
        return True
    address = _ip_address(host)
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    name, colon, digits = rule.rpartition(":")
    if colon and digits.isdigit() and _ip_address(rule) is None:
        if int(digits) != port:
            return False
        rule = name.strip("[]")
    if address is not None:
        return address == _ip_address(rule)
    domain = rule.removeprefix("*").lstrip(".")
    return host.endswith(f".{domain}") or (host == domain and not rule.startswith((".", "*")))


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
