"""KubeCluster: Dask on Kubernetes from a pod template, as a cluster manager of `distributed`."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import dask
from distributed import Scheduler
from distributed.core import Status, rpc
from distributed.deploy.adaptive import Adaptive
from distributed.utils import Log, Logs, NoOpAwaitable, format_dashboard_link

from oars.base.errors import EngineUnreachable, StartFailed
from oars.compat.dask_kubernetes.adaptive import DrainingAdaptive
from oars.compat.dask_kubernetes.classic import arguments, bounds
from oars.compat.dask_kubernetes.classic.deployment import Deployment, Plan
from oars.compat.dask_kubernetes.classic.handles import SchedulerHandle, WorkerHandle
from oars.compat.dask_kubernetes.cluster_manager import ClusterManager
from oars.compat.dask_kubernetes.common.auth import ClusterAuth
from oars.compat.dask_kubernetes.common.model import Model, model
from oars.compat.dask_kubernetes.relay import Relay
from oars.compat.dask_kubernetes.scheduler_preload import install
from oars.engines.dask import live
from oars.engines.dask.shape import HEAD_PLUGIN
from oars.kube.client import Client
from oars.model import Port
from oars.places.report import Report
from oars.plan.why import ROUTINE

logger = logging.getLogger("oars.compat.dask_kubernetes")


class KubeCluster(ClusterManager):
    """Start a Dask cluster whose scheduler and workers are pods made from a template.

    pod_template: a worker's pod, as an object of the `kubernetes` package, the result of make_pod_spec, a dict, or the
        path of a YAML file. Default: kubernetes.worker-template or kubernetes.worker-template-path of the
        configuration.
    scheduler_pod_template: likewise for the scheduler. Default: the workers' template, with another program.
    name: may have {user}, {uuid} and environment variables. Default: kubernetes.name.
    namespace: Default: that of the credentials.
    n_workers: workers at the start.
    env: environment variables for all pods.
    auth: methods to find credentials, tried in order. Default: the pod's service account, then the kubeconfig.
    deploy_mode: "remote", or "local" to run the scheduler in this process.
    host or interface, port, dashboard_address: of a local scheduler.
    protocol, security: TLS. The pods must have their certificates from the template or the image.
    idle_timeout: the scheduler ends, and everything with it, after being idle for this time.
    scheduler_service_wait_timeout: seconds until a load balancer must answer; 0: without a limit.
    scheduler_service_name_resolution_retries: attempts to resolve the Service's name, inside the Kubernetes cluster.
    apply_default_affinity: "preferred", "required" or "none": whether pods go to nodes that are labelled for them.
    Further arguments: asynchronous, loop, quiet, silence_logs, shutdown_on_close, scheduler_sync_interval.

    The image needs the same versions of Python and Dask: `Client(cluster).get_versions(check=True)` compares them.
    `oars image build --engine dask` makes an image with your packages; Dask's own images install those that the
    variables EXTRA_PIP_PACKAGES, EXTRA_APT_PACKAGES and EXTRA_CONDA_PACKAGES in `env` list."""

    def __init__(  # noqa: PLR0913 (the signature of dask-kubernetes)
        self,
        pod_template: Any = None,
        name: str | None = None,
        namespace: str | None = None,
        n_workers: int | None = None,
        host: str | None = None,
        port: int | None = None,
        env: Mapping[str, Any] | None = None,
        auth: Any = ClusterAuth.DEFAULT,
        idle_timeout: str | None = None,
        deploy_mode: str | None = None,
        interface: str | None = None,
        protocol: str | None = None,
        dashboard_address: str | None = None,
        security: Any = None,
        scheduler_service_wait_timeout: int | None = None,
        scheduler_service_name_resolution_retries: int | None = None,
        scheduler_pod_template: Any = None,
        apply_default_affinity: str = "preferred",
        **kwargs: Any,
    ) -> None:
        given = {key: value for key, value in locals().items() if key not in ("self", "kwargs", "__class__")}
        self._arguments = found = arguments.resolve(given, kwargs)
        self.pod_template, self.scheduler_pod_template = found.pod_template, found.scheduler_pod_template
        self.namespace, self.env, self.auth, self.security = found.namespace, found.env, found.auth, found.security
        self.host, self.port, self.kwargs = found.host, found.port, kwargs
        self.apply_default_affinity = found.apply_default_affinity
        self.scheduler: Any = None
        self._wanted = found.n_workers
        self._deployment: Deployment | None = None
        self._known_causes: set[str] = set()
        self._dashboard = ("", 0)
        super().__init__(found.name, **found.more)

    @classmethod
    def from_dict(cls, pod_spec: Mapping[str, Any], **kwargs: Any) -> KubeCluster:
        """Deprecated: pass the dict to KubeCluster."""
        warnings.warn("Use KubeCluster(pod_spec) instead of from_dict.", DeprecationWarning, stacklevel=2)
        return cls(pod_spec, **kwargs)

    @classmethod
    def from_yaml(cls, yaml_path: str, **kwargs: Any) -> KubeCluster:
        """Deprecated: pass the path to KubeCluster."""
        warnings.warn("Use KubeCluster(path) instead of from_yaml.", DeprecationWarning, stacklevel=2)
        return cls(yaml_path, **kwargs)

    @classmethod
    def from_pod_spec(cls, pod_spec: Any, **kwargs: Any) -> KubeCluster:
        """Deprecated: pass the template to KubeCluster."""
        warnings.warn("Use KubeCluster(pod_spec) instead of from_pod_spec.", DeprecationWarning, stacklevel=2)
        return cls(pod_spec, **kwargs)

    # start

    async def _deploy(self) -> None:
        target = await ClusterAuth.load_first(self.auth)
        client = await self._opened.enter_async_context(Client(target, user_agent="oars-dask-kubernetes"))
        await client.log_in()
        self.namespace = self.namespace or target.namespace
        plan = self._arguments.plan(self.namespace)
        if self._arguments.deploy_mode == "local":
            plan = await self._start_scheduler(plan)
        else:
            self._log("Creating scheduler pod on cluster. This may take some time.")
        self.pod_template, self.scheduler_pod_template = plan.worker(), plan.scheduler
        self._deployment = deployment = Deployment(client, plan, self._ask)
        self._opened.push_async_callback(deployment.stop)
        await deployment.start()
        assert deployment.pods is not None
        deployment.pods.on_report, deployment.pods.on_end = self._show, self._end
        if self._wanted != plan.workers:  # scaled while it started
            deployment.pods.set_workers(self._wanted)
        inside, outside = plan.settings.scheduler_address, plan.settings.scheduler_address
        if plan.head is None:
            outside = f"{plan.settings.protocol}://{await deployment.route.address('client')}"
            self.scheduler = SchedulerHandle(deployment, self.name, inside, outside)
        self.scheduler_comm = rpc(outside, connection_args=self.security.get_connection_args("client"))
        await self._open_dashboard(deployment)

    async def _start_scheduler(self, plan: Plan) -> Plan:
        """Run the scheduler in this process."""
        found = self._arguments
        try:
            self.scheduler = await Scheduler(
                protocol=f"{found.protocol}://",
                interface=found.interface,
                host=found.host,
                port=found.port,
                dashboard_address=found.dashboard_address,
                security=found.security,
                idle_timeout=found.idle_timeout,
            )
        except (RuntimeError, ValueError, OSError) as error:
            where = f"interface {found.interface}" if found.interface else f"{found.host}:{found.port}"
            message = f"The local scheduler cannot listen on {where}: {error.__cause__ or error}."
            raise StartFailed(message, "Check host, port and interface.") from error
        self._opened.push_async_callback(self.scheduler.close)
        install(self.scheduler, HEAD_PLUGIN, live.HEAD_HELPER)
        self._run(self._await_scheduler())
        host = str(found.dashboard_address or "").rpartition(":")[0] or "127.0.0.1"
        client = Port("client", int(self.scheduler.address.rpartition(":")[2]))
        ports = (client, Port("dashboard", self.scheduler.http_server.port, dashboard=True))
        return plan.with_head(self.scheduler.address, host, ports)

    async def _await_scheduler(self) -> None:
        """The workers' pods end with the scheduler, also if somebody else shuts it down."""
        await self.scheduler.finished()
        self._end()

    async def _open_dashboard(self, deployment: Deployment) -> None:
        """A proxy next to this process, as in JupyterHub, needs a port of this machine."""
        host, _, port = (await deployment.route.address("dashboard")).rpartition(":")
        link = str(dask.config.get("distributed.dashboard.link"))
        if "{host}" not in link and host != "127.0.0.1":
            relay = Relay(host, int(port))
            host, port = "127.0.0.1", str(await relay.start())
            self._opened.push_async_callback(relay.close)
        self._dashboard = (host, int(port))

    async def _ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        """Let the scheduler drain workers (see scheduler_preload.py)."""
        try:
            return await asyncio.wait_for(self.scheduler_comm.oars_ask(request=dict(request)), seconds)
        except Exception as error:  # what the scheduler raised is raised here
            message = f"the scheduler did not drain: {type(error).__name__}: {error}"
            raise EngineUnreachable(message) from error

    # in the background

    def _show(self, report: Report) -> None:
        """Log each new cause once."""
        present = {cause.message for cause in report.causes}
        for cause in report.causes:
            if cause.message not in self._known_causes:
                level = logging.DEBUG if cause.reason in ROUTINE else logging.WARNING
                logger.log(level, "%s", "\n  ".join([cause.message, *cause.lines]))
        self._known_causes = present

    def _end(self) -> None:
        if self.status == Status.running:
            self._log("The scheduler ended, so the cluster is closed.")
            self._run(self._close())

    # scale

    def scale(self, n: int) -> Any:
        """Change the number of workers. Those that leave are drained first. kubernetes.count.max is the limit."""
        self._wanted = arguments.capped(arguments.checked_count(n))
        if self._deployment is not None and self._deployment.pods is not None:
            pods = self._deployment.pods
            if self.called_from_running_loop:
                pods.set_workers(self._wanted)
            else:
                self.loop.add_callback(pods.set_workers, self._wanted)
        return NoOpAwaitable() if self.asynchronous else None

    scale_up = scale

    async def scale_down(self, workers: Collection[str]) -> None:
        """Let these workers leave, by their names in Dask. They are drained first."""
        if self._deployment is None or self._deployment.pods is None:
            return
        pods, names = self._deployment.pods, {str(worker) for worker in workers}
        expected = self._expected()
        leaving = [pod for pod in pods.staying if set(self._deployment.dask_names(pod)) <= names]
        pods.retire(leaving, others=len(names & set(expected)))

    def adapt(  # noqa: PLR0913 (the signature of distributed)
        self,
        Adaptive: type[Adaptive] = DrainingAdaptive,
        minimum: float = 0,
        maximum: float = math.inf,
        minimum_cores: int | None = None,
        maximum_cores: int | None = None,
        minimum_memory: str | None = None,
        maximum_memory: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Scale by the scheduler's load, between these limits. Keyword arguments are those of Dask's Adaptive."""
        given = {name: value for name, value in locals().items() if name in bounds.LIMITS}
        least, most = bounds.limits(self.pod_template, minimum, maximum, given)
        bounds.check_options(Adaptive, kwargs)
        return super().adapt(Adaptive=Adaptive, minimum=least, maximum=most, **kwargs)

    def _expected(self) -> list[str]:
        """Names for workers that have no pod yet."""
        pods = self._deployment.pods if self._deployment is not None else None
        missing = self._wanted if pods is None else pods.workers - len(pods.staying)
        return [f"{self.name}-expected-{number}" for number in range(missing)]

    @property
    def workers(self) -> dict[str, Any]:
        """The workers that are wanted, by their names in Dask."""
        deployment, pods = self._deployment, self._deployment.pods if self._deployment is not None else None
        if deployment is None or pods is None:
            return {}
        found: dict[str, Any] = {}
        for pod in pods.staying[: pods.workers]:
            handle = WorkerHandle(deployment, pod, functools.partial(deployment.find_pod, pod))
            found |= dict.fromkeys(deployment.dask_names(pod), handle)
        for name in self._expected():
            found[name] = WorkerHandle(deployment, name, lambda: None)
        return found

    # look

    @property
    def dashboard_link(self) -> str:
        """The address of the dashboard, by distributed.dashboard.link of the configuration."""
        host, port = self._dashboard
        return str(format_dashboard_link(host, port)) if port else ""

    @property
    def forwarded_dashboard_port(self) -> str:
        """The dashboard's port, as seen from this machine. Empty before the start."""
        return str(self._dashboard[1] or "")

    @property
    def scheduler_pod(self) -> Model | None:
        """The scheduler's pod; None if the scheduler runs in this process."""
        return self.scheduler.pod if isinstance(self.scheduler, SchedulerHandle) else None

    def pods(self) -> list[Model]:
        """The worker pods that exist."""
        return [model(pod) for pod in self._deployment.worker_pods()] if self._deployment is not None else []

    def logs(self, pod: Any = None) -> Any:
        """The log of a pod of `pods()`; without one, the logs of all worker pods by name."""
        return self.sync(self._pod_logs, pod)

    async def _pod_logs(self, pod: Any) -> Any:
        if self._deployment is None:
            return Logs() if pod is None else Log("")
        if pod is not None:
            return Log(await self._deployment.logs(pod))
        pods = self._deployment.worker_pods()
        texts = await asyncio.gather(*map(self._deployment.logs, pods))
        return Logs({each["metadata"]["name"]: Log(text) for each, text in zip(pods, texts, strict=True)})

    async def _logs(self, scheduler: bool = True, workers: bool = True) -> Logs:
        """The logs of the pods: "Scheduler", and the workers' by their names in Dask."""
        logs = Logs()
        if scheduler and isinstance(self.scheduler, SchedulerHandle):
            logs["Scheduler"] = await self.scheduler.logs()
        for name, handle in self.workers.items() if workers else ():
            logs[name] = await handle.logs()
        return logs
