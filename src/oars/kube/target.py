"""Whom to talk to, and as whom: what a kubeconfig or a pod's service account comes down to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Pem:
    """A certificate or key: a file, or the text itself. A file is read when it is used, so that it may change."""

    path: str = ""
    data: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.path or self.data)

    def text(self) -> str:
        """The PEM text."""
        return self.data or Path(self.path).read_text()


NO_PEM = Pem()


@dataclass(frozen=True)
class ExecPlugin:
    """A program that gives out credentials: `aws`, `gke-gcloud-auth-plugin`, `kubelogin` and the like."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    api_version: str = "client.authentication.k8s.io/v1"
    interactive: str = "IfAvailable"  # or Never, Always
    install_hint: str = ""
    cluster_info: Mapping[str, Any] | None = None  # what it is told of the cluster, if it wants to know


@dataclass(frozen=True)
class Impersonation:
    """Whom to act as; the API server checks that we may."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Target:
    """An API server and the credentials for it. Secrets are left out of repr, so that no log shows them."""

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
    exec_plugin: ExecPlugin | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    proxy_url: str = field(default="", repr=False)  # may hold a password
    impersonate: Impersonation = Impersonation()
    source: str = ""  # where this comes from, for messages
