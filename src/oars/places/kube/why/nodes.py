"""No node for a pod: what the scheduler says, made exact with what is known of the nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oars.places.kube.names import Object
from oars.places.kube.why.amounts import allocatable, asked, figure, shown, taken
from oars.places.kube.why.facts import Finding, Grade, Snapshot, condition, name, sentence_end, whose

# "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). preemption: …"
_SAID = re.compile(r"\d+/(\d+) nodes are available: (.*?)\.(?:\s|$)", re.DOTALL)
_PART = re.compile(r"\s*(?:(\d+) )?([^,{]+(?:\{[^}]*\})?[^,{]*)")
_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" (?:not found|is being deleted)')
_TAINT = re.compile(r"untolerated taint \{([^}]*)\}")

# Taints that Kubernetes itself sets: the node is ill, nobody shall tolerate that.
_ILL = "node.kubernetes.io/"
_CORDONED = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True)
class _Asker:
    """A pod without a node, and what may be said about it."""

    pod: Object
    parts: tuple[tuple[int, str], ...]  # how many nodes said what
    nodes: Sequence[Object] | None
    others: Sequence[Object]
    namespace: str
    has_no_nodes: bool = False


_Said = tuple[str, str]  # why not, and what to do


def findings(snapshot: Snapshot, pod: Object, namespace: str) -> Iterable[Finding]:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False" or pod["spec"].get("nodeName"):
        return
    message = str(scheduled.get("message", ""))
    if scheduled.get("reason") == "SchedulingGated":
        text = "cannot get a node before another program lifts its scheduling gate"
        yield Finding(Grade.NODE, "SchedulingGated", text, "Ask whoever runs that program (often a job queue).")
        return
    has_no_nodes = snapshot.nodes == [] or message.startswith("no nodes available")
    asker = _Asker(pod, _parts(message), snapshot.nodes, snapshot.pods, namespace, has_no_nodes)
    said = [*_answers(asker)] or [(sentence_end(message), f"Look closer: `kubectl describe pod {name(pod)}`.")]
    reasons = "; ".join(reason for reason, _ in said)
    todos = [hint for _, hint in said if hint]
    wanted = ", ".join(shown(resource, value) for resource, value in sorted(asked(pod).items()))
    text = f"found no node{f' for {wanted}' if wanted else ''}: {reasons}"
    yield Finding(Grade.NODE, "Unschedulable", text, " Or: ".join(todos[:2]), alike=reasons)


def _parts(message: str) -> tuple[tuple[int, str], ...]:
    match = _SAID.match(message)
    if match is None:
        return ()
    found = _PART.findall(match[2])
    return tuple((int(count or 0), words.strip()) for count, words in found if words.strip())


def _answers(asker: _Asker) -> Iterable[_Said]:
    """Those that can be helped first: a taint on the one node that would fit is worth more than what others lack."""
    if asker.has_no_nodes:
        yield "the cluster has no nodes", "Add a node; where nodes come by themselves, wait."
        return
    taints = [*_taints(asker)]
    others = [*_lacking(asker), *_other(asker)]
    yield from (*taints, *others) if _is_kept_behind_taint(asker) else (*others, *taints)


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"


# what the nodes lack


def _lacking(asker: _Asker) -> Iterable[_Said]:
    lacks = {resource: count for count, words in asker.parts if (resource := _resource(words))}
    usable = _usable(asker)
    scarce = []
    for resource, count in lacks.items():
        if not usable:
            less = _ask_for_less(asker.pod, [resource])
            yield f"too little {resource} is left ({_nodes(count)})", f"{less}, or add nodes."
            continue
        most, largest = max((allocatable(node).get(resource, 0.0), name(node)) for node in usable)
        if most == 0.0:
            yield f"no usable node has {resource}", f"Add nodes with {resource}, or do not ask for it."
        elif _need(asker.pod, resource) > most:
            figures = f"most: {figure(resource, most)}, node {largest}"
            fitting = f"{figure(resource, most)} {_field(resource)} in {whose(asker.pod)}"
            yield (
                f"no usable node has so much {resource} ({figures})",
                f"Ask for at most {fitting}, or add larger nodes.",
            )
        else:
            scarce.append(resource)
    if scarce:
        yield _scarce(asker, usable, scarce)


def _resource(words: str) -> str:
    """KindAndName resource a node lacks; empty if it is something else."""
    if words.startswith("Too many pods"):
        return "pods"
    return words.removeprefix("Insufficient ") if words.startswith("Insufficient ") else ""


def _need(pod: Object, resource: str) -> float:
    return 1.0 if resource == "pods" else asked(pod).get(resource, 0.0)


def _scarce(asker: _Asker, usable: list[Object], resources: list[str]) -> _Said:
    """Nodes are large enough, but taken. We see our own pods only: others may have what seems to be left."""
    fits = [n for n in usable if all(_left(asker, n, r) >= _need(asker.pod, r) for r in resources)]
    best = sorted(usable, key=lambda node: -_left(asker, node, resources[0]))[:2]
    figures = "; ".join(f"node {name(node)}: {_rest(asker, node, resources)}" for node in best)
    others = "; pods of others take the rest" if fits else ""
    hint = f"Use fewer workers, {_ask_for_less(asker.pod, resources, start='ask')}, or add nodes."
    return f"too little {' and '.join(resources)} is left (at most, {figures}{others})", hint


def _rest(asker: _Asker, node: Object, resources: list[str]) -> str:
    room = allocatable(node)
    return ", ".join(f"{figure(r, _left(asker, node, r))} of {figure(r, room.get(r, 0.0))} {r}" for r in resources)


def _left(asker: _Asker, node: Object, resource: str) -> float:
    """At most: we see the pods of our own cluster only."""
    ours = taken(asker.others, name(node)).get(resource, 0.0)
    return max(0.0, allocatable(node).get(resource, 0.0) - ours)


def _ask_for_less(pod: Object, resources: list[str], start: str = "Ask") -> str:
    fields = [_field(resource) for resource in resources if resource != "pods"]
    return f"{start} for less {' and '.join(fields)} in {whose(pod)}" if fields else f"{start} for fewer pods"


def _field(resource: str) -> str:
    """As the description calls it."""
    known = {"cpu": "`cpu`", "memory": "`memory`"}
    return known.get(resource, "`gpu`" if resource.endswith("/gpu") else resource)


def _is_kept_behind_taint(asker: _Asker) -> bool:
    """It asks for what only a tainted node has, as GPUs often are."""
    tainted = [node for node in _tainted(asker) if _selected(asker.pod, node)]
    special = [r for r in asked(asker.pod) if not any(allocatable(node).get(r) for node in _usable(asker))]
    return any(allocatable(node).get(resource) for node in tainted for resource in special)


def _usable(asker: _Asker) -> list[Object]:
    nodes = asker.nodes or ()
    return [node for node in nodes if not _untolerated(asker.pod, node) and _selected(asker.pod, node)]


# taints


def _taints(asker: _Asker) -> Iterable[_Said]:
    tainted = _tainted(asker)
    if tainted and any("taint" in words or "unschedulable" in words for _, words in asker.parts):
        yield from _by_taint(asker.pod, tainted)
        return
    for count, words in asker.parts:
        if "untolerated taint" in words:
            match = _TAINT.search(words)
            which = match[1].replace(": ", "=").strip("= ") if match else ""
            reason = f"{_nodes(count)}: taint{f' {which}' if which else ''} is not tolerated"
            yield reason, _tolerate(asker.pod, which.partition("=")[0])
        elif "were unschedulable" in words:
            yield f"{_nodes(count)}: no new pods are let in", "Let them: `kubectl uncordon NODE`."


def _by_taint(pod: Object, nodes: Sequence[Object]) -> Iterable[_Said]:
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for taint in _untolerated(pod, node):
            written = f"{taint['key']}={taint['value']}" if taint.get("value") else str(taint["key"])
            found.setdefault((taint["key"], f"{written}:{taint['effect']}"), []).append(name(node))
    for (key, written), names in found.items():
        listed = f"node{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        if key == _CORDONED:
            yield f"{listed}: no new pods are let in", f"Let them in: `kubectl uncordon {names[0]}`."
        elif key.startswith(_ILL):
            what = key.removeprefix(_ILL)
            yield f"{listed}: {what}", f"Look at the node: `kubectl describe node {names[0]}`."
        else:
            yield f"{listed}: taint {written} is not tolerated", _tolerate(pod, key)


def _tolerate(pod: Object, key: str) -> str:
    toleration = f"{{key: {key or 'KEY'}, operator: Exists}}"
    return f"Let {whose(pod)} tolerate it: `pod: {{spec: {{tolerations: [{toleration}]}}}}`."


def _tainted(asker: _Asker) -> list[Object]:
    return [node for node in asker.nodes or () if _untolerated(asker.pod, node)]


def _untolerated(pod: Object, node: Object) -> list[Mapping[str, Any]]:
    taints = node.get("spec", {}).get("taints") or ()
    tolerations = pod["spec"].get("tolerations") or ()
    return [
        taint for taint in taints
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not any(_tolerates(t, taint) for t in tolerations)
    ]  # fmt: skip


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))


# selectors, rules, volumes


def _selected(pod: Object, node: Object) -> bool:
    has = node["metadata"].get("labels") or {}
    return all(has.get(key) == value for key, value in (pod["spec"].get("nodeSelector") or {}).items())


def _other(asker: _Asker) -> Iterable[_Said]:
    for count, words in asker.parts:
        if "didn't match Pod's node affinity/selector" in words:
            yield _selector(asker, count)
        elif "affinity rules" in words or "topology spread" in words:
            rule = "topology spread constraints" if "topology spread" in words else "affinity rules"
            yield f"its {rule} exclude {_nodes(count)}", "Add nodes, use fewer workers, or loosen that rule."
        elif "free ports" in words:
            yield f"its host port is taken ({_nodes(count)})", "Do not use hostPort, or add nodes."
        elif "olume" in words:
            yield _volume(asker, words)


def _selector(asker: _Asker, count: int) -> _Said:
    wanted = [f"{key}={value}" for key, value in (asker.pod["spec"].get("nodeSelector") or {}).items()]
    if not wanted:
        return f"its node affinity excludes {_nodes(count)}", "Correct the affinity of the pod, or label a node."
    written = ",".join(wanted)
    has_any = any(_selected(asker.pod, node) for node in asker.nodes or ())
    reason = (
        f"no node has the label {written}"
        if asker.nodes and not has_any
        else f"{_nodes(count)} without the label {written}"
    )
    return reason, f"Correct its nodeSelector, or label a node: `kubectl label node NODE {written.replace(',', ' ')}`."


def _volume(asker: _Asker, words: str) -> _Said:
    claim = _CLAIM.search(words)
    names = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in asker.pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]
    if claim:
        reason = f"PersistentVolumeClaim {claim[1]} does not exist in namespace {asker.namespace}"
        return reason, "Create it, or correct its name in the pod's volumes."
    listed = " ".join(["PersistentVolumeClaim", ", ".join(names)]).strip()
    hint = f"See why: `kubectl describe {' '.join(['pvc', *names])} -n {asker.namespace}`."
    if "unbound" in words:
        return f"no volume has been found for its {listed}", hint
    return f"{words.removeprefix('node(s) ')} ({listed})", hint
