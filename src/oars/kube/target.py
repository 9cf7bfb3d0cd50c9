"""The API server to connect to and the credentials for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Pem:
    """A PEM certificate or key: a file or its text. Files are read on use, because they may be renewed."""

    path: str = ""
    data: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.path or self.data)

    def text(self) -> str:
        """Return the PEM text."""
        return self.data or Path(self.path).read_text()


NO_PEM = Pem()


@dataclass(frozen=True)
class ExecPlugin:
    """An exec credential plugin, such as `aws`, `gke-gcloud-auth-plugin` or `kubelogin`."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    api_version: str = "client.authentication.k8s.io/v1"
    interactive_mode: str = "IfAvailable"  # or Never, Always
    install_hint: str = ""
    cluster_info: Mapping[str, Any] | None = None  # passed to the plugin if provideClusterInfo is set


@dataclass(frozen=True)
class Impersonation:
    """The user to impersonate. The API server checks whether that is allowed."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Target:
    """An API server and the credentials for it. Secrets are excluded from repr, so that they do not reach logs."""

    server: str
    namespace: str = "default"
    context: str = ""
    ca: Pem = NO_PEM
    cert: Pem = NO_PEM
    key: Pem = NO_PEM
    insecure: bool = False
    tls_server_name: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    read_token: Callable[[], str] | None = field(default=None, repr=False)  # of another client, which renews it
    exec_plugin: ExecPlugin | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    proxy_url: str = field(default="", repr=False)  # may contain a password
    impersonate: Impersonation = Impersonation()
    source: str = ""  # the kubeconfig files, for error messages
