"""Clusters in a Kubernetes namespace: those that an operator reconciles, and those that clients reconcile (direct)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from oars import engines
from oars.base.errors import NameInUse, NotFound, OarsError, Replaced, TimedOut, UsageError
from oars.base.settings import Settings
from oars.client import deletion, operator_client, pod_logs, pod_programs
from oars.client.backend import (
    STOP_SECONDS,
    WHOLE_LOG,
    CreateOptions,
    Driver,
    ExecSession,
    Location,
    LogOptions,
    check_container,
    check_member,
)
from oars.client.direct import Direct, make_lease, new_identity
from oars.client.driver_env import make_driver
from oars.client.scaling import with_workers
from oars.client.tunnels import Tunnels
from oars.engines.base import Access
from oars.envs.build import Environments
from oars.kube import config, copy
from oars.kube import exec as kube_exec
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import CONFIG_MAP, NAMESPACE, POD, Kind, Object
from oars.kube.port_forward import Forwarder
from oars.model import HEAD, Desired, Role
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.render import objects
from oars.places.kube.render.changes import Change, Version, compare
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.values import SECRETS, head_values
from oars.places.kube.state import observe
from oars.places.kube.state.root import INTENT, dump_intent, read_intent
from oars.places.kube.why.api_errors import denied_with_rule
from oars.places.report import Report
from oars.plan.desired import build
from oars.plan.fill import fill
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Phase, Status

MODES = ("operator", "direct")
REPORT_SECONDS = 10.0  # after that, a status of an older generation is reported
WRITE_ATTEMPTS = 10  # of a change: the controller writes to the same object


class KubeBackend:
    """All clusters of one namespace. See backend.Backend. Use it in one event loop only."""

    place = "kubernetes"

    def __init__(self, settings: Settings, environ: Mapping[str, str], location: Location) -> None:
        self.settings = settings
        self.environ = environ
        self.location = location
        self.identity = new_identity()
        self.opened: set[KubeHandle] = set()  # handles that have connections or tasks
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        if self._client is None:
            location = self.location
            path = Path(location.kubeconfig) if location.kubeconfig else None
            target = config.load(self.environ, context=location.context, namespace=location.namespace, kubeconfig=path)
            self._client = Client(target, user_agent="oars")
        return self._client

    @property
    def namespace(self) -> str:
        return self.client.target.namespace

    async def login(self) -> None:
        await self.client.log_in()

    def cluster(self, name: str) -> KubeHandle:
        return KubeHandle(self, name, self.namespace)

    async def list(self, *, all_namespaces: bool = False) -> list[KubeHandle]:
        namespace = None if all_namespaces else self.namespace
        modes: dict[tuple[str, str], str] = {}
        for root in await self._direct_roots(namespace):
            modes[root["metadata"]["namespace"], root["metadata"]["labels"][names.CLUSTER]] = "direct"
        for root in await operator_client.list_all(self.client, namespace):
            modes[root["metadata"]["namespace"], root["metadata"]["name"]] = "operator"
        return [KubeHandle(self, name, where, mode) for (where, name), mode in sorted(modes.items())]

    async def _direct_roots(self, namespace: str | None) -> Sequence[Object]:
        try:
            listed = await self.client.list(CONFIG_MAP, namespace, labels="app.kubernetes.io/managed-by=oars")
        except ApiError as error:
            if error.status != 403 or not await operator_client.is_served(self.client, namespace):
                raise
            return ()  # users of an operator need no right to list ConfigMaps
        return [
            root for root in listed.items
            if names.CLUSTER in root["metadata"].get("labels", {}) and INTENT in root.get("data", {})
        ]  # fmt: skip

    async def create(self, name: str, spec: ClusterSpec, options: CreateOptions) -> KubeHandle:
        namespace = spec.namespace_for(name, self.location.namespace) or self.namespace
        objects.manifests(_desired(name, namespace, spec))  # report an invalid spec before anything else
        mode = self.location.mode or await operator_client.find_mode(self.client, namespace)
        if mode not in MODES:
            raise UsageError(f"There is no mode {mode!r}.", f"Modes: {', '.join(MODES)}.")
        if self.location.mode == "operator":
            await operator_client.check_watched(self.client, namespace)
        options.progress(f"{name}: {mode} mode, namespace {namespace}")
        handle = KubeHandle(self, name, namespace, mode)
        create = handle.create_operated if mode == "operator" else handle.create_direct
        if not spec.namespace.create:
            await create(spec, options)
            return handle
        body = {"name": namespace, "labels": names.labels(name, spec.engine)}
        with _name_in_use(f"Namespace {namespace!r} exists already.", "Choose another name."):
            await self.client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": body})
        async with self.deleted_on_error(NAMESPACE, namespace):
            await create(spec, options)
        return handle

    @contextlib.asynccontextmanager
    async def deleted_on_error(
        self, kind: Kind, name: str, namespace: str | None = None, uid: str | None = None
    ) -> AsyncIterator[None]:
        """Delete an object that was just created if the body fails."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OarsError):  # the first error is the one to report
                await self.client.delete(kind, name, namespace, uid=uid)
            raise

    def cancel_create(self) -> None:
        """Nothing to do: create() takes only a few requests."""

    async def close(self) -> None:
        for handle in list(self.opened):
            await handle.close()
        if self._client is not None:
            await self._client.close()
            self._client = None


