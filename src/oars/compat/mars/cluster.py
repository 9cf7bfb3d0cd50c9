"""new_cluster and KubernetesClusterClient: Mars clusters on Kubernetes as in Mars' own documentation."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import logging
import os
import platform
import sys
from typing import Any
from urllib.parse import urlsplit

from oars.base.errors import EngineMissing, NotFound, OarsError, SpecError, TimedOut, UsageError
from oars.base.settings import Settings
from oars.base.text import suggest
from oars.client.backend import STOP_SECONDS, CreateOptions, Location
from oars.client.handles import read_logs, scale, wait_ready
from oars.client.kubernetes import KubeBackend, KubeHandle
from oars.client.operator_client import if_allowed
from oars.client.sync import run
from oars.client.tunnels import POLL_SECONDS
from oars.compat.mars import arguments, install, rights
from oars.compat.mars.api_client import make_target
from oars.compat.mars.arguments import Arguments
from oars.engines.mars import session as sessions
from oars.engines.mars.shape import PACKAGES
from oars.kube.errors import ApiError
from oars.kube.kinds import NAMESPACE
from oars.places.kube.render import objects
from oars.places.kube.why.api_errors import cause_of, denied_with_rule
from oars.spec.cluster import ClusterSpec

logger = logging.getLogger(__name__)
EXIT_SECONDS = 5.0


def new_cluster(  # noqa: PLR0913 (the signature of Mars)
    kube_api_client: Any = None,
    image: str | None = None,
    scheduler_num: int = 1,
    scheduler_cpu: float | str | None = None,
    scheduler_mem: int | str | None = None,
    worker_num: int = 1,
    worker_cpu: float | str | None = None,
    worker_mem: int | str | None = None,
    worker_spill_paths: Any = None,
    worker_cache_mem: Any = None,
    min_worker_num: int | None = None,
    web_num: int = 1,
    web_cpu: float | str | None = None,
    web_mem: int | str | None = None,
    service_type: str | None = None,
    timeout: float | str | None = None,
    **kwargs: Any,
) -> KubernetesClusterClient:
    """Create a Mars cluster in a namespace of its own, and connect to it: its session becomes the default one. If that
    fails, nothing is left behind. The cluster runs until stop() is called.

    kube_api_client: an ApiClient of the kubernetes package; None: the kubeconfig, or the account of this pod.
    image: of all pods, with the Mars and the Python of this program. `oars image build` makes one. Default: the image
        that the project published; a warning says if its Python is another.
    scheduler_num, web_num: 1; the supervisor of today's Mars is both.
    scheduler_cpu, scheduler_mem, web_cpu, web_mem: of the supervisor's pod, which gets the sum. Sizes are in bytes or
        such as "1g".
    worker_num, worker_cpu, worker_mem: number and size of the workers.
    worker_spill_paths: paths of the hosts to which workers spill.
    worker_cache_mem: size of the shared memory of each worker, such as "4g" or "40%".
    min_worker_num: return when this number of workers is ready. Default: all.
    service_type: NodePort (default), LoadBalancer or ClusterIP.
    timeout: seconds until the cluster must be ready. Default: an hour.
    Further arguments: namespace, extra_env, extra_labels, extra_modules, extra_volumes, each of these for one role
        (worker_extra_env), pre_stop_command, log_when_fail, supervisor_num, supervisor_cpu, supervisor_mem;
        distribution ("pymars" or "xorbits"; default: the one that this Python has), create_namespace."""
    given = {key: value for key, value in locals().items() if key not in ("kube_api_client", "kwargs")}
    args = arguments.resolve(given, kwargs, find_distribution)
    if args.spec.image is None:
        python = ".".join(platform.python_version_tuple()[:2])
        arguments.warn_of_default_image(args.distribution, python)
    connection = Connection(_backend(kube_api_client, args.namespace))
    try:
        run(connection.create(args))
    except BaseException:
        run(connection.abandon())
        raise
    return KubernetesClusterClient._of(connection)


class KubernetesClusterClient:
    """A connection to a running cluster, by its namespace and endpoint. Its session becomes the default one."""

    def __init__(self, kube_api_client: Any, namespace: str, endpoint: str) -> None:
        if not isinstance(namespace, str) or not namespace:
            raise UsageError(f"{namespace!r} is not a namespace.", "Pass `cluster.namespace` of the other program.")
        if not isinstance(endpoint, str) or not _is_url(endpoint):
            raise UsageError(f"{endpoint!r} is not an endpoint.", "Pass `cluster.endpoint` of the other program.")
        self._connection = Connection(_backend(kube_api_client, namespace))
        try:
            run(self._connection.attach(endpoint))
        except BaseException:
            run(self._connection.close())
            raise

    @classmethod
    def _of(cls, connection: Connection) -> KubernetesClusterClient:
        self = cls.__new__(cls)
        self._connection = connection
        return self

    @property
    def namespace(self) -> str:
        """The namespace of the cluster."""
        return self._connection.handle.namespace

    @property
    def endpoint(self) -> str:
        """The URL of the web service."""
        return self._connection.endpoint

    @property
    def name(self) -> str:
        """The name of the cluster, for commands such as `oars status NAME -n NAMESPACE`."""
        return self._connection.handle.name

    @property
    def session(self) -> Any:
        """The session of Mars."""
        return self._connection.session

    def start(self) -> None:
        """Do nothing: the cluster runs."""

    def rescale_workers(
        self, new_scale: int, min_workers: int | None = None, wait: bool = True, timeout: float | str | None = None
    ) -> None:
        """Change the number of workers. Those that leave hand over their data first.

        min_workers: wait until this number is ready. Default: until all are, and those that leave are gone."""
        arguments.count("new_scale", new_scale)
        if min_workers is not None and arguments.count("min_workers", min_workers) > new_scale:
            raise UsageError(f"min_workers is {min_workers}, but new_scale is {new_scale}.", "Use a smaller number.")
        seconds = arguments.START_SECONDS if timeout is None else arguments.seconds("timeout", timeout)
        run(self._connection.rescale(new_scale, min_workers, seconds if wait else None))

    def stop(self, wait: bool = False, timeout: float = 0) -> None:
        """Delete the cluster and its namespace. Returns when its pods are gone; wait: when the namespace is gone.
        timeout: in seconds; 0: a minute."""
        run(self._connection.stop(wait, arguments.seconds("timeout", timeout) or STOP_SECONDS))

    def __repr__(self) -> str:
        return f"<KubernetesClusterClient {self.namespace} {self.endpoint}>"


class Connection:
    """A cluster as seen from this process. All coroutines run in one event loop."""

    def __init__(self, backend: KubeBackend) -> None:
        self.endpoint = ""
        self.session: Any = None
        self._backend = backend
        self._handle: KubeHandle | None = None
        self._creating: asyncio.Future[KubeHandle] | None = None
        self._has_own_namespace = False
        self._is_stopped = False
        _open.add(self)

    @property
    def handle(self) -> KubeHandle:
        if self._handle is None:
            raise UsageError("There is no cluster.", "Create one with new_cluster().")
        return self._handle

    async def create(self, args: Arguments) -> None:
        await self._backend.login()
        options = CreateOptions(tied=False, progress=logger.info)
        self._has_own_namespace = args.has_own_namespace
        # Not cancelled with this coroutine: abandon() must know what was created.
        self._creating = asyncio.ensure_future(self._backend.create(args.name, args.spec, options))
        self._handle = handle = await asyncio.shield(self._creating)
        try:
            await self._check(args)
            if args.has_own_namespace:
                with denied_with_rule():
                    for manifest in rights.manifests(handle.name, handle.namespace):
                        await self._backend.client.create(manifest)
            await wait_ready(handle, args.spec.min_ready, args.timeout, logger.info)
            await self._connect(args.timeout)
        except OarsError:
            if args.log_when_fail:
                with contextlib.suppress(OarsError):  # the first error is the one to report
                    logger.error("The cluster failed to start:\n%s", await read_logs(handle))
            raise

    async def _check(self, args: Arguments) -> None:
        """Raise for values that the API server refuses: waiting longer would not help. Only a namespace that exists
        allows the check."""
        for manifest in objects.manifests(self.handle.desired(args.spec)):
            if manifest["kind"] != "Deployment":
                continue
            manifest["metadata"]["name"] += "-check"  # the cluster's own may exist by now
            try:
                await self._backend.client.create(manifest, dry_run=True)
            except ApiError as error:
                if error.status in (400, 422) and "dry run" not in error.message.lower():  # some webhooks have none
                    cause = cause_of(error)
                    raise SpecError(cause.message.replace("-check", ""), cause.hint) from error

    async def abandon(self) -> None:
        """Remove what create() made."""
        if self._creating is not None:
            await asyncio.wait([self._creating])
            if not self._creating.cancelled() and self._creating.exception() is None:
                try:
                    await self._creating.result().stop()
                except OarsError as error:  # the first error is the one to report
                    logger.warning("The cluster could not be removed: %s", error)
        await self.close()

    async def attach(self, endpoint: str) -> None:
        """Connect to a cluster that runs."""
        await self._backend.login()
        self._handle = handle = await self.find(endpoint)
        self._has_own_namespace = (await handle.spec()).namespace.create
        await self._connect(STOP_SECONDS)

    async def find(self, endpoint: str) -> KubeHandle:
        """The cluster of the backend's namespace that has this endpoint."""
        found: list[tuple[KubeHandle, ClusterSpec]] = []
        for handle in await self._backend.list():
            spec = await handle.spec()
            if spec.engine == "mars":
                found.append((handle, spec))
        if not found:
            raise NotFound(
                f"There is no Mars cluster in namespace {self._backend.namespace!r}.",
                "Run `oars ls -A` to list the clusters of all namespaces.",
            )
        addresses = await asyncio.gather(*(handle.address(STOP_SECONDS) for handle, _ in found), return_exceptions=True)
        known = [address for address in addresses if isinstance(address, str)]
        for (handle, spec), address in zip(found, addresses, strict=True):
            if isinstance(address, str):
                if _is_endpoint(endpoint, address, spec.expose.type):
                    return handle
            elif not isinstance(address, OarsError):
                raise address
            else:  # such as a load balancer that is pending
                logger.info("Cluster %s has no endpoint yet: %s", handle.name, address)
        raise NotFound(
            f"No Mars cluster in namespace {self._backend.namespace!r} has the endpoint {endpoint}.",
            f"Endpoints: {', '.join(known) or 'none yet'}.",
        )

    async def _connect(self, seconds: float) -> None:
        self.endpoint = await self.handle.address(seconds)
        await self.handle.open()
        self.session = await asyncio.to_thread(sessions.connect, self.handle.access())

    async def rescale(self, workers: int, ready: int | None, seconds: float | None) -> None:
        """`seconds` None: do not wait."""
        await scale(self.handle, workers, note=logger.info)
        if seconds is not None:
            await wait_ready(self.handle, ready, seconds, logger.info)

    async def stop(self, wait: bool, seconds: float) -> None:
        """A second call does nothing."""
        handle, session, self.session = self.handle, self.session, None
        if self._is_stopped:
            return
        if session is not None:
            await asyncio.to_thread(sessions.disconnect, session)
        try:
            if not await handle.stop(seconds):
                raise TimedOut(f"Cluster {handle.name!r} did not stop within {seconds:.0f} s.", "It continues to stop.")
            self._is_stopped = True
            if wait and self._has_own_namespace:
                await self._await_namespace_end(handle.namespace, seconds)
        finally:
            await self.close()

    async def _await_namespace_end(self, namespace: str, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while await if_allowed(self._backend.client.get(NAMESPACE, namespace)) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)  # a watch would need another right
        except TimeoutError:
            raise TimedOut(
                f"Namespace {namespace!r} was not deleted within {seconds:.0f} s.",
                f"Run `kubectl get namespace {namespace} -o yaml` to see why.",
            ) from None

    async def close(self) -> None:
        """Disconnect. The cluster keeps running."""
        _open.discard(self)
        await self._backend.close()


