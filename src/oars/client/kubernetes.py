"""A Kubernetes namespace as a home of clusters: those of an operator and those that clients look after themselves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oars import engines
from oars.base.errors import NameInUse, NotFound, OarsError, UsageError
from oars.base.settings import Settings
from oars.client import operated
from oars.client.direct import Direct, new_identity
from oars.client.driving import make_driver
from oars.client.home import Driver, Making
from oars.client.homes import Where
from oars.client.scaling import rescaled
from oars.client.ways import Ways
from oars.engines.base import Access
from oars.envs.build import Environments
from oars.kube import config
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import CONFIG_MAP, LEASE, NAMESPACE, POD, Object
from oars.model import HEAD, Role
from oars.places.kube import names, observe, render
from oars.places.kube.describe import describe
from oars.places.kube.root import INTENT, Intent, reference
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec

POLL_SECONDS = 0.2
LOG_SECONDS = 1.0  # between looks for more from a container that has ended
SINCE_MARGIN = 5.0
FORCE_AFTER = 5.0  # seconds; pods of a cluster that is gone have nothing left to finish


class KubeHome:
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
        self._ways: dict[str, Ways] = {}

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
        engine.check(spec)
        namespace = spec.namespace.name or (name if spec.namespace.create else self.namespace)
        render.manifests(describe(name, namespace, spec, engine))  # what cannot be rendered is said before all else
        self._homes[name] = namespace
        mode = self._where.mode or await operated.find_mode(self._client, namespace)
        how.progress(f"{name}: {mode} mode, namespace {namespace}")
        if spec.namespace.create:
            await self._make_namespace(name, namespace, spec)
        if mode == "operator":
            with _taken(f"A cluster called {name!r} is there already."):
                await operated.create(self._client, name, namespace, spec)
        elif mode == "direct":
            await self._create_direct(name, namespace, spec, how)
        else:
            raise UsageError(f"There is no mode {mode!r}.", "Use operator or direct.")
        self._modes[name] = mode

    async def _make_namespace(self, name: str, namespace: str, spec: ClusterSpec) -> None:
        body = {"name": namespace, "labels": names.labels(name, spec.engine)}
        with _taken(f"A namespace called {namespace!r} is there already."):
            await self._client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": body})

    async def _create_direct(self, name: str, namespace: str, spec: ClusterSpec, how: Making) -> None:
        intent = Intent(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True), tied=how.tied)
        metadata = {"name": names.root(name), "namespace": namespace, "labels": names.labels(name, spec.engine)}
        root = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": intent.data()}
        with _taken(f"A cluster called {name!r} is there already."):
            made = await self._client.create(root)
        lease = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {**metadata, "ownerReferences": [reference(CONFIG_MAP, made)]},
            "spec": {"holderIdentity": self._identity, "leaseDurationSeconds": 15},
        }
        with contextlib.suppress(ApiError):  # left of one that was just deleted: it is taken over
            await self._client.create(lease)
        await self._run(name)

    # find

    async def names(self) -> list[str]:
        """Of both kinds, in our namespace."""
        direct = await self._direct_roots(self.namespace)
        found = {str(root["metadata"]["labels"][names.CLUSTER]): "direct" for root in direct}
        found |= dict.fromkeys(await operated.list_names(self._client, self.namespace), "operator")
        self._modes |= found
        return sorted(found)

    async def namespaces(self) -> list[str]:
        """All that hold a cluster, wherever we may look."""
        roots = [*await self._direct_roots(None), *await operated.list_all(self._client, None)]
        return sorted({str(root["metadata"]["namespace"]) for root in roots})

    async def _direct_roots(self, namespace: str | None) -> list[Object]:
        listed = await self._client.list(CONFIG_MAP, namespace, labels="app.kubernetes.io/managed-by=oars")
        return [root for root in listed.items if _is_root(root)]

    async def mode(self, name: str) -> str:
        """Who looks after it."""
        if name not in self._modes:
            await self.names()
        if name not in self._modes:
            raise NotFound(f"There is no cluster {name!r} in the namespace {self.namespace}.", "`oars ls` lists them.")
        return self._modes[name]

    async def spec(self, name: str) -> ClusterSpec:
        if await self.mode(name) == "operator":
            return await operated.spec(self._client, name, self.namespace_of(name))
        return ClusterSpec.model_validate((await self._intent(name)).spec | {"place": "kubernetes"})

    async def _intent(self, name: str) -> Intent:
        try:
            return Intent.of(await self._client.get(CONFIG_MAP, names.root(name), self.namespace_of(name)))
        except ApiError as error:
            if not is_not_found(error):
                raise
            raise NotFound(f"There is no cluster {name!r}.", "`oars ls` lists those that are there.") from None

    async def _run(self, name: str) -> Direct:
        """Our part in looking after a cluster, or in looking at it."""
        if name not in self._runs:
            run = Direct(self._client, self.namespace_of(name), name, self._identity)
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
            async for report in operated.watch(self._client, name, self.namespace_of(name)):
                yield report
            return
        async for report in (await self._run(name)).watch():
            yield report

    async def generation(self, name: str) -> int:
        if await self.mode(name) == "operator":
            return await operated.generation(self._client, name, self.namespace_of(name))
        return (await self._intent(name)).generation

    # change

    async def scale(self, name: str, replicas: int, group: str | None, *, force: bool = False) -> None:
        spec = await self.spec(name)
        changed = rescaled(name, spec, replicas, group)
        await self.change(name, changed, force=force)

    async def change(self, name: str, spec: ClusterSpec, *, force: bool = False) -> None:
        """Another description for a cluster that is there."""
        namespace = self.namespace_of(name)
        if await self.mode(name) == "operator":
            await operated.change(self._client, name, namespace, spec, force=force)
            return
        intent = await self._intent(name)
        data = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        changed = Intent(data, intent.generation + 1, force, intent.tied)
        await self._client.patch(CONFIG_MAP, names.root(name), namespace, {"data": changed.data()})
        if name in self._runs:
            self._runs[name].poke()

    async def stop(self, name: str, *, wait: float) -> bool:
        """Deleting the root deletes all; whoever looks after it stops when it sees that."""
        namespace = self.namespace_of(name)
        created = False
        with contextlib.suppress(NotFound):
            created = (await self.spec(name)).namespace.create
        await self._delete_roots(name, namespace)
        run = self._runs.pop(name, None)
        if run is not None:
            await run.close()
        gone = await self._await_end(name, namespace, wait)
        if created:
            await self._client.delete(NAMESPACE, namespace)
        self._modes.pop(name, None)
        return gone

    async def _delete_roots(self, name: str, namespace: str) -> None:
        """Of either kind: which one it was is not always known, as after an interrupted create."""
        await self._client.delete(CONFIG_MAP, names.root(name), namespace)
        await operated.delete(self._client, name, namespace)

    async def _await_end(self, name: str, namespace: str, wait: float) -> bool:
        started, selector, forced = time.monotonic(), names.selector({names.CLUSTER: name}), False
        while time.monotonic() - started < wait:
            left = (await self._client.list(POD, namespace, labels=selector)).items
            if not left:
                return True
            if not forced and time.monotonic() - started > FORCE_AFTER:
                forced = True
                pods = [pod["metadata"]["name"] for pod in left]
                await asyncio.gather(*(self._client.delete(POD, pod, namespace, grace=1) for pod in pods))
            await asyncio.sleep(POLL_SECONDS)  # a few looks at the end of a cluster's life, not worth a watch
        return False

    def stop_at_exit(self, name: str) -> None:
        async def stop() -> None:
            home = KubeHome(self._settings, self._environ, self._where)
            home._homes = dict(self._homes)
            try:
                await home._delete_roots(name, home.namespace_of(name))
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
            ways = Ways(self._client, cluster, self._settings.state_dir / "kubernetes")
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
        """member → pod, for logs and exec."""
        selector = names.selector({names.CLUSTER: name})
        listed = (await self._client.list(POD, self.namespace_of(name), labels=selector)).items
        found: dict[str, Object] = {}
        for pod in sorted(listed, key=lambda each: str(each["metadata"]["creationTimestamp"])):
            if observe.is_staying(pod):
                found[HEAD if observe.role(pod) is Role.HEAD else pod["metadata"]["name"]] = pod
        return found

    async def members(self, name: str) -> Sequence[str]:
        await self.mode(name)
        return sorted(await self.pods(name))

    async def lines(
        self, name: str, member: str, *, follow: bool = False, tail: int | None = None, previous: bool = False
    ) -> AsyncIterator[str]:
        """Following goes on when the container is started again or, for the head, replaced."""
        last, heard = "", time.monotonic()
        while True:
            pods = await self.pods(name)
            if member not in pods:
                return
            pod = pods[member]
            lines = self._client.logs(
                pod["metadata"]["name"], pod["metadata"]["namespace"], container=str(observe.role(pod).value),
                follow=follow, tail=tail, previous=previous, timestamps=follow,
                since=time.monotonic() - heard + SINCE_MARGIN if last else None,
            )  # fmt: skip
            try:
                async for line in lines:
                    stamp, _, text = line.partition(" ") if follow else ("", "", line)
                    if follow and moment(stamp) <= last:
                        continue  # told before the connection, or the container, ended
                    last, heard = moment(stamp), time.monotonic()
                    yield text
            except ApiError as error:
                if error.status != 400 or not follow:  # 400: its container does not run yet
                    raise
            if not follow:
                return
            tail = None
            await asyncio.sleep(LOG_SECONDS)

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


def _is_root(config_map: Object) -> bool:
    return names.CLUSTER in config_map["metadata"].get("labels", {}) and INTENT in config_map.get("data", {})


@contextlib.contextmanager
def _taken(sentence: str) -> Any:
    try:
        yield
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        raise NameInUse(sentence, "Choose another name, or remove it with `oars down`.") from None


def moment(stamp: str) -> str:
    """A log line's time, such that texts compare as times do: it is written without the zeros at its end."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}" if whole else ""
