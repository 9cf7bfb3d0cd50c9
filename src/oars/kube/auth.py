"""Credentials of requests: HTTP headers and a TLS context, renewed when necessary."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import tempfile
import time
from collections.abc import Iterable, Mapping
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
        self._target = target
        self._environ = environ
        self._impersonation = impersonation_headers(target.impersonate)
        self._token_file = TokenFile(target.token_file) if target.token_file else None
        # A static token takes precedence over the exec plugin.
        self._plugin = None if target.token or target.token_file else target.exec_plugin
        self._exec_credential: ExecCredential | None = None
        self._plugin_run: asyncio.Task[None] | None = None
        self._renewals = 0
        self._context: ssl.SSLContext | None = None
        self._certificates = CertificateFiles(pem.path for pem in (target.ca, target.cert, target.key))

    async def headers(self) -> list[tuple[str, str]]:
        """Return the headers that authenticate a request."""
        target = self._target
        token = (self._token_file.read() if self._token_file else "") or target.token
        if not token and (credential := await self._get_exec_credential()):
            token = credential.token
        if token:
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
        if self._context is None:
            self._context = self._new_context()
        elif self._certificates.is_due():
            self._reload_certificates()
        return self._context

    @property
    def version(self) -> tuple[object, ...]:
        """A value that changes whenever the credentials are renewed."""
        return self._renewals, self._token_file.token if self._token_file else ""

    async def renew(self, rejected: tuple[object, ...] | None = None) -> bool:
        """Renew credentials after status 401; return False if that is impossible.

        `rejected` is the version that the server rejected. Concurrent requests are rejected together, and the first
        renewal serves them all."""
        if (rejected is not None and rejected != self.version) or self._reload_certificates():
            return True
        if self._token_file:
            return self._token_file.reload()
        if self._plugin:
            await self._run_plugin_once()
            return True
        return False

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
        self._renewals += 1

    def _reload_certificates(self) -> bool:
        """Reload certificates if their files changed; return True if the new ones are valid.

        While someone replaces the files, certificate and key may not match."""
        if not self._certificates.have_changed():
            return False
        try:
            self._context = self._new_context()
        except ConfigError:
            self._certificates.forget()
            return False
        self._renewals += 1
        return True

    def _new_context(self) -> ssl.SSLContext:
        target, issued = self._target, self._exec_credential
        cert, key = (issued.cert, issued.key) if issued and issued.cert else (target.cert, target.key)
        return tls_context(target, cert, key)


class CertificateFiles:
    """Detects changes of certificate files."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = [path for path in paths if path]
        self._times = self._modification_times()
        self._checked = time.monotonic()

    def is_due(self) -> bool:
        """True if the last check is longer ago than RELOAD_SECONDS."""
        return bool(self._paths) and time.monotonic() - self._checked > RELOAD_SECONDS

    def have_changed(self) -> bool:
        """True if a file changed since the last check. A missing file counts as unchanged."""
        self._checked = time.monotonic()
        before, self._times = self._times, {**self._times, **self._modification_times()}
        return self._times != before

    def forget(self) -> None:
        """Make the next check report a change."""
        self._times = {}

    def _modification_times(self) -> dict[str, int]:
        times = {}
        for path in self._paths:
            with suppress(OSError):
                times[path] = os.stat(path).st_mtime_ns
        return times


class TokenFile:
    """A token in a file that another process renews."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.token = ""
        self._checked = float("-inf")

    def read(self) -> str:
        """Return the token, at most RELOAD_SECONDS old. If the file is unreadable, return the last one."""
        if time.monotonic() - self._checked > RELOAD_SECONDS:
            self.reload()
        return self.token

    def reload(self) -> bool:
        """Read the file now; return True if the token changed."""
        self._checked = time.monotonic()
        try:
            token = self._path.read_text().strip()
        except OSError as error:
            if self.token:
                return False
            hint = "Correct users[].user.tokenFile in the kubeconfig, or log in again."
            raise ConfigError(f"Cannot read token file {self._path}: {error.strerror}.", hint) from error
        changed, self.token = token != self.token, token
        return changed


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
    except (OSError, ssl.SSLError) as error:
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
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"The client certificate is invalid: {error}.", hint) from error
    return context
