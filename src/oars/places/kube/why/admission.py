"""Objects that the API server refuses to create: quotas, limit ranges, admission policies, webhooks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from oars.model import Role
from oars.places.kube.names import Object
from oars.places.kube.state.observe import condition, group_name, role
from oars.places.kube.why import facts, quantities
from oars.places.kube.why.facts import Finding, Severity, Snapshot, name, strip_period


class Explanation(NamedTuple):
    reason: str
    text: str
    hint: str


_PREFIX = re.compile(
    r'^(?:\(combined from similar events\): )?(?:Error creating: |Failed to create new replica set "[^"]*": )?'
    r'(?:(?:pods|replicasets\.apps) "[^"]*" is forbidden: )?'
)

_QUOTA = re.compile(r"exceeded quota: (\S+), requested: (\S*), used: (\S*), limited: (\S*)")
_QUOTA_UNSET = re.compile(r"failed quota: (\S+): must specify (\S+) for: ([\w-]+)")
_LIMIT_RANGE = re.compile(
    r"(?:maximum|minimum) \S+ usage per \w+ is [^,\]]+?, but [^,\]]+|(?<!\S)\S+ max limit to request ratio per [^\]]+"
)
# Pattern, reason, text, hint. {0} and {1} are the groups of the match, {where} is "namespace x", {flag} is " -n x".
_OTHERS = (
    (re.compile(r'violates PodSecurity "([^":]+)[^"]*": (.*)', re.DOTALL), "PodSecurity",
     "{where} enforces the pod security standard {0}: {1}",
     "Remove the forbidden fields from `pod`, use another namespace, or change the namespace's label "
     "pod-security.kubernetes.io/enforce."),
    (re.compile(r'admission webhook "([^"]+)" denied the request(?: without explanation)?:? ?(.*)', re.DOTALL),
     "AdmissionDenied", "webhook {0} denied the request: {1}",
     "Change the rejected fields, or contact the administrator of the webhook."),
    (re.compile(r'failed calling webhook "([^"]+)": (?:failed to call webhook: )?(.*)', re.DOTALL),
     "WebhookFails", "webhook {0} does not respond: {1}",
     "The administrator of the webhook must repair or remove it "
     "(`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`)."),
    (re.compile(r"ValidatingAdmissionPolicy '([^']+)' .*?denied request: (.*)", re.DOTALL),
     "AdmissionDenied", "policy {0} denied the request: {1}",
     "Change the rejected fields, or the policy (`kubectl describe validatingadmissionpolicy {0}`)."),
    (re.compile(r'serviceaccount "([^"]+)" not found'), "ServiceAccountMissing",
     "ServiceAccount {0} does not exist in {where}", "Create it: `kubectl create serviceaccount {0}{flag}`."),
    (re.compile(r"no PriorityClass with name (\S+) was found"), "PriorityClassMissing",
     "PriorityClass {0} does not exist", "Correct priorityClassName (`kubectl get priorityclasses` lists them)."),
    (re.compile(r"in namespace (\S+) because it is being terminated"), "NamespaceEnding",
     "namespace {0} is being deleted", "Wait until it is deleted, or use another namespace."),
)  # fmt: skip


def refused_pods(snapshot: Snapshot, namespace: str) -> Iterable[Finding]:
    """One finding per group whose ReplicaSet was refused a pod, or whose Deployment a ReplicaSet. The condition is
    removed when creation succeeds; events remain for an hour, so they count only where there is no condition."""
    groups: set[str] = set()
    for deployment in snapshot.deployments:
        failure = condition(deployment, "ReplicaFailure")
        if failure.get("status") == "True" and group_name(deployment) not in groups and facts.replicas(deployment):
            groups.add(group_name(deployment))
            yield _refused(deployment, str(failure.get("message", "")), namespace, snapshot)
    for deployment in snapshot.stalled:
        for event in facts.events_of(snapshot, deployment, "ReplicaSetCreateError")[-1:]:
            yield _refused(deployment, str(event.get("message", "")), namespace, snapshot)


def _refused(deployment: Object, message: str, namespace: str, snapshot: Snapshot) -> Finding:
    reason, text, hint = explain(message, namespace, snapshot) or (
        "CreationRefused",
        strip_period(_PREFIX.sub("", message)),
        "Change the rejected fields, or contact the administrator of the Kubernetes cluster.",
    )
    group, total, subject = group_name(deployment), facts.replicas(deployment), "The head"
    if role(deployment) is not Role.HEAD:
        # Count the pods: the Deployment's own status is updated later.
        existing = sum(group_name(pod) == group and not facts.is_terminating(pod) for pod in snapshot.pods)
        subject = f"Worker pods of group {group} ({total - existing} of {total})"
    text = f"cannot be created: {text}"
    return Finding(Severity.REFUSED, reason, text, hint, role=role(deployment), group=group, subject=subject)


def explain(message: str, namespace: str, snapshot: Snapshot) -> Explanation | None:
    """None if the message is not about admission. The namespace may be unknown ('')."""
    where = f"namespace {namespace}" if namespace else "the namespace"
    flag = f" -n {namespace}" if namespace else ""
    if match := _QUOTA.search(message):
        return _quota_exceeded(match, where, flag, snapshot)
    if match := _QUOTA_UNSET.search(message):
        quota, resources, container = match.groups()
        section, _, resource = resources.split(",")[0].partition(".")
        resource = resource or "cpu"
        value = "1" if resource == "cpu" else "1Gi"
        overlay = f"{{name: {container}, resources: {{{section}: {{{resource}: {value}}}}}}}"
        text = f"quota {quota} of {where} requires that container {container} sets {resources}"
        hint = f"Set it with `pod: {{spec: {{containers: [{overlay}]}}}}`, or define a default with a LimitRange."
        return Explanation("QuotaExceeded", text, hint)
    if limits := _LIMIT_RANGE.findall(message):
        ranges = ", ".join(map(name, snapshot.limit_ranges))
        # Sorted, because the server lists them in random order.
        text = f"LimitRange {ranges + ' ' if ranges else ''}of {where}: {', '.join(sorted(limits))}"
        hint = f"Request an allowed amount, or change the LimitRange (`kubectl describe limitrange{flag}`)."
        return Explanation("LimitRange", text, hint)
    for pattern, reason, text, hint in _OTHERS:
        if match := pattern.search(message):
            groups = [strip_period(group) for group in match.groups()]
            values = {"where": where, "flag": flag}
            return Explanation(reason, text.format(*groups, **values), hint.format(*groups, **values))
    return None


def _quota_exceeded(match: re.Match[str], where: str, flag: str, snapshot: Snapshot) -> Explanation:
    quota = match[1]
    # Each is written as 'requests.cpu=1,pods=2'.
    requested, used, hard = (dict(pair.split("=", 1) for pair in match[i].split(",") if "=" in pair) for i in (2, 3, 4))
    current = next((q.get("status", {}).get("used") or {} for q in snapshot.quotas if name(q) == quota), {})
    used |= {resource: value for resource, value in current.items() if resource in used}
    parse = quantities.parse
    full = [r for r in hard if parse(used.get(r)) + parse(requested.get(r)) > parse(hard[r])] or list(hard)
    figures = "; ".join(f"{r}: {requested.get(r)} requested, {used.get(r)} of {hard[r]} used" for r in full)
    hint = f"Use fewer or smaller workers, or raise the quota (`kubectl describe quota{flag}`)."
    return Explanation("QuotaExceeded", f"quota {quota} of {where} is exceeded ({figures})", hint)
