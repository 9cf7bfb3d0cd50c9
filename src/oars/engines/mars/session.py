"""The user's part of Mars: a connected session, and an executor. Imports xorbits or mars when functions are called."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib
import json
from concurrent.futures import Executor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from oars.base.errors import ClusterLost, EngineMissing
from oars.engines.base import Access
from oars.engines.mars.executor import MAX_BATCHES, MarsExecutor, MarsSession, Worker
from oars.engines.sessions import PYTHON, check_versions

HTTP_SECONDS = 10.0


def connect(access: Access) -> Any:
    """A session that becomes the default: xorbits.numpy, mars.tensor and so on use it."""
    return _new_session(access, default=True)


def disconnect(client: Any) -> None:
    """End the session and free its data in the cluster."""
    if client.default is not None and client.default.session_id == client.session_id:
        client.reset_default()
    _delete(client.address, client.session_id)


def executor(access: Access) -> Executor:
    return MarsExecutor(_executor_session(access))


def _executor_session(access: Access) -> MarsSession:
    session = _new_session(access, default=False)
    _allow_connections(session)
    address, name = access.address, session.session_id
    return MarsSession(
        cluster=access.name,
        client=session,
        spawn=_mars(access, ".remote").spawn,
        workers=partial(_workers, address),
        is_alive=partial(_is_known, address, name),
        close=partial(_delete, address, name),
        renew=partial(_executor_session, access),
    )


def _new_session(access: Access, default: bool) -> Any:
    try:
        new_session = _mars(access, ".deploy.oscar.session").new_session
    except ImportError as error:
        raise EngineMissing(
            f"This Python cannot import {_distribution(access)}: {error}.",
            f"Install it here, or run `oars shell {access.name}`.",
        ) from error
    _check_versions(access)
    try:
        return new_session(access.address, default=default)
    except Exception as error:
        raise _no_session(access, error) from error


def _no_session(access: Access, error: Exception) -> ClusterLost:
    message = f"The Mars cluster {access.name!r} at {access.address} did not open a session: {error}."
    return ClusterLost(message, f"Run `oars status {access.name}`.")


def _check_versions(access: Access) -> None:
    """A supervisor that has just started does not list itself yet; it does not open sessions either."""
    package = _distribution(access)
    try:
        nodes = json.loads(_request(access.address, "GET", "/api/cluster/nodes?role=0&env=1"))["nodes"]
        (supervisor, *_) = nodes.values()
        env = supervisor["env"]
        there = {package: env["mars_version"], PYTHON: env["python_version"].split()[0]}
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        raise _no_session(access, error) from error
    # The version that Mars reports differs from that of the package.
    check_versions(access.name, {package: _mars(access).__version__}, there)


def _mars(access: Access, module: str = "") -> Any:
    package = "mars" if _distribution(access) == "pymars" else "xorbits._mars"
    return importlib.import_module(f"{package}{module}")  # noqa: TID251 (two distributions of one library)


def _distribution(access: Access) -> str:
    return access.env.get("OARS_MARS_DISTRIBUTION", "xorbits")


def _workers(address: str) -> dict[str, Worker]:
    """Workers in service, by address."""
    try:
        nodes = json.loads(_request(address, "GET", "/api/cluster/nodes?role=1&resource=1"))["nodes"]
    except (http.client.HTTPException, ValueError, KeyError) as error:
        raise OSError(f"{address} did not list its workers: {error}") from error
    workers = {}
    for name, node in nodes.items():
        if node["resource"]:
            processors = sum(float(band.get("cpu_total", 0.0)) for band in node["resource"].values())
            workers[name] = Worker(max(1.0, processors), node["update_time"])
    return workers


def _is_known(address: str, session: str) -> bool:
    """False if the session belongs to an earlier supervisor at the same address."""
    try:
        sessions = json.loads(_request(address, "GET", "/api/session"))["sessions"]
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False
    return any(known["session_id"] == session for known in sessions)


def _delete(address: str, session: str) -> None:
    """Delete a session without Mars' client, which would reset the default session and wait for a dead cluster."""
    with contextlib.suppress(OSError, http.client.HTTPException):  # the cluster is gone, and the session with it
        _request(address, "DELETE", f"/api/session/{session}")


def _request(address: str, method: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=HTTP_SECONDS)
    try:
        connection.request(method, path)
        return connection.getresponse().read()
    finally:
        connection.close()


def _allow_connections(session: Any) -> None:
    """Every batch in flight uses its own connection; tornado's default limit is ten."""

    async def allow() -> None:
        from tornado.httpclient import AsyncHTTPClient

        client: Any = AsyncHTTPClient()
        client.max_clients = max(getattr(client, "max_clients", 0), 8 * MAX_BATCHES)

    asyncio.run_coroutine_threadsafe(allow(), session._loop).result(10)
