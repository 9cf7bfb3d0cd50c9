"""Errors of the Kubernetes API as causes: which permission is missing, which field is wrong, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oars.base.errors import Denied, OarsError, SpecError
from oars.kube.errors import ApiError, Unreachable, is_denied, shortened
from oars.model import Cause
from oars.places.base import PlaceError
from oars.places.kube.why import admission
from oars.places.kube.why.facts import Snapshot, strip_period
from oars.plan.why import pass_failure

_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) (?:resource|path) "(?P<resource>[^"]*)"'
    r'(?: in API group "(?P<group>[^"]*)")?'
    r'(?: in the namespace "(?P<namespace>[^"]*)"| at the cluster scope)?'
)
_ESCALATION = re.compile(r'user "([^"]*)".* attempting to grant RBAC permissions not currently held', re.DOTALL)
_ESCALATION_RULE = re.compile(r"\{(APIGroups:.*?)\}(?:\n|$)")
_RULE_FIELD = re.compile(r"(?<!\w)(\w+):(\[[^\]]*\])")
_NO_NAMESPACE = re.compile(r'namespaces? "([^"]+)" not found')
_IN_NAMESPACE = re.compile(r'in (?:the )?namespace "?([\w-]+)"?')
# HTTP status: reason and hint. {flag} is " -n x" if the namespace is known.
_BY_STATUS = {
    401: ("Unauthorized", "The API server rejects the credentials in the kubeconfig: log in again."),
    403: ("Forbidden", "`oars rbac{flag}` prints the permissions that Oars needs."),
    404: ("NotFound", "It was deleted; Oars creates it again if it owns it."),
    413: ("TooLarge", "Shorten the spec: an object may have about 1.5 MB."),
    429: ("TooManyRequests", "The API server is overloaded; Oars retries."),
}


class NameConflict(OarsError):
    """An object that we would create exists already and does not belong to the cluster."""

    def __init__(self, kind: str, name: str, namespace: str) -> None:
        article = "An" if kind[0] in "AEIOU" else "A"
        message = f"{article} {kind} {name} that does not belong to this cluster exists in namespace {namespace}."
        command = f"kubectl delete {kind.lower()} {name} -n {namespace}"
        super().__init__(message, f"Rename the cluster or, if nothing uses the {kind}, delete it: `{command}`.")


def cause_of(error: Exception) -> Cause:
    """Why a request or a pass failed."""
    if isinstance(error, ApiError):
        return explain_response(error.status, error.reason, error.message, error.status_details)
    if isinstance(error, NameConflict):
        return Cause("NameTaken", error.message, error.hint)
    if isinstance(error, SpecError):
        return Cause("InvalidSpec", error.message, error.hint)
    if isinstance(error, Unreachable):
        return Cause("ApiServerUnreachable", f"The Kubernetes API server does not respond: {error.message}", error.hint)
    return error.cause if isinstance(error, PlaceError) else pass_failure(error)


def is_about_rbac(error: ApiError) -> bool:
    return str(error.status_details.get("group", "")) == "rbac.authorization.k8s.io"


@contextmanager
def explained() -> Iterator[None]:
    """Turn an error of the API server into a PlaceError with a cause that users understand."""
    try:
        yield
    except (ApiError, NameConflict) as error:
        raise PlaceError(cause_of(error)) from error


@contextmanager
def denied_with_rule() -> Iterator[None]:
    """Raise Denied, with the RBAC rule to add as hint, instead of an ApiError about a missing permission."""
    try:
        yield
    except ApiError as error:
        if not is_denied(error):
            raise
        cause = cause_of(error)
        raise Denied(cause.message, cause.hint) from error


def explain_response(status: int, reason: str, message: str, details: Mapping[str, Any]) -> Cause:
    """The cause for an error response of the API server."""
    if match := _FORBIDDEN.search(message):
        return _forbidden(**match.groupdict(default=""))
    if match := _ESCALATION.search(message):
        return _escalation(match[1], message)
    in_namespace = _IN_NAMESPACE.search(message)
    namespace = in_namespace[1] if in_namespace else ""
    kind, name, text = details.get("kind", ""), details.get("name", ""), strip_period(message)
    subject = f"{kind}/{name}" if kind and name else kind or name or "The request"
    if rejected := admission.explain(message, namespace, Snapshot()):
        return Cause(rejected.reason, f"{subject} was rejected: {rejected.text}.", rejected.hint)
    if status == 404 and (match := _NO_NAMESPACE.search(message)):
        hint = (
            f"Create it (`kubectl create namespace {match[1]}`), or let Oars do it: `--set namespace.create=true`, "
            "in a file `namespace: {create: true}`."
        )
        return Cause("NamespaceMissing", f"Namespace {match[1]} does not exist.", hint)
    if status == 404 and not name:
        hint = "For ComputeClusters, run `oars operator install`; otherwise use a server that supports it."
        return Cause("KindMissing", "The API server does not know this kind of object.", hint)
    if status == 409:
        return _conflict(reason, subject, text, details)
    if status in (400, 422):
        hint = "Correct these fields; Oars passes fields below `pod` on without changes."
        return Cause("Invalid", f"{subject} was rejected: {_fields(details) or text}.", hint)
    default = reason or "ServerError", "Oars retries. If the error persists, check the API server."
    known, hint = _BY_STATUS.get(status, default)
    flag = f" -n {namespace}" if namespace else ""
    return Cause(known, f"The API server answered {status}: {text}.", hint.format(flag=flag))


def _forbidden(user: str, verb: str, resource: str, group: str, namespace: str) -> Cause:
    of_group = f" of API group {group}" if group else ""
    where, role, flag = "in the whole cluster", "ClusterRole", ""
    if namespace:
        where, role, flag = f"in namespace {namespace}", f"Role in namespace {namespace}", f" -n {namespace}"
    rule = f'- {{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}'
    hint = f"Add this rule to a {role} that is bound to {user}: `{rule}`. `oars rbac{flag}` prints all required rules."
    return Cause("RightMissing", f"{user} may not {verb} {resource}{of_group} {where}.", hint)


def _escalation(user: str, message: str) -> Cause:
    """Kubernetes lets users grant only permissions that they have."""
    rules = []
    for rule in _ESCALATION_RULE.findall(message):
        fields = dict(_RULE_FIELD.findall(rule))
        names = f", resourceNames: {fields['ResourceNames']}" if "ResourceNames" in fields else ""
        groups, resources, verbs = (fields.get(key, "[]") for key in ("APIGroups", "Resources", "Verbs"))
        rules.append(f"`- {{apiGroups: {groups}, resources: {resources}{names}, verbs: {verbs}}}`")
    hint = f"Bind a Role with these rules to {user}: {' '.join(rules)}." if rules else "`oars rbac` prints all rules."
    return Cause("RightMissing", f"{user} may not grant permissions that {user} does not have.", hint)


def _conflict(reason: str, subject: str, text: str, details: Mapping[str, Any]) -> Cause:
    if reason == "AlreadyExists":
        return Cause("AlreadyExists", f"{subject} already exists.", "Choose another name, or delete it.")
    if any("FieldManagerConflict" in str(cause.get("reason")) for cause in details.get("causes") or ()):
        hint = "Let only one field manager set these fields."
        return Cause("FieldConflict", f"Another field manager owns the same fields: {_fields(details)}.", hint)
    return Cause("Conflict", f"{subject} was changed at the same time: {text}.", "Oars retries.")


def _fields(details: Mapping[str, Any]) -> str:
    """The fields that a response names, with what is wrong with each."""
    causes = details.get("causes") or ()
    lines = (f"{cause.get('field', '')}: {cause.get('message', '')}".strip(": ") for cause in causes)
    return shortened("; ".join(filter(None, lines)))
