"""KubeCluster of the newer dask-kubernetes, on the clusters of Oars, with or without its operator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from distributed.core import rpc
from distributed.utils import Log, Logs, format_dashboard_link

from oars.base.errors import EngineUnreachable, NameInUse, NotFound, SpecError, UsageError
from oars.client.backend import Backend, ClusterHandle, CreateOptions, Location
from oars.client.backends import backend_for
from oars.client.handles import Bounds, adapt, first_problem, read_logs, scale, wait_ready
from oars.compat.dask_kubernetes import checks, config
from oars.compat.dask_kubernetes.cluster_manager import ClusterManager
from oars.compat.dask_kubernetes.operator import arguments, manifest
from oars.compat.dask_kubernetes.operator.arguments import CreateMode
from oars.compat.dask_kubernetes.relay import Relay
from oars.engines.dask.session import make_security
from oars.kube.errors import ApiError
from oars.spec.cluster import MAX_WORKERS, ClusterSpec

NOT_STARTED = 400  # the API server's status for the log of a container that has not started
ADAPT_OPTIONS = {"scale_down_delay": 15.0}  # as in dask-kubernetes


class KubeCluster(ClusterManager):
    """Create a Dask cluster on Kubernetes, or connect to one.

    name: may have {user}, {uuid} and environment variables.
    image: of all pods. resources: {"requests": …, "limits": …} of all pods. env: of all pods, a dict or a list.
    worker_command: "dask-worker", with --nthreads, --memory-limit, --resources, --preload or --lifetime….
    create_mode: CreateMode, or its name.
    shutdown_on_close: delete the cluster when this object is closed, or this program ends. Default: true for a cluster
        that this object created.
    idle_timeout: the cluster is deleted when it has been idle for this number of seconds, whether this program runs or
        not. A cluster that exists already keeps its own.
    resource_timeout: seconds until the scheduler must be ready.
    scheduler_service_type: ClusterIP, NodePort or LoadBalancer.
    custom_cluster_spec: a DaskCluster resource, or the path of one (see make_cluster_spec).
    scheduler_forward_port: a local port for the scheduler.
    jupyter: start Jupyter in the scheduler; the image needs jupyterlab. It requires the token that jupyter_link has.
    port_forward_cluster_ip: False: never forward the port of a ClusterIP Service. Default: if it cannot be reached.
    Further arguments: loop, asynchronous, quiet, silence_logs, scheduler_sync_interval.

    The image needs the same versions of Python and Dask: `Client(cluster).get_versions(check=True)` compares them.
    `oars image build --engine dask` makes an image with your packages."""

    def __init__(  # noqa: PLR0913 (the signature of dask-kubernetes)
        self,
        *,
        name: str | None = None,
        namespace: str | None = None,
        image: str | None = None,
        n_workers: int | None = None,
        resources: Mapping[str, Any] | None = None,
        env: Any = None,
        worker_command: Any = None,
        port_forward_cluster_ip: bool | None = None,
        create_mode: CreateMode | str | None = None,
        shutdown_on_close: bool | None = None,
        idle_timeout: int | None = None,
        resource_timeout: int | None = None,
        scheduler_service_type: str | None = None,
        custom_cluster_spec: Any = None,
        scheduler_forward_port: int | None = None,
        jupyter: bool = False,
        loop: Any = None,
        asynchronous: bool = False,
        quiet: bool = False,
        **kwargs: Any,
    ) -> None:
        given = {key: value for key, value in locals().items() if key not in ("self", "kwargs", "__class__")}
        found = arguments.resolve(given, kwargs)
        self.namespace, self.create_mode = found.namespace, found.create_mode
        self.scheduler_forward_port = found.scheduler_forward_port
        self.port_forward_cluster_ip = found.port_forward_cluster_ip
        self._take(found)
        self._handle: ClusterHandle | None = None
        self._is_creator = False
        super().__init__(found.name, **{**found.more, "shutdown_on_close": found.shutdown_on_close is not False})

    @classmethod
    def from_name(cls, name: str, **kwargs: Any) -> KubeCluster:
        """Connect to a cluster that exists. Closing the object does not delete it."""
        return cls(name=name, **{"create_mode": CreateMode.CONNECT_ONLY, "shutdown_on_close": False, **kwargs})

    def _take(self, found: arguments.Arguments) -> None:
        """Set the attributes that a cluster which exists may change."""
        self._arguments = found
        self.image, self.n_workers, self.resources, self.env = found.image, found.n_workers, found.resources, found.env
        self.worker_command, self.idle_timeout = found.worker_command, found.idle_timeout
        self.scheduler_service_type, self.jupyter = found.scheduler_service_type, found.jupyter

    # start

    async def _deploy(self) -> None:
        backend = backend_for(Location("kubernetes", namespace=self.namespace), os.environ)
        self._opened.push_async_callback(backend.close)
        await backend.login()
        self._handle = handle = await self._find_or_create(backend)
        self.namespace = handle.namespace
        await wait_ready(handle, 0, self._arguments.resource_timeout, self._log)
        await handle.open()
        access = handle.access()
        self.security = make_security(access.env)
        address = access.address
        is_internal = self.scheduler_service_type == "ClusterIP"
        if self.port_forward_cluster_ip is False and is_internal and "://127.0.0.1:" in address:
            raise EngineUnreachable(
                "The Service of type ClusterIP cannot be reached from here, and port_forward_cluster_ip=False.",
                "Run this in the Kubernetes cluster, use another scheduler_service_type, or allow port-forwards.",
            )
        if self.scheduler_forward_port:
            scheme, _, there = address.partition("://")
            host, _, port = there.rpartition(":")
            relay = Relay(host, int(port), int(self.scheduler_forward_port))
            self._opened.push_async_callback(relay.close)
            address = f"{scheme}://127.0.0.1:{await relay.start()}"
        self.scheduler_comm = rpc(address, connection_args=self.security.get_connection_args("client"))
        if self.idle_timeout:
            self._run(self._close_when_gone(handle))
        if not self._is_creator and self.shutdown_on_close:
            self._opened.push_async_callback(self._stop)  # a failed attempt to connect deletes nothing

    async def _find_or_create(self, backend: Backend) -> ClusterHandle:
        mode, name = self._arguments.create_mode, self.name
        if mode is not CreateMode.CREATE_ONLY:
            known = {handle.name: handle for handle in await backend.list()}
            if name in known:
                self.shutdown_on_close = bool(self._arguments.shutdown_on_close)
                return await self._connected(known[name])
            if mode is CreateMode.CONNECT_ONLY:
                raise NotFound(f"There is no cluster {name!r}.", "Create it, or use create_mode=CREATE_OR_CONNECT.")
        try:
            options = CreateOptions(tied=bool(self.shutdown_on_close), progress=self._log)
            handle = await backend.create(name, self._arguments.spec, options)
        except NameInUse as error:
            raise NameInUse(error.message, "Use another name, or create_mode=CREATE_OR_CONNECT.") from error
        self._is_creator = True
        if self.shutdown_on_close:
            self._opened.push_async_callback(self._stop)
        return handle

    async def _connected(self, handle: ClusterHandle) -> ClusterHandle:
        spec = await handle.spec()
        if spec.engine != "dask":
            raise NameInUse(f"The cluster {handle.name!r} runs {spec.engine}, not dask.", "Use another name.")
        self._take(self._arguments.of_cluster(spec))
        return handle

    async def _stop(self) -> None:
        if self._handle is not None:
            await self._handle.stop()

    async def _close_when_gone(self, handle: ClusterHandle) -> None:
        """The cluster ends by itself (lifetime.idle of its spec)."""
        async for _ in handle.watch():
            pass
        self._log("The cluster has ended, and is closed.")
        asyncio.ensure_future(self._close())  # noqa: RUF006 (it cancels this task)

    def close(self, timeout: float | None = 3600) -> Any:
        """Disconnect; delete the cluster unless it stays (see shutdown_on_close)."""
        return super().close(timeout)

    # scale

    def scale(self, n: int, worker_group: str = "default") -> Any:
        """Set the number of workers of a group. Those that leave are drained first."""
        return self._begin(self._scale, n, checks.text("worker_group", worker_group))

    async def _scale(self, n: int, worker_group: str = "default") -> None:
        await scale(self._started(), n, worker_group)

    def adapt(self, minimum: int | None = None, maximum: int | None = None) -> Any:
        """Scale the default group by the scheduler's load, until `scale` is called: with the operator also after this
        program has ended."""
        least = 0 if minimum is None else checks.count("minimum", minimum, "a number of workers")
        most = MAX_WORKERS if maximum is None else checks.count("maximum", maximum, "a number of workers")
        return self._begin(self._adapt, Bounds(least, most, "default", ADAPT_OPTIONS))

    async def _adapt(self, bounds: Bounds) -> None:
        await adapt(self._started(), bounds)

    def _begin(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> Any:
        """Do it; if the cluster is asynchronous, as a task: Dask's widget awaits nothing."""
        return self._run(function(*arguments)) if self.asynchronous else self.sync(function, *arguments)

    def add_worker_group(  # noqa: PLR0913 (the signature of dask-kubernetes)
        self,
        name: str,
        n_workers: int = 3,
        image: str | None = None,
        resources: Mapping[str, Any] | None = None,
        worker_command: Any = None,
        env: Any = None,
        custom_spec: Mapping[str, Any] | None = None,
    ) -> Any:
        """Add a group of workers. What is not given is that of the cluster's default group."""
        body = custom_spec if custom_spec is not None else manifest.make_worker_spec(
            image or self.image, n_workers, resources or self.resources, env or self.env,
            worker_command or self.worker_command,
        )  # fmt: skip
        return self.sync(self._add_worker_group, checks.text("name", name), body)

    async def _add_worker_group(self, name: str, body: Mapping[str, Any]) -> None:
        def added(spec: ClusterSpec) -> ClusterSpec:
            if spec.group(name) is not None:
                hint = "Use another name."
                raise UsageError(f"The cluster {self.name!r} has a worker group {name!r} already.", hint)
            return self._with_groups(spec, [*self._groups(spec), manifest.worker_group(name, body, spec.image or "")])

        await self._started().change(added)

    def delete_worker_group(self, name: str) -> Any:
        """Remove a group, after its workers are drained."""
        return self.sync(self._delete_worker_group, checks.text("name", name))

    async def _delete_worker_group(self, name: str) -> None:
        def deleted(spec: ClusterSpec) -> ClusterSpec:
            if spec.group(name) is None or name == "default":
                known = ", ".join(group.name for group in spec.workers if group.name != "default") or "none"
                message = f"The cluster {self.name!r} has no worker group {name!r} to delete."
                raise NotFound(message, f"Groups: {known}.")
            return self._with_groups(spec, [group for group in self._groups(spec) if group["name"] != name])

        await self._started().change(deleted)

    def _groups(self, spec: ClusterSpec) -> list[Any]:
        groups: list[Any] = spec.model_dump(mode="json")["workers"]
        return groups

    def _with_groups(self, spec: ClusterSpec, groups: list[Any]) -> ClusterSpec:
        try:
            return ClusterSpec.model_validate({**spec.model_dump(mode="json"), "replicas": None, "workers": groups})
        except ValueError as error:
            raise SpecError(f"Worker group {groups[-1]['name']!r}: {first_problem(error)}.") from error

    def _started(self) -> ClusterHandle:
        if self._handle is None:
            raise UsageError(f"The cluster {self.name!r} is not started.", "Await it first.")
        return self._handle

    # look

    def get_logs(self) -> Any:
        """The logs of all pods that have started, by name."""
        return self.sync(self._get_logs)

    async def _get_logs(self) -> Logs:
        handle = self._started()
        logs = Logs()
        for member in await handle.members():
            try:
                logs[member] = Log(await read_logs(handle, member))
            except ApiError as error:
                if error.status != NOT_STARTED:
                    raise
        return logs

    @property
    def dashboard_link(self) -> str:
        """The address of the dashboard, by distributed.dashboard.link of the configuration."""
        if self._handle is None:
            return ""
        host, port = self._dashboard_address()
        return str(format_dashboard_link(host, int(port)))

    @property
    def jupyter_link(self) -> str:
        """The address of Jupyter in the scheduler, with the cluster's token: who has it can run code there."""
        if not self.jupyter:
            raise UsageError(f"The cluster {self.name!r} has no Jupyter.", "Start it with jupyter=True.")
        token = Path(self._started().access().env["OARS_TOKEN_FILE"]).read_text().strip()
        return f"{self.dashboard_link.replace('/status', '/jupyter/lab')}?token={token}"

    @property
    def forwarded_dashboard_port(self) -> str:
        """The dashboard's port, as seen from this machine. Empty before the start."""
        return self._dashboard_address()[1] if self._handle is not None else ""

    def _dashboard_address(self) -> tuple[str, str]:
        host, _, port = self._started().access().dashboard.partition("://")[2].partition("/")[0].rpartition(":")
        return host, port


async def discover() -> AsyncIterator[tuple[str, type[KubeCluster]]]:
    """The names of the Dask clusters in the namespace, with the class whose `from_name` connects to them."""
    async with AsyncExitStack() as opened:
        backend = backend_for(Location("kubernetes", namespace=config.get("namespace")), os.environ)
        opened.push_async_callback(backend.close)
        await backend.login()
        for handle in await backend.list():
            if (await handle.spec()).engine == "dask":
                yield handle.name, KubeCluster
