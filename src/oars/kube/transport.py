"""HTTP and WebSocket requests to one API server, with credentials, timeouts and retries."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import aiohttp

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
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))

NETWORK_ERRORS = (aiohttp.ClientError, OSError)  # OSError includes ssl.SSLError and TimeoutError
WebSocket: TypeAlias = "aiohttp.ClientWebSocketResponse[bool]"
Params = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Request:
    """One request. Requests that are not `idempotent` are retried only if the server did not process them."""

    method: str
    path: str
    params: Params = ()
    body: object = None
    content_type: str = "application/json"
    idempotent: bool = True


class Transport:
    """Sends requests to one API server. Construct it in any thread; use it in one event loop."""

    def __init__(self, target: Target, user_agent: str, environ: Mapping[str, str] | None = None) -> None:
        self.target = target
        self._user_agent = user_agent
        self._credentials = Credentials(target, os.environ if environ is None else environ)
        self._session: aiohttp.ClientSession | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        if target.proxy_url and not target.proxy_url.startswith(("http://", "https://")):
            scheme = target.proxy_url.partition(":")[0]
            raise ConfigError(f"The proxy scheme {scheme!r} is not supported.", "Use an http:// or https:// proxy.")

    async def close(self) -> None:
        """Close all connections and wait until their sockets are closed.

        aiohttp closes sockets in later iterations of the event loop, which may never run."""
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
            with self._network_errors_as_unreachable():
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
        options, version = await self._request_options()
        try:
            return await self._open_websocket(path, params, protocols, options, seconds)
        except ApiError as error:
            if error.status != 401 or not await self._credentials.renew(version):
                raise
        options, _ = await self._request_options()
        return await self._open_websocket(path, params, protocols, options, seconds)

    async def _open_websocket(
        self, path: str, params: Params, protocols: Iterable[str], options: dict[str, Any], seconds: float
    ) -> WebSocket:
        with self._network_errors_as_unreachable():
            async with asyncio.timeout(seconds):
                websocket: WebSocket = await self._get_session().ws_connect(
                    self.target.server + path,
                    params=_pairs(params),
                    protocols=tuple(protocols),
                    max_msg_size=0,
                    autoclose=False,
                    **options,
                )
        return websocket

    async def _send_with_retries(self, request: Request, seconds: float, stream: bool) -> aiohttp.ClientResponse:
        failures = throttled = 0
        renewed = False
        while True:
            options, version = await self._request_options()
            try:
                return await self._send_once(request, options, seconds, stream)
            except ApiError as error:
                if error.status == 401 and not renewed and await self._credentials.renew(version):
                    renewed = True
                    continue
                throttled, failures = throttled + (error.status == 429), failures + (error.status != 429)
                delay = _retry_delay(error, request, failures, throttled)
                if delay is None:
                    raise
            except Unreachable as error:
                failures += 1
                if failures >= ATTEMPTS or not _can_resend(request, error.__cause__):
                    raise
                delay = _backoff(failures)
            await asyncio.sleep(delay)

    async def _send_once(
        self, request: Request, options: dict[str, Any], seconds: float, stream: bool
    ) -> aiohttp.ClientResponse:
        headers = list(options.pop("headers"))
        data = None
        if request.body is not None:
            data = json.dumps(request.body, separators=(",", ":")).encode()
            headers.append(("Content-Type", request.content_type))
        timeout = aiohttp.ClientTimeout(total=None if stream else seconds, sock_connect=seconds)
        url, params = self.target.server + request.path, _pairs(request.params)
        with self._network_errors_as_unreachable():
            async with asyncio.timeout(seconds):
                response = await self._get_session().request(
                    request.method, url, params=params, data=data, headers=headers, timeout=timeout, **options
                )
                if response.status >= 400:
                    raise await _read_error(response)
        return response

    async def _request_options(self) -> tuple[dict[str, Any], tuple[object, ...]]:
        """Return aiohttp's options that authenticate a request, and the version of the credentials in them."""
        target = self.target
        headers = [("User-Agent", self._user_agent), ("Accept", "application/json, */*")]
        headers += await self._credentials.headers()
        options: dict[str, Any] = {"headers": headers, "ssl": await self._credentials.tls() or True}
        if target.proxy_url:
            options["proxy"] = target.proxy_url
        if target.tls_server_name:
            options["server_hostname"] = target.tls_server_name
        return options, self._credentials.version

    def _get_session(self) -> aiohttp.ClientSession:
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
    def _network_errors_as_unreachable(self) -> Iterator[None]:
        try:
            yield
        except (*NETWORK_ERRORS, json.JSONDecodeError) as error:
            raise unreachable(self.target, error) from error


def unreachable(target: Target, error: BaseException) -> Unreachable:
    """Return the Unreachable that describes a network error."""
    server = f"API server {target.server}" + (f" of context {target.context!r}" if target.context else "")
    if isinstance(error, (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError)):
        hint = "The certificate authority in the kubeconfig did not sign it. Download the kubeconfig again."
        return Unreachable(f"The certificate of {server} is not trusted.", hint, (str(error),))
    if isinstance(error, TimeoutError):
        hint = "Check the network, VPN and proxy. `kubectl version` connects to the same server."
        return Unreachable(f"Timed out waiting for {server}.", hint)
    hint = "Check that the cluster is running and that --context is correct. A VPN or proxy may be required."
    return Unreachable(f"Cannot reach {server}.", hint, (str(error) or type(error).__name__,))


def _can_resend(request: Request, cause: BaseException | None) -> bool:
    # A retry after a timeout would double the caller's time limit. TLS and URL errors are permanent.
    if isinstance(cause, (TimeoutError, aiohttp.ClientSSLError, ssl.SSLError, aiohttp.InvalidURL)):
        return False
    return request.idempotent or isinstance(cause, aiohttp.ClientConnectorError)  # the request was never sent


def _retry_delay(error: ApiError, request: Request, failures: int, throttled: int) -> float | None:
    """Return the delay before the next attempt, or None if the error is final."""
    if error.status == 429:
        # The server did not process the request. Without Retry-After, wait one second.
        delay = 1.0 if error.retry_after is None else error.retry_after
        return _jitter(min(max(delay, FIRST_DELAY), MAX_DELAY)) if throttled < THROTTLED_ATTEMPTS else None
    if error.status < 500 or failures >= ATTEMPTS:
        return None
    if error.retry_after is not None:  # the server asks for a retry, whatever the method
        return _jitter(min(error.retry_after, MAX_DELAY))
    return _backoff(failures) if request.idempotent else None


def _backoff(failures: int) -> float:
    return _jitter(FIRST_DELAY * 4 ** (failures - 1))


def _jitter(seconds: float) -> float:
    return seconds * random.uniform(1.0, 1.25)


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


def _pairs(params: Params) -> list[tuple[str, str]]:
    return list(params.items() if isinstance(params, Mapping) else params)
