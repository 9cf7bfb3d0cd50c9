"""One HTTP session with an API server: credentials, deadlines, and trying again where that is safe."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import aiohttp

from oars.kube.auth import Credentials
from oars.kube.errors import ApiError, ConfigError, Unreachable
from oars.kube.target import Target

SECONDS = 30.0
TRIES = 4  # of a request that may be repeated; about two seconds in all
BUSY_TRIES = 6  # after 429: the server says itself how long to wait
LONGEST_WAIT = 30.0
_GONE_SECONDS = 1.0
FIRST_WAIT = 0.1
CONNECTIONS = 200  # watches, logs and forwards each hold one
# A peer that vanished without a word (a pulled cable) is noticed after 15 + 3 * 5 seconds.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))

WebSocket: TypeAlias = "aiohttp.ClientWebSocketResponse[bool]"
_NO_SUCH_FIELD = "failed to create typed patch object"

Params = Mapping[str, str] | Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Call:
    """One request. `repeatable`: doing it twice is as good as once."""

    method: str
    path: str
    params: Params = ()
    body: object = None
    content_type: str = "application/json"
    repeatable: bool = True


class Transport:
    """Sends requests to one API server. Made in any thread, used in one event loop."""

    def __init__(self, target: Target, user_agent: str, environ: Mapping[str, str] | None = None) -> None:
        self.target = target
        self._agent = user_agent
        self._credentials = Credentials(target, os.environ if environ is None else environ)
        self._session: aiohttp.ClientSession | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        if target.proxy_url and not target.proxy_url.startswith(("http://", "https://")):
            hint = "Use a proxy with http:// or https://."
            raise ConfigError("The kubeconfig's proxy is of a kind that Oars cannot use.", hint)

    async def close(self) -> None:
        """End all connections, and wait until they are gone: aiohttp leaves that to an event loop that may end."""
        await self._credentials.close()
        session, self._session = self._session, None
        if session is None:
            return
        await session.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GONE_SECONDS):
                while any(handle.fileno() != -1 for handle in self._sockets):  # noqa: ASYNC110 (sockets have no event)
                    await asyncio.sleep(0.001)

    async def json(self, call: Call, *, seconds: float = SECONDS) -> dict[str, Any]:
        """Send a request and read its answer."""
        async with self.answer(call, seconds=seconds) as answer:
            with self._reaching():
                content: dict[str, Any] = await answer.json(content_type=None)
                return content

    @asynccontextmanager
    async def answer(
        self, call: Call, *, seconds: float = SECONDS, stream: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is no refusal. `stream`: only its beginning has to come in time."""
        answer = await self._try(call, seconds, stream)
        try:
            yield answer
        finally:
            # What is left unread would be mixed up with the next answer.
            wire = answer.connection.transport if answer.connection is not None else None
            if wire is not None and not answer.content.at_eof():
                wire.abort()  # a polite end would wait for the server's
            answer.release()

    async def websocket(
        self, path: str, params: Params, protocols: Iterable[str], seconds: float = SECONDS
    ) -> WebSocket:
        """A WebSocket; the server's choice among the protocols is its `protocol`."""
        call = Call("GET", path, params)
        options, used = await self._proof()
        try:
            return await self._upgrade(call, options, protocols, seconds)
        except ApiError as error:
            if error.status != 401 or not await self._credentials.renew(used):
                raise
        options, _ = await self._proof()
        return await self._upgrade(call, options, protocols, seconds)

    async def log_in(self) -> None:
        """Have credentials, if it takes a person; deadlines of requests are then about the server alone."""
        await self._proof()

    async def _upgrade(
        self, call: Call, options: dict[str, Any], protocols: Iterable[str], seconds: float
    ) -> WebSocket:
        with self._reaching():
            async with asyncio.timeout(seconds):
                opened: WebSocket = await self._open().ws_connect(
                    self.target.server + call.path,
                    params=list(_pairs(call.params)),
                    protocols=tuple(protocols),
                    max_msg_size=0,
                    autoclose=False,
                    **options,
                )
        return opened

    # trying, and trying again

    async def _try(self, call: Call, seconds: float, stream: bool) -> aiohttp.ClientResponse:
        failures = busy = 0
        renewed = False
        while True:
            options, used = await self._proof()
            try:
                return await self._once(call, options, seconds, stream)
            except ApiError as error:
                if error.status == 401 and not renewed and await self._credentials.renew(used):
                    renewed = True
                    continue
                busy, failures = busy + (error.status == 429), failures + (error.status != 429)
                wait = _wait_after(error, call, failures, busy)
                if wait is None:
                    raise
            except _Lost as lost:
                failures += 1
                if failures >= TRIES or not (call.repeatable or lost.unsent):
                    raise lost.error from lost.__cause__
                wait = _back_off(failures)
            await asyncio.sleep(wait)

    async def _once(self, call: Call, options: dict[str, Any], seconds: float, stream: bool) -> aiohttp.ClientResponse:
        headers = list(options.pop("headers"))
        data = None
        if call.body is not None:
            data = json.dumps(call.body, separators=(",", ":")).encode()
            headers.append(("Content-Type", call.content_type))
        limits = aiohttp.ClientTimeout(total=None if stream else seconds, sock_connect=seconds)
        url, params = self.target.server + call.path, list(_pairs(call.params))
        with self._losing():
            async with asyncio.timeout(seconds):
                answer = await self._open().request(
                    call.method, url, params=params, data=data, headers=headers, timeout=limits, **options
                )
                if answer.status >= 400:
                    raise await _refusal(answer)
        return answer

    async def _proof(self) -> tuple[dict[str, Any], tuple[object, ...]]:
        """The options of a request that say who we are, and the stamp of what they were made from."""
        target = self.target
        headers = [("User-Agent", self._agent), ("Accept", "application/json, */*"), *await self._credentials.headers()]
        options: dict[str, Any] = {"headers": headers, "ssl": await self._credentials.tls() or True}
        if target.proxy_url:
            options["proxy"] = target.proxy_url
        if target.tls_server_name:
            options["server_hostname"] = target.tls_server_name
        return options, self._credentials.stamp

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS, socket_factory=self._socket, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector, middlewares=(_explain_refused_upgrade,))
        return self._session

    def _socket(self, address: Any) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
        self._sockets.add(made)
        return made

    def _losing(self) -> _Losing:
        return _Losing(self.target)

    def _reaching(self) -> _Losing:
        return _Losing(self.target, plain=True)


