"""RBAC roles for each mode of Oars: no wildcards, no listing of Secrets, and a reason for every rule.

Server-side apply of a new object requires both `create` and `patch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oars.operator import NAME
from oars.operator.crd import (
    GROUP,
    JOB_PLURAL,
    MARS_JOB_GROUPS,
    MARS_JOB_NAMES,
    MARS_JOB_PLURAL,
    MARS_JOB_POLICY,
    PLURAL,
)
from oars.operator.crd import NAME as CRD_NAME

Object = dict[str, Any]

READ = ("get", "list", "watch")
APPLY = ("create", "patch")
MANAGE = ("get", "create", "patch", "delete")
RESTORE = (*MANAGE, "list", "watch")  # also notice deletions
CONNECT = ("get", "create")  # a WebSocket is opened by GET; older clients use POST
API = "rbac.authorization.k8s.io"
# Group and resource that nobody serves: only roles of Oars have them, and those for everything. Who may create them
# counts as the operator for the admission policy of MarsJobs.
RUNS = "internal.oars.dev", "marsjobruns"
LABELS = {"app.kubernetes.io/name": "oars", "app.kubernetes.io/part-of": "oars"}


@dataclass(frozen=True)
class Rule:
    """Verbs on resources of one API group, and why. Without an optional rule, only what `why` names does not work."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()
    optional: bool = False

    def manifest(self) -> Object:
        rule: Object = {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}
        return rule | ({"resourceNames": list(self.names)} if self.names else {})


