"""Reading kubeconfigs by kubectl's rules.

--kubeconfig, else the files of KUBECONFIG (merged: the first to name a thing wins), else ~/.kube/config, else the
service account of the pod we run in. Paths in a file are relative to that file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from oars.base.text import suggest
from oars.kube.errors import ConfigError
from oars.kube.proxies import proxy_of
from oars.kube.target import ExecPlugin, Impersonation, Pem, Target

__all__ = ["Target", "contexts", "in_cluster", "load"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INTERACTIVE = ("Never", "IfAvailable", "Always")

Environ = Mapping[str, str]


def load(
    environ: Environ, *, context: str | None = None, namespace: str | None = None, kubeconfig: str | Path | None = None
) -> Target:
    """Whom to talk to, by kubectl's rules; the arguments win over what is found."""
    paths = _paths(environ, kubeconfig)
    config = _merged(paths)
    if config.empty():
        if context is None and in_cluster(environ):
            return _from_service_account(environ, namespace)
        raise _nothing(paths)
    return _from_kubeconfig(config, environ, context, namespace)


def in_cluster(environ: Environ) -> bool:
    """Whether we run in a pod that may talk to its API server."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()


def contexts(environ: Environ, kubeconfig: str | Path | None = None) -> list[str]:
    """The names of all contexts, for completion and messages."""
    return sorted(_merged(_paths(environ, kubeconfig)).contexts)


# files


@dataclass
class _Config:
    """Several kubeconfigs merged. Each entry remembers the folder it came from."""

    current: str = ""
    clusters: dict[str, tuple[Any, Path]] = field(default_factory=dict)
    users: dict[str, tuple[Any, Path]] = field(default_factory=dict)
    contexts: dict[str, tuple[Any, Path]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def empty(self) -> bool:
        return not (self.clusters or self.contexts)

    @property
    def source(self) -> str:
        return ", ".join(map(str, self.files))


def _paths(environ: Environ, kubeconfig: str | Path | None) -> list[Path]:
    if kubeconfig is not None:
        path = Path(kubeconfig).expanduser()
        if not path.exists():
            raise ConfigError(f"There is no kubeconfig {path}.", "Give the path of an existing file.")
        return [path]
    listed = [part for part in environ.get("KUBECONFIG", "").split(":") if part]
    if listed:
        return [Path(part) for part in dict.fromkeys(listed)]
    home = environ.get("HOME", "")
    return [Path(home) / ".kube" / "config"] if home else []


def _merged(paths: list[Path]) -> _Config:
    merged = _Config()
    for path in paths:
        if not path.exists():  # kubectl, too, passes over missing files of the list
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
        hint = "Make it readable, or name another one with --kubeconfig."
        raise ConfigError(f"The kubeconfig {path} cannot be read: {error.strerror}.", hint) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        hint = f"`kubectl config view --kubeconfig {path}` checks it."
        raise ConfigError(f"The kubeconfig {path} is no YAML.", hint, tuple(str(error).splitlines()[:4])) from error
    if content is None:
        return {}
    if not _well_formed(content):
        raise ConfigError(f"{path} is no kubeconfig.", "It needs clusters, users and contexts, each with a name.")
    return dict(content)


def _well_formed(content: object) -> bool:
    if not isinstance(content, dict):
        return False
    for plural in ("clusters", "users", "contexts"):
        entries = content.get(plural) or []
        if not isinstance(entries, list) or not all(isinstance(part, dict) and part.get("name") for part in entries):
            return False
    return True


def _nothing(paths: list[Path]) -> ConfigError:
    looked = tuple(f"looked for {path}" for path in paths)
    hint = "Name a kubeconfig with --kubeconfig or KUBECONFIG."
    return ConfigError("No kubeconfig was found, and this is no pod of a cluster.", hint, looked)


# from a file to a target


def _from_kubeconfig(config: _Config, environ: Environ, wanted: str | None, namespace: str | None) -> Target:
    name = wanted or config.current or _only(config)
    context, _ = _entry(config.contexts, name, "context", config)
    cluster, cluster_home = _entry(config.clusters, context.get("cluster", ""), "cluster", config)
    user: dict[str, Any] = {}
    user_home = Path()
    if context.get("user"):
        user, user_home = _entry(config.users, context["user"], "user", config)
    if user.get("auth-provider"):
        hint = "Log in anew with your provider's exec plug-in; kubectl dropped auth-provider as well."
        raise ConfigError(f"The user {context['user']!r} of {config.source} uses auth-provider.", hint)
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise ConfigError(f"The cluster of context {name!r} has no server.", f"Correct it in {config.source}.")
    plugin = user.get("exec")
    return Target(
        server=server,
        namespace=namespace or context.get("namespace") or "default",
        context=name,
        ca=_pem(cluster, "certificate-authority", cluster_home),
        cert=_pem(user, "client-certificate", user_home),
        key=_pem(user, "client-key", user_home),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=cluster.get("tls-server-name", ""),
        token=user.get("token", ""),
        token_file=_resolved(user.get("tokenFile", ""), user_home),
        exec_plugin=_plugin(plugin, cluster, (cluster_home, user_home)) if plugin else None,
        username=user.get("username", ""),
        password=user.get("password", ""),
        proxy_url=cluster.get("proxy-url") or proxy_of(server, environ),
        impersonate=_impersonation(user),
        source=config.source,
    )


def _only(config: _Config) -> str:
    """Without a current context kubectl gives up; a single one leaves no doubt."""
    if len(config.contexts) == 1:
        return next(iter(config.contexts))
    hint = "Choose one with --context or `kubectl config use-context`."
    raise ConfigError(f"No context is chosen in {config.source}.", hint, tuple(sorted(config.contexts)))


def _entry(known: Mapping[str, tuple[Any, Path]], name: str, what: str, config: _Config) -> tuple[dict[str, Any], Path]:
    if name not in known:
        hint = f"There are: {', '.join(sorted(known)) or 'none'}.{suggest(name, known)}"
        raise ConfigError(f"There is no {what} {name!r} in {config.source}.", hint)
    content, home = known[name]
    return dict(content), home


def _resolved(path: str, home: Path) -> str:
    return str(home / path) if path else ""


def _pem(entry: Mapping[str, Any], key: str, home: Path) -> Pem:
    data = entry.get(f"{key}-data")
    if not data:
        return Pem(path=_resolved(entry.get(key, ""), home))
    try:
        return Pem(data=base64.b64decode(data).decode())
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}-data in the kubeconfig is not base64.", "Write the file anew.") from error


def _plugin(entry: Mapping[str, Any], cluster: Mapping[str, Any], homes: tuple[Path, Path]) -> ExecPlugin:
    command, version = str(entry.get("command", "")), str(entry.get("apiVersion", ""))
    if version not in _EXEC_VERSIONS:
        hint = f"It must be one of {', '.join(_EXEC_VERSIONS)}."
        raise ConfigError(f"The exec plug-in {command!r} speaks {version!r}, which nobody does now.", hint)
    mode = entry.get("interactiveMode") or "IfAvailable"
    if mode not in _INTERACTIVE:
        raise ConfigError(f"interactiveMode {mode!r} is unknown.", f"It is one of {', '.join(_INTERACTIVE)}.")
    cluster_home, user_home = homes
    if "/" in command:  # a bare name is looked up on PATH
        command = str(user_home / command)
    info = _cluster_info(cluster, cluster_home) if entry.get("provideClusterInfo") else None
    return ExecPlugin(
        command=command,
        args=tuple(map(str, entry.get("args") or ())),
        env=tuple((part["name"], str(part.get("value", ""))) for part in entry.get("env") or ()),
        api_version=version,
        interactive=mode,
        install_hint=str(entry.get("installHint") or ""),
        cluster_info=info,
    )


def _cluster_info(cluster: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """What a plug-in that asks for it is told of the cluster."""
    plain = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    told = {key: cluster[key] for key in plain if cluster.get(key)}
    if authority := _pem(cluster, "certificate-authority", home):
        told["certificate-authority-data"] = base64.b64encode(authority.text().encode()).decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            told["config"] = extension.get("extension")
    return told


def _impersonation(user: Mapping[str, Any]) -> Impersonation:
    extra = user.get("as-user-extra") or {}
    return Impersonation(
        user=user.get("as", ""),
        uid=user.get("as-uid", ""),
        groups=tuple(user.get("as-groups") or ()),
        extra=tuple((key, tuple(values)) for key, values in extra.items()),
    )


# from a pod to a target


def _from_service_account(environ: Environ, namespace: str | None) -> Target:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    own = SERVICE_ACCOUNT / "namespace"
    return Target(
        server=server,
        namespace=namespace or (own.read_text().strip() if own.exists() else "default"),
        ca=Pem(path=str(SERVICE_ACCOUNT / "ca.crt")),
        token_file=str(SERVICE_ACCOUNT / "token"),
        source="the pod's service account",
    )