class _Lost(Exception):
    """A request without an answer. `unsent`: it cannot have been heard."""

    def __init__(self, error: Unreachable, unsent: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.unsent = unsent


class _Losing:
    """Turns what a connection may raise into _Lost or, if `plain`, into Unreachable."""

    def __init__(self, target: Target, plain: bool = False) -> None:
        self._target = target
        self._plain = plain

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, (aiohttp.ClientError, OSError, ssl.SSLError, TimeoutError, json.JSONDecodeError)):
            return
        told = unreachable(self._target, error)
        # Waiting as long once more would double the caller's time limit.
        late = isinstance(error, TimeoutError)
        certain = isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError, aiohttp.InvalidURL))
        if self._plain or late or certain:
            raise told from error
        raise _Lost(told, unsent=isinstance(error, aiohttp.ClientConnectorError)) from error


def unreachable(target: Target, error: BaseException) -> Unreachable:
    """The sentence for a server that does not answer."""
    what = f"The API server {target.server}"
    where = f" of context {target.context!r}" if target.context else ""
    if isinstance(error, (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError)):
        hint = "Its certificate is not from the authority in the kubeconfig: fetch the kubeconfig anew."
        return Unreachable(f"{what}{where} is not trusted.", hint, (str(error),))
    if isinstance(error, TimeoutError):
        hint = "Check the network, a VPN and a proxy; `kubectl version` asks the same server."
        return Unreachable(f"{what}{where} did not answer in time.", hint)
    hint = "Check that the cluster runs and that --context names the right one; a VPN or proxy may be missing."
    return Unreachable(f"{what}{where} cannot be reached.", hint, (str(error) or type(error).__name__,))


def _wait_after(error: ApiError, call: Call, failures: int, busy: int) -> float | None:
    """How long to wait before the next try; None: it stays a refusal."""
    if error.status == 429:
        # Nothing was done. A server that names no time still wants some.
        told = 1.0 if error.retry_after is None else error.retry_after
        return _jittered(min(max(told, FIRST_WAIT), LONGEST_WAIT)) if busy < BUSY_TRIES else None
    if error.status < 500 or failures >= TRIES:
        return None
    if error.retry_after is not None:  # it asks for the same request again
        return _jittered(min(error.retry_after, LONGEST_WAIT))
    return _back_off(failures) if call.repeatable else None


def _back_off(failures: int) -> float:
    return _jittered(FIRST_WAIT * 4 ** (failures - 1))


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1.0, 1.25)


async def _refusal(answer: aiohttp.ClientResponse) -> ApiError:
    """The refusal in an answer; a proxy's has a page instead of a Status."""
    text = await answer.text(errors="replace")
    answer.release()
    return refusal(answer.status, text, answer.headers.get("Retry-After"))


def refusal(status: int, text: str, retry_after: str | None = None) -> ApiError:
    """The refusal that this text of an answer means."""
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or body.get("kind") != "Status":
        body = {"message": " ".join(text.split())[:300]}
    if status == 500 and _NO_SUCH_FIELD in str(body.get("message")):
        # Server-side apply words an unknown field as a failure of its own: it is ours, and a second try is no use.
        status, body = 422, {**body, "reason": "Invalid"}
    return ApiError(status, body, seconds)


async def _explain_refused_upgrade(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """aiohttp drops what the server says when it refuses a WebSocket, which is just what a person needs."""
    answer = await handler(request)
    if request.headers.get("Upgrade") and answer.status != 101:
        raise await _refusal(answer)
    return answer


def _pairs(params: Params) -> Iterable[tuple[str, str]]:
    return params.items() if isinstance(params, Mapping) else params
