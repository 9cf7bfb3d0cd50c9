"""The verbs of the Kubernetes API.

    async with Client(load(os.environ)) as client:
        pods = await client.list(POD, "default", labels="app=demo")

What is read comes without managedFields: nobody here needs them, and they are half of every object.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from oars.kube import streaming
from oars.kube.errors import ApiError, is_expired, is_not_found
from oars.kube.kinds import Kind, Object, of
from oars.kube.target import Target
from oars.kube.transport import SECONDS, Call, Params, Transport, WebSocket

SILENCE = 100.0  # at rest a server sends a bookmark about once a minute; longer silence is a dead watch


@dataclass(frozen=True)
class Listing:
    """All objects of a list, and the version from which a watch goes on."""

    items: list[Object]
    resource_version: str


class Client:
    """An API server as one user sees it. Many tasks of one event loop may share it."""

    def __init__(
        self, target: Target, user_agent: str = "oars", *, seconds: float = SECONDS, silence: float = SILENCE
    ) -> None:
        self.target = target
        self.silence = silence
        self._seconds = seconds
        self._transport = Transport(target, user_agent)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections, watches and streams included."""
        await self._transport.close()

    async def log_in(self) -> None:
        """Get credentials, if a plug-in gives them out: a person may have to type or visit a page. Whoever sets a
        deadline for answers of the server calls this before."""
        await self._transport.log_in()

    # reading

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """One object; a namespaced kind without a namespace is looked for in the target's."""
        return await self._object(Call("GET", kind.path(self._home(kind, namespace), name)))

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = "", limit: int = 500
    ) -> Listing:
        """All objects, fetched in pages; without a namespace those of all namespaces."""
        try:
            return await self._pages(kind, namespace, _selectors(labels, fields), limit)
        except ApiError as error:
            if not is_expired(error) or not limit:
                raise
            # The list outlived its pages: take it in one piece.
            return await self._pages(kind, namespace, _selectors(labels, fields), 0)

    async def _pages(self, kind: Kind, namespace: str | None, selectors: Mapping[str, str], limit: int) -> Listing:
        items: builtins.list[Object] = []
        params = {**selectors, **({"limit": str(limit)} if limit else {})}
        while True:
            page = await self._json(Call("GET", kind.path(namespace), params))
            for item in page.get("items") or ():
                item.setdefault("apiVersion", kind.api_version)  # lists leave these out
                item.setdefault("kind", kind.kind)
                items.append(trimmed(item))
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                return Listing(items, meta.get("resourceVersion", ""))
            params["continue"] = meta["continue"]

    def watch(
        self, kind: Kind, namespace: str | None = None, *, resource_version: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes since a version: ADDED, MODIFIED, DELETED, and BOOKMARK (only a newer version to go on from).

        Ends when the server ends it, after five to ten minutes: watch again from the last version. Raises ApiError
        with status 410 when the version is too old, Unreachable when the connection breaks or nothing, not even a
        bookmark, came for `silence` seconds."""
        params = {**_selectors(labels, fields), "resourceVersion": resource_version}
        return streaming.watch(self._transport, kind.path(namespace), params, self.silence)

    def logs(  # noqa: PLR0913 (the API's own options)
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
    ) -> AsyncIterator[str]:
        """The lines of a container's log. `since`: from the second of this time on, as a line's stamp has it."""
        params = {"container": container} if container else {}
        flags = {"follow": follow, "previous": previous, "timestamps": timestamps}
        params |= {key: "true" for key, value in flags.items() if value}
        params |= {"tailLines": str(tail)} if tail is not None else {}
        params |= {"sinceTime": since} if since else {}
        return streaming.logs(
            self._transport, f"/api/v1/namespaces/{namespace or self.target.namespace}/pods/{name}/log", params
        )

    async def version(self) -> Object:
        """The server's version, as /version gives it (gitVersion, major, minor, …)."""
        return await self._json(Call("GET", "/version"))

    async def may(
        self,
        verb: str,
        resource: str,
        group: str = "",
        namespace: str | None = None,
        name: str = "",
        subresource: str = "",
    ) -> bool:
        """Whether we have the right to do this; without a namespace: in all of them."""
        wanted = {"verb": verb, "resource": resource, "group": group, "namespace": namespace or ""}
        wanted |= {"name": name, "subresource": subresource}
        kind = Kind("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "spec": {"resourceAttributes": wanted}}
        answer = await self._json(Call("POST", kind.path(None), body=body))  # changes nothing: may be repeated
        return bool(answer.get("status", {}).get("allowed"))

    # writing

    async def create(self, obj: Object, kind: Kind | None = None) -> Object:
        """Create an object, of a kind that must be given if it is nobody's we know. Without an answer it may exist or
        not: a second try is the caller's choice."""
        kind = kind or of(obj)
        path = kind.path(self._home(kind, _namespace(obj)))
        return await self._object(Call("POST", path, _STRICT, obj, repeatable=False))

    async def apply(
        self, obj: Object, *, force: bool = True, dry_run: bool = False, manager: str = "oars", subresource: str = ""
    ) -> Object:
        """Server-side apply: create it, or make our fields of it so. Unknown fields are refused."""
        # Apply refuses unknown fields by itself; a stricter reading would have the server read all twice.
        params = {"fieldValidation": "Ignore", "fieldManager": manager, "force": "true" if force else "false"}
        params |= {"dryRun": "All"} if dry_run else {}
        path = self._path(obj, subresource)
        return await self._object(Call("PATCH", path, params, obj, "application/apply-patch+yaml"))

    async def patch(
        self, kind: Kind, name: str, namespace: str | None, body: Object, *, subresource: str = ""
    ) -> Object:
        """Merge patch (RFC 7386). With metadata.resourceVersion in it, only if nobody wrote in between."""
        path = kind.path(self._home(kind, namespace), name, subresource)
        return await self._object(Call("PATCH", path, _STRICT, body, "application/merge-patch+json"))

    async def json_patch(
        self, kind: Kind, name: str, namespace: str | None, operations: Iterable[Object], *, subresource: str = ""
    ) -> Object:
        """JSON patch (RFC 6902). Not repeated by itself: adding to a list twice adds twice."""
        path = kind.path(self._home(kind, namespace), name, subresource)
        body = builtins.list(operations)
        call = Call("PATCH", path, _STRICT, body, "application/json-patch+json", repeatable=False)
        return await self._object(call)

    async def replace(self, obj: Object, *, subresource: str = "") -> Object:
        """Put an object in place of what is there, if that still has the object's resourceVersion (else 409)."""
        return await self._object(Call("PUT", self._path(obj, subresource), _STRICT, obj))

    async def delete(  # noqa: PLR0913 (the API's own options)
        self,
        kind: Kind,
        name: str,
        namespace: str | None = None,
        *,
        propagation: str = "Background",
        grace: int | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> bool:
        """Delete an object, not waiting until it is gone. False: it was not there. With `uid` or `resource_version`
        only that very one (else 409)."""
        body = _deletion(propagation, grace)
        conditions = {"uid": uid, "resourceVersion": resource_version}
        if only := {key: value for key, value in conditions.items() if value is not None}:
            body["preconditions"] = only
        try:
            await self._json(Call("DELETE", kind.path(self._home(kind, namespace), name), body=body))
        except ApiError as error:
            if is_not_found(error):
                return False
            raise
        return True

    async def delete_all(
        self, kind: Kind, namespace: str, labels: str, *, grace: int | None = None, propagation: str = "Background"
    ) -> None:
        """Delete all objects of a namespace with these labels."""
        call = Call("DELETE", kind.path(namespace), _selectors(labels, ""), _deletion(propagation, grace))
        await self._json(call)

    async def websocket(self, path: str, params: Params, protocols: Iterable[str]) -> WebSocket:
        """A WebSocket, for what goes both ways (see streams)."""
        return await self._transport.websocket(path, params, protocols, self._seconds)

    # inside

    async def _json(self, call: Call) -> Object:
        return await self._transport.json(call, seconds=self._seconds)

    async def _object(self, call: Call) -> Object:
        return trimmed(await self._json(call))

    def _path(self, obj: Object, subresource: str) -> str:
        kind = of(obj)
        return kind.path(self._home(kind, _namespace(obj)), obj["metadata"]["name"], subresource)

    def _home(self, kind: Kind, namespace: str | None) -> str | None:
        return (namespace or self.target.namespace) if kind.namespaced else None


# A field that the server does not know is a mistake, not something to drop silently.
_STRICT: Mapping[str, str] = {"fieldValidation": "Strict"}


def trimmed(obj: Object) -> Object:
    """The object without its managedFields."""
    meta = obj.get("metadata")
    if meta:
        meta.pop("managedFields", None)
    return obj


def _namespace(obj: Object) -> str | None:
    namespace: str | None = obj["metadata"].get("namespace")
    return namespace


def _selectors(labels: str, fields: str) -> dict[str, str]:
    given = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in given.items() if value}


def _deletion(propagation: str, grace: int | None) -> Object:
    body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
    return body if grace is None else {**body, "gracePeriodSeconds": grace}
