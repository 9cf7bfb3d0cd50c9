"""Install, inspect and remove the operator in a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from oars.client import operator_client
from oars.client.backend import Location, Progress
from oars.kube.client import Client
from oars.kube.config import load
from oars.operator import installation
from oars.operator.manifests import InstallOptions


class OperatorService:
    def __init__(self, environ: Mapping[str, str], location: Location) -> None:
        self._environ = environ
        self._location = location

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        target = load(self._environ, context=self._location.context, kubeconfig=self._location.kubeconfig)
        async with Client(target) as client:
            await client.log_in()
            yield client

    async def install(self, options: InstallOptions, seconds: float, progress: Progress) -> str:
        """Install or update the operator; the identity of the leader, empty if there are no replicas."""
        async with self._client() as client:
            return await installation.install(client, options, seconds, progress)

    async def uninstall(self, namespace: str | None, seconds: float, progress: Progress, *, force: bool) -> str:
        """Remove the operator; the namespace it was in. force: delete its clusters, too."""
        async with self._client() as client:
            found = namespace or await operator_client.operator_namespace(client)
            await installation.uninstall(client, found, seconds, progress, force=force)
            return found

    async def status(self, namespace: str | None) -> dict[str, Any]:
        async with self._client() as client:
            return await installation.status(client, namespace or await operator_client.operator_namespace(client))
