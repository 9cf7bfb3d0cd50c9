"""The user's part of Mars: a connected session, and an executor. Imports xorbits or mars when functions are called."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib
import json
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from oars.base.errors import ClusterLost, EngineMissing, OarsError
from oars.engines.base import Access
from oars.engines.calls import cloudpickled
from oars.engines.executor import EngineExecutor
from oars.engines.mars.connection import MarsConnection, MarsSession, Worker
from oars.engines.sessions import PYTHON, check_versions

HTTP_SECONDS = 10.0


def connect(access: Access) -> Any:
    """A session that becomes the default: xorbits.numpy, mars.tensor and so on use it."""
    return _new_session(access, default=True)


def disconnect(client: Any) -> None:
    """End the session and free its data in the cluster."""
    if client.default is not None and client.default.session_id == client.session_id:
        client.reset_default()
    _delete(client.oars_web, client.session_id)


def executor(access: Access) -> Executor:
    return EngineExecutor(partial(_executor_connection, access), cloudpickled)


def _executor_connection(access: Access) -> MarsConnection:
    session = _new_session(access, default=False)
    _allow_connections(session)
    web, name = session.oars_web, session.session_id
    calls = MarsSession(
        client=session,
        spawn=_mars(access, ".remote").spawn,
        workers=partial(_workers, web),
        is_alive=partial(_is_known, web, name),
        close=partial(_delete, web, name),
        announce=partial(_announce, web, name),
    )
    return MarsConnection(calls, access)


def _new_session(access: Access, default: bool) -> Any:
    try:
        new_session = _mars(access, ".deploy.oscar.session").new_session
    except ImportError as error:
        raise EngineMissing(
            f"This Python cannot import {_distribution(access)}: {error}.",
            "Run your program in an environment that has it: `oars run SCRIPT --engine mars`, or on this cluster "
            f"`{access.command('exec')} -- python SCRIPT`.",
        ) from error
    try:
        web = Web(access.address, _read_token(access))
        _check_versions(access, web)
        session = new_session(access.address, default=default, request_rewriter=web.rewrite)
    except OarsError:
        raise
    except Exception as error:
        raise _no_session(access, error) from error
    session.oars_web = web  # for `disconnect`
    return session


def _no_session(access: Access, error: Exception) -> ClusterLost:
    message = f"The Mars cluster {access.name!r} at {access.address} did not open a session: {error}."
    if isinstance(error, PermissionError):
        return ClusterLost(message, "Start the program with `oars run`, `oars exec` or `oars shell`.")
    return ClusterLost(message, f"Run `{access.command('status')}`.")


@dataclass(frozen=True)
class Web:
    """The web server of a supervisor, which requires the cluster's token. A cluster of an earlier Oars has none."""

    address: str
    token: str = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def rewrite(self, request: Any) -> Any:
        """Add the token to a request of Mars' client."""
        request.headers.update(self.headers)
        return request

    def request(self, method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=HTTP_SECONDS)
        try:
            connection.request(method, path, headers=self.headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status in (401, 403):
            reason = "requires the cluster's token" if response.status == 401 else f"says: {response.reason}"
            raise PermissionError(f"Mars at {self.address} {reason}")
        return content


def _read_token(access: Access) -> str:
    path = access.env.get("OARS_TOKEN_FILE", "")
    return Path(path).read_text(encoding="ascii").strip() if path else ""


def _check_versions(access: Access, web: Web) -> None:
    """A supervisor that has just started does not list itself yet; it does not open sessions either."""
    package = _distribution(access)
    try:
        nodes = json.loads(web.request("GET", "/api/cluster/nodes?role=0&env=1"))["nodes"]
        (supervisor, *_) = nodes.values()
        env = supervisor["env"]
        there = {package: env["mars_version"], PYTHON: env["python_version"].split()[0]}
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        raise _no_session(access, error) from error
    # The version that Mars reports differs from that of the package.
    check_versions(access, {package: _mars(access).__version__}, there)


def _mars(access: Access, module: str = "") -> Any:
    package = "mars" if _distribution(access) == "pymars" else "xorbits._mars"
    return importlib.import_module(f"{package}{module}")  # noqa: TID251 (two distributions of one library)


def _distribution(access: Access) -> str:
    return access.env.get("OARS_MARS_DISTRIBUTION", "xorbits")


def _workers(web: Web) -> dict[str, Worker]:
    """Workers in service, by address."""
    try:
        nodes = json.loads(web.request("GET", "/api/cluster/nodes?role=1&resource=1"))["nodes"]
    except (http.client.HTTPException, ValueError, KeyError) as error:
        raise OSError(f"{web.address} did not list its workers: {error}") from error
    workers = {}
    for name, node in nodes.items():
        if node["resource"]:
            processors = sum(float(band.get("cpu_total", 0.0)) for band in node["resource"].values())
            workers[name] = Worker(max(1.0, processors), node["update_time"])
    return workers


def _announce(web: Web, session: str) -> None:
    """Report that calls of this session wait for a worker, so that autoscaling starts one."""
    try:
        web.request("POST", f"/api/oars/waiting?session={session}")
    except http.client.HTTPException as error:
        raise OSError(f"{web.address} did not register a waiting call: {error}") from error


def _is_known(web: Web, session: str) -> bool:
    """False if the session belongs to an earlier supervisor at the same address."""
    try:
        sessions = json.loads(web.request("GET", "/api/session"))["sessions"]
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False
    return any(known["session_id"] == session for known in sessions)


def _delete(web: Web, session: str) -> None:
    """Delete a session without Mars' client, which would reset the default session and wait for a dead cluster."""
    with contextlib.suppress(OSError, http.client.HTTPException):  # the cluster is gone, and the session with it
        web.request("DELETE", f"/api/session/{session}")


def _allow_connections(session: Any) -> None:
    """Every batch in flight uses its own connection; tornado's default limit is ten."""

    async def allow() -> None:
        from tornado.httpclient import AsyncHTTPClient

        client: Any = AsyncHTTPClient()
        client.max_clients = max(getattr(client, "max_clients", 0), 8 * MarsConnection.max_batches)

    asyncio.run_coroutine_threadsafe(allow(), session._loop).result(10)
