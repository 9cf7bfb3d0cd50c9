"""What the last lines of a pod's log mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oars.model import LogPattern
from oars.plan.logs import LogMeaning, explain_log

_DNS = re.compile(
    r"Name or service not known|Temporary failure in name resolution|No address associated with hostname|"
    r"Name does not resolve|DNS resolution failed|Could not resolve host|no such host"
)
_HOST = re.compile(r"\w+://([A-Za-z][\w.-]*)|DNS resolution failed for ([\w.-]+)")


def explain_pod_log(lines: Sequence[str], patterns: Sequence[LogPattern], namespace: str) -> LogMeaning | None:
    """The meaning of the lines, by the engine's patterns, general ones, and failed DNS lookups."""
    meaning = explain_log(lines, patterns)
    if meaning and meaning.reason:
        return meaning
    text = "\n".join(lines)
    return _dns(text, namespace) if _DNS.search(text) else meaning


def _dns(text: str, namespace: str) -> LogMeaning:
    host = next((found[1] or found[2] for found in _HOST.finditer(text)), "")
    hint = (
        "Check that the cluster's DNS runs (`kubectl get pods -n kube-system -l k8s-app=kube-dns`) "
        f"and that the Service exists (`kubectl get service -n {namespace}`)."
    )
    return LogMeaning(f"DNS cannot resolve the name {host or 'of the head'}", hint, "NoDns")
