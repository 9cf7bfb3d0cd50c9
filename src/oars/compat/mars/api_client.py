"""Reads the API server and the credentials from an ApiClient of the `kubernetes` package, without importing it."""

from __future__ import annotations

import os
from typing import Any

from oars.base.errors import UsageError
from oars.kube import config
from oars.kube.target import NO_PEM, Pem, Target


def make_target(api_client: Any, namespace: str | None = None) -> Target | None:
    """The target of an ApiClient or of its Configuration; None: no client, so the usual sources apply. `namespace`
    overrides that of the client."""
    if api_client is None:
        return None
    found = getattr(api_client, "configuration", api_client)
    host = getattr(found, "host", None)
    if not isinstance(host, str) or not host or not hasattr(found, "api_key"):
        raise UsageError(
            f"kube_api_client: {api_client!r} is no ApiClient of the kubernetes package.",
            "Use kubernetes.config.new_client_from_config(), or None for Oars' own discovery.",
        )
    if getattr(found, "assert_hostname", None) is False and found.verify_ssl:
        raise UsageError(
            "kube_api_client: assert_hostname=False is not supported.",
            "Set tls_server_name to the name in the certificate, or verify_ssl to False.",
        )
    server = (host if "://" in host else f"https://{host}").rstrip("/")
    known = getattr(found, "namespace", None) or getattr(api_client, "namespace", None)
    return Target(
        server=server,
        namespace=namespace or known or "default",
        ca=_pem(found, "ssl_ca_cert", "ca_cert_data"),
        cert=_pem(found, "cert_file"),
        key=_pem(found, "key_file"),
        insecure=not getattr(found, "verify_ssl", True),
        tls_server_name=getattr(found, "tls_server_name", None) or "",
        read_token=lambda: _token(found),
        username=getattr(found, "username", None) or "",
        password=getattr(found, "password", None) or "",
        proxy_url=getattr(found, "proxy", None) or config.proxy_from_environment(server, os.environ),
        source="the given ApiClient",
    )


def _pem(found: Any, path: str, data: str = "") -> Pem:
    text = getattr(found, data, None) if data else None
    if text:
        return Pem(data=text.decode() if isinstance(text, bytes) else text)
    name = getattr(found, path, None)
    return Pem(path=os.path.expanduser(name)) if name else NO_PEM


def _token(found: Any) -> str:
    """The token now. The client's hook renews it: those of pods and of exec plugins expire."""
    hook = getattr(found, "refresh_api_key_hook", None)
    if hook is not None:
        hook(found)
    keys = found.api_key or {}
    text = str(keys.get("authorization") or keys.get("BearerToken") or "")  # the name depends on the client's version
    scheme, _, token = text.partition(" ")
    return token if scheme.lower() == "bearer" and token else text
