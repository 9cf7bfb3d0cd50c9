"""A change of the spec that replaces the head, before it happens. Pure."""

from __future__ import annotations

from oars.model import HEAD, Cause, Desired
from oars.places.kube import names
from oars.places.kube.render.replacement import head_replacement
from oars.plan.why import HEAD_OUTDATED, HEAD_REPLACING

MAX_FIELDS = 3
COST = "Running work and all data of the cluster are lost."


def replacing(former: Desired | None, desired: Desired) -> Cause:
    """The announcement. `former`: what the running head was rendered from, if known."""
    message = f"The head is about to be replaced because the spec changed{_fields(former, desired)}. {COST}"
    return Cause(HEAD_REPLACING, message, "To hold such changes back, set `head.update` to OnDelete.", (), (HEAD,))


def outdated(former: Desired | None, desired: Desired) -> Cause:
    """The change is held back."""
    message = f"The head and the workers run with an older spec{_fields(former, desired)}: head.update is OnDelete."
    pods = f"-l {names.selector(names.pod_labels(desired.name))}"
    hint = f"To replace them now, run `kubectl delete pod {pods} -n {desired.namespace}`. {COST}"
    return Cause(HEAD_OUTDATED, message, hint)


def _fields(former: Desired | None, desired: Desired) -> str:
    lines = head_replacement(former, desired) if former is not None else ()
    paths = [line.partition(": ")[0] for line in lines or ()]
    more = ", …" if len(paths) > MAX_FIELDS else ""
    return f" ({', '.join(paths[:MAX_FIELDS])}{more})" if paths else ""