class KubeHandle:
    """One cluster. See backend.ClusterHandle; supports containers, exec, copy and forward.

    The root is the object that owns all others: a ComputeCluster (operator mode) or a ConfigMap (direct mode)."""

    runs_as = "on Kubernetes"

    def __init__(self, backend: KubeBackend, name: str, namespace: str, mode: str = "") -> None:
        self._backend = backend
        self.name = name
        self.namespace = namespace
        self._mode = mode  # empty: not known yet
        self._root: Object | None = None  # as created or first seen; later ones with another UID are other clusters
        self._direct: Direct | None = None
        self._tunnels: Tunnels | None = None

    @property
    def _client(self) -> Client:
        return self._backend.client

    # create

    async def create_operated(self, spec: ClusterSpec, options: CreateOptions) -> None:
        with self._name_in_use():
            self._root = await operator_client.create(self._client, self.name, self.namespace, spec)

    async def create_direct(self, spec: ClusterSpec, options: CreateOptions) -> None:
        name = names.root(self.name)
        metadata = {"name": name, "namespace": self.namespace, "labels": names.labels(self.name, spec.engine)}
        data = _intent_data(spec, tied=options.tied)
        with self._name_in_use():
            root = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            self._root = created = await self._client.create(root)
        uid = created["metadata"]["uid"]
        async with self._backend.deleted_on_error(CONFIG_MAP, name, self.namespace, uid):
            await make_lease(self._client, created, self._backend.identity)
            await self._reconciler()

    def _name_in_use(self) -> contextlib.AbstractContextManager[None]:
        hint = f"Choose another name, or run `oars down {self.name} -n {self.namespace}`."
        return _name_in_use(f"Cluster {self.name!r} exists already.", hint)

    # read

    async def mode(self) -> str:
        """operator or direct. Raises NotFound."""
        if not self._mode:
            listed = {handle.name: handle for handle in await self._backend.list()}
            if self.name not in listed or listed[self.name].namespace != self.namespace:
                raise self._not_found()
            self._mode = listed[self.name]._mode
        return self._mode

    async def _read_root(self) -> Object:
        """The root as it is now. Raises Replaced if it is another than the one created or first seen."""
        operated = await self.mode() == "operator"
        kind, name = (COMPUTE_CLUSTER, self.name) if operated else (CONFIG_MAP, names.root(self.name))
        try:
            root = await self._client.get(kind, name, self.namespace)
        except ApiError as error:
            if not is_not_found(error):
                raise
            if self._root is not None and await deletion.exists(self._client, self.name, self.namespace):
                raise Replaced(self.name) from None  # by a cluster of the other mode
            raise self._not_found() from None
        self._root = self._root or root
        if root["metadata"]["uid"] != self._uid:
            raise Replaced(self.name)
        return root

    @property
    def _uid(self) -> str:
        return str(self._root["metadata"]["uid"]) if self._root else ""

    def _not_found(self) -> NotFound:
        message = f"There is no cluster {self.name!r} in namespace {self.namespace!r}."
        return NotFound(message, f"Run `oars ls -n {self.namespace}` to list clusters.")

    async def exists(self) -> bool:
        try:
            await self._read_root()
        except NotFound:
            return False
        return True

    async def has_leftovers(self) -> bool:
        """True if the cluster's own namespace is left, as after an interrupted stop."""
        return await deletion.owns_namespace(self._client, self.name, self.namespace)

    async def spec(self) -> ClusterSpec:
        return _spec_of(self.name, await self._read_root())

    async def generation(self) -> int:
        root = await self._read_root()
        return int(root["metadata"]["generation"]) if _is_operated(root) else read_intent(root).generation

    async def report(self, timeout: float | None = None) -> Report:  # noqa: ASYNC109 (see ClusterHandle)
        """If the controller does not act on the current generation in time, the report of an older one."""
        seconds = REPORT_SECONDS if timeout is None else timeout
        last: Report | None = None
        try:
            async with asyncio.timeout(seconds):
                wanted = await self.generation()
                async for last in self.watch():
                    if last.status.generation >= wanted:
                        return last
        except TimeoutError:
            if last is None:
                message = f"No status for {self.name!r}: the API server did not answer within {seconds:.0f} s."
                raise TimedOut(message, "Check that the API server responds: `kubectl get --raw /readyz`.") from None
            note = "The last change has not been acted on yet; check `oars operator status`."
            message = f"{last.status.message} {note}".strip()
            return replace(last, status=replace(last.status, message=message))
        raise NotFound(f"Cluster {self.name!r} has been stopped.")

    async def watch(self) -> AsyncIterator[Report]:
        if await self.mode() == "operator":
            async for report in operator_client.watch(self._client, self.name, self.namespace, self._uid):
                yield report
            return
        async for report in (await self._reconciler()).watch():
            yield report

    async def _reconciler(self) -> Direct:
        """Direct mode: this client's part, which reconciles the cluster or follows the client that does."""
        if self._direct is None:
            direct = Direct(self._client, self.namespace, self.name, self._backend.identity, self._uid)
            await direct.start()
            self._direct = direct
            self._backend.opened.add(self)
        return self._direct

    def last_report(self) -> Report | None:
        return self._direct.report if self._direct else None

    def fallback_status(self, problem: str) -> Status:
        last = self.last_report()
        unknown = Status(self.name, "?", "kubernetes", Phase.PENDING, mode=self._mode, namespace=self.namespace)
        return replace(last.status if last else unknown, reason="Unseen", message=problem)

    # change

    async def scale(self, replicas: int, group: str | None = None, *, force: bool = False) -> None:
        await self._rewrite(lambda spec: with_workers(self.name, spec, replicas, group), force=force)

    async def diff(self, spec: ClusterSpec) -> tuple[Change, ...]:
        before = await self.spec()
        old, new = (_desired(self.name, self.namespace, each) for each in (before, spec))
        return compare(Version(before, old), Version(spec, new))

    async def apply(self, spec: ClusterSpec, *, force: bool = False) -> None:
        wanted = spec.model_copy(update={"place": "kubernetes"})
        await self._rewrite(lambda _: wanted, force=force)

    async def _rewrite(self, change: Callable[[ClusterSpec], ClusterSpec], *, force: bool) -> None:
        """Write the changed spec if nobody else wrote since it was read; otherwise read and change it again."""
        for attempts_left in reversed(range(WRITE_ATTEMPTS)):
            root = await self._read_root()
            spec = change(_spec_of(self.name, root))
            try:
                if _is_operated(root):
                    await operator_client.change(self._client, root, spec, force=force)
                else:
                    body = {
                        "metadata": {"resourceVersion": root["metadata"]["resourceVersion"]},
                        "data": _intent_data(spec, read_intent(root), force=force),
                    }
                    await self._client.patch(CONFIG_MAP, names.root(self.name), self.namespace, body)
                break
            except ApiError as error:
                if error.status != 409 or not attempts_left:
                    raise
        if self._direct is not None:
            self._direct.wake()

    async def stop(self, timeout: float = STOP_SECONDS) -> bool:  # noqa: ASYNC109 (see ClusterHandle)
        """Delete the root; controllers stop when it is gone. A cluster that has taken the name is left alone."""
        is_ours = await deletion.remove(self._client, self.name, self.namespace, self._root)
        direct, self._direct = self._direct, None
        if direct is not None:
            await direct.close()
        return not is_ours or await deletion.await_end(self._client, self.name, self.namespace, timeout)

    def stop_at_exit(self) -> None:
        async def stop() -> None:
            backend = KubeBackend(self._backend.settings, self._backend.environ, self._backend.location)
            try:
                await deletion.remove(backend.client, self.name, self.namespace, self._root)
            finally:
                await backend.close()

        with contextlib.suppress(OarsError, OSError):  # the helper in the head's pod removes the cluster later
            asyncio.run(stop())

    # use

    async def open(self) -> None:
        """Fetch the secrets and open a tunnel to every port of the head's Service."""
        if self._tunnels is None:
            spec = await self.spec()
            cluster = _desired(self.name, self.namespace, spec)
            tunnels = Tunnels(self._client, spec, cluster, self._backend.settings.state_dir / "kubernetes")
            await tunnels.open()
            self._tunnels = tunnels
            self._backend.opened.add(self)

    def _opened(self) -> Tunnels:
        if self._tunnels is None:
            raise OarsError(f"Cluster {self.name!r} is not connected.", "Wait until the cluster is ready.")
        return self._tunnels

    def access(self) -> Access:
        return self._opened().access()

    def driver(self) -> Driver:
        """Uses a Python that has the engine: the running one or a cached environment, built if it is missing."""
        tunnels = self._opened()
        spec = tunnels.spec
        needs = engines.get(spec.engine).needs(spec)
        environments = Environments(self._backend.settings.cache_dir)
        env = environments.prepare(spec.engine, needs, spec.environment.packages, lambda _: None)
        return make_driver(str(env.python), tunnels.access(), self._backend.environ, tunnels.directory)

    async def close(self) -> None:
        tunnels, direct = self._tunnels, self._direct
        self._tunnels = self._direct = None
        self._backend.opened.discard(self)
        if tunnels is not None:
            await tunnels.close()
        if direct is not None:
            await direct.close()

    # pods

    async def _pods(self) -> dict[str, Object]:
        """The pod of each member. Pods may outlive their cluster."""
        try:
            await self._read_root()
        except Replaced:
            raise
        except NotFound:
            if not self._mode:
                raise
        listed = await self._client.list(POD, self.namespace, labels=names.selector({names.CLUSTER: self.name}))
        found: dict[str, Object] = {}
        for pod in sorted(listed.items, key=lambda each: str(each["metadata"]["creationTimestamp"])):
            if observe.is_staying(pod):
                found[HEAD if observe.role(pod) is Role.HEAD else pod["metadata"]["name"]] = pod
        return found

    async def members(self) -> Sequence[str]:
        return sorted(await self._pods())

    async def containers(self) -> dict[str, Sequence[str]]:
        return {member: observe.containers(pod) for member, pod in sorted((await self._pods()).items())}

    def logs(self, member: str, options: LogOptions = WHOLE_LOG) -> AsyncIterator[str]:
        """Following continues when the container restarts or, for the head, its pod is replaced."""

        async def find_pod() -> Object | None:
            return (await self._pods()).get(member)

        return pod_logs.lines(self._client, find_pod, options)

    async def _container(self, member: str, container: str | None = None) -> tuple[str, str, bool]:
        """The pod, the container, and whether that is the member's main one (None)."""
        pods = await self._pods()
        if member == HEAD and HEAD not in pods:
            hint = f"Run `oars why {self.name} -n {self.namespace}`."
            raise NotFound(f"Cluster {self.name!r} has no head pod.", hint)
        check_member(self.name, member, list(pods))
        pod = pods[member]
        main = observe.role(pod).value
        if container is not None:
            check_container(container, observe.containers(pod))
        return pod["metadata"]["name"], container or main, container in (None, main)

    async def exec(
        self, command: Sequence[str], member: str, container: str | None, *, tty: bool = False
    ) -> ExecSession:
        pod, chosen, is_main = await self._container(member, container)
        argv = list(command)
        if is_main:  # other containers may lack `env`, and the files that the environment names
            env = pod_programs.driver_env(_desired(self.name, self.namespace, await self.spec()))
            argv = pod_programs.with_env(env, argv or pod_programs.python(env, interactive=tty))
        return await kube_exec.execute(self._client, self.namespace, pod, argv, container=chosen, stdin=True, tty=tty)

    async def copy_to(self, source: Path, target: str, member: str, container: str | None = None) -> None:
        pod, chosen, _ = await self._container(member, container)
        await copy.copy_to(self._client, self.namespace, pod, source, target, chosen)

    async def copy_from(self, source: str, target: Path, member: str, container: str | None = None) -> None:
        pod, chosen, _ = await self._container(member, container)
        await copy.copy_from(self._client, self.namespace, pod, source, target, chosen)

    async def dashboard_secret(self) -> str:
        secret = _desired(self.name, self.namespace, await self.spec()).shape.dashboard_secret
        return f"{SECRETS}/{secret}" if secret else ""

    @contextlib.asynccontextmanager
    async def forward_dashboard(self, port: int) -> AsyncIterator[str]:
        shape = _desired(self.name, self.namespace, await self.spec()).shape
        url = shape.endpoints.get("dashboard", "")
        target = next((port for port in shape.head.process.ports if port.dashboard), None)
        if not url or target is None:
            raise NotFound(f"The engine of cluster {self.name!r} has no dashboard.")
        await self._container(HEAD)  # fail at once if there is no head
        forwarder = Forwarder(self._client, self._head_port(target.default), port)
        try:
            local = await forwarder.start()
        except OSError as error:
            message = f"Port {port} cannot be used: {error.strerror}."
            raise OarsError(message, "Choose another one with --port.") from error
        try:
            yield fill(url, head_values("127.0.0.1", shape, {target.name: local}))
        finally:
            await forwarder.close()

    def _head_port(self, port: int) -> Callable[[], Awaitable[tuple[str, str, int]]]:
        """Find the current head for each new connection."""

        async def choose() -> tuple[str, str, int]:
            try:
                pod, _, _ = await self._container(HEAD)
            except NotFound as error:
                raise OSError(error.message) from error
            return self.namespace, pod, port

        return choose


def _desired(name: str, namespace: str, spec: ClusterSpec) -> Desired:
    return build(name, spec, engines.get(spec.engine), DEFAULTS, namespace=namespace)


def _is_operated(root: Object) -> bool:
    return bool(root["kind"] == COMPUTE_CLUSTER.kind)


def _spec_of(name: str, root: Object) -> ClusterSpec:
    return operator_client.spec(root) if _is_operated(root) else operator_client.read(name, read_intent(root).spec)


def _intent_data(
    spec: ClusterSpec, before: Intent | None = None, *, tied: bool = False, force: bool = False
) -> dict[str, str]:
    """The data of a direct cluster's root: new, or the next generation."""
    dumped = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if before is None:
        return dump_intent(Intent(dumped, tied=tied))
    return dump_intent(before.changed(spec=dumped, force=force))


@contextlib.contextmanager
def _name_in_use(message: str, hint: str) -> Iterator[None]:
    """Raise NameInUse if the API server says that the object exists."""
    try:
        with denied_with_rule():
            yield
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        raise NameInUse(message, hint) from None
