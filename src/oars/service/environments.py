"""The cached environments of engines on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from oars.base.errors import OarsError
from oars.base.settings import Settings
from oars.client.backend import Progress
from oars.client.local import LocalBackend
from oars.envs.cache import EnvInfo

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec

__all__ = ["EnvInfo", "EnvironmentService"]


class EnvironmentService:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._backend = LocalBackend(Settings.from_environ(environ), environ)

    def list(self) -> Sequence[EnvInfo]:
        return self._backend.environments.list()

    def build(self, spec: ClusterSpec, progress: Progress) -> str:
        """Build the environment that a cluster of this spec needs, unless it exists; the path of its Python."""
        return str(self._backend.prepare(spec, progress).python)

    def remove(self, names: Sequence[str]) -> Sequence[EnvInfo]:
        """Remove environments by key or engine; without names all. Raises OarsError if a cluster uses one."""
        wanted = names or [info.key for info in self.list()]
        for name in wanted:
            self._check_unused(name)
        return [info for name in wanted for info in self._backend.environments.remove(name)]

    def _check_unused(self, name: str) -> None:
        chosen = [info for info in self.list() if info.key.startswith(name) or info.engine == name]
        for cluster in self._backend.store.names():
            python = self._backend.store.cluster(cluster).read().python
            if any(python.startswith(f"{info.path}/") for info in chosen):
                hint = f"Stop the cluster first: `oars down {cluster}`."
                raise OarsError(f"The environment {name!r} is in use by cluster {cluster!r}.", hint)
