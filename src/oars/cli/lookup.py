"""Clusters by name, wherever they are: this machine first, then Kubernetes if there is a kubeconfig."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from oars.base.errors import NotFound, TimedOut, UsageError
from oars.client.backends import Where, find_backend
from oars.client.local import LocalBackend
from oars.places.report import Report

if TYPE_CHECKING:
    from oars.cli.progress import Progress
    from oars.client.backend import Backend
    from oars.client.cluster import AsyncCluster
    from oars.client.kubernetes import KubeBackend

# Whoever looks after a cluster tells of a change within that time, or it is told how it was before.
ANSWER_SECONDS = 10.0
FIND_SECONDS = 20.0
ATTACH_SECONDS = 40.0  # a keeper that was gone has 20 to come back


@asynccontextmanager
async def home_of(name: str, where: Where, *, remains: bool = False) -> AsyncIterator[Backend]:
    """The home that has the cluster or, if that will do, what remains of it; let go at the end."""
    home = await find(name, where, remains=remains)
    try:
        yield home
    finally:
        await home.close()


async def find(name: str, where: Where, *, remains: bool = False) -> Backend:
    """The same, to be let go by the caller."""
    try:
        return await find_backend(name, where, os.environ, FIND_SECONDS, remains=remains)
    except TimeoutError:
        hint = "Check that the API server can be reached, or say `--place local`."
        sentence = f"There is no cluster {name!r} on this machine, and Kubernetes did not answer"
        if where.place == "kubernetes":
            sentence, hint = "Kubernetes did not answer", "Check that the API server can be reached."
        raise TimedOut(f"{sentence} within {FIND_SECONDS:.0f} s.", hint) from None


def in_kubernetes(home: Backend) -> KubeBackend | None:
    """The home, if it is Kubernetes; its libraries are not loaded for clusters of this machine."""
    if isinstance(home, LocalBackend):
        return None
    from oars.client.kubernetes import KubeBackend

    assert isinstance(home, KubeBackend)
    return home


def only_kubernetes(home: Backend, name: str, instead: str) -> KubeBackend:
    found = in_kubernetes(home)
    if found is None:
        raise UsageError(f"The cluster {name!r} runs on this machine.", instead)
    return found


async def report_of(home: Backend, name: str, seconds: float = ANSWER_SECONDS) -> Report:
    """How it is now. Where nobody acts on the last change (an operator that is away), how it was before."""
    if in_kubernetes(home) is None:
        return await home.report(name)
    wanted, last = 0, None
    try:
        async with asyncio.timeout(seconds):
            wanted = await home.generation(name)
            async for report in home.watch(name):
                last = report
                if report.status.generation >= wanted:
                    return report
    except TimeoutError:
        if last is None:
            hint = "Is the API server busy? Try again."
            raise TimedOut(f"Nothing was heard of {name!r} within {seconds:.0f} s.", hint) from None
        return _outdated(last)
    raise NotFound(f"The cluster {name!r} has just been stopped.")


def _outdated(report: Report) -> Report:
    status = report.status
    note = "Nobody has acted on the last change yet; `oars operator status` tells how the operator is."
    return replace(report, status=replace(status, message=f"{status.message} {note}".strip()))


async def report(name: str, where: Where) -> Report:
    async with home_of(name, where) as home:
        return await report_of(home, name)


async def attach(name: str, where: Where, progress: Progress) -> AsyncCluster:
    """The cluster as an object, to be closed by the caller."""
    from oars.client.cluster import attach_at

    home = await find(name, where)
    try:
        async with asyncio.timeout(ATTACH_SECONDS):
            return await attach_at(home, name, progress=progress, where=where)
    except TimeoutError:
        hint = f"`oars status {name}` says how it is."
        raise TimedOut(f"Nobody tells how {name!r} is now.", hint) from None


def where_words(where: Where | None, namespace: str = "") -> str:
    """Options that a next command needs to find the same cluster, to stand after its name."""
    if where is None:
        return ""
    said = {"--kubeconfig": where.kubeconfig, "--context": where.context, "-n": namespace or where.namespace}
    return "".join(f" {option} {value}" for option, value in said.items() if value)
