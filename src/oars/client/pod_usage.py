"""What the members of a cluster use, as the metrics API of Kubernetes says."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from oars.client.backend import Usage
from oars.client.operator_client import if_allowed
from oars.kube.client import Client
from oars.kube.kinds import POD_METRICS, Object
from oars.places.kube import names

_UNITS = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1)}
_UNITS |= {unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)}
_UNITS |= {unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)}


async def read(client: Client, name: str, namespace: str, pods: Mapping[str, str]) -> dict[str, Usage] | None:
    """Of each member that was measured. `pods`: the member of each pod. None: the metrics API is not served here, or we
    may not read it."""
    selector = names.selector({names.CLUSTER: name})
    found = await if_allowed(client.list(POD_METRICS, namespace, labels=selector))
    if found is None:
        return None
    by_pod = {each["metadata"]["name"]: each for each in found.items}
    return {member: usage_of(by_pod[pod]) for pod, member in pods.items() if pod in by_pod}


def usage_of(metrics: Object) -> Usage:
    """Of all containers of a pod."""
    used = [container.get("usage") or {} for container in metrics.get("containers") or ()]
    cpu = sum(quantity(each.get("cpu", "0")) for each in used)
    return Usage(cpu=float(cpu), memory=int(sum(quantity(each.get("memory", "0")) for each in used)))


def quantity(text: str) -> Decimal:
    """A quantity as the metrics API writes it: 1500n, 250m, 2, 1024Ki."""
    number = text.rstrip("numkKMGTPi")
    return Decimal(number) * _UNITS[text[len(number) :]]
