"""Clusters in a Kubernetes namespace: those that an operator reconciles, and those that clients reconcile (direct)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oars import engines
from oars.base.errors import NameInUse, NotFound, OarsError, Replaced, SpecError, TimedOut, UsageError
from oars.base.settings import Settings
from oars.base.text import command
from oars.client import deletion, kube_drains, namespaces, operator_client, owner, pod_logs, pod_programs, pod_usage
from oars.client.backend import (
    STOP_SECONDS,
    WHOLE_LOG,
    CreateOptions,
    Driver,
    Location,
    LogOptions,
    Usage,
    check_container,
    check_member,
)
from oars.client.direct import Direct, make_lease
from oars.client.drains import check_workers
from oars.client.driver_env import make_driver
from oars.client.operator_client import if_allowed
from oars.client.tunnels import Tunnels, make_forwarder, published_address
from oars.engines.base import Access
from oars.envs.build import Environments
from oars.kube import config, copy
from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.exec import ExecSession, execute
from oars.kube.kinds import CONFIG_MAP, DEPLOYMENT, POD, Object
from oars.kube.port_forward import open_port
from oars.kube.target import Target
from oars.model import HEAD, Cause, Desired, Role
from oars.places.intent import Intent
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.render import objects
from oars.places.kube.render.changes import Version, compare
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.values import head_values
from oars.places.kube.state import endings, observe
from oars.places.kube.state.root import INTENT, dump_intent, read_intent
from oars.places.kube.state.secrets import read_secrets
from oars.places.kube.why.api_errors import cause_of, denied_with_rule
from oars.places.report import Report
from oars.plan.changes import Change
from oars.plan.desired import build, make_lifetime, with_memory
from oars.plan.fill import fill
from oars.spec import load
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Gone, Phase, Status

MODES = ("operator", "direct")
ABSENCE_SECONDS = 5.0  # between two looks for the operator
REPORT_SECONDS = 10.0  # after that, a status of an older generation is reported
WRITE_ATTEMPTS = 10  # of a change: the controller writes to the same object


class KubeBackend:
    """All clusters of one namespace. See backend.Backend. Use it in one event loop only."""

    place = "kubernetes"

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], location: Location, target: Target | None = None
    ) -> None:
        """`target`: the API server, instead of that of the location."""
        self.settings = settings
        self.environ = environ
        self.location = location
        self.target = target
        self.identity = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"  # as a holder of Leases
        self.opened: set[KubeHandle] = set()  # handles that have connections or tasks
        self._client: Client | None = None
        self._absences: dict[str, tuple[float, Cause | None]] = {}
        self._absence_lock = asyncio.Lock()

    @property
    def client(self) -> Client:
        if self._client is None:
            location = self.location
            path = Path(location.kubeconfig) if location.kubeconfig else None
            self._client = Client(
                self.target
                or config.load(self.environ, context=location.context, namespace=location.namespace, kubeconfig=path),
                user_agent="oars",
            )
        return self._client

    @property
    def namespace(self) -> str:
        return self.client.target.namespace

    def where(self, *, all_namespaces: bool = False) -> str:
        context = self.client.target.context
        scope = "in all namespaces" if all_namespaces else f"in namespace {self.namespace!r}"
        return scope + (f" of context {context!r}" if context else "")

    async def login(self) -> None:
        await self.client.log_in()

    def cluster(self, name: str) -> KubeHandle:
        return KubeHandle(self, name, self.namespace)

    async def list(self, *, all_namespaces: bool = False) -> list[KubeHandle]:
        namespace = None if all_namespaces else self.namespace
        operated = await if_allowed(self.client.list(COMPUTE_CLUSTER, namespace))
        try:
            roots = (await self.client.list(CONFIG_MAP, namespace, labels="app.kubernetes.io/managed-by=oars")).items
        except ApiError as error:
            if error.status != 403 or operated is None:
                with denied_with_rule():
                    raise
            roots = []  # users of an operator need no right to list ConfigMaps
        modes: dict[tuple[str, str], str] = {}
        for root in roots:
            name = root["metadata"].get("labels", {}).get(names.CLUSTER)
            if name and INTENT in root.get("data", {}):
                modes[root["metadata"]["namespace"], name] = "direct"
        for root in operated.items if operated else ():
            modes[root["metadata"]["namespace"], root["metadata"]["name"]] = "operator"
        return [KubeHandle(self, name, where, mode) for (where, name), mode in sorted(modes.items())]

    async def gone(self, *, all_namespaces: bool = False) -> Sequence[Gone]:
        with denied_with_rule():
            return await endings.read(self.client, None if all_namespaces else self.namespace, time.time())

    async def explain_missing(self, name: str) -> NotFound | None:
        """A cluster of `oars render`: its head has no owner."""
        head = await if_allowed(self.client.get(DEPLOYMENT, names.head(name), self.namespace))
        metadata = head["metadata"] if head else {}
        if metadata.get("labels", {}).get(names.CLUSTER) != name or metadata.get("ownerReferences"):
            return None
        at = f"kubectl -n {self.namespace}"
        return NotFound(
            f"Cluster {name!r} {self.where()} was made from rendered manifests, which Oars does not track.",
            f"Use kubectl: `{at} get pods -l {names.CLUSTER}={name}`, `{at} logs deploy/{names.head(name)}`, "
            f"`{at} delete -f FILE`.",
        )

    async def create(self, name: str, spec: ClusterSpec, options: CreateOptions) -> KubeHandle:
        namespace = spec.namespace_for(name, self.location.namespace) or self.namespace
        handle = KubeHandle(self, name, namespace)
        objects.manifests(handle.desired(spec))  # report an invalid spec before anything else
        mode = self.location.mode or await operator_client.find_mode(self.client, namespace)
        if mode not in MODES:
            raise UsageError(f"There is no mode {mode!r}.", f"Modes: {', '.join(MODES)}.")
        if self.location.mode == "operator":
            await operator_client.check_watched(self.client, namespace)
        options.progress(f"{name}: {mode} mode, namespace {namespace}")
        annotations = {names.INSTANCE: options.job} if options.job else {}
        if not spec.namespace.create:
            await handle.create(mode, spec, annotations, tied=options.tied)
            return handle
        with _name_in_use(f"Namespace {namespace!r} exists already.", "Choose another name."):
            created = await self.client.create(namespaces.manifest(name, spec.engine, namespace))
        async with deletion.deleted_on_error(self.client, created):
            annotations[names.CREATED_NAMESPACE] = created["metadata"]["uid"]
            await handle.create(mode, spec, annotations, tied=options.tied)
        return handle

    async def operator_absence(self, namespace: str) -> Cause | None:
        """Why no operator reconciles clusters in a namespace; None: one does. The answer serves many clusters."""
        async with self._absence_lock:
            at, found = self._absences.get(namespace, (-ABSENCE_SECONDS, None))
            if time.monotonic() - at >= ABSENCE_SECONDS:
                found = await operator_client.find_absence(self.client, namespace)
                self._absences[namespace] = time.monotonic(), found
            return found

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
    host = ""

    def __init__(self, backend: KubeBackend, name: str, namespace: str, mode: str = "") -> None:
        self._backend = backend
        self.name = name
        self.namespace = namespace
        self._mode = mode  # empty: not known yet
        self._root: Object | None = None  # as created or first seen; later ones with another UID are other clusters
        self._direct: Direct | None = None
        self._owner: owner.Owner | None = None  # while the cluster is tied to this process
        self._tunnels: Tunnels | None = None
        self._lock = asyncio.Lock()  # calls on a handle may be concurrent: one reconciler, one set of tunnels

    @property
    def _client(self) -> Client:
        return self._backend.client

    def desired(self, spec: ClusterSpec) -> Desired:
        return build(self.name, spec, engines.get(spec.engine), DEFAULTS, namespace=self.namespace)

    async def create(self, mode: str, spec: ClusterSpec, annotations: Mapping[str, str], *, tied: bool) -> None:
        """`annotations`: of the root."""
        self._mode = mode
        root: Object = {"metadata": {"name": self.name, "namespace": self.namespace}}
        if mode == "operator":
            root |= {"apiVersion": COMPUTE_CLUSTER.api_version, "kind": COMPUTE_CLUSTER.kind}
            root["spec"] = operator_client.resource_spec(self.name, spec, self.namespace)
        else:
            root |= {"apiVersion": "v1", "kind": "ConfigMap", "data": dump_intent(Intent(_dump(spec), tied=tied))}
            root["metadata"] |= {"name": names.root(self.name), "labels": names.labels(self.name, spec.engine)}
        is_watched = mode == "operator" and tied and spec.lifetime.orphaned > 0
        if is_watched:
            renewal = await owner.first_renewal(self._client, self.name, self.namespace, spec.lifetime.orphaned)
            annotations = {**annotations, **renewal}
        if annotations:
            root["metadata"]["annotations"] = dict(annotations)
        hint = f"Choose another name, or run `{command('down', self.name, namespace=self.namespace)}`."
        with _name_in_use(taken := f"Cluster {self.name!r} exists already.", hint):
            if mode == "operator" and await deletion.exists(self._client, self.name, self.namespace):  # in direct mode
                raise NameInUse(taken, hint)
            self._root = created = await self._client.create(root)
        if is_watched:
            self._owner = owner.Owner(self._client, created, spec.lifetime.orphaned)
            self._backend.opened.add(self)
        if mode == "direct":
            async with deletion.deleted_on_error(self._client, created):
                if tied or make_lifetime(spec).is_limited:
                    await endings.ensure(self._client, self.namespace)
                await make_lease(self._client, created, self._backend.identity)
                await self._reconciler()

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
        return await namespaces.find_own(self._client, self.name, self.namespace, root=None) is not None

    async def spec(self) -> ClusterSpec:
        return self._parse_spec(await self._read_root())

    def sized(self, spec: ClusterSpec) -> ClusterSpec:
        return with_memory(spec, DEFAULTS)

    def _parse_spec(self, root: Object) -> ClusterSpec:
        """The schema of the CRD does not catch every mistake that other writers can make."""
        data = root["spec"] if _is_operated(root) else read_intent(root).spec
        try:
            return load.build({**data, "place": "kubernetes"}, option_model=engines.option_model).spec
        except SpecError as error:
            message = f"The spec of cluster {self.name!r} in Kubernetes is invalid: {error.message}"
            edit = f"kubectl edit {root['kind'].lower()} {root['metadata']['name']} -n {self.namespace}"
            raise SpecError(message, f"{error.hint} Correct it with `{edit}`.".strip(), error.details) from error

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
                yield operator_client.with_absence(report, await self._backend.operator_absence(self.namespace))
            return
        async for report in (await self._reconciler()).watch():
            yield report

    async def _reconciler(self) -> Direct:
        """Direct mode: this client's part, which reconciles the cluster or follows the client that does."""
        async with self._lock:
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

    async def diff(self, spec: ClusterSpec) -> tuple[Change, ...]:
        before = await self.spec()
        return compare(Version(before, self.desired(before)), Version(spec, self.desired(spec)))

    async def apply(self, spec: ClusterSpec, *, force: bool = False) -> None:
        wanted = spec.model_copy(update={"place": "kubernetes"})
        await self.change(lambda _: wanted, force=force)

    async def change(self, change: Callable[[ClusterSpec], ClusterSpec], *, force: bool = False) -> None:
        async def write(root: Object) -> None:
            spec = change(self._parse_spec(root))
            if _is_operated(root):
                await operator_client.change(self._client, root, spec, force=force)
            else:
                intent = read_intent(root).changed(spec=_dump(spec), force=force)
                await kube_drains.write_intent(self._client, root, intent)

        await self._write(write)

    async def drain(self, members: Sequence[str], *, force: bool = False) -> None:
        present = {member: "" for member in await self._pods() if member != HEAD}  # a pod's name is never used again
        check_workers(self.name, members, present, self.namespace)
        await self._write(lambda root: kube_drains.request(self._client, root, members, present, force=force))

    async def drain_all(self, wanted: bool) -> None:
        await self._write(lambda root: kube_drains.request_all(self._client, root, wanted))

    async def _write(self, write: Callable[[Object], Awaitable[None]]) -> None:
        """Call `write` with the root; again, if somebody else wrote since it was read."""
        for attempts_left in reversed(range(WRITE_ATTEMPTS)):
            try:
                await write(await self._read_root())
                break
            except ApiError as error:
                if error.status != 409 or not attempts_left:
                    raise
        if self._direct is not None:
            self._direct.wake()

    async def stop(self, timeout: float = STOP_SECONDS) -> bool:  # noqa: ASYNC109 (see ClusterHandle)
        """Delete the root; controllers stop when it is gone. A cluster that has taken the name is left alone. Raises
        OarsError when the cluster is gone but its namespace is kept, because others use it too."""
        removal = await deletion.remove(self._client, self.name, self.namespace, self._root)
        await self._close_reconciler()
        if removal.is_ours and not await deletion.await_end(self._client, self.name, self.namespace, timeout):
            return False
        if removal.others:
            raise namespaces.kept(self.name, self.namespace, removal.others)
        return True

    def stop_at_exit(self) -> None:
        async def stop() -> None:
            known = self._backend
            backend = KubeBackend(known.settings, known.environ, known.location, known.target)
            try:
                await deletion.remove(backend.client, self.name, self.namespace, self._root)
            finally:
                await backend.close()

        with contextlib.suppress(OarsError, OSError):  # the helper in the head's pod removes the cluster later
            asyncio.run(stop())

    # use

    async def open(self) -> None:
        """Fetch the secrets and open a tunnel to every port of the head's Service."""
        async with self._lock:
            if self._tunnels is None:
                spec = await self.spec()
                tunnels = Tunnels(self._client, spec, self.desired(spec), self._running_head)
                await tunnels.open(self._backend.settings.state_dir / "kubernetes")
                self._tunnels = tunnels
                self._backend.opened.add(self)

    def _opened(self) -> Tunnels:
        if self._tunnels is None:
            raise OarsError(f"Cluster {self.name!r} is not connected.", "Wait until the cluster is ready.")
        return self._tunnels

    def access(self) -> Access:
        return self._opened().access()

    async def address(self, timeout: float) -> str:  # noqa: ASYNC109 (of a load balancer)
        """The address for clients by which others reach the head's Service. This machine may not reach it, unlike that
        of access()."""
        return await published_address(self._client, self.desired(await self.spec()), self._running_head, timeout)

    def driver(self) -> Driver:
        """Uses a Python that has the engine: the running one or a cached environment, built if it is missing."""
        tunnels = self._opened()
        spec = tunnels.spec
        needs = engines.get(spec.engine).needs(spec)
        environments = Environments(self._backend.settings.cache_dir)
        env = environments.prepare(spec.engine, needs, spec.environment.packages, lambda _: None)
        files = tunnels.cluster.shape.driver_files
        return make_driver(str(env.python), tunnels.access(), self._backend.environ, tunnels.directory, files)

    async def close(self) -> None:
        self._backend.opened.discard(self)
        async with self._lock:
            tunnels, self._tunnels = self._tunnels, None
        if tunnels is not None:
            await tunnels.close()
        await self._close_reconciler()

    async def _close_reconciler(self) -> None:
        async with self._lock:
            closed, self._direct, self._owner = (self._direct, self._owner), None, None
        await owner.close_all(*closed)

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
        pods = await self._staying_pods({names.CLUSTER: self.name})
        return {HEAD if observe.role(pod) is Role.HEAD else pod["metadata"]["name"]: pod for pod in pods}

    async def _running_head(self) -> Object | None:
        """The newest running pod of the head, of this cluster and not of another that has taken its name."""
        await self._read_root()
        pods = await self._staying_pods(names.pod_labels(self.name))
        return next((pod for pod in reversed(pods) if observe.phase(pod) == "Running"), None)

    async def _staying_pods(self, labels: Mapping[str, str]) -> list[Object]:
        """The oldest first."""
        listed = await self._client.list(POD, self.namespace, labels=names.selector(labels))
        return sorted(filter(observe.is_staying, listed.items), key=lambda pod: pod["metadata"]["creationTimestamp"])

    async def members(self) -> Sequence[str]:
        return sorted(await self._pods())

    async def usage(self) -> dict[str, Usage] | None:
        pods = {pod["metadata"]["name"]: member for member, pod in (await self._pods()).items()}
        return await pod_usage.read(self._client, self.name, self.namespace, pods)

    async def containers(self) -> dict[str, Sequence[str]]:
        return {member: observe.containers(pod) for member, pod in sorted((await self._pods()).items())}

    async def logs(self, member: str, options: LogOptions = WHOLE_LOG) -> AsyncIterator[str]:
        """Following continues when the container restarts or, for the head, its pod is replaced."""

        async def find_pod() -> Object | None:
            return (await self._pods()).get(member)

        read = pod_logs.follow if options.follow else pod_logs.read
        with denied_with_rule():
            async for line in read(self._client, find_pod, options):
                yield line

    async def _container(self, member: str, container: str | None = None) -> tuple[str, str, bool]:
        """The pod, the container, and whether that is the member's main one (None)."""
        pods = await self._pods()
        if member == HEAD and HEAD not in pods:
            raise NotFound(
                f"Cluster {self.name!r} has no head pod.",
                f"Run `{command('why', self.name, namespace=self.namespace)}`.",
            )
        check_member(self.name, member, list(pods))
        pod = pods[member]
        main = observe.role(pod).value
        if container is not None:
            check_container(container, observe.containers(pod))
        return pod["metadata"]["name"], container or main, container in (None, main)

    async def exec(self, argv: Sequence[str], member: str, container: str | None, *, tty: bool = False) -> ExecSession:
        pod, chosen, is_main = await self._container(member, container)
        if is_main:  # other containers may lack `env`, and the files that the environment names
            desired = self.desired(await self.spec())
            env = pod_programs.driver_env(desired)
            argv = pod_programs.with_env(desired, env, list(argv) or pod_programs.python(env, interactive=tty))
        return await execute(self._client, self.namespace, pod, argv, container=chosen, stdin=True, tty=tty)

    async def copy_to(self, source: Path, target: str, member: str, container: str | None = None) -> None:
        pod, chosen, _ = await self._container(member, container)
        await copy.copy_to(self._client, self.namespace, pod, source, target, chosen)

    async def copy_from(self, source: str, target: Path, member: str, container: str | None = None) -> None:
        pod, chosen, _ = await self._container(member, container)
        await copy.copy_from(self._client, self.namespace, pod, source, target, chosen)

    async def dashboard_token(self) -> str:
        secret = self.desired(await self.spec()).shape.dashboard_secret
        found = await read_secrets(self._client, self.name, self.namespace) if secret else {}
        return found.get(secret, b"").decode()

    @contextlib.asynccontextmanager
    async def forward_dashboard(self, port: int) -> AsyncIterator[str]:
        shape = self.desired(await self.spec()).shape
        url = shape.endpoints.get("dashboard", "")
        target = next((port for port in shape.head.process.ports if port.dashboard), None)
        if not url or target is None:
            raise NotFound(f"The engine of cluster {self.name!r} has no dashboard.")
        pod, _, _ = await self._container(HEAD)  # fail at once if there is no head, or a right is missing
        with denied_with_rule():
            await (await open_port(self._client, self.namespace, pod, target.default)).close()
        forwarder = make_forwarder(self._client, self._running_head, target.default, port)
        try:
            local = await forwarder.start()
        except OSError as error:
            message = f"Port {port} cannot be used: {error.strerror}."
            raise OarsError(message, "Choose another port.") from error
        try:
            yield fill(url, head_values("127.0.0.1", shape, {target.name: local}))
        finally:
            await forwarder.close()


def _is_operated(root: Object) -> bool:
    return bool(root["kind"] == COMPUTE_CLUSTER.kind)


def _dump(spec: ClusterSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)


@contextlib.contextmanager
def _name_in_use(message: str, hint: str) -> Iterator[None]:
    """Raise NameInUse if the API server says that the object exists, and NotFound if its namespace does not."""
    try:
        with denied_with_rule():
            yield
    except ApiError as error:
        if error.reason == "AlreadyExists":
            raise NameInUse(message, hint) from None
        cause = cause_of(error)
        if cause.reason == "NamespaceMissing":
            raise NotFound(cause.message, cause.hint) from error
        raise
