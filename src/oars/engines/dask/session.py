"""The user's part of Dask: a connected Client, and an executor. Imports Dask when its functions are called."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from oars.base.errors import EngineMissing, EngineUnreachable
from oars.engines.calls import cloudpickled
from oars.engines.dask.connection import DaskConnection
from oars.engines.executor import EngineExecutor
from oars.engines.sessions import PYTHON, check_versions

if TYPE_CHECKING:
    from oars.engines.base import Access

TLS = "DASK_DISTRIBUTED__COMM__TLS__"
CONNECT_SECONDS = 30.0
CLOSE_SECONDS = 5.0


def connect(access: Access) -> Any:
    """A distributed.Client that becomes the default one, like any other."""
    return _client(access, set_as_default=True)


async def connect_async(access: Access) -> Any:
    """The same for the running event loop: its methods and futures are awaited."""
    make = await asyncio.to_thread(_import_client)  # takes most of a second
    with _explained(access):
        client = await make(**_arguments(access), set_as_default=True, asynchronous=True)
        try:
            _check_version(access, await asyncio.wait_for(client.scheduler.versions(), CONNECT_SECONDS))
        except BaseException:
            await client.close(timeout=CLOSE_SECONDS)
            raise
    return client


def disconnect(client: Any) -> None:
    with contextlib.suppress(TimeoutError):  # the scheduler hangs
        if not client.asynchronous:
            client.close(timeout=CLOSE_SECONDS)
        elif not client.loop.asyncio_loop.is_closed():
            closing = client.close(timeout=CLOSE_SECONDS)
            asyncio.run_coroutine_threadsafe(closing, client.loop.asyncio_loop).result(CLOSE_SECONDS)


def security(access: Access) -> Any:
    """The distributed.Security with which a client connects."""
    return make_security(access.env)


def executor(access: Access) -> Executor:
    def connect() -> DaskConnection:
        client = _client(access, set_as_default=False)
        return DaskConnection(client, access, lambda: disconnect(client))

    return EngineExecutor(connect, cloudpickled)


def _client(access: Access, *, set_as_default: bool) -> Any:
    make = _import_client()
    with _explained(access):
        client = make(**_arguments(access), set_as_default=set_as_default)
        try:
            _check_version(access, client.sync(client.scheduler.versions, callback_timeout=CONNECT_SECONDS))
        except BaseException:
            disconnect(client)
            raise
    return client


def _import_client() -> Any:
    try:
        import distributed
    except ImportError as error:
        hint = "Install it with `pip install 'oars[dask]'`, or use `oars run`."
        raise EngineMissing(f"This Python cannot import distributed: {error}.", hint) from error

    class Client(distributed.Client):  # type: ignore[misc]
        """Dask's own timeout does not cover the handshake: a scheduler that hangs would block it for ever."""

        async def _ensure_connected(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (as Dask has it)
            await asyncio.wait_for(super()._ensure_connected(timeout), timeout)

    return Client


def _arguments(access: Access) -> dict[str, Any]:
    return {"address": access.address, "security": make_security(access.env), "timeout": CONNECT_SECONDS}


@contextlib.contextmanager
def _explained(access: Access) -> Iterator[None]:
    try:
        yield
    except (OSError, TimeoutError) as error:
        raise EngineUnreachable(
            f"The Dask scheduler of {access.name} at {access.address} does not reply: {error}.",
            f"Run `{access.command('status')}`.",
        ) from error


def _check_version(access: Access, versions: Any) -> None:
    """Only Python: Dask itself warns about other packages. It reports "3.11.7.final.0"."""
    there = ".".join(str(versions["packages"]["python"]).split(".")[:3])
    check_versions(access, {}, {PYTHON: there})


def make_security(env: Mapping[str, str]) -> Any:
    """Set everything: the process may have inherited the settings of another cluster."""
    from distributed import security

    make: Any = security.Security
    ca = env.get(f"{TLS}CA_FILE")
    if ca is None:
        return make(require_encryption=False)
    cert, key = env[f"{TLS}CLIENT__CERT"], env[f"{TLS}CLIENT__KEY"]
    return make(require_encryption=True, tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key)
