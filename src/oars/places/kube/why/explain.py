"""Explain what is wrong with a cluster: from API objects and events to causes with hints. Pure.

Each kind of failure has a module that returns findings for single members. Here equal findings become one cause. The
most severe cause comes first, and the head before the workers, which depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile

from oars.model import HEAD, Cause, Role
from oars.places.kube.names import Object
from oars.places.kube.state.observe import group_name, phase, role
from oars.places.kube.why import admission, deaths, loss, nodes, start
from oars.places.kube.why.facts import Finding, Severity, Snapshot, is_disrupted, is_terminating, name


def causes(snapshot: Snapshot, namespace: str) -> tuple[Cause, ...]:
    """All causes, the most severe first; empty if nothing is wrong."""
    snapshot = deaths.share_log_tails(snapshot)
    findings = [*admission.refused_pods(snapshot, namespace)]
    findings += [found for pod in snapshot.pods if (found := _pod_finding(snapshot, pod, namespace))]
    findings += _stalled_rollouts(snapshot, findings, namespace)
    merged: dict[tuple[str, ...], list[Finding]] = {}
    for each in findings:
        merged.setdefault((each.reason, each.role, each.group, each.merge_key or each.text), []).append(each)

    def rank(same: list[Finding]) -> tuple[bool, bool, int]:
        return same[0].severity is Severity.PAST, same[0].role is not Role.HEAD, same[0].severity

    return tuple(_cause(same, snapshot) for same in sorted(merged.values(), key=rank))


def _pod_finding(snapshot: Snapshot, pod: Object, namespace: str) -> Finding | None:
    """The first finding that explains the pod: others are usually its consequences."""
    if phase(pod) == "Succeeded":
        return None
    found = loss.find(snapshot, pod)
    if found is None and not is_terminating(pod) and not is_disrupted(pod):
        found = (
            nodes.find(snapshot, pod, namespace)
            or start.find(snapshot, pod, namespace)
            or deaths.find(snapshot, pod, namespace)
        )
    return replace(found, role=role(pod), group=group_name(pod), pod=name(pod)) if found else None


def _stalled_rollouts(snapshot: Snapshot, findings: list[Finding], namespace: str) -> Iterable[Finding]:
    """Stalled Deployments of groups that no other finding explains."""
    explained = {each.group for each in findings if each.severity is not Severity.PAST}
    for deployment in snapshot.stalled:
        if group_name(deployment) not in explained:
            yield Finding(
                Severity.ROLLOUT,
                "RolloutStuck",
                "exists, but Kubernetes does not act on it",
                "The controller manager may be down or overloaded: contact the administrator of the Kubernetes "
                f"cluster, or run `kubectl describe deployment {name(deployment)} -n {namespace}`.",
                role=role(deployment),
                group=group_name(deployment),
                subject=f"Deployment {name(deployment)}",
            )


def _cause(same: list[Finding], snapshot: Snapshot) -> Cause:
    """One cause for all members with the same finding."""
    first, pods = same[0], [each.pod for each in same if each.pod]
    lines = next((each.lines for each in same if each.lines), ())
    if first.subject:
        subject = first.subject
    elif first.role is Role.HEAD:
        subject, pods = "The head", [HEAD] * len(pods)
    elif len(same) == 1:
        subject = f"Worker pod {first.pod}"
    else:
        total = sum(group_name(pod) == first.group for pod in snapshot.pods)
        subject = f"Worker pods {_common_name(pods)} ({len(same)} of {total})"
    return Cause(first.reason, f"{subject} {first.text}.", first.hint, lines, tuple(pods))


def _common_name(pods: list[str]) -> str:
    """demo-worker-… for pods of one Deployment."""
    if len(pods) == 2:
        return " and ".join(pods)
    parts = zip(*(pod.split("-") for pod in pods), strict=False)
    shared = [part[0] for part in takewhile(lambda part: len(set(part)) == 1, parts)]
    return "-".join([*shared, "…"]) if shared else ", ".join(pods[:3]) + ", …"