def _is_url(text: str) -> bool:
    """With a host; a port, if there is one, is a number."""
    try:
        parts = urlsplit(text)
        return bool(parts.netloc) and parts.port != 0
    except ValueError:
        return False


def _is_endpoint(given: str, address: str, service_type: str) -> bool:
    """Every node serves a node port, so its number is enough; otherwise the host counts, too."""
    one, other = urlsplit(given), urlsplit(address)
    return one.port == other.port and (service_type == "NodePort" or one.hostname == other.hostname)


_open: set[Connection] = set()


@atexit.register
def _disconnect_at_exit() -> None:
    """Free the sessions of a program that ends, and close its connections. Its clusters keep running."""

    async def close(connection: Connection) -> None:
        async with asyncio.timeout(EXIT_SECONDS):
            await connection.close()

    for connection in list(_open):
        with contextlib.suppress(OarsError, OSError, TimeoutError):  # the cluster may be gone
            if connection.session is not None:
                sessions.disconnect(connection.session)  # not in a thread: none can start while Python ends
            run(close(connection))


def _backend(kube_api_client: Any, namespace: str | None) -> KubeBackend:
    target = make_target(kube_api_client, namespace)
    return KubeBackend(
        Settings.from_environ(os.environ), os.environ, Location("kubernetes", namespace=namespace), target
    )


def find_distribution(wanted: str | None) -> str:
    """The distribution of Mars that this Python uses: the one that is imported, else the one that is installed."""
    packages = {distribution: package.partition(".")[0] for distribution, package in PACKAGES.items()}
    if wanted is not None and wanted not in packages:
        raise UsageError(
            f"There is no distribution {wanted!r}.{suggest(wanted, packages)}", f"Use {', '.join(packages)}."
        )
    candidates = [wanted] if wanted else sorted(packages, key=lambda each: packages[each] not in sys.modules)
    for distribution in candidates:
        package = packages[distribution]
        if package in sys.modules or importlib.util.find_spec(package) is not None:
            return distribution
    raise EngineMissing(
        f"This Python has neither {' nor '.join(candidates)}." if not wanted else f"This Python has no {wanted}.",
        install.hint(*candidates),
    )
