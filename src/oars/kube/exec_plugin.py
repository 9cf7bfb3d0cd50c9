"""Exec credential plugins: programs that print an ExecCredential (client.authentication.k8s.io)."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from oars.kube.errors import ConfigError
from oars.kube.target import NO_PEM, ExecPlugin, Pem

TIMEOUT = 60.0
INTERACTIVE_TIMEOUT = 300.0  # the user may have to type a password or open a web page
_EXPIRY_MARGIN = 10.0  # seconds; a token must not expire while a request is in flight


@dataclass(frozen=True)
class ExecCredential:
    """The credential that a plugin printed."""

    token: str = field(default="", repr=False)
    cert: Pem = NO_PEM
    key: Pem = NO_PEM
    expires: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """True if the credential does not expire within seconds of `now`."""
        return self.expires is None or (self.expires - now).total_seconds() > _EXPIRY_MARGIN


async def run_plugin(plugin: ExecPlugin, environ: Mapping[str, str]) -> ExecCredential:
    """Run the plugin and return the credential that it prints. Every failure is a ConfigError."""
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not has_terminal:
        hint = "Run the command in a terminal, or use a plugin that needs no input."
        raise ConfigError(f"Exec plugin {plugin.command!r} needs user input, but stdin is not a terminal.", hint)
    is_interactive = has_terminal and plugin.interactive_mode != "Never"
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.cluster_info is not None:
        spec["cluster"] = dict(plugin.cluster_info)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    env = {**environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": json.dumps(info)}
    program = shutil.which(plugin.command, path=env.get("PATH", ""))
    if program is None:
        hint = plugin.install_hint or "Install it, or correct users[].user.exec.command in the kubeconfig."
        raise ConfigError(f"Exec plugin {plugin.command!r} from the kubeconfig is not installed.", hint)
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *plugin.args,
            env=env,
            stdin=None if is_interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if is_interactive else asyncio.subprocess.PIPE,  # the user must see the plugin's prompts
        )
    except (OSError, ValueError) as error:  # for example a missing interpreter, or a program of another architecture
        message = f"Exec plugin {plugin.command!r} cannot be started: {error}."
        raise ConfigError(message, plugin.install_hint or _run_hint(plugin)) from error
    return parse_credential(await _read_output(process, plugin, is_interactive), plugin)


async def _read_output(process: asyncio.subprocess.Process, plugin: ExecPlugin, is_interactive: bool) -> str:
    limit = INTERACTIVE_TIMEOUT if is_interactive else TIMEOUT
    try:
        out, err = await asyncio.wait_for(process.communicate(), limit)
    except TimeoutError as error:
        message = f"Exec plugin {plugin.command!r} did not finish within {limit:g} s."
        raise ConfigError(message, _run_hint(plugin)) from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        lines = tuple((err or b"").decode(errors="replace").splitlines()[-10:])
        message = f"Exec plugin {plugin.command!r} failed with exit code {process.returncode}."
        raise ConfigError(message, plugin.install_hint or "Log in again with your provider's tool.", lines)
    return out.decode(errors="replace")


def parse_credential(text: str, plugin: ExecPlugin) -> ExecCredential:
    """Return the credential in a plugin's output."""
    try:
        content = json.loads(text)
        status, version = content["status"], content["apiVersion"]
        cert, key, token = (status.get(name, "") for name in ("clientCertificateData", "clientKeyData", "token"))
        timestamp = status.get("expirationTimestamp")
        expires = datetime.fromisoformat(timestamp) if timestamp else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"Exec plugin {plugin.command!r} printed an invalid ExecCredential."
        raise ConfigError(message, _run_hint(plugin)) from error
    if version != plugin.api_version:
        hint = f"Set users[].user.exec.apiVersion in the kubeconfig to {version}."
        raise ConfigError(f"Exec plugin {plugin.command!r} returned {version}, not {plugin.api_version}.", hint)
    if not token and not (cert and key):
        message = f"Exec plugin {plugin.command!r} returned neither a token nor a certificate."
        raise ConfigError(message, "Log in again with your provider's tool.")
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=UTC)
    return ExecCredential(token, Pem(data=cert), Pem(data=key), expires)


def _run_hint(plugin: ExecPlugin) -> str:
    return f"Run `{' '.join([plugin.command, *plugin.args])}` to see its output."
