"""What Kueue's Workload says about an attempt, and what the operator writes to it. Pure but for the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from oars.places.kube.names import Object
from oars.places.kube.render.workload import Placement

FINISHED = "Finished"
PODS_READY = "PodsReady"
_RESERVED, _ADMITTED, _EVICTED = "QuotaReserved", "Admitted", "Evicted"


def is_true(workload: Object, kind: str) -> bool:
    return condition(workload, kind).get("status") == "True"


def condition(workload: Object, kind: str) -> Object:
    found = (workload.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind), {})


def with_condition(workload: Object, kind: str, reason: str, message: str) -> Object:
    """A patch of the status that keeps the conditions of others, for this version of the Workload only."""
    metadata = workload["metadata"]
    fresh = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": metadata["generation"],
    }
    present = (workload.get("status") or {}).get("conditions") or ()
    return {
        "metadata": {"resourceVersion": metadata["resourceVersion"]},
        "status": {"conditions": [*(each for each in present if each["type"] != kind), fresh]},
    }


def is_admitted(workload: Object) -> bool:
    return is_true(workload, _ADMITTED) and not eviction(workload)


def is_active(workload: Object) -> bool:
    return workload["spec"].get("active") is not False


def eviction(workload: Object | None) -> str:
    """Why the attempt that was admitted must stop; empty: it may go on."""
    if workload is None:
        return "Its Workload was deleted."
    name = workload["metadata"]["name"]
    if is_true(workload, _EVICTED):
        found = condition(workload, _EVICTED)
        return f"Kueue evicted Workload {name} ({found.get('reason', 'Evicted')}): {found.get('message', '')}".strip()
    if not is_active(workload):
        return f"Workload {name} was deactivated."
    if is_true(workload, FINISHED):
        return f"Workload {name} is finished."
    if not is_true(workload, _RESERVED):
        return f"Workload {name} has lost its quota."
    return ""


def waiting(workload: Object) -> tuple[str, str]:
    """Reason and message of an attempt that is not admitted."""
    name, queue = workload["metadata"]["name"], workload["spec"].get("queueName", "")
    if not is_active(workload):
        how = f'`kubectl patch workload {name} --type merge -p \'{{"spec":{{"active":true}}}}\'`'
        return "QueueDeactivated", f"Workload {name} is deactivated. Activate it with {how}."
    if is_true(workload, _RESERVED):
        pending = [each["name"] for each in checks(workload) if each.get("state") != "Ready"]
        return "QueueChecks", f"Queue {queue} has reserved quota. Admission checks are pending: {', '.join(pending)}."
    found = condition(workload, _RESERVED).get("message", "")
    return "QueueWaiting", f"Workload {name} waits in queue {queue}. {found}".strip()


def checks(workload: Object) -> Sequence[Object]:
    return (workload.get("status") or {}).get("admissionChecks") or ()


def flavors(workload: Object) -> dict[str, list[str]]:
    """The resource flavors of each set of pods."""
    admission = (workload.get("status") or {}).get("admission") or {}
    return {
        each.get("name", "main"): list(dict.fromkeys((each.get("flavors") or {}).values()))
        for each in admission.get("podSetAssignments") or ()
    }


def placements(workload: Object, known: Mapping[str, Object]) -> dict[str, Placement]:
    """What admission adds to each set of pods. known: the ResourceFlavors by name."""
    found = {}
    for name, assigned in flavors(workload).items():
        selector: dict[str, str] = {}
        tolerations: list[Object] = []
        labels: dict[str, str] = {}
        annotations: dict[str, str] = {}
        for flavor in assigned:
            spec = known[flavor].get("spec") or {}
            selector |= spec.get("nodeLabels") or {}
            tolerations += spec.get("tolerations") or ()
        for check in checks(workload):
            for update in check.get("podSetUpdates") or ():
                if update["name"] == name:
                    selector |= update.get("nodeSelector") or {}
                    tolerations += update.get("tolerations") or ()
                    labels |= update.get("labels") or {}
                    annotations |= update.get("annotations") or {}
        found[name] = Placement(selector, tuple(tolerations), annotations, labels)
    return found
