"""Credentials for the Kubernetes API: ClusterAuth, InCluster, KubeConfig, KubeAuth."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from oars.base.errors import UsageError
from oars.base.text import suggest
from oars.kube import config
from oars.kube.errors import ConfigError
from oars.kube.target import NO_PEM, Pem, Target


class ClusterAuth:
    """A method to connect to the Kubernetes API."""

    DEFAULT: ClassVar[list[ClusterAuth]]

    async def load(self) -> Target:
        """Return the API server and the credentials. Raises ConfigError if this method does not apply here."""
        raise NotImplementedError

    @staticmethod
    def methods(auth: Any) -> Sequence[ClusterAuth]:
        """A list of methods, from a list, one method or None."""
        found = ClusterAuth.DEFAULT if auth is None else [auth] if isinstance(auth, ClusterAuth) else auth
        if not isinstance(found, Sequence) or not all(isinstance(each, ClusterAuth) for each in found):
            raise UsageError(f"auth: {auth!r} is no list of ClusterAuth.", "Use for example auth=[KubeConfig()].")
        return found

    @staticmethod
    async def load_first(auth: Any = None) -> Target:
        """Return the result of the first method that applies. `auth` is a list of methods, or one."""
        failure = ConfigError("auth: the list is empty.", "Leave it out, or use for example auth=[KubeConfig()].")
        for method in ClusterAuth.methods(auth):
            try:
                return await method.load()
            except ConfigError as error:
                failure = error
        raise failure


class InCluster(ClusterAuth):
    """The service account of the pod that this program runs in."""

    async def load(self) -> Target:
        if not config.in_cluster(os.environ):
            raise ConfigError("This program does not run in a pod with a service account.")
        kept = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
        return config.load({name: os.environ[name] for name in kept if name in os.environ})


class KubeConfig(ClusterAuth):
    """A kubeconfig. By default that of KUBECONFIG, else ~/.kube/config, with its current context. persist_config has no
    effect: Oars never writes to a kubeconfig, and gets new tokens from the exec plugin."""

    def __init__(self, config_file: str | None = None, context: str | None = None, persist_config: bool = True) -> None:
        self.config_file = config_file
        self.context = context
        self.persist_config = persist_config

    async def load(self) -> Target:
        outside = {name: value for name, value in os.environ.items() if name != "KUBERNETES_SERVICE_HOST"}
        return config.load(outside, context=self.context, kubeconfig=self.config_file)


class KubeAuth(ClusterAuth):
    """An API server and its credentials, given here. Keyword arguments: username, password, api_key, verify_ssl,
    ssl_ca_cert, cert_file, key_file, assert_hostname, proxy, debug."""

    _KNOWN = ("username", "password", "api_key", "api_key_prefix", "verify_ssl", "ssl_ca_cert", "cert_file", "key_file",
              "assert_hostname", "proxy", "debug")  # fmt: skip

    def __init__(self, host: str, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in self._KNOWN:
                raise TypeError(f"KubeAuth() got an unexpected keyword argument {name!r}.{suggest(name, self._KNOWN)}")
        self.host = host
        self.kwargs = kwargs

    async def load(self) -> Target:
        given = self.kwargs
        hostname = given.get("assert_hostname")
        if hostname is False and given.get("verify_ssl", True):
            raise UsageError(
                "KubeAuth: assert_hostname=False is not supported.",
                "Pass the name in the certificate as assert_hostname, or verify_ssl=False.",
            )
        token = str((given.get("api_key") or {}).get("authorization", "")).removeprefix("Bearer ")
        host = self.host if "://" in self.host else f"https://{self.host}"
        return Target(
            server=host.rstrip("/"),
            ca=_pem(given.get("ssl_ca_cert")),
            cert=_pem(given.get("cert_file")),
            key=_pem(given.get("key_file")),
            insecure=not given.get("verify_ssl", True),
            tls_server_name=hostname if isinstance(hostname, str) else "",
            token=token,
            username=given.get("username") or "",
            password=given.get("password") or "",
            proxy_url=given.get("proxy") or config.proxy_from_environment(host, os.environ),
            source="KubeAuth",
        )


def _pem(path: str | None) -> Pem:
    return Pem(path=os.path.expanduser(path)) if path else NO_PEM


ClusterAuth.DEFAULT = [InCluster(), KubeConfig()]
