"""Which home a cluster has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oars.base.errors import NotFound, OarsError, SpecError
from oars.base.settings import Settings
from oars.base.text import suggest
from oars.client.backend import Backend
from oars.client.local import LocalBackend

if TYPE_CHECKING:
    from oars.client.kubernetes import KubeBackend

PLACES = ("local", "kubernetes")


@dataclass(frozen=True)
class Where:
    """What the user said about the place. mode: operator or direct, if it shall not be found out."""

    place: str | None = None
    context: str | None = None
    namespace: str | None = None
    kubeconfig: str | None = None
    mode: str | None = None


def backend_for(place: str, where: Where, environ: Mapping[str, str]) -> Backend:
    """For a cluster that is to be made there."""
    if place == "local":
        return LocalBackend(Settings.from_environ(environ), environ)
    if place == "kubernetes":
        return kube_backend(where, environ)
    raise SpecError(f"There is no place {place!r}.{suggest(place, PLACES)}", f"Use one of: {', '.join(PLACES)}.")


def kube_backend(where: Where, environ: Mapping[str, str]) -> KubeBackend:
    from oars.client.kubernetes import KubeBackend  # its libraries are loaded only by those who need them

    return KubeBackend(Settings.from_environ(environ), environ, where)


def is_configured(where: Where, environ: Mapping[str, str]) -> bool:
    """Does anything here speak of a Kubernetes cluster?"""
    if where.context or where.kubeconfig or where.namespace or environ.get("KUBECONFIG"):
        return True
    return (Path(environ.get("HOME") or "/") / ".kube" / "config").exists() or _is_in_pod(environ)


def _is_in_pod(environ: Mapping[str, str]) -> bool:
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return False
    from oars.kube.config import in_cluster

    return in_cluster(environ)


def homes(where: Where, environ: Mapping[str, str]) -> Iterator[Backend]:
    """All in which to look, in that order; each is made only when it is its turn."""
    if where.place is not None:
        yield backend_for(where.place, where, environ)
        return
    yield LocalBackend(Settings.from_environ(environ), environ)
    if is_configured(where, environ):
        yield kube_backend(where, environ)


async def find_backend(
    name: str, where: Where, environ: Mapping[str, str], seconds: float | None = None, *, remains: bool = False
) -> Backend:
    """The home that has a cluster of that name; this machine comes first. Each has so many seconds to answer.
    `remains`: one that has only something left of it will do."""
    known: list[str] = []
    trouble: OarsError | None = None
    for home in homes(where, environ):
        try:
            await home.log_in()
            async with asyncio.timeout(seconds):
                there = await home.names()
                if remains and name not in there and await home.has_left(name):
                    return home
        except OarsError as error:
            trouble = error
            there = []
        except BaseException:
            await home.close()
            raise
        if name in there:
            return home
        known += there
        await home.close()
    if trouble is not None:
        raise trouble
    hint = suggest(name, known).strip() or "`oars ls` lists those that are there."
    raise NotFound(f"There is no cluster {name!r}.", hint)
