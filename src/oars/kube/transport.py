"""HTTP and WebSocket requests to one API server, with credentials, timeouts and retries."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import ssl
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import aiohttp

from oars.base.errors import OarsError
from oars.kube.auth import Credentials
from oars.kube.errors import ApiError, ConfigError, Unreachable, parse_error
from oars.kube.target import Target

TIMEOUT = 30.0
ATTEMPTS = 4  # of an idempotent request; about two seconds in total
THROTTLED_ATTEMPTS = 6  # after status 429, which names its own delay
FIRST_DELAY = 0.1
MAX_DELAY = 30.0
CONNECTIONS = 200  # every watch, log stream and port-forward holds one
_CLOSE_TIMEOUT = 1.0
# A peer that disappears without closing the connection is detected after 15 + 3 * 5 seconds.
_IDLE = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # the latter on macOS
_SECONDS = {_IDLE: 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_KEEP_ALIVE = tuple((getattr(socket, name), value) for name, value in _SECONDS.items() if hasattr(socket, name))

NETWORK_ERRORS = (aiohttp.ClientError, OSError)  # OSError includes ssl.SSLError and TimeoutError
WebSocket: TypeAlias = "aiohttp.ClientWebSocketResponse[bool]"
Params = Mapping[str, str] | Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Request:
    """One request. Requests that are not `idempotent` are retried only if the server did not process them."""

    method: str
    path: str
    params: Params = ()
    body: object = None
    content_type: str = "application/json"
    accept: str = "application/json, */*"
    idempotent: bool = True
    check: Callable[[], None] | None = None  # called before each attempt; its error ends the request


class Transport:
    """Sends requests to one API server. Construct it in any thread; use it in one event loop."""

    def __init__(self, target: Target, user_agent: str, environ: Mapping[str, str] | None = None) -> None:
        self.target = target
        self.errors: Counter[str] = Counter()  # failed attempts by status code; "none": without a response
        self._user_agent = user_agent
        self._credentials = Credentials(target, os.environ if environ is None else environ)
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        if target.proxy_url and not target.proxy_url.startswith(("http://", "https://")):
            scheme = target.proxy_url.partition(":")[0]
            raise ConfigError(f"The proxy scheme {scheme!r} is not supported.", "Use an http:// or https:// proxy.")

    async def close(self) -> None:
        """Close all connections and wait until their sockets are closed.

        aiohttp closes sockets in later iterations of the event loop, which may never run."""
        self._is_closed = True
        await self._credentials.close()
        session, self._session = self._session, None
        if session is None:
            return
        await session.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                while any(sock.fileno() != -1 for sock in self._sockets):  # noqa: ASYNC110 (sockets have no event)
                    await asyncio.sleep(0.001)

    async def log_in(self) -> None:
        """Obtain credentials now, so that later request timeouts do not include an interactive login."""
        await self._request_options()

    async def json(self, request: Request, *, seconds: float = TIMEOUT) -> dict[str, Any]:
        """Send a request and return the decoded response."""
        async with self.send(request, seconds=seconds) as response:
            with network_errors_as_unreachable(self.target):
                content: dict[str, Any] = await response.json(content_type=None)
                return content

    @asynccontextmanager
    async def send(
        self, request: Request, *, seconds: float = TIMEOUT, stream: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its successful response.

        With `stream`, the time limit applies to the response headers only."""
        response = await self._send_with_retries(request, seconds, stream)
        try:
            yield response
        finally:
            # An unread body would be mistaken for the next response on this connection.
            connection = response.connection.transport if response.connection is not None else None
            if connection is not None and not response.content.at_eof():
                connection.abort()  # a TLS shutdown would wait for the server
            response.release()

    async def websocket(
        self, path: str, params: Params, protocols: Iterable[str], seconds: float = TIMEOUT
    ) -> WebSocket:
        """Open a WebSocket. Its `protocol` is the subprotocol that the server chose."""
        is_renewed = False
        while True:
            options, version = await self._request_options()
            try:
                with network_errors_as_unreachable(self.target):
                    async with asyncio.timeout(seconds):
                        websocket: WebSocket = await self._get_session().ws_connect(
                            self.target.server + path,
                            params=params,
                            protocols=tuple(protocols),
                            max_msg_size=0,
                            autoclose=False,
                            **options,
                        )
                        return websocket
            except ApiError as error:
                self.errors[str(error.status)] += 1
                if is_renewed or error.status != 401 or not await self._credentials.renew(version):
                    raise
                is_renewed = True

    async def _send_with_retries(self, request: Request, seconds: float, stream: bool) -> aiohttp.ClientResponse:
        failures = throttled = 0
        is_renewed = False
        while True:
            options, version = await self._request_options()
            if request.check is not None:
                request.check()
            try:
                return await self._send_once(request, options, seconds, stream)
            except (ApiError, Unreachable) as error:
                status = error.status if isinstance(error, ApiError) else 0
                self.errors[str(status or "none")] += 1
                if status == 401 and not is_renewed and await self._credentials.renew(version):
                    is_renewed = True
                    continue
                throttled, failures = throttled + (status == 429), failures + (status != 429)
                delay = _retry_delay(error, request, failures, throttled)
                if delay is None:
                    raise
            await asyncio.sleep(delay * random.uniform(1.0, 1.25))

    async def _send_once(
        self, request: Request, options: dict[str, Any], seconds: float, stream: bool
    ) -> aiohttp.ClientResponse:
        headers = [*options.pop("headers"), ("Accept", request.accept)]
        data = None
        if request.body is not None:
            data = json.dumps(request.body, separators=(",", ":")).encode()
            headers.append(("Content-Type", request.content_type))
        timeout = aiohttp.ClientTimeout(total=None if stream else seconds, sock_connect=seconds)
        url = self.target.server + request.path
        with network_errors_as_unreachable(self.target):
            async with asyncio.timeout(seconds):
                response = await self._get_session().request(
                    request.method, url, params=request.params, data=data, headers=headers, timeout=timeout, **options
                )
                if response.status >= 400:
                    raise await _read_error(response)
        return response

    async def _request_options(self) -> tuple[dict[str, Any], int]:
        """Return aiohttp's options that authenticate a request, and the version of the credentials in them."""
        target = self.target
        headers = [("User-Agent", self._user_agent)]
        headers += await self._credentials.headers()
        options: dict[str, Any] = {"headers": headers, "ssl": await self._credentials.tls() or True}
        if target.proxy_url:
            options["proxy"] = target.proxy_url
        if target.tls_server_name:
            options["server_hostname"] = target.tls_server_name
        return options, self._credentials.version

    def _get_session(self) -> aiohttp.ClientSession:
        if self._is_closed:  # a task that is still being cancelled must not open another session, which nobody closes
            raise OarsError("The connection to the API server is closed.")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS, socket_factory=self._new_socket, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, middlewares=(_read_failed_upgrade,))
        return self._session

    def _new_socket(self, address: Any) -> socket.socket:
        family, kind, protocol, _, _ = address
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._sockets.add(sock)
        return sock


