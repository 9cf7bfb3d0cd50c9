"""The credentials of each request: header lines and a TLS context, renewed when they have to be."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from oars.kube import execplugin
from oars.kube.errors import ConfigError
from oars.kube.target import ExecPlugin, Impersonation, Pem, Target

TOKEN_SECONDS = 60.0  # kubelet renews a pod's token long before it expires


class Credentials:
    """Proves to the API server who we are."""

    def __init__(self, target: Target, environ: Mapping[str, str]) -> None:
        self._target = target
        self._environ = environ
        self._fixed = impersonation_headers(target.impersonate)
        self._file = TokenFile(target.token_file) if target.token_file else None
        self._issued: execplugin.Issued | None = None
        self._asking: asyncio.Task[None] | None = None  # a run of the plug-in
        self._renewals = 0
        self._context: ssl.SSLContext | None = None
        self._certificates = Stamps(pem.path for pem in (target.ca, target.cert, target.key))

    async def headers(self) -> list[tuple[str, str]]:
        """The header lines that say who we are."""
        value = await self._authorization()
        return [("Authorization", value), *self._fixed] if value else list(self._fixed)

    async def tls(self) -> ssl.SSLContext | None:
        """How to speak TLS; None where the server speaks plain HTTP."""
        if not self._target.server.startswith("https://"):
            return None
        await self._plugin()
        if self._context is None:
            self._context = self._new_context()
        elif self._certificates.due():
            self._reread_certificates()
        return self._context

    @property
    def stamp(self) -> tuple[object, ...]:
        """Of what is used now; another one when that has been renewed."""
        return self._renewals, self._file.token if self._file else ""

    async def renew(self, used: tuple[object, ...] | None = None) -> bool:
        """After a 401: get new credentials; False when there are none to be had. `used`: the stamp of those that were
        refused; many requests are refused at once, and one renewal is enough for all."""
        if (used is not None and used != self.stamp) or self._reread_certificates():
            return True
        if self._file:
            return self._file.reread()
        if self._uses_plugin():
            await self._ask_plugin()
            return True
        return False

    async def close(self) -> None:
        """A plug-in that still runs is ended: nobody waits for it any more."""
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def _authorization(self) -> str:
        target = self._target
        token = (self._file.read() if self._file else "") or target.token
        if not token and (issued := await self._plugin()):
            token = issued.token
        if token:
            return f"Bearer {token}"
        if target.username:
            pair = f"{target.username}:{target.password}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return ""

    def _uses_plugin(self) -> bool:
        return self._target.exec_plugin is not None and not (self._target.token or self._file)

    def _plugin_entry(self) -> ExecPlugin:
        assert self._target.exec_plugin is not None
        return self._target.exec_plugin

    async def _plugin(self) -> execplugin.Issued | None:
        if not self._uses_plugin():
            return None
        if self._issued is None or not self._issued.fresh(datetime.now(UTC)):
            await self._ask_plugin()
        return self._issued

    async def _ask_plugin(self) -> None:
        """Many requests at once run it once. A deadline of one does not end it: somebody may be typing a password."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._run_plugin())
            self._asking.add_done_callback(
                lambda task: task.cancelled() or task.exception()
            )  # heard, if by nobody else
        await asyncio.shield(self._asking)

    async def _run_plugin(self) -> None:
        issued = await execplugin.issue(self._plugin_entry(), self._environ)
        if self._issued is None or issued.cert != self._issued.cert:
            self._context = None  # connections made with the old certificate serve no new request
        self._issued = issued
        self._renewals += 1

    def _reread_certificates(self) -> bool:
        """Whether others are there now. While they are being replaced, what is there may not fit together yet."""
        if not self._certificates.changed():
            return False
        try:
            self._context = self._new_context()
        except ConfigError:
            self._certificates.forget()
            return False
        self._renewals += 1
        return True

    def _new_context(self) -> ssl.SSLContext:
        target, issued = self._target, self._issued
        cert, key = (issued.cert, issued.key) if issued and issued.cert else (target.cert, target.key)
        return tls_context(target, cert, key)


class Stamps:
    """Files that somebody else keeps fresh: looked at once a minute, and when what they hold was refused."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = [path for path in paths if path]
        self._seen = self._stamps()
        self._looked = time.monotonic()

    def due(self) -> bool:
        return bool(self._paths) and time.monotonic() - self._looked > TOKEN_SECONDS

    def changed(self) -> bool:
        """Since the last time; one that is missing has not."""
        self._looked = time.monotonic()
        now = {**self._seen, **self._stamps()}
        before, self._seen = self._seen, now
        return now != before

    def forget(self) -> None:
        """What was seen: look again next time."""
        self._seen = {}

    def _stamps(self) -> dict[str, int]:
        found = {}
        for path in self._paths:
            with contextlib.suppress(OSError):
                found[path] = os.stat(path).st_mtime_ns
        return found


class TokenFile:
    """A token that somebody else keeps fresh: looked at once a minute, and when it was refused."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.token = ""  # as last seen
        self._looked = float("-inf")

    def read(self) -> str:
        """The token; the last one we saw while the file cannot be read."""
        if time.monotonic() - self._looked > TOKEN_SECONDS:
            self.reread()
        return self.token

    def reread(self) -> bool:
        """Read it now; True when it is another one."""
        self._looked = time.monotonic()
        try:
            token = self._path.read_text().strip()
        except OSError as error:
            if self.token:
                return False
            hint = "Correct tokenFile in the kubeconfig, or log in anew."
            raise ConfigError(f"The token file {self._path} cannot be read: {error.strerror}.", hint) from error
        changed, self.token = token != self.token, token
        return changed


def impersonation_headers(who: Impersonation) -> list[tuple[str, str]]:
    """The header lines to act as somebody else."""
    lines = [("Impersonate-User", who.user)] if who.user else []
    lines += [("Impersonate-Uid", who.uid)] if who.uid else []
    lines += [("Impersonate-Group", group) for group in who.groups]
    # Keys may hold what a header name cannot, such as a slash: the API server takes them percent-encoded.
    lines += [(f"Impersonate-Extra-{quote(key, safe='')}", value) for key, values in who.extra for value in values]
    return lines


def tls_context(target: Target, cert: Pem, key: Pem) -> ssl.SSLContext:
    """Trust in the server, and our certificate if we have one."""
    try:
        context = ssl.create_default_context(cadata=target.ca.text() if target.ca else None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The cluster's certificate authority is unusable: {error}.", _pem_hint(target)) from error
    if target.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # Clusters' own authorities often lack what newer Pythons insist on; kubectl takes them as they are.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    if cert:
        _load_certificate(context, cert, key, target)
    return context


def _load_certificate(context: ssl.SSLContext, cert: Pem, key: Pem, target: Target) -> None:
    try:
        # Python reads certificates from files only: ours is private to this user, and gone at once.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
            pem.write(f"{cert.text()}\n{key.text() if key else ''}\n")
            pem.flush()
            context.load_cert_chain(pem.name)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The client certificate is unusable: {error}.", _pem_hint(target)) from error


def _pem_hint(target: Target) -> str:
    return f"Check the certificates of context {target.context!r} in {target.source}." if target.source else ""
