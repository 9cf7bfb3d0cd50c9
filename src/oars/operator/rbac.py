"""The rights each way of using Oars needs: no wildcard, no list of Secrets, and for every rule the reason.

A PATCH that creates (server-side apply) is asked for `create` and for `patch`, so the two come together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oars.operator import NAME
from oars.operator.crd import GROUP, PLURAL
from oars.operator.crd import NAME as CRD_NAME

Object = dict[str, Any]

READ = ("get", "list", "watch")
MAKE = ("create", "patch")
OWN = ("get", "create", "patch", "delete")
KEPT = (*OWN, "list", "watch")
CALL = ("get", "create")  # a WebSocket is opened by GET; older clients use POST
API = "rbac.authorization.k8s.io"
PART = {"app.kubernetes.io/name": "oars", "app.kubernetes.io/part-of": "oars"}


@dataclass(frozen=True)
class Rule:
    """Verbs on resources of one API group. Without an optional one everything works but what `why` says."""

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
    """Who gets the rights."""

    kind: str  # ServiceAccount, User or Group
    name: str
    namespace: str = ""

    def manifest(self) -> Object:
        if self.kind == "ServiceAccount":
            return {"kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {"kind": self.kind, "name": self.name, "apiGroup": API}


EVERYONE = Subject("Group", "system:authenticated")

# To look inside pods: what `logs`, `exec`, `cp`, `shell` and the port-forward of clients use.
_INSIDE = (
    Rule("", ("pods/log",), ("get",), "oars logs, and the last lines of what failed"),
    Rule("", ("pods/exec",), CALL, "oars exec, shell and cp", optional=True),
    Rule("", ("pods/portforward",), CALL, "clients outside the cluster reach the head", optional=True),
)
NODES = Rule("", ("nodes",), ("list", "watch"), "why no node fits: what the best one has", optional=True)
_LIMITS = Rule("", ("resourcequotas", "limitranges"), ("list",), "why a quota or a limit forbids a pod", optional=True)
_EVENTS = Rule("", ("events",), ("list", "watch"), "why a pod does not start")

# The client makes a cluster's objects and runs the loop itself, in one namespace.
DIRECT = (
    Rule("", ("pods",), (*READ, "patch", "delete"), "see members; mark and remove those that were drained"),
    *_INSIDE,
    Rule("", ("configmaps",), (*OWN, "list", "watch"), "each cluster's root object; deleting it deletes the rest"),
    Rule("", ("services", "serviceaccounts"), OWN, "the head's address; the pods' account without rights"),
    # RBAC cannot say "those that Oars made". Without list and watch their names must be known.
    Rule("", ("secrets",), OWN, "each cluster's token and certificates, by name"),
    Rule("apps", ("deployments",), (*READ, *MAKE, "delete"), "the head and each group of workers"),
    Rule("policy", ("poddisruptionbudgets",), OWN, "no eviction of the head"),
    Rule("networking.k8s.io", ("networkpolicies",), OWN, "only the cluster's own members and clients reach it"),
    Rule("networking.k8s.io", ("ingresses",), OWN, "expose.host", optional=True),
    Rule(
        "coordination.k8s.io", ("leases",), (*OWN, "update"), "shows that the client lives; without it the cluster goes"
    ),
    Rule(API, ("roles", "rolebindings"), OWN, "lets a cluster end itself when its client has gone", optional=True),
    _EVENTS,
    _LIMITS,
)
# Besides, cluster-wide, for `namespace: {create: true}`.
NAMESPACES = Rule("", ("namespaces",), ("get", *MAKE, "delete"), "namespace: {create: true}")

# A user of clusters that the operator runs.
USER = (
    Rule(GROUP, (PLURAL,), (*READ, *MAKE, "update", "delete"), "make, change and delete clusters"),
    Rule(GROUP, (f"{PLURAL}/status",), ("get",), "oars status"),
    Rule(GROUP, (f"{PLURAL}/scale",), ("get", "patch", "update"), "oars scale, kubectl scale"),
    Rule("", ("pods",), READ, "see members"),
    *_INSIDE,
    Rule("", ("services",), ("get",), "find the head's address outside the cluster"),
    Rule("", ("secrets",), ("get",), "the token and certificates a client connects with, by name"),
    _EVENTS,
)
VIEWER = (Rule(GROUP, (PLURAL, f"{PLURAL}/status", f"{PLURAL}/scale"), READ, "see clusters"),)
EDITOR = (Rule(GROUP, (PLURAL, f"{PLURAL}/scale"), (*MAKE, "update", "delete"), "make, change and delete clusters"),)

# The operator, in every namespace it watches.
OPERATOR = (
    Rule(GROUP, (PLURAL,), (*READ, "patch", "update"), "what users want"),
    Rule(GROUP, (f"{PLURAL}/status", f"{PLURAL}/scale"), ("get", "patch", "update"), "what is"),
    Rule(GROUP, (f"{PLURAL}/finalizers",), ("update",), "own the objects it makes, where admission checks that"),
    Rule("", ("pods",), (*READ, "patch", "delete"), "see members; mark and remove those that were drained"),
    Rule("", ("pods/log",), ("get",), "the last lines of what failed"),
    Rule("apps", ("deployments",), (*READ, *MAKE, "delete"), "the head and each group of workers"),
    Rule("", ("services", "serviceaccounts"), KEPT, "the head's address, the pods' account; bring back what is gone"),
    Rule("", ("configmaps",), OWN, "scripts of the engine, by name"),
    # Neither list nor watch: it reads what it made, by name. Owner references remove it; what a deleted cluster of the
    # same name left has to go before that.
    Rule("", ("secrets",), OWN, "each cluster's token and certificates, by name"),
    Rule("policy", ("poddisruptionbudgets",), KEPT, "no eviction of the head; bring it back"),
    Rule("networking.k8s.io", ("networkpolicies", "ingresses"), KEPT, "who reaches a cluster; bring it back"),
    Rule("", ("events",), (*MAKE, "list", "watch"), "say why, and hear why a pod does not start"),
    _LIMITS,
)
# In its own namespace. RBAC cannot bind `create` to a name, so that verb stands alone.
LEASES = (
    Rule("coordination.k8s.io", ("leases",), ("create",), "one leader among the replicas"),
    Rule("coordination.k8s.io", ("leases",), ("get", "update", "patch"), "one leader among the replicas", (NAME,)),
)
# For every user of the cluster: is there an operator, where, and does it live? Neither object holds a secret.
_WHERE = (Rule("apiextensions.k8s.io", ("customresourcedefinitions",), ("get",), "find the operator", (CRD_NAME,)),)
_ALIVE = (Rule("coordination.k8s.io", ("leases",), ("get",), "see that the operator lives", (NAME,)),)


def direct_role(namespace: str, subject: Subject, *, minimal: bool = False) -> list[Object]:
    """For a client without the operator. `minimal` leaves out the rules that something can do without."""
    rules = tuple(rule for rule in DIRECT if not (minimal and rule.optional))
    return granted("oars-direct", rules, subject, namespace)


def namespaces_role(subject: Subject) -> list[Object]:
    """For a client that makes a namespace for each cluster: the same rights in all of them, as none exists yet."""
    return granted("oars-direct", (NAMESPACES, *DIRECT), subject)


def nodes_role(subject: Subject) -> list[Object]:
    """For `why`: nodes belong to no namespace."""
    return granted("oars-nodes", (NODES,), subject)


def user_role(namespace: str, subject: Subject) -> list[Object]:
    """For a user of clusters that the operator runs."""
    return granted("oars-user", USER, subject, namespace)


def operator_roles(own: str, watched: Sequence[str] = (), *, nodes: bool = True) -> list[Object]:
    """For the operator in namespace `own`: in the whole cluster, or in the watched namespaces alone."""
    account = Subject("ServiceAccount", NAME, own)
    objects = granted(f"{NAME}-leader", LEASES, account, own)
    for namespace in watched or ("",):
        objects += granted(NAME, OPERATOR, account, namespace)
    return objects + (granted(f"{NAME}-nodes", (NODES,), account) if nodes else [])


def shared_roles(own: str) -> list[Object]:
    """Comes with the operator: Kubernetes' own roles view, edit and admin learn of clusters; everybody may find it."""
    return [
        _role("oars-view", VIEWER, "", ("view", "edit", "admin")),
        _role("oars-edit", EDITOR, "", ("edit", "admin")),
        *granted("oars-find", _WHERE, EVERYONE),
        *granted(f"{NAME}-alive", _ALIVE, EVERYONE, own),
    ]


def granted(name: str, rules: Iterable[Rule], subject: Subject, namespace: str = "") -> list[Object]:
    """A role and who has it: in one namespace or, without one, in all."""
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
    joined = {f"{API}/aggregate-to-{role}": "true" for role in into}
    metadata: Object = {"name": name, "labels": PART | joined}
    if namespace:
        metadata["namespace"] = namespace
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": f"{API}/v1", "kind": kind, "metadata": metadata, "rules": [r.manifest() for r in rules]}


def why(rule: Object) -> str:
    """What a rule of these roles is for."""
    known = (*DIRECT, NAMESPACES, *USER, *VIEWER, *EDITOR, *OPERATOR, *LEASES, *_WHERE, *_ALIVE, NODES)
    found = next((each for each in known if each.manifest() == rule), None)
    if found is None:
        return ""
    return f"optional: {found.why}" if found.optional else found.why
