"""What the API server says when it does not let an object in: quotas, limits, policies. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from oars.places.kube.why.amounts import amount
from oars.places.kube.why.facts import Snapshot, name, sentence_end


@dataclass(frozen=True)
class Said:
    """The reason in a word, the reason in words, and what to do."""

    reason: str
    words: str
    hint: str


def explain(message: str, namespace: str, snapshot: Snapshot) -> Said | None:
    """None: the message is about something else."""
    for pattern, said in _SIGNS:
        match = pattern.search(message)
        if match:
            return said(match, namespace, snapshot)
    return None


def _space(namespace: str) -> str:
    """An answer to our own request does not always say which namespace."""
    return f"namespace {namespace}" if namespace else "the namespace"


def _flag(namespace: str) -> str:
    return f" -n {namespace}" if namespace else ""


def _quota(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    quota = match[1]
    asked, used, hard = (_pairs(match[index]) for index in (2, 3, 4))
    now = next((q.get("status", {}).get("used") or {} for q in snapshot.quotas if name(q) == quota), {})
    used = {**used, **{resource: value for resource, value in now.items() if resource in used}}
    full = [r for r in hard if amount(used.get(r)) + amount(asked.get(r)) > amount(hard[r])] or list(hard)
    figures = "; ".join(f"{r}: {asked.get(r)} more asked, {used.get(r)} of {hard[r]} used" for r in full)
    hint = f"Use fewer workers or ask for less, or have the quota raised (`kubectl describe quota{_flag(namespace)}`)."
    return Said("QuotaExceeded", f"quota {quota} of {_space(namespace)} is full ({figures})", hint)


def _pairs(text: str) -> dict[str, str]:
    """'requests.cpu=1,pods=2' → a mapping."""
    return {key: value for key, _, value in (pair.partition("=") for pair in text.split(",")) if key}


def _unnamed(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    resources, container = match[2], match[3]
    kind, _, resource = resources.split(",")[0].partition(".")
    written = f"{{name: {container}, resources: {{{kind}: {{{resource or 'cpu'}: …}}}}}}"
    words = f"quota {match[1]} of {_space(namespace)} wants {resources} to be set for container {container}"
    hint = f"Set it with `pod: {{spec: {{containers: [{written}]}}}}`, or have a LimitRange set a default."
    return Said("QuotaExceeded", words, hint)


def _limit(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    which = ", ".join(name(limit) for limit in snapshot.limit_ranges)
    words = ", ".join(sorted(_LIMITS.findall(match.string)))  # the server's order changes from try to try
    hint = f"Ask for what is allowed, or have it changed (`kubectl describe limitrange{_flag(namespace)}`)."
    return Said("LimitRange", f"LimitRange {which + ' ' if which else ''}of {_space(namespace)}: {words}", hint)


def _pod_security(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    hint = (
        "Take out of `pod` what is not allowed, use another namespace, or have its label "
        "pod-security.kubernetes.io/enforce changed."
    )
    words = f"{_space(namespace)} allows only pods of the standard {match[1]}: {sentence_end(match[2])}"
    return Said("PodSecurity", words, hint)


def _webhook_denies(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    hint = "Change what it names, or ask whoever set up that webhook."
    return Said("AdmissionDenied", f"webhook {match[1]} says: {sentence_end(match[2])}", hint)


def _webhook_fails(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    hint = (
        "Whoever set up that webhook must repair or remove it "
        "(`kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`)."
    )
    return Said("WebhookFails", f"webhook {match[1]} does not answer: {sentence_end(match[2])}", hint)


def _policy(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    look = f"kubectl describe validatingadmissionpolicy {match[1]}"
    hint = f"Change what it names, or ask whoever set the policy (`{look}`)."
    return Said("AdmissionDenied", f"policy {match[1]} says: {sentence_end(match[2])}", hint)


def _account(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    words = f"ServiceAccount {match[1]} does not exist in {_space(namespace)}"
    return Said(
        "ServiceAccountMissing", words, f"Create it: `kubectl create serviceaccount {match[1]}{_flag(namespace)}`."
    )


def _priority(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    hint = "Correct priorityClassName (`kubectl get priorityclasses`)."
    return Said("PriorityClassMissing", f"PriorityClass {match[1]} does not exist", hint)


def _ending(match: re.Match[str], namespace: str, snapshot: Snapshot) -> Said:
    hint = "Wait until it is gone, or use another namespace."
    return Said("NamespaceEnding", f"namespace {match[1]} is being deleted", hint)


_LIMITS = re.compile(
    r"(?:maximum|minimum) \S+ usage per \w+ is [^,\]]+?, but [^,\]]+|\S+ max limit to request ratio per [^\]]+"
)
_SIGNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str, Snapshot], Said]], ...] = (
    (re.compile(r"exceeded quota: (\S+), requested: (.*), used: (.*), limited: (\S*)"), _quota),
    (re.compile(r"failed quota: (\S+): must specify (\S+) for: ([\w-]+)"), _unnamed),
    (_LIMITS, _limit),
    (re.compile(r'violates PodSecurity "([^":]+)[^"]*": (.*)', re.DOTALL), _pod_security),
    (re.compile(r'admission webhook "([^"]+)" denied the request(?: without explanation)?:? ?(.*)', re.DOTALL),
     _webhook_denies),
    (re.compile(r'failed calling webhook "([^"]+)": (?:failed to call webhook: )?(.*)', re.DOTALL), _webhook_fails),
    (re.compile(r"ValidatingAdmissionPolicy '([^']+)' .*?denied request: (.*)", re.DOTALL), _policy),
    (re.compile(r'serviceaccount "([^"]+)" not found'), _account),
    (re.compile(r"no PriorityClass with name (\S+) was found"), _priority),
    (re.compile(r"in namespace (\S+) because it is being terminated"), _ending),
)  # fmt: skip


def fields(details: Mapping[str, object]) -> tuple[str, ...]:
    """The fields that an answer names, with what is wrong with each."""
    causes = details.get("causes")
    if not isinstance(causes, list):
        return ()
    lines = (f"{cause.get('field', '')}: {cause.get('message', '')}".strip(": ") for cause in causes)
    return tuple(line for line in lines if line)
