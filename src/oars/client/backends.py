"""Choose a backend by location, and find a cluster by name in all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from oars.base.errors import NotFound, OarsError
from oars.base.settings import Settings
from oars.base.text import suggest
from oars.client.backend import Backend, ClusterHandle, Location, capabilities
from oars.client.local import LocalBackend


def backend_for(location: Location, environ: Mapping[str, str]) -> Backend:
    """The backend of `location.place`, or of this machine if it names none."""
    place = location.place or "local"
    capabilities(place)  # raises SpecError
    if place == "local":
        return LocalBackend(Settings.from_environ(environ), environ)
    from oars.client.kubernetes import KubeBackend  # loads aiohttp, which local clusters do not need

    return KubeBackend(Settings.from_environ(environ), environ, location)


def is_kubernetes_configured(location: Location, environ: Mapping[str, str]) -> bool:
    """True if the location or the environment refers to a Kubernetes cluster."""
    if location.context or location.kubeconfig or location.namespace or environ.get("KUBECONFIG"):
        return True
    if (Path(environ.get("HOME") or "/") / ".kube" / "config").exists():
        return True
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return False
    from oars.kube.config import in_cluster

    return in_cluster(environ)


def backends(location: Location, environ: Mapping[str, str]) -> Iterator[Backend]:
    """All backends of a location, each made when it is needed: this machine, then Kubernetes if it is configured."""
    yield backend_for(location, environ)
    if location.place is None and is_kubernetes_configured(location, environ):
        yield backend_for(replace(location, place="kubernetes"), environ)


async def find_cluster(
    name: str,
    location: Location,
    environ: Mapping[str, str],
    timeout: float | None = None,  # noqa: ASYNC109 (for each backend, and without its login)
    *,
    leftovers: bool = False,
    besides: Collection[str] = (),
) -> tuple[Backend, ClusterHandle]:
    """The first cluster of that name, and its backend for the caller to close. Raises TimeoutError if a backend does
    not answer. leftovers: also find what is left of a deleted cluster. besides: clusters that were named, too, and so
    cannot be meant."""
    known: list[str] = []
    looked: list[str] = []
    explained: NotFound | None = None
    trouble: OarsError | None = None
    for backend in backends(location, environ):
        found: ClusterHandle | None = None
        try:
            await backend.login()
            async with asyncio.timeout(timeout):
                handles = {handle.name: handle for handle in await backend.list()}
                found = handles.get(name)
                if found is None and leftovers and await backend.cluster(name).has_leftovers():
                    found = backend.cluster(name)
                if found is None:
                    explained = await backend.explain_missing(name) or explained
                    looked.append(backend.where())
            known += handles
        except OarsError as error:
            trouble = error
        finally:
            if found is None:
                await backend.close()
        if found is not None:
            return backend, found
    if trouble is not None:
        raise trouble
    if explained is not None:
        raise explained
    has_namespaces = capabilities(backend.place).has_namespaces
    listing = "`oars ls -A` to look in all namespaces" if has_namespaces else "`oars ls` to list clusters"
    hint = suggest(name, {*known} - {*besides}).strip() or f"Run {listing}."
    raise NotFound(f"There is no cluster {name!r} {', nor '.join(looked)}.", hint)
