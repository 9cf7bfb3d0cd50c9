"""A Kubernetes namespace as a home of clusters: those of an operator and those that clients look after themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oars import engines
from oars.base.errors import NameInUse, NotFound, OarsError, Replaced, UsageError
from oars.base.settings import Settings
from oars.client import deletion, operator_client, pod_logs
from oars.client.backend import PLAIN, Containers, Driver, Making, Reading
from oars.client.backends import Where
from oars.client.direct import Direct, make_lease, new_identity
from oars.client.driver_env import make_driver
from oars.client.scaling import rescaled
from oars.client.tunnels import Tunnels
from oars.engines.base import Access
from oars.envs.build import Environments
from oars.kube import config
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import COMPUTE_CLUSTER, CONFIG_MAP, NAMESPACE, POD, Kind, Object
from oars.model import HEAD, Role
from oars.places.kube import names
from oars.places.kube.render import objects
from oars.places.kube.render.describe import describe
from oars.places.kube.state import observe
from oars.places.kube.state.root import INTENT, Intent
from oars.places.kube.why.api_errors import rights_told
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec

WRITE_TRIES = 10  # of a change: the loop writes its notes to the same object


class KubeBackend:
    """See home.Home. Everything is done in the event loop that first used it."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], where: Where) -> None:
        self._environ = environ
        self._settings = settings
        self._where = where
        self._identity = new_identity()
        self._client_: Client | None = None
        self._runs: dict[str, Direct] = {}
        self._modes: dict[str, str] = {}
        self._homes: dict[str, str] = {}  # cluster → namespace, where it is not ours
        self._roots: dict[str, Object] = {}  # cluster → its root, as made or first seen: others may get the name later
        self._ways: dict[str, Tunnels] = {}

    @property
    def _client(self) -> Client:
        if self._client_ is None:
            where = self._where
            path = Path(where.kubeconfig) if where.kubeconfig else None
            target = config.load(self._environ, context=where.context, namespace=where.namespace, kubeconfig=path)
            self._client_ = Client(target, user_agent="oars")
        return self._client_

    @property
    def client(self) -> Client:
        """For commands that need more than the home offers (exec, cp)."""
        return self._client

    @property
    def namespace(self) -> str:
        return self._client.target.namespace

    def namespace_of(self, name: str) -> str:
        return self._homes.get(name, self.namespace)

    # create

    async def create(self, name: str, spec: ClusterSpec, how: Making) -> None:
        engine = engines.get(spec.engine)
        namespace = spec.namespace_for(name, self._where.namespace) or self.namespace
        objects.manifests(describe(name, namespace, spec, engine))  # what cannot be rendered is said before all else
        self._homes[name] = namespace
        mode = self._where.mode or await operator_client.find_mode(self._client, namespace)
        if self._where.mode == "operator":
            await operator_client.check_watched(self._client, namespace)
        how.progress(f"{name}: {mode} mode, namespace {namespace}")
        if mode not in ("operator", "direct"):
            raise UsageError(f"There is no mode {mode!r}.", "Use operator or direct.")
        if not spec.namespace.create:
            await self._create_in(namespace, name, spec, mode, how)
        else:
            await self._make_namespace(name, namespace, spec)
            async with self._or_deleted(NAMESPACE, namespace):
                await self._create_in(namespace, name, spec, mode, how)
        self._modes[name] = mode

    async def _create_in(self, namespace: str, name: str, spec: ClusterSpec, mode: str, how: Making) -> None:
        if mode == "operator":
            with _taken(f"A cluster called {name!r} is there already."):
                self._roots[name] = await operator_client.create(self._client, name, namespace, spec)
        else:
            await self._create_direct(name, namespace, spec, how)

    async def _make_namespace(self, name: str, namespace: str, spec: ClusterSpec) -> None:
        body = {"name": namespace, "labels": names.labels(name, spec.engine)}
        with _taken(f"A namespace called {namespace!r} is there already."):
            await self._client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": body})

    async def _create_direct(self, name: str, namespace: str, spec: ClusterSpec, how: Making) -> None:
        intent = Intent(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True), tied=how.tied)
        metadata = {"name": names.root(name), "namespace": namespace, "labels": names.labels(name, spec.engine)}
        root = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": intent.data()}
        with _taken(f"A cluster called {name!r} is there already."):
            self._roots[name] = made = await self._client.create(root)
        async with self._or_deleted(CONFIG_MAP, names.root(name), namespace, uid=made["metadata"]["uid"]):
            await make_lease(self._client, made, self._identity)
            await self._run(name)

    @contextlib.asynccontextmanager
    async def _or_deleted(
        self, kind: Kind, name: str, namespace: str | None = None, uid: str | None = None
    ) -> AsyncIterator[None]:
        """What we have just made goes again if the rest fails."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OarsError):  # what failed first is what the user must hear
                await self._client.delete(kind, name, namespace, uid=uid)
            raise

    # find

    async def log_in(self) -> None:
        await self._client.log_in()

    async def names(self) -> list[str]:
        """Of both kinds, in our namespace."""
        direct = await self._direct_roots(self.namespace)
        found = {str(root["metadata"]["labels"][names.CLUSTER]): "direct" for root in direct}
        found |= dict.fromkeys(await operator_client.list_names(self._client, self.namespace), "operator")
        self._modes |= found
        return sorted(found)

    async def namespaces(self) -> list[str]:
        """All that hold a cluster, wherever we may look."""
        roots = [*await self._direct_roots(None), *await operator_client.list_all(self._client, None)]
        return sorted({str(root["metadata"]["namespace"]) for root in roots})

    async def _direct_roots(self, namespace: str | None) -> list[Object]:
        try:
            listed = await self._client.list(CONFIG_MAP, namespace, labels="app.kubernetes.io/managed-by=oars")
        except ApiError as error:
            if error.status != 403 or not await operator_client.is_served(self._client, namespace):
                raise
            return []  # whoever only uses an operator's clusters need not be able to see any other
        return [root for root in listed.items if _is_root(root)]

    async def mode(self, name: str) -> str:
        """Who looks after it."""
        if name not in self._modes:
            await self.names()
        if name not in self._modes:
            raise _missing(name, self.namespace)
        return self._modes[name]

    async def spec(self, name: str) -> ClusterSpec:
        root = await self._root(name)
        return operator_client.spec(root) if _is_operated(root) else operator_client.read(name, Intent.of(root).spec)

    async def _root(self, name: str) -> Object:
        """As it is now. This is where a cluster is told from another that got its name: it is the one that we made, or
        that was there when we first looked."""
        namespace = self.namespace_of(name)
        is_operated = await self.mode(name) == "operator"
        kind, called = (COMPUTE_CLUSTER, name) if is_operated else (CONFIG_MAP, names.root(name))
        try:
            found = await self._client.get(kind, called, namespace)
        except ApiError as error:
            if not is_not_found(error):
                raise
            if name in self._roots and await deletion.is_there(self._client, name, namespace):  # of the other kind
                raise Replaced(name) from None
            raise _missing(name, namespace) from None
        if found["metadata"]["uid"] != self._roots.setdefault(name, found)["metadata"]["uid"]:
            raise Replaced(name)
        return found

    def _uid(self, name: str) -> str:
        """Of the cluster, if we have looked at it before."""
        return str(self._roots[name]["metadata"]["uid"]) if name in self._roots else ""

    async def _run(self, name: str) -> Direct:
        """Our part in looking after a cluster, or in looking at it."""
        if name not in self._runs:
            run = Direct(self._client, self.namespace_of(name), name, self._identity, self._uid(name))
            await run.start()
            self._runs[name] = run
        return self._runs[name]

    async def report(self, name: str) -> Report:
        wanted = await self.generation(name)
        async for report in self.watch(name):
            if report.status.generation >= wanted:
                return report
        raise NotFound(f"The cluster {name!r} has just been stopped.")

    async def watch(self, name: str) -> AsyncIterator[Report]:
        if await self.mode(name) == "operator":
            async for report in operator_client.watch(self._client, name, self.namespace_of(name), self._uid(name)):
                yield report
            return
        async for report in (await self._run(name)).watch():
            yield report

    async def generation(self, name: str) -> int:
        root = await self._root(name)
        return int(root["metadata"]["generation"]) if _is_operated(root) else Intent.of(root).generation

    # change

    async def scale(self, name: str, replicas: int, group: str | None, *, force: bool = False) -> None:
        async def rescale() -> ClusterSpec:
            return rescaled(name, await self.spec(name), replicas, group)

        await self._rewrite(name, rescale, force=force)

    async def change(self, name: str, spec: ClusterSpec, *, force: bool = False) -> None:
        """Another description for a cluster that is there."""

        async def described() -> ClusterSpec:
            return spec

        await self._rewrite(name, described, force=force)

    async def _rewrite(self, name: str, described: Callable[[], Awaitable[ClusterSpec]], *, force: bool) -> None:
        """Only over what we have read; where somebody else wrote in between, `described` is asked once more."""
        for left in reversed(range(WRITE_TRIES)):
            try:
                await self._rewrite_once(name, described, force=force)
                return
            except ApiError as error:
                if error.status != 409 or not left:
                    raise

    async def _rewrite_once(self, name: str, described: Callable[[], Awaitable[ClusterSpec]], *, force: bool) -> None:
        root = await self._root(name)
        if _is_operated(root):
            await operator_client.change(self._client, root, await described(), force=force)
            return
        intent, metadata = Intent.of(root), root["metadata"]
        data = (await described()).model_dump(mode="json", by_alias=True, exclude_defaults=True)
        changed = Intent(data, intent.generation + 1, force, intent.tied)
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "data": changed.data()}
        await self._client.patch(CONFIG_MAP, metadata["name"], metadata["namespace"], body)
        if name in self._runs:
            self._runs[name].poke()

    async def stop(self, name: str, *, wait: float) -> bool:
        """Whoever looks after it stops when it sees that its root is gone. One that we made or know is stopped, and no
        other that has its name by now."""
        namespace = self.namespace_of(name)
        is_ours = await deletion.remove(self._client, name, namespace, self._roots.get(name))
        run = self._runs.pop(name, None)
        if run is not None:
            await run.close()
        self._modes.pop(name, None)
        return not is_ours or await deletion.await_end(self._client, name, namespace, wait)

    async def has_left(self, name: str) -> bool:
        """The namespace that was made for it: whoever was interrupted, or the watcher beside a head, leaves it."""
        return await deletion.is_its_own(self._client, name, self.namespace_of(name))

    def stop_at_exit(self, name: str) -> None:
        async def stop() -> None:
            home = KubeBackend(self._settings, self._environ, self._where)
            home._homes = dict(self._homes)
            try:
                await deletion.remove(home._client, name, home.namespace_of(name), self._roots.get(name))
            finally:
                await home.close()

        with contextlib.suppress(OarsError, OSError):  # Python is ending; the helper beside the head does it later
            asyncio.run(stop())

    # use

    async def open(self, name: str) -> None:
        """Secrets fetched, and a way to every port that the head serves."""
        if name not in self._ways:
            spec = await self.spec(name)
            namespace = self.namespace_of(name)
            cluster = describe(name, namespace, spec, engines.get(spec.engine))
            ways = Tunnels(self._client, cluster, self._settings.state_dir / "kubernetes")
            await ways.open()
            self._ways[name] = ways

    def access(self, name: str) -> Access:
        if name not in self._ways:
            raise OarsError(f"The way to {name!r} is not open yet.", "Wait until the cluster is ready.")
        return self._ways[name].access()

    def driver(self, name: str) -> Driver:
        """In a Python that has the engine: the running one, or a cached environment, built if need be."""
        access, ways = self.access(name), self._ways[name]
        spec = ways.cluster.spec
        environments = Environments(self._settings.cache_dir)
        needs = engines.get(spec.engine).needs(spec)
        env = environments.prepare(spec.engine, needs, spec.environment.packages, lambda _: None)
        return make_driver(str(env.python), access, self._environ, ways.directory)

    async def pods(self, name: str) -> dict[str, Object]:
        """member → pod, for logs and exec. Some may be left of a cluster that is gone; those of another that has its
        name are not its own."""
        try:
            await self._root(name)
        except Replaced:
            raise
        except NotFound:
            pass
        selector = names.selector({names.CLUSTER: name})
        listed = (await self._client.list(POD, self.namespace_of(name), labels=selector)).items
        found: dict[str, Object] = {}
        for pod in sorted(listed, key=lambda each: str(each["metadata"]["creationTimestamp"])):
            if observe.is_staying(pod):
                found[HEAD if observe.role(pod) is Role.HEAD else pod["metadata"]["name"]] = pod
        return found

    async def members(self, name: str) -> Sequence[str]:
        return list(await self.containers(name))

    async def containers(self, name: str) -> Containers:
        await self.mode(name)
        return {member: observe.containers(pod) for member, pod in sorted((await self.pods(name)).items())}

    def lines(self, name: str, member: str, how: Reading = PLAIN) -> AsyncIterator[str]:
        """Following goes on when the container is started again or, for the head, replaced."""

        async def find() -> Object | None:
            return (await self.pods(name)).get(member)

        return pod_logs.lines(self._client, find, how)

    def last_seen(self, name: str) -> Report | None:
        run = self._runs.get(name)
        return run.report if run else None

    def cancel(self) -> None:
        """Nothing here takes long enough to be called off."""

    async def close(self) -> None:
        for ways in self._ways.values():
            await ways.close()
        self._ways.clear()
        for run in self._runs.values():
            await run.close()
        self._runs.clear()
        if self._client_ is not None:
            await self._client_.close()
            self._client_ = None


def _missing(name: str, namespace: str) -> NotFound:
    return NotFound(f"There is no cluster {name!r} in the namespace {namespace}.", "`oars ls` lists them.")


def _is_operated(root: Object) -> bool:
    return bool(root["kind"] == COMPUTE_CLUSTER.kind)


def _is_root(config_map: Object) -> bool:
    return names.CLUSTER in config_map["metadata"].get("labels", {}) and INTENT in config_map.get("data", {})


@contextlib.contextmanager
def _taken(sentence: str) -> Any:
    try:
        with rights_told():
            yield
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        raise NameInUse(sentence, "Choose another name, or remove it with `oars down`.") from None
