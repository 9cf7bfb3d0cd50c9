"""Explain what is wrong with a cluster: from API objects and events to causes with hints. Pure.

Each kind of failure has a module that returns findings for single members. Here equal findings become one cause. The
most severe cause comes first, and the head before the workers, which depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from oars.model import HEAD, Cause
from oars.places.kube.names import Object
from oars.places.kube.why import creation, deaths, loss, nodes, start
from oars.places.kube.why.facts import (
    Finding,
    Severity,
    Snapshot,
    group,
    is_disrupted,
    is_terminating,
    name,
    role,
)


def causes(snapshot: Snapshot, namespace: str) -> tuple[Cause, ...]:
    """All causes, the most severe first; empty if nothing is wrong."""
    snapshot = deaths.share_log_tails(snapshot)
    findings = [*creation.findings(snapshot, namespace)]
    findings += [found for pod in snapshot.pods if (found := _pod_finding(snapshot, pod, namespace))]
    findings += _stalled_rollouts(snapshot, findings, namespace)
    merged: dict[tuple[str, ...], list[Finding]] = {}
    for each in findings:
        merged.setdefault((each.reason, each.role, each.group, each.merge_key or each.text), []).append(each)

    def rank(same: list[Finding]) -> tuple[bool, bool, int]:
        return same[0].severity is Severity.PAST, same[0].role != HEAD, same[0].severity

    return tuple(_cause(same, snapshot) for same in sorted(merged.values(), key=rank))


def _pod_finding(snapshot: Snapshot, pod: Object, namespace: str) -> Finding | None:
    """The first finding that explains the pod: others are usually its consequences."""
    if pod.get("status", {}).get("phase") == "Succeeded":
        return None
    found = loss.find(snapshot, pod)
    if found is None and not is_terminating(pod) and not is_disrupted(pod):
        found = (
            nodes.find(snapshot, pod, namespace)
            or start.find(snapshot, pod, namespace)
            or deaths.find(snapshot, pod, namespace)
        )
    return replace(found, role=role(pod), group=group(pod), pod=name(pod)) if found else None


def _stalled_rollouts(snapshot: Snapshot, findings: list[Finding], namespace: str) -> Iterable[Finding]:
    """Stalled Deployments of groups that no other finding explains."""
    explained = {(each.role, each.group) for each in findings if each.severity is not Severity.PAST}
    for deployment in snapshot.stalled:
        if (role(deployment), group(deployment)) not in explained:
            yield Finding(
                Severity.ROLLOUT,
                "RolloutStuck",
                "exists, but Kubernetes does not act on it",
                "The controller manager may be down or overloaded: contact the administrator of the Kubernetes "
                f"cluster, or run `kubectl describe deployment {name(deployment)} -n {namespace}`.",
                role=role(deployment),
                group=group(deployment),
                subject=f"Deployment {name(deployment)}",
            )


def _cause(same: list[Finding], snapshot: Snapshot) -> Cause:
    """One cause for all members with the same finding."""
    first = same[0]
    lines = next((each.lines for each in same if each.lines), ())
    members = tuple(HEAD if each.role == HEAD else each.pod for each in same if each.pod)
    kind = "Worker pod" if first.role else "Pod"
    if first.subject:
        subject = first.subject
    elif first.role == HEAD:
        subject = "The head"
    elif len(same) == 1:
        subject = f"{kind} {first.pod}"
    else:
        total = sum(role(pod) == first.role and group(pod) == first.group for pod in snapshot.pods)
        subject = f"{kind}s {_common_name([each.pod for each in same])} ({len(same)} of {total})"
    return Cause(first.reason, f"{subject} {first.text}.", first.hint, lines, members)


def _common_name(pods: list[str]) -> str:
    """demo-worker-… for pods of one Deployment."""
    if len(pods) == 2:
        return " and ".join(pods)
    shared = []
    for parts in zip(*(pod.split("-") for pod in pods), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "-".join([*shared, "…"]) if shared else ", ".join(pods[:3]) + ", …"
