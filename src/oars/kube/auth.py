"""Credentials of requests: HTTP headers and a TLS context, renewed when necessary."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from oars.kube.errors import ConfigError
from oars.kube.exec_plugin import ExecCredential, run_plugin
from oars.kube.target import Impersonation, Pem, Target

RELOAD_SECONDS = 60.0  # between reads of a token or certificate file; the kubelet renews tokens long before they expire


class Credentials:
    """Authenticates requests to the API server of a target."""

    def __init__(self, target: Target, environ: Mapping[str, str]) -> None:
        self.version = 0  # grows whenever the credentials are renewed
        self._target = target
        self._environ = environ
        self._impersonation = impersonation_headers(target.impersonate)
        # A static token takes precedence over the exec plugin.
        self._plugin = None if target.token or target.token_file else target.exec_plugin
        self._exec_credential: ExecCredential | None = None
        self._plugin_run: asyncio.Task[None] | None = None
        self._token = target.token
        self._context: ssl.SSLContext | None = None
        self._certificate_times: dict[str, int] = {}  # modification times of the files in the context
        self._checked_files = float("-inf")

    async def headers(self) -> list[tuple[str, str]]:
        """Return the headers that authenticate a request."""
        self._reload_files_if_due()
        target, token = self._target, self._token
        if target.read_token is not None:
            token = await asyncio.to_thread(target.read_token)  # it may run a program
        if not token and (credential := await self._get_exec_credential()):
            token = credential.token
        if token:
            if not (token.isascii() and token.isprintable()):
                hint = "Log in again, or correct the token in the kubeconfig."
                raise ConfigError("The token contains characters that an HTTP header cannot have.", hint)
            return [("Authorization", f"Bearer {token}"), *self._impersonation]
        if target.username:
            pair = base64.b64encode(f"{target.username}:{target.password}".encode()).decode()
            return [("Authorization", f"Basic {pair}"), *self._impersonation]
        return list(self._impersonation)

    async def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None if the server uses plain HTTP."""
        if not self._target.server.startswith("https://"):
            return None
        await self._get_exec_credential()
        self._reload_files_if_due()
        if self._context is None:
            self._certificate_times = self._read_certificate_times()
            self._context = self._new_context()
        return self._context

    async def renew(self, rejected: int) -> bool:
        """Renew credentials after status 401; return False if that is impossible.

        `rejected` is the version that the server rejected. Concurrent requests are rejected together, and the first
        renewal serves them all."""
        if rejected != self.version or self._reload_files():
            return True
        if self._plugin:
            await self._run_plugin_once()
        return self._plugin is not None

    async def close(self) -> None:
        """Kill the exec plugin if it is running."""
        if self._plugin_run is not None and not self._plugin_run.done():
            self._plugin_run.cancel()
            await asyncio.wait([self._plugin_run])

    async def _get_exec_credential(self) -> ExecCredential | None:
        if self._plugin is None:
            return None
        if self._exec_credential is None or not self._exec_credential.is_valid(datetime.now(UTC)):
            await self._run_plugin_once()
        return self._exec_credential

    async def _run_plugin_once(self) -> None:
        """Run the plugin, once for all concurrent requests.

        The timeout of one request does not kill it: the user may be typing a password."""
        if self._plugin_run is None or self._plugin_run.done():
            self._plugin_run = asyncio.create_task(self._run_plugin())
            # Retrieve the exception, or asyncio logs it if every request was cancelled meanwhile.
            self._plugin_run.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._plugin_run)

    async def _run_plugin(self) -> None:
        assert self._plugin is not None
        credential = await run_plugin(self._plugin, self._environ)
        if self._exec_credential is None or credential.cert != self._exec_credential.cert:
            self._context = None  # do not reuse connections that were opened with the old certificate
        self._exec_credential = credential
        self.version += 1

    def _reload_files_if_due(self) -> None:
        if time.monotonic() - self._checked_files > RELOAD_SECONDS:
            self._reload_files()

    def _reload_files(self) -> bool:
        """Read the token file, and the certificate files if they changed; return True if the credentials changed."""
        self._checked_files = time.monotonic()
        has_changed = False
        if self._target.token_file:
            before, self._token = self._token, self._read_token_file()
            has_changed = self._token != before
        times = self._read_certificate_times()
        if self._context is not None and times != self._certificate_times:
            # While someone replaces the files, certificate and key may not match: try again at the next check.
            with suppress(ConfigError):
                self._context, self._certificate_times, has_changed = self._new_context(), times, True
        self.version += has_changed
        return has_changed

    def _read_token_file(self) -> str:
        """Return the token in the file, or the last one if the file is unreadable."""
        path = self._target.token_file
        try:
            return Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            if self._token:
                return self._token
            hint = "Correct users[].user.tokenFile in the kubeconfig, or log in again."
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"Cannot read token file {path}: {reason}.", hint) from error

    def _read_certificate_times(self) -> dict[str, int]:
        """Return the modification times of the certificate files. A missing file keeps its last one."""
        times = dict(self._certificate_times)
        for path in (self._target.ca.path, self._target.cert.path, self._target.key.path):
            with suppress(OSError):
                times[path] = os.stat(path).st_mtime_ns
        return times

    def _new_context(self) -> ssl.SSLContext:
        target, issued = self._target, self._exec_credential
        cert, key = (issued.cert, issued.key) if issued and issued.cert else (target.cert, target.key)
        return tls_context(target, cert, key)


def impersonation_headers(who: Impersonation) -> list[tuple[str, str]]:
    """Return the headers that impersonate a user."""
    headers = [("Impersonate-User", who.user)] if who.user else []
    headers += [("Impersonate-Uid", who.uid)] if who.uid else []
    headers += [("Impersonate-Group", group) for group in who.groups]
    # Keys may contain characters that header names may not, such as a slash. The API server decodes percent-encoding.
    headers += [(f"Impersonate-Extra-{quote(key, safe='')}", value) for key, values in who.extra for value in values]
    return headers


def tls_context(target: Target, cert: Pem, key: Pem) -> ssl.SSLContext:
    """Return a context that trusts the target's certificate authority and presents the client certificate, if any."""
    hint = f"Check the certificates of context {target.context!r} in {target.source}." if target.source else ""
    try:
        context = ssl.create_default_context(cadata=target.ca.text() if target.ca else None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The cluster's certificate authority is invalid: {error}.", hint) from error
    if target.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # Many clusters' certificate authorities violate RFC 5280, which Python 3.13 enforces and kubectl does not.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if cert:
        try:
            # The ssl module loads certificates only from files. The temporary file is readable by this user alone.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
                pem.write(f"{cert.text()}\n{key.text() if key else ''}\n")
                pem.flush()
                context.load_cert_chain(pem.name)
        except (OSError, ValueError) as error:
            raise ConfigError(f"The client certificate is invalid: {error}.", hint) from error
    return context
