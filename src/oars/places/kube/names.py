"""Names and labels of a cluster's objects. Deterministic: objects can be found by them alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oars.model import HEAD

Object = dict[str, Any]
KindAndName = tuple[str, str]  # kind, name

CLUSTER = "oars.dev/cluster"
GROUP = "oars.dev/group"  # the worker group's name, or head; no worker group may be called head
REVISION = "oars.dev/revision"  # of a worker group's template; another one means another Deployment
HEAD_EPOCH = "oars.dev/head-epoch"  # annotation of workers: the head they were started for; none: the first
APPLIED = "oars.dev/applied"  # annotation: fingerprint of what was applied, so that nothing is applied twice
ROLLOUT = "deployment.kubernetes.io/revision"  # annotation of a Deployment: number of its rollouts
# Annotation of the Secret, and of the head started with it: how often the secrets were replaced; none: never.
SECRET_EPOCH = "oars.dev/secret-epoch"
# Label of bare pods: one client's cluster; another cluster of the same name has another one. Annotation of the clusters
# and drivers of a job without an operator: its mark.
INSTANCE = "oars.dev/instance"
FILES = "oars.dev/files"  # annotation of pods that mount files of the engine: hash of their content
REPLICAS = "oars.dev/replicas"  # annotation of a worker Deployment: the number that Oars has set
HINT = "oars.dev/hint"  # annotation of an object that gets in people's way: what to do
LEAVING = "oars.dev/leaving"  # annotation of a drained pod whose Deployment has been scaled down
# Annotation of the Lease: seconds that the cluster outlives its owner; helper.py reads it.
ORPHANED = "oars.dev/orphaned"
# Annotation of a resource that is tied to a program: when that renewed it last, and the limit that it knows.
OWNER = "oars.dev/owner-renewed"
# Annotation of the Lease: the limits of the cluster's lifetime and its creation, as JSON; helper.py reads it.
LIFETIME = "oars.dev/lifetime"
GONE = "oars-gone"  # ConfigMap of a namespace: why clusters there ended by themselves
# Annotation of a resource: workers of this generation may be removed with their data.
FORCE = "oars.dev/force-generation"
# Annotations of a resource: comma-separated names of workers to drain and replace. DRAIN_FORCE: what they hold is
# discarded. EVERYONE: drain all workers when their work is done, and start none.
DRAIN = "oars.dev/drain"
DRAIN_FORCE = "oars.dev/drain-force"
EVERYONE = "*"
CREATED_FOR = "oars.dev/created-for"  # annotation of a namespace: the cluster that it was created for
CREATED_NAMESPACE = "oars.dev/created-namespace"  # annotation of a root: uid of the namespace that was created for it
# Annotations of a pod that holds data, for node autoscalers: cluster-autoscaler and Karpenter.
PROTECTION = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
PROTECTED = "oars.dev/protected"  # annotation: Oars has set PROTECTION, and removes it
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

JOB = "oars.dev/job"  # label of a job's objects: its name
ATTEMPT = "oars.dev/attempt"  # label of a driver's Job and pod: its number
DRIVER_OF = "oars.dev/driver-of"  # label of a driver's pod: the cluster that it uses, whose NetworkPolicy admits it
JOB_UID = "oars.dev/job-uid"  # annotation of a driver's pod: uid of its ComputeJob
SCHEDULE = "oars.dev/schedule"  # label of a run of a schedule: name of the ComputeJob that has it
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"  # label of a ComputeJob: a LocalQueue of Kueue
VOLCANO_QUEUE = "volcano.sh/queue-name"  # label of a ComputeJob: a queue of Volcano
GANG = "scheduling.k8s.io/group-name"  # annotation of a pod that Volcano schedules with others: its PodGroup
WEB_AUTH = "oars.dev/web-auth"  # annotation of a MarsJob: "none" switches the token of its web service off
CANCEL = "oars.dev/cancel"  # annotation of a ComputeJob, or of a record: any value cancels the job
JOB_RECORD = "oars.dev/job-record"  # label of the ConfigMap with the status of a job without an operator

NAMESPACE_NAME = "kubernetes.io/metadata.name"  # label of a namespace, which only the API server can set

OPERATOR_NAME = "oars-operator"  # of its Deployment, ServiceAccount, Lease and roles
DEFAULT_OPERATOR_NAMESPACE = "oars-system"
# Labels of the operator's pods. A cluster's NetworkPolicy admits pods that have them, in the operator's namespace.
OPERATOR = {"app.kubernetes.io/name": "oars", "app.kubernetes.io/component": "operator"}
OPERATOR_WATCHES = "oars.dev/operator-watches"  # annotation of its Lease: comma-separated namespaces; none: all
OPERATOR_NAMESPACE = "oars.dev/operator-namespace"  # annotation of the CRD: namespace of the operator's Lease

HELPER = "oars"  # the sidecar of the head
HELPER_PORT = 7070


def listed(text: object) -> list[str]:
    """The names in a comma-separated annotation."""
    return [name.strip() for name in str(text).split(",") if name.strip()]


def head(cluster: str) -> str:
    """Name of the head's Deployment, its Service (and so its DNS name) and its PodDisruptionBudget."""
    return f"{cluster}-head"


def workers(cluster: str, group: str, revision: str = "") -> str:
    """Name of a worker group's Deployment. With a revision: that of a second one, which replaces the first."""
    name = f"{cluster}-{'worker' if group == 'default' else group}"
    return f"{name}-{revision[:5]}" if revision else name


def root(cluster: str) -> str:
    """Name of the ConfigMap with the members' files, which in direct mode is the root object. The Secret, the Lease,
    the ServiceAccount and the NetworkPolicy have the same name. The suffix avoids conflicts with objects of an
    application that is called like the cluster."""
    return f"{cluster}-oars"


def job_log(job: str, attempt: int) -> str:
    """Name of the ConfigMap with the kept output of an attempt."""
    return f"{job}-{attempt}-log"


def job_record(job: str) -> str:
    """Name of the ConfigMap with the status of a job without an operator."""
    return f"{job}-oars-job"


def job_files(digest: str, part: int) -> str:
    """Name of the ConfigMap with a part of an archive. It is named after the content, so jobs share it."""
    return f"oars-files-{digest.removeprefix('sha256:')[:32]}-{part}"


def labels(cluster: str, engine: str, role: str = "") -> dict[str, str]:
    """Labels of every object of a cluster: those that Kubernetes recommends, but `part-of`, which only users know. Pods
    and their owners have a role: head or worker."""
    component = {"app.kubernetes.io/component": role} if role else {}
    return {
        "app.kubernetes.io/name": engine,
        "app.kubernetes.io/instance": cluster,
        **component,
        "app.kubernetes.io/managed-by": "oars",
        CLUSTER: cluster,
    }


def pod_labels(cluster: str, group: str = HEAD) -> dict[str, str]:
    """Labels by which Deployments, the Service and Oars select pods: the head's, or those of a worker group."""
    return {CLUSTER: cluster, GROUP: group}


def kind_and_name(obj: Mapping[str, Any]) -> KindAndName:
    return str(obj["kind"]), str(obj["metadata"]["name"])


def selector(wanted: Mapping[str, str]) -> str:
    """A label selector as a query parameter."""
    return ",".join(f"{name}={value}" for name, value in wanted.items())


def owner_interval(orphaned: float) -> float:
    """Seconds between two renewals of OWNER. The cluster outlives its owner for so many."""
    return max(orphaned, 10.0) / 4
