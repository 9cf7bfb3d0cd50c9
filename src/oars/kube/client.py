"""The verbs of the Kubernetes API.

    async with Client(load(os.environ)) as client:
        pods = await client.list(POD, "default", labels="app=demo")

Returned objects have no managedFields: nothing here reads them, and they are about half of an object's size.
"""

from __future__ import annotations

import asyncio
import builtins
import copy
import json
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import aiohttp

from oars.kube.errors import ApiError, is_expired, is_not_found
from oars.kube.kinds import POD, Kind, Object, kind_of
from oars.kube.target import Target
from oars.kube.transport import TIMEOUT, Params, Request, Transport, WebSocket, network_errors_as_unreachable

FIELD_MANAGER = "oars"
WATCH_IDLE_TIMEOUT = 100.0  # the server sends a bookmark about once a minute; a longer silence is a dead connection
_WATCH_SECONDS = (300, 600)  # random, so that watches that start together do not end together
# Reject fields that the server does not know instead of dropping them silently.
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_STRICT: Mapping[str, str] = {"fieldValidation": "Strict"}


@dataclass(frozen=True)
class Listing:
    """The objects of a list, and the resourceVersion at which a watch continues it."""

    items: list[Object]
    resource_version: str


class Client:
    """A client of one API server. Tasks of one event loop may share it."""

    def __init__(
        self,
        target: Target,
        user_agent: str = "oars",
        *,
        timeout: float = TIMEOUT,
        watch_idle_timeout: float = WATCH_IDLE_TIMEOUT,
    ) -> None:
        self.target = target
        self._timeout = timeout
        self._watch_idle_timeout = watch_idle_timeout
        self._transport = Transport(target, user_agent)
        self._check_write: Callable[[], None] | None = None

    @property
    def errors(self) -> Mapping[str, int]:
        """Number of failed attempts by HTTP status code; "none": without a response."""
        return self._transport.errors

    def guarded(self, check: Callable[[], None]) -> Client:
        """Return a client with the same connections that calls `check` before every write. Its error stops the write,
        so that a leader that lost its Lease writes nothing."""
        guarded = copy.copy(self)
        guarded._check_write = check
        return guarded

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, including watches and streams."""
        await self._transport.close()

    async def log_in(self) -> None:
        """Run the exec credential plugin, if there is one. It may wait for user input, so call this before starting a
        timeout that is meant for the API server."""
        await self._transport.log_in()

    # Read

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """Return an object. The default namespace is the target's."""
        return await self._object(Request("GET", kind.path(self._namespace(kind, namespace), name)))

    async def get_metadata(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """Return the metadata of an object. The rest of it is not sent."""
        found = await self._object(Request("GET", kind.path(self._namespace(kind, namespace), name), accept=_METADATA))
        metadata: Object = found["metadata"]
        return metadata

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = "", limit: int = 500
    ) -> Listing:
        """List objects in pages of `limit`. Without a namespace, list all namespaces."""
        try:
            return await self._list_pages(kind, namespace, _selectors(labels, fields), limit)
        except ApiError as error:
            if not is_expired(error) or not limit:
                raise
            # The continue token expired between two pages. Read the list in one piece.
            return await self._list_pages(kind, namespace, _selectors(labels, fields), 0)

    async def _list_pages(self, kind: Kind, namespace: str | None, selectors: Mapping[str, str], limit: int) -> Listing:
        items: builtins.list[Object] = []
        params = {**selectors, **({"limit": str(limit)} if limit else {})}
        while True:
            page = await self._json(Request("GET", kind.path(namespace), params))
            for item in page.get("items") or ():
                item.setdefault("apiVersion", kind.api_version)  # the items of a list have neither
                item.setdefault("kind", kind.kind)
                items.append(_without_managed_fields(item))
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return Listing(items, metadata.get("resourceVersion", ""))
            params["continue"] = metadata["continue"]

    async def watch(
        self, kind: Kind, namespace: str | None = None, *, resource_version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield the events since `resource_version`: ADDED, MODIFIED, DELETED and BOOKMARK.

        The server ends a watch after five to ten minutes; start the next one at the last resourceVersion. Raises
        ApiError with status 410 if the resourceVersion is too old, and Unreachable if the connection breaks or is
        silent for `watch_idle_timeout` seconds."""
        params = {**_selectors(labels, fields), "resourceVersion": resource_version, "watch": "true"}
        params |= {"allowWatchBookmarks": "true", "timeoutSeconds": str(random.randint(*_WATCH_SECONDS))}
        async with self._transport.send(Request("GET", kind.path(namespace), params), stream=True) as response:
            async for line in self._lines(response, self._watch_idle_timeout):
                with network_errors_as_unreachable(self.target):  # a proxy may close the connection within a line
                    event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(int(event["object"].get("code") or 500), event["object"])
                yield event["type"], _without_managed_fields(event["object"])

    async def logs(  # noqa: PLR0913 (the API's own options)
        self,
        name: str,
        namespace: str | None = None,
        *,
        container: str = "",
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
        since: str = "",
        timestamps: bool = False,
        line_bytes: int | None = None,
        limit_bytes: int | None = None,
    ) -> AsyncIterator[str]:
        """Yield the lines of a container's log. `since` is an RFC 3339 time; the server ignores fractions of seconds.
        A line that is longer than `line_bytes` comes in pieces. The server sends at most `limit_bytes`.

        There is no idle timeout: a container may log nothing for days."""
        params = {"container": container} if container else {}
        flags = {"follow": follow, "previous": previous, "timestamps": timestamps}
        params |= {key: "true" for key, value in flags.items() if value}
        params |= {"tailLines": str(tail)} if tail is not None else {}
        params |= {"sinceTime": since} if since else {}
        params |= {"limitBytes": str(limit_bytes)} if limit_bytes is not None else {}
        request = Request("GET", POD.path(self._namespace(POD, namespace), name, "log"), params)
        async with self._transport.send(request, stream=True) as response:
            async for line in self._lines(response, None, line_bytes):
                yield line.decode(errors="replace")

    async def _lines(
        self, response: aiohttp.ClientResponse, idle_timeout: float | None, line_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield lines without line ends. Unlike aiohttp's reader, do not limit their length by default: objects may be
        large."""
        parts: builtins.list[bytes] = []
        while True:
            with network_errors_as_unreachable(self.target):
                async with asyncio.timeout(idle_timeout):
                    content = await response.content.readany()
            if not content:
                break
            *complete, rest = content.split(b"\n")
            for line in complete:
                parts.append(line)
                yield b"".join(parts).removesuffix(b"\r")
                parts.clear()
            if rest:
                parts.append(rest)
            if line_bytes is not None and sum(map(len, parts)) > line_bytes:
                yield b"".join(parts)
                parts.clear()
        if parts:
            yield b"".join(parts)

    # Write

    async def create(self, obj: Object, kind: Kind | None = None, *, dry_run: bool = False) -> Object:
        """Create an object. Pass `kind` if `kind_of` does not know it. `dry_run`: only check whether it can be created.

        If the server does not answer, the object may exist; the request is not retried."""
        kind = kind or kind_of(obj)
        path = kind.path(self._namespace(kind, obj["metadata"].get("namespace")))
        params = {**_STRICT, **({"dryRun": "All"} if dry_run else {})}
        return await self._object(Request("POST", path, params, obj, idempotent=False))

    async def apply(self, obj: Object) -> Object:
        """Create or update an object by server-side apply. Takes over fields of other managers."""
        # Apply always rejects unknown fields. Strict validation would make the server decode the object twice.
        params = {"fieldValidation": "Ignore", "fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._object(Request("PATCH", self._path(obj), params, obj, "application/apply-patch+yaml"))

    async def patch(
        self, kind: Kind, name: str, namespace: str | None, body: Object, *, subresource: str = ""
    ) -> Object:
        """Send a merge patch (RFC 7386). With metadata.resourceVersion in it, a concurrent change raises 409."""
        path = kind.path(self._namespace(kind, namespace), name, subresource)
        return await self._object(Request("PATCH", path, _STRICT, body, "application/merge-patch+json"))

    async def replace(self, obj: Object) -> Object:
        """Replace an object. Raises 409 if its resourceVersion has changed."""
        return await self._object(Request("PUT", self._path(obj), _STRICT, obj))

    async def delete(
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        propagation: str = "Background",
        grace: int | None = None,
        uid: str | None = None,
    ) -> bool:
        """Start deleting an object; return False if it does not exist. Raises 409 if its uid is not `uid`."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        body |= {"gracePeriodSeconds": grace} if grace is not None else {}
        body |= {"preconditions": {"uid": uid}} if uid is not None else {}
        try:
            await self._json(Request("DELETE", kind.path(self._namespace(kind, namespace), name), body=body))
        except ApiError as error:
            if is_not_found(error):
                return False
            raise
        return True

    async def websocket(self, path: str, params: Params, protocols: Iterable[str]) -> WebSocket:
        """Open a WebSocket, for exec and port-forward."""
        return await self._transport.websocket(path, params, protocols, self._timeout)

    async def _json(self, request: Request) -> Object:
        if request.method != "GET":
            request = replace(request, check=self._check_write)
        return await self._transport.json(request, seconds=self._timeout)

    async def _object(self, request: Request) -> Object:
        return _without_managed_fields(await self._json(request))

    def _path(self, obj: Object) -> str:
        kind, metadata = kind_of(obj), obj["metadata"]
        return kind.path(self._namespace(kind, metadata.get("namespace")), metadata["name"])

    def _namespace(self, kind: Kind, namespace: str | None) -> str | None:
        return (namespace or self.target.namespace) if kind.namespaced else None


def _without_managed_fields(obj: Object) -> Object:
    if metadata := obj.get("metadata"):
        metadata.pop("managedFields", None)
    return obj


def _selectors(labels: str, fields: str) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in selectors.items() if value}