@dataclass(frozen=True)
class Subject:
    """Who the role is bound to."""

    kind: str  # ServiceAccount, User or Group
    name: str
    namespace: str = ""

    def manifest(self) -> Object:
        if self.kind == "ServiceAccount":
            return {"kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {"kind": self.kind, "name": self.name, "apiGroup": API}


EVERYONE = Subject("Group", "system:authenticated")

_POD_ACCESS = (
    Rule("", ("pods/log",), ("get",), "oars logs; log lines of failed containers in oars why"),
    Rule("", ("pods/exec",), CONNECT, "oars exec, oars shell, oars cp", optional=True),
    Rule("", ("pods/portforward",), CONNECT, "clients outside Kubernetes connect to the head", optional=True),
)
NODES = Rule("", ("nodes",), ("list", "watch"), "oars why: pods that no node fits", optional=True)
_LIMITS = Rule("", ("resourcequotas", "limitranges"), ("list",), "oars why: quotas and limits", optional=True)
_EVENTS = Rule("", ("events",), ("list", "watch"), "oars why: pods that do not start")

# Direct mode: the client creates the objects and reconciles them itself, in one namespace.
DIRECT = (
    Rule("", ("pods",), (*READ, "patch", "delete"), "observe members; mark and delete drained workers"),
    *_POD_ACCESS,
    Rule("", ("configmaps",), (*MANAGE, "list", "watch"), "the owner of all objects of a cluster"),
    Rule("", ("services", "serviceaccounts"), MANAGE, "the head's address; the account of the pods"),
    # RBAC cannot select by label. Without list and watch, Secrets are only accessible by name.
    Rule("", ("secrets",), MANAGE, "each cluster's token and certificates"),
    Rule("apps", ("deployments",), (*READ, *APPLY, "delete"), "the head and each worker group"),
    Rule("batch", ("jobs",), MANAGE, "the drivers of jobs", optional=True),
    Rule("policy", ("poddisruptionbudgets",), MANAGE, "protect the head from eviction"),
    Rule("networking.k8s.io", ("networkpolicies",), MANAGE, "restrict access to members and clients"),
    Rule("networking.k8s.io", ("ingresses",), MANAGE, "expose.host", optional=True),
    Rule("coordination.k8s.io", ("leases",), (*MANAGE, "update"), "the client's heartbeat"),
    Rule(API, ("roles", "rolebindings"), MANAGE, "let a cluster delete itself when its client is lost", optional=True),
    _EVENTS,
    _LIMITS,
)
# Additionally, and cluster-wide, for `namespace: {create: true}`.
_LIST_CONTENT = "see what else is in a namespace before it is deleted"
NAMESPACES = (
    Rule("", ("namespaces",), ("get", *APPLY, "delete"), "namespace: {create: true}"),
    Rule("", ("services", "persistentvolumeclaims"), ("list",), _LIST_CONTENT, optional=True),
    Rule("apps", ("statefulsets", "daemonsets"), ("list",), _LIST_CONTENT, optional=True),
    Rule("batch", ("jobs", "cronjobs"), ("list",), _LIST_CONTENT, optional=True),
)

# Users of the operator.
USER = (
    Rule(GROUP, (PLURAL,), (*READ, *APPLY, "update", "delete"), "create, change and delete clusters"),
    Rule(GROUP, (JOB_PLURAL,), (*READ, *APPLY, "update", "delete"), "submit, change and delete jobs"),
    Rule("", ("configmaps",), ("get", *APPLY), "the files of a job; its kept output; oars ls --gone"),
    Rule(GROUP, (f"{PLURAL}/status",), ("get",), "oars status"),
    Rule(GROUP, (f"{PLURAL}/scale",), ("get", "patch", "update"), "oars scale, kubectl scale"),
    Rule("", ("pods",), READ, "observe members"),
    *_POD_ACCESS,
    Rule("", ("services",), ("get",), "the head's external address"),
    Rule("", ("secrets",), ("get",), "the token and certificates of the client"),
    _EVENTS,
)
VIEWER = (
    Rule(GROUP, (PLURAL, f"{PLURAL}/status", f"{PLURAL}/scale"), READ, "read clusters"),
    Rule(GROUP, (JOB_PLURAL, f"{JOB_PLURAL}/status"), READ, "read jobs"),
)
EDITOR = (
    Rule(GROUP, (PLURAL, f"{PLURAL}/scale"), (*APPLY, "update", "delete"), "create, change and delete clusters"),
    Rule(GROUP, (JOB_PLURAL,), (*APPLY, "update", "delete"), "submit, change and delete jobs"),
)

# The operator, in every namespace it watches.
OPERATOR = (
    Rule(GROUP, (PLURAL,), READ, "read the desired state; the operator never writes it"),
    Rule(GROUP, (PLURAL,), ("create", "delete"), "the clusters of jobs; clusters whose lifetime is over"),
    Rule(GROUP, (JOB_PLURAL,), (*READ, "delete"), "read jobs; delete those whose time has passed"),
    Rule(GROUP, (JOB_PLURAL,), APPLY, "start and cancel the runs of schedules"),
    Rule(GROUP, (f"{JOB_PLURAL}/status",), ("patch",), "report the observed state of jobs"),
    Rule(GROUP, (f"{JOB_PLURAL}/finalizers",), ("update",), "set owner references to jobs"),
    Rule("batch", ("jobs",), (*READ, *APPLY), "the drivers of jobs"),
    Rule(GROUP, (f"{PLURAL}/status",), ("patch",), "report the observed state"),
    Rule(GROUP, (f"{PLURAL}/finalizers",), ("update",), "set owner references, where admission control requires it"),
    Rule("", ("pods",), ("list", "watch", "patch", "delete"), "observe members; mark and delete drained workers"),
    Rule("", ("pods/log",), ("get",), "log lines of failed containers"),
    Rule("apps", ("deployments",), (*READ, *APPLY, "delete"), "the head and each worker group"),
    Rule("", ("services", "serviceaccounts"), RESTORE, "the head's address; the account of the pods"),
    Rule("", ("configmaps",), MANAGE, "scripts of the engine; why clusters ended by themselves"),
    # Neither list nor watch: Secrets are read by name. Garbage collection deletes them; the operator deletes those that
    # a deleted cluster of the same name left behind.
    Rule("", ("secrets",), MANAGE, "each cluster's token and certificates"),
    Rule("policy", ("poddisruptionbudgets",), RESTORE, "protect the head from eviction"),
    Rule("networking.k8s.io", ("networkpolicies", "ingresses"), RESTORE, "access to a cluster"),
    Rule("", ("events",), ("create", "list"), "report causes; read why a pod does not start"),
    _LIMITS,
)
_JOBS = MARS_JOB_PLURAL
# The operator with `--adopt marsjob`, in every namespace it watches.
MARS_JOBS = (
    *(
        rule
        for group in MARS_JOB_GROUPS
        for rule in (
            Rule(group, (_JOBS,), (*READ, "delete"), "read MarsJobs; delete those whose time has passed"),
            Rule(group, (_JOBS,), ("create",), "start the runs of a MarsJob's cronPolicy"),
            Rule(group, (f"{_JOBS}/status",), ("patch",), "report the observed state of MarsJobs"),
            Rule(group, (f"{_JOBS}/finalizers",), ("update",), "set owner references to MarsJobs"),
        )
    ),
    Rule(RUNS[0], RUNS[1:], ("create",), "these runs are copies of MarsJobs whose authors were checked"),
)
_MARS_JOB_VIEWER = tuple(Rule(group, (_JOBS, f"{_JOBS}/status"), READ, "read MarsJobs") for group in MARS_JOB_GROUPS)
_MARS_JOB_EDITOR = tuple(
    Rule(group, (_JOBS,), (*APPLY, "update", "delete"), "create, change and delete MarsJobs")
    for group in MARS_JOB_GROUPS
)
_FIND_MARS_JOBS = (
    Rule(
        "apiextensions.k8s.io", ("customresourcedefinitions",), ("get",), "see whether MarsJobs exist", MARS_JOB_NAMES
    ),
    Rule(
        "admissionregistration.k8s.io",
        ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        ("get",),
        "see whether authors of MarsJobs are checked",
        (MARS_JOB_POLICY,),
    ),
)
# Additionally, and cluster-wide, for jobs in queues: ResourceFlavors have no namespace.
_KUEUE = "kueue.x-k8s.io"
QUEUES = (
    Rule(_KUEUE, ("workloads",), (*READ, "create", "delete"), "request the admission of jobs in queues"),
    Rule(_KUEUE, ("workloads/status",), ("patch",), "report that an admitted job runs or has ended"),
    Rule(_KUEUE, ("resourceflavors",), ("get",), "start an admitted job on the nodes of its flavors"),
    Rule(_KUEUE, ("workloadpriorityclasses",), ("get",), "request admission with the priority of the job's class"),
    Rule("scheduling.volcano.sh", ("podgroups",), ("get", "create", "delete"), "jobs that Volcano schedules"),
)
# In the operator's namespace. RBAC cannot restrict `create` to a name, so it has its own rule.
LEASES = (
    Rule("coordination.k8s.io", ("leases",), ("create",), "leader election"),
    Rule("coordination.k8s.io", ("leases",), ("get", "update"), "leader election", (NAME,)),
    Rule("", ("events",), ("create",), "announce the leader"),
)
# For every authenticated user, the operator among them: where the operator is, whether it is running, and whether
# authors are checked. None of these objects is confidential.
_FIND = (
    Rule("apiextensions.k8s.io", ("customresourcedefinitions",), ("get",), "find the operator", (CRD_NAME,)),
    Rule(
        "admissionregistration.k8s.io",
        ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        ("get",),
        "see whether authors of clusters are checked",
        (CRD_NAME,),
    ),
)
_HEARTBEAT = (Rule("coordination.k8s.io", ("leases",), ("get",), "see whether the operator is running", (NAME,)),)


def direct_role(namespace: str, subject: Subject, *, minimal: bool = False) -> list[Object]:
    """For a client in direct mode. `minimal` omits the optional rules."""
    rules = tuple(rule for rule in DIRECT if not (minimal and rule.optional))
    return role_and_binding("oars-direct", rules, subject, namespace)


def namespaces_role(subject: Subject) -> list[Object]:
    """For a client that creates a namespace per cluster: cluster-wide, because the namespaces do not exist yet."""
    return role_and_binding("oars-direct", (*NAMESPACES, *DIRECT), subject)


def nodes_role(subject: Subject) -> list[Object]:
    """For `oars why`: nodes are not namespaced."""
    return role_and_binding("oars-nodes", (NODES,), subject)


def user_role(namespace: str, subject: Subject) -> list[Object]:
    """For a user of the operator."""
    return role_and_binding("oars-user", USER, subject, namespace)


def operator_roles(
    own: str, watched: Sequence[str] = (), *, nodes: bool = True, queues: bool = False, adopt: bool = False
) -> list[Object]:
    """For the operator in namespace `own`: cluster-wide, or only in the watched namespaces. `adopt`: it serves
    MarsJobs, too."""
    account = Subject("ServiceAccount", NAME, own)
    objects = role_and_binding(f"{NAME}-leader", LEASES, account, own)
    for namespace in watched or ("",):
        objects += role_and_binding(NAME, OPERATOR, account, namespace)
        objects += role_and_binding(f"{NAME}-{MARS_JOB_PLURAL}", MARS_JOBS, account, namespace) if adopt else []
    objects += role_and_binding(f"{NAME}-nodes", (NODES,), account) if nodes else []
    return objects + (role_and_binding(f"{NAME}-queues", QUEUES, account) if queues else [])


def shared_roles(own: str) -> list[Object]:
    """Extends Kubernetes' roles view, edit and admin to ComputeClusters, and lets every user find the operator."""
    return [
        _role("oars-view", VIEWER, "", ("view", "edit", "admin")),
        _role("oars-edit", EDITOR, "", ("edit", "admin")),
        *role_and_binding("oars-find", _FIND, EVERYONE),
        *role_and_binding(f"{NAME}-alive", _HEARTBEAT, EVERYONE, own),
    ]


def mars_job_roles() -> list[Object]:
    """Extends Kubernetes' roles view, edit and admin to MarsJobs, and lets every user, the operator among them, see
    whether they exist and their authors are checked."""
    return [
        _role("oars-view-marsjobs", _MARS_JOB_VIEWER, "", ("view", "edit", "admin")),
        _role("oars-edit-marsjobs", _MARS_JOB_EDITOR, "", ("edit", "admin")),
        *role_and_binding("oars-find-marsjobs", _FIND_MARS_JOBS, EVERYONE),
    ]


def role_and_binding(name: str, rules: Iterable[Rule], subject: Subject, namespace: str = "") -> list[Object]:
    """A Role with its binding or, without a namespace, a ClusterRole with its binding."""
    role = _role(name, rules, namespace)
    binding = {
        "apiVersion": f"{API}/v1",
        "kind": f"{role['kind']}Binding",
        "metadata": dict(role["metadata"]),
        "roleRef": {"apiGroup": API, "kind": role["kind"], "name": name},
        "subjects": [subject.manifest()],
    }
    return [role, binding]


def _role(name: str, rules: Iterable[Rule], namespace: str, into: Sequence[str] = ()) -> Object:
    aggregation = {f"{API}/aggregate-to-{role}": "true" for role in into}
    metadata: Object = {"name": name, "labels": LABELS | aggregation}
    if namespace:
        metadata["namespace"] = namespace
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": f"{API}/v1", "kind": kind, "metadata": metadata, "rules": [r.manifest() for r in rules]}


def why(rule: Object) -> str:
    """The purpose of a rule of these roles."""
    known = (*DIRECT, *NAMESPACES, *USER, *VIEWER, *EDITOR, *OPERATOR, *LEASES, *_FIND, *_HEARTBEAT, NODES,
             *MARS_JOBS, *_MARS_JOB_VIEWER, *_MARS_JOB_EDITOR, *_FIND_MARS_JOBS, *QUEUES)  # fmt: skip
    found = next((each for each in known if each.manifest() == rule), None)
    if found is None:
        return ""
    return f"optional: {found.why}" if found.optional else found.why
