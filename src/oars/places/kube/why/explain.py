"""why, on Kubernetes: from objects and events to causes a person understands, and what to do about them. Pure.

Each kind of trouble has a file of its own; here their findings, one per member, become sentences: those that are alike
are told once, the gravest come first, and the head comes before the workers, who cannot do without it.
"""

from __future__ import annotations

from collections.abc import Iterable

from oars.model import Cause
from oars.places.kube.names import Object
from oars.places.kube.why import creation, deaths, loss, nodes, start
from oars.places.kube.why.deaths import logs_needed, logs_to_read, with_lent_tails
from oars.places.kube.why.facts import HEAD, Finding, Grade, Snapshot, group, is_leaving, name, role
from oars.places.kube.why.refusal import refusal
from oars.places.kube.why.start import all_statuses

__all__ = ["Snapshot", "all_statuses", "causes", "logs_needed", "logs_to_read", "refusal"]


def causes(snapshot: Snapshot, namespace: str) -> tuple[Cause, ...]:
    """All causes, the gravest first; empty when everything is as wanted."""
    snapshot = with_lent_tails(snapshot)
    findings = [*creation.findings(snapshot, namespace)]
    for pod in snapshot.pods:
        findings += _of_pod(snapshot, pod, namespace)
    findings += _stuck_rollouts(snapshot, findings)
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        alike.setdefault(_kind_of(finding), []).append(finding)
    ordered = sorted(alike.values(), key=lambda found: _gravity(found[0]))
    return tuple(_told(found, snapshot) for found in ordered)


def _of_pod(snapshot: Snapshot, pod: Object, namespace: str) -> Iterable[Finding]:
    """The first that explains it: what follows from it would only confuse."""
    if pod.get("status", {}).get("phase") == "Succeeded":
        return ()
    sources = [loss.findings(snapshot, pod)]
    if not is_leaving(pod) and not loss.is_over(pod):  # one that was told to go may well look broken
        sources += [
            nodes.findings(snapshot, pod, namespace),
            start.findings(snapshot, pod, namespace),
            deaths.findings(snapshot, pod, namespace),
        ]
    found = next((findings for source in sources if (findings := list(source))), [])
    return [_placed(finding, pod) for finding in found]


def _placed(finding: Finding, pod: Object) -> Finding:
    return Finding(
        finding.grade, finding.reason, finding.text, finding.hint, finding.lines, finding.alike,
        role(pod), group(pod), name(pod),
    )  # fmt: skip


def _stuck_rollouts(snapshot: Snapshot, found: list[Finding]) -> Iterable[Finding]:
    """Only where nothing better is known."""
    explained = {(finding.role, finding.group) for finding in found if finding.grade is not Grade.PAST}
    for deployment in snapshot.unheeded:
        if (role(deployment), group(deployment)) in explained:
            continue
        yield Finding(
            Grade.ROLLOUT,
            "RolloutStuck",
            "is there, but Kubernetes does not act on it",
            "Its controller manager may be down or have too much to do: ask whoever runs the cluster. "
            f"`kubectl describe deployment {name(deployment)}` tells more.",
            role=role(deployment), group=group(deployment), subject=f"Deployment {name(deployment)}",
        )  # fmt: skip


def _kind_of(finding: Finding) -> tuple[str, ...]:
    return (finding.reason, finding.role, finding.group, finding.alike or finding.text)


def _gravity(finding: Finding) -> tuple[bool, bool, int]:
    return (finding.grade is Grade.PAST, finding.role != HEAD, finding.grade)


def _told(found: list[Finding], snapshot: Snapshot) -> Cause:
    first = found[0]
    lines = next((finding.lines for finding in found if finding.lines), ())
    return Cause(first.reason, f"{_subject(found, snapshot)} {first.text}.", first.hint, lines)


def _subject(found: list[Finding], snapshot: Snapshot) -> str:
    """Members as people see them: the head, or pods by name."""
    first = found[0]
    if first.subject:
        return first.subject
    if first.role == HEAD:
        return "The head"
    kind = "Worker pod" if first.role else "Pod"
    if len(found) == 1:
        return f"{kind} {first.pod}"
    everyone = sum(1 for pod in snapshot.pods if role(pod) == first.role and group(pod) == first.group)
    return f"{kind}s {_common([finding.pod for finding in found])} ({len(found)} of {everyone})"


def _common(pods: list[str]) -> str:
    """demo-worker-… for pods of one Deployment."""
    if len(pods) == 2:
        return " and ".join(pods)
    shared = []
    for parts in zip(*(pod.split("-") for pod in pods), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "-".join([*shared, "…"]) if shared else ", ".join(pods[:3]) + ", …"
