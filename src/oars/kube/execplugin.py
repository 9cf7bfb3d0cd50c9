"""Credentials from a program, by the rules of client.authentication.k8s.io: run it and read what it says."""

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

SECONDS = 60.0
SECONDS_WITH_A_PERSON = 300.0  # somebody may have to type a password or visit a page
_EARLY = 10.0  # a request under way must not find its token expired


@dataclass(frozen=True)
class Issued:
    """What a plug-in gave out."""

    token: str = field(default="", repr=False)
    cert: Pem = NO_PEM
    key: Pem = NO_PEM
    expires: datetime | None = None

    def fresh(self, now: datetime) -> bool:
        """Whether it is good for a request made now."""
        return self.expires is None or (self.expires - now).total_seconds() > _EARLY


async def issue(plugin: ExecPlugin, environ: Mapping[str, str]) -> Issued:
    """Run the plug-in."""
    interactive = _interactive(plugin)
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.cluster_info is not None:
        spec["cluster"] = dict(plugin.cluster_info)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    env = {**environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": json.dumps(info)}
    text = await _output(plugin, env, interactive)
    return parse(text, plugin)


def _interactive(plugin: ExecPlugin) -> bool:
    person = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive == "Always" and not person:
        hint = "Run the command in a terminal once, or use a plug-in that asks nothing."
        raise ConfigError(f"The exec plug-in {plugin.command!r} wants to ask a person, and there is no terminal.", hint)
    return person and plugin.interactive != "Never"


async def _output(plugin: ExecPlugin, env: Mapping[str, str], interactive: bool) -> str:
    program = shutil.which(plugin.command, path=env.get("PATH", ""))
    if program is None:
        hint = plugin.install_hint or "Install it, or correct users[].user.exec.command in the kubeconfig."
        raise ConfigError(f"The exec plug-in {plugin.command!r} of the kubeconfig is not here.", hint)
    process = await asyncio.create_subprocess_exec(
        program,
        *plugin.args,
        env=dict(env),
        stdin=None if interactive else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=None if interactive else asyncio.subprocess.PIPE,  # what it asks must be seen
    )
    limit = SECONDS_WITH_A_PERSON if interactive else SECONDS
    try:
        out, err = await asyncio.wait_for(process.communicate(), limit)
    except TimeoutError as late:
        raise ConfigError(
            f"The exec plug-in {plugin.command!r} said nothing for {limit:g} s.", "Try it by hand."
        ) from late
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        lines = tuple((err or b"").decode(errors="replace").splitlines()[-10:])
        message = f"The exec plug-in {plugin.command!r} ended with code {process.returncode}."
        raise ConfigError(message, plugin.install_hint or "Log in with your provider anew.", lines)
    return out.decode(errors="replace")


def parse(text: str, plugin: ExecPlugin) -> Issued:
    """Read an ExecCredential."""
    try:
        content = json.loads(text)
        status = content["status"]
        version = content["apiVersion"]
        cert, key = status.get("clientCertificateData", ""), status.get("clientKeyData", "")
        expires = status.get("expirationTimestamp")
        until = datetime.fromisoformat(expires) if expires else None
        token = status.get("token", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"The exec plug-in {plugin.command!r} printed no ExecCredential.", "Try it by hand."
        ) from error
    if version != plugin.api_version:
        hint = "Set apiVersion of the plug-in in the kubeconfig to what it speaks."
        raise ConfigError(f"The exec plug-in {plugin.command!r} speaks {version}, not {plugin.api_version}.", hint)
    if not token and not (cert and key):
        raise ConfigError(f"The exec plug-in {plugin.command!r} gave neither token nor certificate.", "Log in anew.")
    if until is not None and until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return Issued(token, Pem(data=cert), Pem(data=key), until)