@contextmanager
def network_errors_as_unreachable(target: Target) -> Iterator[None]:
    """Raise Unreachable, with an explanation, for network errors and truncated responses."""
    try:
        yield
    except (*NETWORK_ERRORS, json.JSONDecodeError) as error:
        server = f"API server {target.server}" + (f" of context {target.context!r}" if target.context else "")
        if isinstance(error, (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError)):
            hint = "The certificate authority in the kubeconfig did not sign it. Download the kubeconfig again."
            raise Unreachable(f"The certificate of {server} is not trusted.", hint, (str(error),)) from error
        if isinstance(error, TimeoutError):
            hint = "Check the network, VPN and proxy. `kubectl version` connects to the same server."
            raise Unreachable(f"Timed out waiting for {server}.", hint) from error
        hint = "Check that the cluster is running and that its context is right. A VPN or proxy may be required."
        raise Unreachable(f"Cannot reach {server}.", hint, (str(error) or type(error).__name__,)) from error


def _retry_delay(error: ApiError | Unreachable, request: Request, failures: int, throttled: int) -> float | None:
    """Return the seconds to wait before the next attempt, or None if the error is final."""
    backoff: float = FIRST_DELAY * 4 ** (failures - 1)
    if isinstance(error, ApiError) and error.status == 429:
        # The server did not process the request. Without Retry-After, wait one second.
        delay = 1.0 if error.retry_after is None else error.retry_after
        return min(max(delay, FIRST_DELAY), MAX_DELAY) if throttled < THROTTLED_ATTEMPTS else None
    if failures >= ATTEMPTS:
        return None
    if isinstance(error, ApiError):
        if error.status >= 500 and error.retry_after is not None:  # the server asks for a retry, whatever the method
            return min(error.retry_after, MAX_DELAY)
        return backoff if error.status >= 500 and request.idempotent else None
    # A retry after a timeout would double the caller's time limit. TLS and URL errors are permanent.
    if isinstance(error.__cause__, (TimeoutError, aiohttp.ClientSSLError, ssl.SSLError, aiohttp.InvalidURL)):
        return None
    was_sent = not isinstance(error.__cause__, aiohttp.ClientConnectorError)
    return backoff if request.idempotent or not was_sent else None


async def _read_error(response: aiohttp.ClientResponse) -> ApiError:
    text = await response.text(errors="replace")
    response.release()
    return parse_error(response.status, text, response.headers.get("Retry-After"))


async def _read_failed_upgrade(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Raise the ApiError of a failed WebSocket upgrade. aiohttp itself discards the response body."""
    response = await handler(request)
    if request.headers.get("Upgrade") and response.status != 101:
        raise await _read_error(response)
    return response
