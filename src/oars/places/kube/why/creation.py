"""Pods that never came to be: what the ReplicaSet was told when it tried to make them, or the Deployment when it tried
to make the ReplicaSet. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from oars.places.kube.names import Object
from oars.places.kube.why.admission import Said, explain
from oars.places.kube.why.facts import (
    HEAD,
    Finding,
    Grade,
    Snapshot,
    cluster_of,
    condition,
    events_of,
    group,
    is_leaving,
    name,
    replicas,
    role,
    sentence_end,
    when,
)

_PREFIX = re.compile(
    r'^(?:\(combined from similar events\): )?(?:Error creating: |Failed to create new replica set "[^"]*": )?'
    r'(?:(?:pods|replicasets\.apps) "[^"]*" is forbidden: )?'
)


def findings(snapshot: Snapshot, namespace: str) -> Iterable[Finding]:
    """The objects' own conditions are the truth: they go when it works again, events stay for an hour."""
    told: set[tuple[str, str]] = set()
    for owner in snapshot.deployments:
        failure = condition(owner, "ReplicaFailure")
        member = (role(owner), group(owner))
        if failure.get("status") == "True" and member not in told and replicas(owner):
            told.add(member)
            yield _finding(owner, str(failure.get("message", "")), namespace, snapshot)
    for owner in snapshot.unheeded:
        for event in events_of(snapshot, owner, "ReplicaSetCreateError")[-1:]:  # only an event tells
            yield _finding(owner, str(event.get("message", "")), namespace, snapshot)
    yield from _jobs(snapshot, namespace)


def _finding(owner: Object, message: str, namespace: str, snapshot: Snapshot) -> Finding:
    said = _said(message, namespace, snapshot)
    text = f"cannot be created: {said.words}"
    wanted = replicas(owner)
    missing = wanted - _there(owner, snapshot)
    subject = "The head" if role(owner) == HEAD else f"Worker pods of group {group(owner)} ({missing} of {wanted})"
    return Finding(
        Grade.REFUSED, said.reason, text, said.hint, role=role(owner), group=group(owner), subject=subject
    )  # fmt: skip


def _there(owner: Object, snapshot: Snapshot) -> int:
    """The pods themselves are counted: the owner's own count comes later."""
    same = (role(owner), group(owner))
    return len([pod for pod in snapshot.pods if (role(pod), group(pod)) == same and not is_leaving(pod)])


def _jobs(snapshot: Snapshot, namespace: str) -> Iterable[Finding]:
    """The driver's Job is not in the snapshot; its newest event tells."""
    cluster = cluster_of(snapshot)
    newest: dict[str, Object] = {}
    for event in sorted(snapshot.events, key=when):
        about = event.get("involvedObject") or {}
        if about.get("kind") == "Job" and str(about.get("name", "")).startswith(f"{cluster}-") and cluster:
            newest[str(about["name"])] = event
    has_pod = {name(pod).rsplit("-", 1)[0] for pod in snapshot.pods}
    for job, event in newest.items():
        if event.get("reason") == "FailedCreate" and job not in has_pod:
            said = _said(str(event.get("message", "")), namespace, snapshot)
            text = f"cannot be created: {said.words}"
            yield Finding(Grade.REFUSED, said.reason, text, said.hint, subject=f"The pod of Job {job}")


def _said(message: str, namespace: str, snapshot: Snapshot) -> Said:
    known = explain(message, namespace, snapshot)
    if known:
        return known
    words = sentence_end(_PREFIX.sub("", message))
    return Said("CreationRefused", words, "Change what it names, or ask whoever runs the cluster.")
