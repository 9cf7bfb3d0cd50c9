"""What becomes of every field of every kind. Fields that are not honoured are reported with the text of their row;
docs/generate.py makes the reference from these tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from oars.convert.fields import Fate, Rule

KEPT_OF_POD = (
    "affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks", "hostAliases",
    "hostIPC", "hostNetwork", "hostPID", "hostUsers", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector",
    "os", "overhead", "preemptionPolicy", "priority", "priorityClassName", "resourceClaims", "runtimeClassName",
    "schedulerName", "schedulingGates", "securityContext", "serviceAccount", "serviceAccountName",
    "shareProcessNamespace", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes",
)  # fmt: skip
KEPT_OF_CONTAINER = (
    "envFrom", "imagePullPolicy", "securityContext", "stdin", "terminationMessagePath", "terminationMessagePolicy",
    "tty", "volumeDevices", "volumeMounts", "workingDir",
)  # fmt: skip
PROBES = ("readinessProbe", "livenessProbe", "startupProbe")


def kept(field: str, text: str) -> Rule:
    return Rule(field, Fate.KEPT, text)


def ours(field: str, text: str) -> Rule:
    return Rule(field, Fate.OURS, text)


def unmet(field: str, text: str, *defaults: object) -> Rule:
    return Rule(field, Fate.UNMET, text, defaults)


@dataclass(frozen=True)
class Table:
    """The rules of a kind. parts: tables that apply below a field, as (field, table)."""

    kind: str
    api: tuple[str, ...]
    becomes: str
    rows: tuple[Rule, ...]
    parts: tuple[tuple[str, Table], ...] = ()

    @cached_property
    def rules(self) -> Mapping[str, Rule]:
        """All rules by field, with those of the parts. A row of this table replaces that of a part, and those below it
        unless it is kept."""
        blocks = tuple(f"{rule.field}{mark}" for rule in self.rows if rule.fate is not Fate.KEPT for mark in ".[")
        below = {
            name: replace(rule, field=name)
            for prefix, part in self.parts
            for inner, rule in part.rules.items()
            if not (name := f"{prefix}.{inner}" if prefix else inner).startswith(blocks)
        }
        return {**below, **{rule.field: rule for rule in self.rows}}


_OBJECT = "Oars stores name and namespace only"
METADATA = (
    ours("apiVersion", "that of Oars"),
    ours("kind", "that of Oars"),
    kept("metadata.name", "`metadata.name`"),
    kept("metadata.generateName", "`metadata.name`, if there is no other"),
    kept("metadata.namespace", "`metadata.namespace`"),
    unmet("metadata", _OBJECT),
    unmet("metadata.labels", f"{_OBJECT}; `labels` of the cluster sets those of its objects and pods"),
    unmet("metadata.annotations", _OBJECT),
    *(
        ours(f"metadata.{name}", "belongs to the stored object, not to what it asks for")
        for name in ("creationTimestamp", "generation", "managedFields", "ownerReferences", "resourceVersion",
                     "selfLink", "uid", "finalizers")
    ),
    ours("metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']", "kubectl's own"),
    ours("status", "written by their operator"),
)  # fmt: skip

COMMON = Table("All kinds", (), "the manifest's header", METADATA)

PROBE = "Oars probes the engine itself"
NODE_PORT = "Kubernetes chooses the port of the nodes"
POD = Table(
    "Pods",
    (),
    "`head`, `workers[]` or `driver`; what has no field there becomes its `pod` overlay",
    (
        kept("metadata.labels", "`pod.metadata`"),
        kept("metadata.annotations", "`pod.metadata`"),
        ours("metadata.creationTimestamp", "belongs to the stored object"),
        ours("metadata.name", "Oars names the pods"),
        kept("spec.containers", "the main container is that of the engine; the others stay in `pod`"),
        kept("spec.containers[].name", "the main container gets the name of Oars' own"),
        kept("spec.containers[].image", "`image` of the cluster; another image of a group stays in `pod`"),
        kept("spec.containers[].env", "`env`; references and values with `$(…)` stay in `pod`"),
        kept("spec.containers[].env[].name", "see above"),
        kept("spec.containers[].env[].value", "see above"),
        kept("spec.containers[].env[].valueFrom", "see above"),
        kept("spec.containers[].resources", "other resources, and claims, stay in `pod`"),
        kept("spec.containers[].resources.limits.cpu", "`cpu`; without a limit `burst: true`"),
        kept("spec.containers[].resources.limits.memory", "`memory`"),
        kept("spec.containers[].resources.limits['nvidia.com/gpu']", "`gpu` of a worker group"),
        kept(
            "spec.containers[].resources.requests.cpu", "`cpu`, if there is no limit; another request is not honoured"
        ),
        kept("spec.containers[].resources.requests.memory", "`memory`, as for cpu"),
        kept("spec.containers[].resources.requests['nvidia.com/gpu']", "`gpu`, if there is no limit"),
        kept("spec.containers[].ports", "ports that the engine does not have stay in `pod`"),
        *(unmet(f"spec.containers[].{name}", PROBE) for name in PROBES),
        unmet("spec.containers[].lifecycle", "Oars stops the engine itself"),
        *(kept(f"spec.containers[].{name}", "stays in `pod`") for name in KEPT_OF_CONTAINER),
        *(kept(f"spec.{name}", "stays in `pod`") for name in KEPT_OF_POD),
        unmet("spec.restartPolicy", "Oars restarts the members of a cluster", "Always"),
        unmet("spec.activeDeadlineSeconds", "members run until the cluster ends"),
    ),
)

_PORT = "Oars' Services have the engine's usual ports"
SERVICE_PORT = "Oars' Service has the engine's usual ports only; write another Service for this one"
RAY_START = Table(
    "Options of ray start",
    (),
    "fields of the head and of the worker groups",
    (
        kept("num-cpus", "worker: `cpu`, if the container has no resources"),
        kept("num-gpus", "worker: `gpu`, if the container has none"),
        kept("memory", "worker: `memory`, if the container has no resources"),
        kept("object-store-memory", "worker: `cache`"),
        kept("resources", "worker: `resources`"),
        kept("labels", "worker: `labels`"),
        kept("include-dashboard", "head: `ray.dashboard`"),
        unmet("*", "Oars has no field for this option of `ray start`"),
        *(
            ours(name, "Oars sets it")
            for name in ("address", "block", "dashboard-host", "disable-usage-stats", "head", "log-color",
                         "node-ip-address", "no-monitor", "redis-password", "redis-shard-ports")
        ),
        unmet("port", _PORT, "6379"),
        unmet("dashboard-port", _PORT, "8265"),
        unmet("ray-client-server-port", _PORT, "10001"),
        *(
            ours(name, "Oars chooses ports between members")
            for name in ("dashboard-agent-grpc-port", "dashboard-agent-listen-port", "gcs-server-port",
                         "max-worker-port", "metrics-export-port", "min-worker-port", "node-manager-port",
                         "object-manager-port", "runtime-env-agent-port", "worker-port-list")
        ),
    ),
)  # fmt: skip
_STARTS = "Oars starts the engine itself; use an initContainer, or an image that needs no preparation"

RAY_HEAD_CPUS = "the head runs tasks only if there are no workers"
RAY_HEAD_OPTION = "Oars has no field for it in the head"
RAY_WORKER_OPTIONS = ("num-gpus", "memory", "object-store-memory", "resources", "labels")
RAY_CLUSTER_SPEC = Table(
    "RayCluster spec",
    (),
    "a cluster spec with engine ray",
    (
        ours("rayVersion", "the image has it"),
        kept("enableInTreeAutoscaling", "`min` and `max` of the groups"),
        kept("autoscalerOptions.idleTimeoutSeconds", "`autoscale.scaleDownDelay`"),
        unmet("autoscalerOptions.upscalingMode", "Oars adds the workers that waiting work needs", "Default"),
        ours("autoscalerOptions.version", "Oars has its own autoscaler"),
        unmet("autoscalerOptions", "Oars scales without a container of its own"),
        kept("headServiceAnnotations", "`expose.annotations`"),
        kept("authOptions.mode", "`ray.auth`: token, or none if it is disabled. Default: token"),
        unmet("authOptions.secretName", "Oars makes a token for each cluster"),
        unmet("authOptions.enableK8sTokenAuth", "Oars makes a token for each cluster", False),
        unmet("suspend", "a cluster cannot be suspended; delete it, or run a job", False),
        unmet("managedBy", "Oars manages the cluster", "ray.io/kuberay-operator"),
        unmet("upgradeStrategy.type", "Oars replaces the pods that a change affects", "None"),
        unmet("gcsFaultToleranceOptions", "Oars does not store Ray's state outside of the head"),
        unmet("networkPolicy", "Oars has its own NetworkPolicy; use expose.clients"),
        unmet("tlsOptions", "Oars protects Ray with a token"),
        unmet("historyServerOptions", "Oars has no history server"),
        kept("headGroupSpec", "`head`"),
        kept("headGroupSpec.template", "`head`, see Pods"),
        kept("headGroupSpec.rayStartParams", "see Options of ray start"),
        unmet("headGroupSpec.rayStartParams.num-cpus", RAY_HEAD_CPUS, "0"),
        *(unmet(f"headGroupSpec.rayStartParams.{name}", RAY_HEAD_OPTION) for name in RAY_WORKER_OPTIONS),
        kept("headGroupSpec.serviceType", "`expose.type`"),
        kept("headGroupSpec.headService.spec.type", "`expose.type`"),
        kept("headGroupSpec.headService.metadata.annotations", "`expose.annotations`"),
        ours("headGroupSpec.headService.metadata.name", "Oars names the Service"),
        unmet("headGroupSpec.headService", "Oars makes the Service of the head"),
        kept("headGroupSpec.enableIngress", "`expose.host`, if ingressOptions has one"),
        kept("headGroupSpec.ingressOptions.host", "`expose.host`"),
        kept("headGroupSpec.ingressOptions.tls", "`expose.tlsSecret`: the first Secret"),
        unmet("headGroupSpec.ingressOptions.path", "the Ingress of Oars has the path /", "/"),
        unmet("headGroupSpec.ingressOptions.pathType", "the Ingress of Oars has the path /"),
        unmet("headGroupSpec.resources", "Oars gives the head no resources that tasks could use"),
        unmet("headGroupSpec.labels", "Oars has no labels for the head"),
        kept("workerGroupSpecs", "`workers`"),
        kept("workerGroupSpecs[].groupName", "`workers[].name`"),
        kept("workerGroupSpecs[].replicas", "`workers[].replicas`, between the bounds"),
        kept("workerGroupSpecs[].minReplicas", "`workers[].min` with autoscaling, else the lower bound of replicas"),
        kept("workerGroupSpecs[].maxReplicas", "`workers[].max` with autoscaling, else the upper bound of replicas"),
        kept("workerGroupSpecs[].priority", "`workers[].priority`"),
        kept("workerGroupSpecs[].numOfHosts", "more than 1 is refused: Oars has no workers of several pods"),
        unmet("workerGroupSpecs[].idleTimeoutSeconds", "the delay is that of the cluster, autoscale.scaleDownDelay"),
        unmet("workerGroupSpecs[].suspend", "a group cannot be suspended; set its replicas to 0", False),
        unmet("workerGroupSpecs[].scaleStrategy.workersToDelete", "Oars chooses and drains the workers that leave"),
        kept("workerGroupSpecs[].resources", "`workers[].resources`, except for CPU, GPU and memory"),
        kept("workerGroupSpecs[].labels", "`workers[].labels`"),
        kept("workerGroupSpecs[].rayStartParams", "see Options of ray start"),
        kept("workerGroupSpecs[].template", "`workers[]`, see Pods"),
        *(
            unmet(f"{group}.template.spec.containers[].{name}", _STARTS)
            for group in ("headGroupSpec", "workerGroupSpecs[]")
            for name in ("command", "args")
        ),
    ),
    (
        ("headGroupSpec.template", POD),
        ("headGroupSpec.rayStartParams", RAY_START),
        ("workerGroupSpecs[].template", POD),
        ("workerGroupSpecs[].rayStartParams", RAY_START),
    ),
)
_RAY_ANNOTATIONS = (
    unmet("metadata.annotations['ray.io/ft-enabled']", "Oars does not store Ray's state outside of the head", "false"),
    unmet("metadata.annotations['ray.io/overwrite-container-cmd']", _STARTS, "false"),
)
RAY_CLUSTER = Table(
    "RayCluster",
    ("ray.io",),
    "ComputeCluster",
    (
        *METADATA,
        *_RAY_ANNOTATIONS,
        kept("metadata.annotations['kubernetes.io/ingress.class']", "`expose.ingressClass`"),
    ),
    (("spec", RAY_CLUSTER_SPEC),),
)
RAY_INSTALLERS = ("pip", "uv", "conda")
RAY_PACKAGES = (
    "Oars installs no packages in pods: the image of the driver and of the cluster must have them; see --image"
)
RAY_SUBMITTER_IMAGE = "the driver runs the entrypoint itself, in the image of the head"
RAY_JOB_SPEC = Table(
    "RayJob spec",
    (),
    "a job spec",
    (
        kept(
            "entrypoint",
            "`entrypoint`, a line for the shell; if it is missing, what the submitter's command has after `--`. It "
            "starts in the job's working directory",
        ),
        kept("runtimeEnvYAML.env_vars", "`env` of the job and `cluster.env`"),
        *(unmet(f"runtimeEnvYAML.{name}", RAY_PACKAGES) for name in RAY_INSTALLERS),
        unmet("runtimeEnvYAML.working_dir", "use --working-dir, or an image that has the files"),
        unmet("runtimeEnvYAML", "Oars has no runtime environments; use an image, or `ray.init(runtime_env=…)`"),
        kept("submissionMode", "the driver has a pod of its own in every mode; InteractiveMode is refused"),
        kept("submitterPodTemplate", "`driver.pod`, see Pods; the driver's image is that of the head, if there is one"),
        *(
            unmet(f"submitterPodTemplate.spec.containers[].{name}", "the driver's pod runs the entrypoint itself")
            for name in ("command", "args", "resources", "workingDir")
        ),
        unmet("submitterPodTemplate.spec.restartPolicy", "retries say how often the driver runs", "Never"),
        ours("submitterConfig.backoffLimit", "there is no submitter beside the driver"),
        unmet("metadata", "a job of Oars has no metadata for Ray"),
        unmet("jobId", "Oars numbers the attempts of a job"),
        kept("entrypointNumCpus", "`driver.cpu`"),
        unmet("entrypointNumGpus", "the driver's pod has no GPU; use submitterPodTemplate", 0, 0.0),
        unmet("entrypointResources", "the driver's pod is not a node of Ray"),
        kept("rayClusterSpec", "`cluster`; `driver` gets the head's memory, variables, volumes and mounts"),
        kept("clusterSelector['ray.io/cluster']", "`cluster.name`"),
        unmet("clusterSelector", "Oars finds a cluster by its name"),
        kept("backoffLimit", "`retries`"),
        kept("activeDeadlineSeconds", "`attemptDeadline`, as it counts from the start of each attempt"),
        kept("preRunningDeadlineSeconds", "`startDeadline`"),
        kept("shutdownAfterJobFinishes", "`cleanup.policy`: running, or none if it is false, which is the default"),
        kept("ttlSecondsAfterFinished", "`cleanup.after`"),
        kept("deletionStrategy", "`cleanup` and `ttlAfterFinished`, if it has the same policies for both ends"),
        kept("suspend", "`suspend`"),
        unmet("managedBy", "Oars manages the job", "ray.io/kuberay-operator"),
    ),
    (("rayClusterSpec", RAY_CLUSTER_SPEC), ("submitterPodTemplate", POD)),
)
RAY_JOB = Table("RayJob", ("ray.io",), "ComputeJob", (*METADATA, *_RAY_ANNOTATIONS), (("spec", RAY_JOB_SPEC),))
RAY_CRON_JOB = Table(
    "RayCronJob",
    ("ray.io",),
    "ComputeJob",
    (
        *METADATA,
        kept("spec.jobTemplate", "as a RayJob's spec"),
        kept("spec.schedule", "`schedule.cron`, with concurrency Allow; a time zone in it becomes `schedule.timeZone`"),
        kept("spec.timeZone", "`schedule.timeZone`"),
        kept("spec.suspend", "`schedule.suspend`"),
    ),
    (("spec.jobTemplate", RAY_JOB_SPEC),),
)
_NO_SERVE = "Oars does not deploy Serve applications; run `serve deploy` with the cluster's dashboard address"
RAY_SERVICE = Table(
    "RayService",
    ("ray.io",),
    "ComputeCluster, without its applications",
    (
        *METADATA,
        *_RAY_ANNOTATIONS,
        kept("metadata.annotations['kubernetes.io/ingress.class']", "`expose.ingressClass`"),
        kept("spec.rayClusterConfig", "as a RayCluster's spec"),
        unmet("spec.serveConfigV2", _NO_SERVE),
        *(
            unmet(f"spec.{name}", _NO_SERVE)
            for name in ("serveService", "serviceUnhealthySecondThreshold", "deploymentUnhealthySecondThreshold",
                         "excludeHeadPodFromServeSvc")
        ),
        unmet("spec.upgradeStrategy", "Oars does not replace a whole cluster by another"),
        unmet("spec.rayClusterDeletionDelaySeconds", "Oars does not replace a whole cluster by another"),
        unmet("spec.suspend", "a cluster cannot be suspended; delete it, or run a job", False),
        unmet("spec.managedBy", "Oars manages the cluster", "ray.io/kuberay-operator"),
    ),
    (("spec.rayClusterConfig", RAY_CLUSTER_SPEC),),
)  # fmt: skip

DASK_PROGRAM = "Oars starts it with"
DASK_OPTION = "Oars has no field for this option; set it in Dask's configuration, with env: DASK_DISTRIBUTED__…"
DASK_WORKERS = "a pod has one worker"
_DASK_OURS = (
    "dashboard", "dashboard-address", "host", "interface", "no-dashboard", "pid-file", "scheduler-file", "show",
    "no-show", "tls-ca-file", "tls-cert", "tls-key",
)  # fmt: skip
DASK_WORKER = Table(
    "Dask worker",
    (),
    "a worker group",
    (
        kept("replicas", "`replicas`"),
        kept("metadata", "`pod.metadata`"),
        kept("spec.containers[].command", "its options are those of `args`"),
        unmet("spec.containers[].args", f"{DASK_PROGRAM} `dask worker`"),
        unmet("spec.containers[].args.*", DASK_OPTION),
        unmet("spec.containers[].args.nworkers", f"{DASK_WORKERS}; raise replicas instead"),
        kept("spec.containers[].args.nthreads", "`cpu`, if the container has no resources"),
        kept("spec.containers[].args.memory-limit", "`memory`, if the container has no resources"),
        kept("spec.containers[].args.resources", "`resources`"),
        *(
            kept(f"spec.containers[].args.{name}", "`env`: a variable of Dask's configuration")
            for name in ("lifetime", "lifetime-stagger", "lifetime-restart", "no-lifetime-restart", "preload")
        ),
        *(
            ours(f"spec.containers[].args.{name}", "Oars sets it")
            for name in (*_DASK_OURS, "death-timeout", "local-directory", "name", "nanny", "no-nanny", "nanny-port",
                         "no-reconnect", "reconnect", "worker-port", "listen-address", "contact-address")
        ),
    ),
    (("", POD),),
)  # fmt: skip
DASK_SCHEDULER = Table(
    "Dask scheduler",
    (),
    "the head",
    (
        kept("metadata", "`pod.metadata`"),
        kept("spec.containers[].command", "its options are those of `args`"),
        unmet("spec.containers[].args", f"{DASK_PROGRAM} `dask scheduler`"),
        unmet("spec.containers[].args.*", DASK_OPTION),
        kept("spec.containers[].args.protocol", "`dask.protocol`: tls or tcp"),
        kept("spec.containers[].args.jupyter", "`dask.jupyter`, which requires the cluster's token"),
        kept("spec.containers[].args.idle-timeout", "`lifetime.idle`"),
        unmet("spec.containers[].args.port", _PORT, "8786"),
        *(ours(f"spec.containers[].args.{name}", "Oars sets it") for name in _DASK_OURS),
        kept("service.type", "`expose.type`"),
        unmet("service.ports", SERVICE_PORT),
        unmet("service.ports[].nodePort", NODE_PORT),
        ours("service.selector", "Oars selects its own pods"),
        unmet("service", "Oars makes the Service of the head"),
    ),
    (("", POD),),
)
DASK_CLUSTER_SPEC = Table(
    "DaskCluster spec",
    (),
    "a cluster spec with engine dask",
    (
        kept("idleTimeout", "`lifetime.idle`"),
        kept("worker", "the group `default`"),
        kept("scheduler", "`head`"),
    ),
    (("worker", DASK_WORKER), ("scheduler", DASK_SCHEDULER)),
)
DASK_CLUSTER = Table(
    "DaskCluster", ("kubernetes.dask.org",), "ComputeCluster", METADATA, (("spec", DASK_CLUSTER_SPEC),)
)
DASK_WORKER_GROUP = Table(
    "DaskWorkerGroup",
    ("kubernetes.dask.org",),
    "a worker group of its DaskCluster, which must be in the same file",
    (*METADATA, kept("spec.cluster", "the cluster"), kept("spec.worker", "`workers[]`")),
    (("spec.worker", DASK_WORKER),),
)
DASK_AUTOSCALER = Table(
    "DaskAutoscaler",
    ("kubernetes.dask.org",),
    "autoscaling of its DaskCluster, which must be in the same file",
    (
        *METADATA,
        kept("spec.cluster", "the cluster"),
        kept("spec.minimum", "`workers[0].min`"),
        kept("spec.maximum", "`workers[0].max`"),
    ),
)
DASK_JOB = Table(
    "DaskJob",
    ("kubernetes.dask.org",),
    "ComputeJob",
    (
        *METADATA,
        kept("spec.cluster.spec", "`cluster`, as a DaskCluster's spec"),
        unmet("spec.cluster.metadata", "the cluster of a job has its name and no metadata"),
        kept("spec.job.metadata", "`driver.pod`"),
        kept("spec.job.spec", "`driver`, `env`; see Pods"),
        kept("spec.job.spec.containers[].command", "`entrypoint`"),
        kept("spec.job.spec.containers[].args", "`entrypoint`, after the command"),
        unmet("spec.job.spec.containers[].workingDir", "the program starts in the job's working directory"),
        unmet("spec.job.spec.restartPolicy", "retries say how often the program runs", "Never"),
    ),
    (("spec.cluster.spec", DASK_CLUSTER_SPEC), ("spec.job", POD)),
)

_NO_PLASMA = "this Mars has no plasma store; results are in shared memory"
_NO_LOCK_FREE = "this Mars has no lock-free I/O; each worker has spill directories of its own"
MARS_MEMORY = Table(
    "memoryTuningPolicy",
    (),
    "fields of the worker group",
    (
        unmet("plasmaStore", _NO_PLASMA, "/dev/shm"),
        unmet("lockFreeFileIO", _NO_LOCK_FREE, True),
        kept("spillDirs", "a volume of the pod, as in KubeDL, with a path of Oars"),
        kept("workerCachePercentage", "`cache: 40%`"),
        kept("workerCacheSize", "`cache: 4Gi`; it wins over the percentage"),
    ),
)
_REPLICA = "spec.marsReplicaSpecs"
MARS_JOB = Table(
    "MarsJob",
    ("training.kubedl.io", "kubedl.io"),
    "ComputeCluster with engine mars: its scheduler is a server, so it has no end of its own",
    (
        *METADATA,
        *(
            unmet(f"metadata.annotations['kubedl.io/{name}']", "Oars has no counterpart")
            for name in ("git-sync-config", "network-mode", "tenancy", "tensorboard-config")
        ),
        ours("spec.cleanPodPolicy", "everything is removed with the cluster"),
        unmet("spec.ttlSecondsAfterFinished", "a cluster does not finish by itself; set lifetime.idle instead"),
        kept("spec.activeDeadlineSeconds", "`lifetime.max`"),
        unmet("spec.backoffLimit", "Oars restarts members without a limit"),
        kept("spec.schedulingPolicy.priorityClassName", "`head.pod`, `workers[].pod`"),
        unmet("spec.schedulingPolicy.queue", "Oars has no queues for clusters"),
        unmet("spec.schedulingPolicy.minAvailable", "Oars does not schedule pods as a gang"),
        unmet("spec.schedulingPolicy.priority", "Kubernetes takes it from the priority class"),
        unmet("spec.cronPolicy", "Oars has no schedules for clusters"),
        kept("spec.webHost", "`expose.host`; the page is at / instead of /mars/…"),
        kept("spec.workerMemoryTuningPolicy", "see memoryTuningPolicy"),
        kept("spec.memoryTuningPolicy", "see memoryTuningPolicy"),
        kept(_REPLICA, "names in any case"),
        kept(f"{_REPLICA}.Scheduler", "`head`"),
        unmet(f"{_REPLICA}.Scheduler.replicas", "a cluster has one head", 1),
        unmet(f"{_REPLICA}.WebService.replicas", "the head serves the web page", 1),
        unmet(f"{_REPLICA}.WebService.template", "the head serves the web page; its sizes are those of the head"),
        kept(f"{_REPLICA}.Worker", "the group `default`"),
        kept(f"{_REPLICA}.Worker.replicas", "`replicas`"),
        *(
            unmet(f"{_REPLICA}.{role}.restartPolicy", "Oars restarts the members of a cluster", "Always")
            for role in ("Scheduler", "WebService", "Worker")
        ),
        kept(f"{_REPLICA}.Scheduler.spotReplicaSpec", "`head.pod`: labels and priority class"),
        unmet(f"{_REPLICA}.WebService.spotReplicaSpec", "the head serves the web page"),
        kept(f"{_REPLICA}.Worker.spotReplicaSpec", "a second group, `spot`, with its labels and priority class"),
        *(
            kept(f"{_REPLICA}.{role}.template.spec.containers[].{name}", "commands of Mars; others are not honoured")
            for role in ("Scheduler", "Worker")
            for name in ("command", "args")
        ),
        *(
            ours(f"{_REPLICA}.{role}.template.spec.restartPolicy", "KubeDL ignores it, too")
            for role in ("Scheduler", "Worker")
        ),
    ),
    (
        ("spec.memoryTuningPolicy", MARS_MEMORY),
        ("spec.workerMemoryTuningPolicy", MARS_MEMORY),
        (f"{_REPLICA}.Scheduler.template", POD),
        (f"{_REPLICA}.Worker.template", POD),
    ),
)  # fmt: skip

DEPLOYMENT = Table(
    "Deployment",
    ("apps",),
    "a head or a worker group of one ComputeCluster, if it runs `ray start`; others stay as they are",
    (
        *METADATA,
        kept("spec.replicas", "`replicas` of a worker group"),
        ours("spec.selector", "Oars selects its own pods"),
        unmet("spec.*", "Oars makes the Deployment"),
        kept("spec.template", "see Pods"),
        kept("spec.template.spec.containers[].command", "the words before `ray start` are not honoured"),
        kept("spec.template.spec.containers[].args", "see Options of ray start"),
    ),
    (("spec.template", POD), ("spec.template.spec.containers[].args", RAY_START)),
)
SERVICE = Table(
    "Service",
    ("",),
    "the Service of Oars' head, if it selects the head's pods; others stay as they are",
    (
        *METADATA,
        kept("spec.type", "`expose.type`"),
        kept("metadata.annotations", "`expose.annotations`"),
        unmet("spec.ports", SERVICE_PORT),
        unmet("spec.ports[].nodePort", NODE_PORT),
        ours("spec.selector", "Oars selects its own pods"),
        unmet("spec.clusterIP", "Oars' Service has its own", "None"),
        unmet("spec.*", "Oars makes the Service of the head"),
    ),
)
TABLES = (
    MARS_JOB, RAY_CLUSTER, RAY_JOB, RAY_CRON_JOB, RAY_SERVICE, DASK_CLUSTER, DASK_WORKER_GROUP, DASK_AUTOSCALER,
    DASK_JOB, DEPLOYMENT, SERVICE,
)  # fmt: skip
PARTS = (
    COMMON, RAY_CLUSTER_SPEC, RAY_JOB_SPEC, RAY_START, DASK_CLUSTER_SPEC, DASK_SCHEDULER, DASK_WORKER, MARS_MEMORY, POD,
)  # fmt: skip


def table(api_version: object, kind: object, tables: Iterable[Table] = TABLES) -> Table | None:
    """The table of a kind, in any version of its API."""
    group = str(api_version).rpartition("/")[0]
    return next((each for each in tables if each.kind == kind and group in each.api), None)
