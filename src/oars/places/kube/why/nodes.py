"""Pods that cannot be scheduled: the scheduler's message, made exact with what is known about the nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oars.places.kube.names import Object
from oars.places.kube.state.observe import condition
from oars.places.kube.why.facts import Finding, Severity, Snapshot, name, spec_section, strip_period
from oars.places.kube.why.quantities import allocatable, pod_requests, show, used

# "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). preemption: …"
_MESSAGE = re.compile(r"\d+/(\d+) nodes are available: (.*?)\.(?:\s|$)", re.DOTALL)
_PART = re.compile(r"\s*(?:(\d+) )?([^,{]+(?:\{[^}]*\})?[^,{]*)")
_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" (?:not found|is being deleted)')
_TAINT = re.compile(r"untolerated taint \{([^}]*)\}")
_NODE_CONDITION = "node.kubernetes.io/"  # taints of unhealthy nodes; tolerating them does not help
_CORDONED = "node.kubernetes.io/unschedulable"

_Reason = tuple[str, str]  # why a node does not fit, and the hint


@dataclass(frozen=True)
class _Case:
    """A pod without a node."""

    pod: Object
    parts: Sequence[tuple[int, str]]  # the scheduler's message: number of nodes, reason
    nodes: Sequence[Object]  # empty if unknown
    pods: Sequence[Object]  # of the same cluster
    namespace: str

    @property
    def usable(self) -> list[Object]:
        return [node for node in self.nodes if not _untolerated(self.pod, node) and _is_selected(self.pod, node)]

    @property
    def tainted(self) -> list[Object]:
        return [node for node in self.nodes if _untolerated(self.pod, node)]


def find(snapshot: Snapshot, pod: Object, namespace: str) -> Finding | None:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") != "False" or pod["spec"].get("nodeName"):
        return None
    message = str(scheduled.get("message", ""))
    if scheduled.get("reason") == "SchedulingGated":
        text = "cannot be scheduled until another program removes its scheduling gate"
        hint = "Check the program that sets `schedulingGates`, usually a job queue."
        return Finding(Severity.NODE, "SchedulingGated", text, hint)
    if snapshot.nodes == [] or message.startswith("no nodes available"):
        reasons = [("the cluster has no nodes", "Add a node, or wait if nodes are added automatically.")]
    else:
        match = _MESSAGE.match(message)
        parts = [(int(count or 0), text.strip()) for count, text in _PART.findall(match[2] if match else "")]
        case = _Case(pod, [part for part in parts if part[1]], snapshot.nodes or (), snapshot.pods, namespace)
        taints, others = [*_taints(case)], [*_insufficient(case), *_other(case)]
        reasons = [*taints, *others] if _needs_tainted_node(case) else [*others, *taints]
        reasons = reasons or [(strip_period(message), f"Run `kubectl describe pod {name(pod)} -n {namespace}`.")]
    texts = "; ".join(text for text, _ in reasons)
    requests = ", ".join(f"{show(resource, value)} {resource}" for resource, value in sorted(pod_requests(pod).items()))
    text = f"found no node{f' for {requests}' if requests else ''}: {texts}"
    return Finding(Severity.NODE, "Unschedulable", text, " Or: ".join(hint for _, hint in reasons[:2]), merge_key=texts)


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes != 1 else ''}"


# resources


def _insufficient(case: _Case) -> Iterable[_Reason]:
    usable, requests, exhausted = case.usable, {**pod_requests(case.pod), "pods": 1.0}, []
    for count, text in case.parts:
        resource = "pods" if text.startswith("Too many pods") else text.removeprefix("Insufficient ")
        if resource == text:
            continue
        if not usable:
            less = _request_less(case, [resource])
            yield f"too little {resource} is free ({_count(count)})", f"{less[0].upper()}{less[1:]}, or add nodes."
            continue
        most, largest = max((allocatable(node).get(resource, 0.0), name(node)) for node in usable)
        if most == 0.0:
            yield f"no usable node has {resource}", f"Add nodes with {resource}, or do not request it."
        elif requests.get(resource, 0.0) > most:
            limit = f"{show(resource, most)} {_field(resource)} in {spec_section(case.pod)}"
            text = f"no usable node has so much {resource} (most: {show(resource, most)}, node {largest})"
            yield text, f"Request at most {limit}, or add larger nodes."
        else:
            exhausted.append(resource)
    if exhausted:
        yield _exhausted(case, exhausted, requests)


def _exhausted(case: _Case, resources: list[str], requests: Mapping[str, float]) -> _Reason:
    """The nodes are large enough, but other pods use them. Only this cluster's pods are known: at most that much is
    free."""
    figures, fits = [], False
    for node in case.usable:
        total, taken = allocatable(node), used(case.pods, node)
        free = {r: max(0.0, total.get(r, 0.0) - taken.get(r, 0.0)) for r in resources}
        fits = fits or all(free[r] >= requests.get(r, 0.0) for r in resources)
        listed = ", ".join(f"{show(r, free[r])} of {show(r, total.get(r, 0.0))} {r}" for r in resources)
        figures.append((-free[resources[0]], f"node {name(node)}: {listed}"))
    best = "; ".join(text for _, text in sorted(figures, key=lambda figure: figure[0])[:2])
    others = "; pods of other owners use the rest" if fits else ""
    text = f"too little {' and '.join(resources)} is free (at most {best}{others})"
    return text, f"Use fewer workers, {_request_less(case, resources)}, or add nodes."


def _request_less(case: _Case, resources: list[str]) -> str:
    fields = [_field(resource) for resource in resources if resource != "pods"]
    return f"request less {' and '.join(fields)} in {spec_section(case.pod)}" if fields else "use fewer workers"


def _field(resource: str) -> str:
    """The field of the cluster spec that requests a resource."""
    if resource in ("cpu", "memory"):
        return f"`{resource}`"
    return "`gpu`" if resource.endswith("/gpu") else resource


# taints


def _needs_tainted_node(case: _Case) -> bool:
    """True if only a tainted node has a requested resource, often a GPU: the taint is the main reason then."""
    tainted = [node for node in case.tainted if _is_selected(case.pod, node)]
    usable = case.usable
    missing = [r for r in pod_requests(case.pod) if not any(allocatable(node).get(r) for node in usable)]
    return any(allocatable(node).get(resource) for node in tainted for resource in missing)


def _taints(case: _Case) -> Iterable[_Reason]:
    tainted = case.tainted
    if tainted and any("taint" in text or "unschedulable" in text for _, text in case.parts):
        yield from _node_taints(case.pod, tainted)
        return
    for count, text in case.parts:
        if "untolerated taint" in text:
            match = _TAINT.search(text)
            taint = match[1].replace(": ", "=").strip("= ") if match else ""
            listed = f"{_count(count)}: taint{f' {taint}' if taint else ''} is not tolerated"
            yield listed, _tolerate(case.pod, taint.partition("=")[0])
        elif "were unschedulable" in text:
            yield (
                f"{_count(count)}: cordoned",
                "Run `kubectl get nodes`, then `kubectl uncordon` for one of those with SchedulingDisabled.",
            )


def _node_taints(pod: Object, nodes: Sequence[Object]) -> Iterable[_Reason]:
    found: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        for taint in _untolerated(pod, node):
            value = f"={taint['value']}" if taint.get("value") else ""
            found.setdefault((taint["key"], f"{taint['key']}{value}:{taint['effect']}"), []).append(name(node))
    for (key, written), names in found.items():
        listed = f"node{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        if key == _CORDONED:
            yield f"{listed}: cordoned", f"Run `kubectl uncordon {names[0]}`."
        elif key.startswith(_NODE_CONDITION):
            yield f"{listed}: {key.removeprefix(_NODE_CONDITION)}", f"Run `kubectl describe node {names[0]}`."
        else:
            yield f"{listed}: taint {written} is not tolerated", _tolerate(pod, key)


def _tolerate(pod: Object, key: str) -> str:
    if not key:
        return f"Add tolerations to `pod` of {spec_section(pod)}; `kubectl describe nodes` shows the taints."
    toleration = f"{{key: {key}, operator: Exists}}"
    return f"Add a toleration to {spec_section(pod)}: `pod: {{spec: {{tolerations: [{toleration}]}}}}`."


def _untolerated(pod: Object, node: Object) -> list[Mapping[str, Any]]:
    tolerations = pod["spec"].get("tolerations") or ()
    taints = [t for t in node.get("spec", {}).get("taints") or () if t.get("effect") in ("NoSchedule", "NoExecute")]
    return [taint for taint in taints if not any(_tolerates(each, taint) for each in tolerations)]


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    for field in ("effect", "key"):
        if toleration.get(field) and toleration[field] != taint.get(field):
            return False
    return toleration.get("operator") == "Exists" or bool(toleration.get("value", "") == taint.get("value", ""))


# labels, affinity, ports, volumes


def _is_selected(pod: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (pod["spec"].get("nodeSelector") or {}).items())


def _other(case: _Case) -> Iterable[_Reason]:
    for count, text in case.parts:
        if "didn't match Pod's node affinity/selector" in text:
            yield _selector(case, count)
        elif "affinity rules" in text or "topology spread" in text:
            rule = "topology spread constraints" if "topology spread" in text else "affinity rules"
            yield f"its {rule} exclude {_count(count)}", "Add nodes, use fewer workers, or relax the rule."
        elif "free ports" in text:
            yield f"its host port is in use ({_count(count)})", "Do not use hostPort, or add nodes."
        elif "olume" in text:
            yield _volume(case, text)


def _selector(case: _Case, count: int) -> _Reason:
    selector = case.pod["spec"].get("nodeSelector") or {}
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    if not labels:
        return f"its node affinity excludes {_count(count)}", "Correct the affinity of the pod, or label a node."
    if case.nodes and not any(_is_selected(case.pod, node) for node in case.nodes):
        command = f"kubectl label node {name(case.nodes[0])} {labels.replace(',', ' ')}"
        return f"no node has the label {labels}", f"Correct its nodeSelector, or label a node, for example `{command}`."
    text = f"{_count(count)} without the label {labels}"
    return text, f"Correct its nodeSelector, or add the label {labels} to a node."


def _volume(case: _Case, text: str) -> _Reason:
    if missing := _CLAIM.search(text):
        reason = f"PersistentVolumeClaim {missing[1]} does not exist in namespace {case.namespace}"
        return reason, "Create it, or correct its name in the pod's volumes."
    volumes = case.pod["spec"].get("volumes") or ()
    claims = [each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each]
    listed = f"PersistentVolumeClaim {', '.join(claims)}".strip()
    hint = f"Run `kubectl describe {' '.join(['pvc', *claims])} -n {case.namespace}`."
    if "unbound" in text:
        return f"its {listed} is not bound to a volume", hint
    return f"{text.removeprefix('node(s) ')} ({listed})", hint
