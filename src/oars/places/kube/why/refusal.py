"""The API server said no to us: which right is missing, what is wrong with the object, what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from oars.model import Cause
from oars.places.kube.why.admission import explain, fields
from oars.places.kube.why.facts import Snapshot, sentence_end

_RIGHT = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) (?:resource|path) "(?P<resource>[^"]*)"'
    r'(?: in API group "(?P<group>[^"]*)")?'
    r'(?: in the namespace "(?P<namespace>[^"]*)"| at the cluster scope)?'
)
_GRANT = re.compile(r'user "(?P<user>[^"]*)".* attempting to grant RBAC permissions not currently held', re.DOTALL)
_HELD = re.compile(r"\{(APIGroups:.*?)\}(?:\n|$)")
_LIST = re.compile(r"(\w+):(\[[^\]]*\])")
_NAMESPACE = re.compile(r'namespaces? "([^"]+)" not found')
_IN = re.compile(r'in (?:the )?namespace "?([\w-]+)"?')


def refusal(error_status: int, reason: str, message: str, details: Mapping[str, Any]) -> Cause:
    """An answer of the API server that is not a yes, as a cause."""
    right = _RIGHT.search(message)
    if right:
        return _right_missing(right)
    grant = _GRANT.search(message)
    if grant:
        return _may_not_grant(grant, message)
    where = _IN.search(message)
    said = explain(message, where[1] if where else "", Snapshot())
    if said:
        return Cause(said.reason, f"{_object(details)} was refused: {said.words}.", said.hint)
    return _by_code(error_status, reason, message, details)


def _right_missing(right: re.Match[str]) -> Cause:
    resource, group, namespace = right["resource"], right["group"], right["namespace"]
    where = f"in namespace {namespace}" if namespace else "in the whole cluster"
    of = f" of API group {group}" if group else ""
    kind = f"Role in namespace {namespace}" if namespace else "ClusterRole"
    rule = _rule([group or ""], [resource], [right["verb"]])
    hint = (
        f"Add this rule to a {kind} that is bound to {right['user']}: `{rule}`. `oars rbac` prints all that is needed."
    )
    message = f"{right['user']} may not {right['verb']} {resource}{of} {where}."
    return Cause("RightMissing", message, hint)


def _rule(groups: list[str], resources: list[str], verbs: list[str]) -> str:
    written = (", ".join(f'"{word}"' for word in words) for words in (groups, resources, verbs))
    return "- {{apiGroups: [{}], resources: [{}], verbs: [{}]}}".format(*written)


def _may_not_grant(grant: re.Match[str], message: str) -> Cause:
    """Kubernetes lets nobody grant what they do not have."""
    rules = []
    for held in _HELD.findall(message):
        lists = {key: value for key, value in _LIST.findall(held)}
        names = f", resourceNames: {lists['ResourceNames']}" if "ResourceNames" in lists else ""
        rules.append(
            f"- {{apiGroups: {lists.get('APIGroups', '[]')}, resources: {lists.get('Resources', '[]')}{names}, "
            f"verbs: {lists.get('Verbs', '[]')}}}"
        )
    listed = " ".join(f"`{rule}`" for rule in rules)
    hint = f"Bind a Role with these rules to {grant['user']}: {listed}." if rules else "`oars rbac` prints all rules."
    return Cause("RightMissing", f"{grant['user']} may not grant rights that are not theirs.", hint)


def _object(details: Mapping[str, Any]) -> str:
    kind, name = details.get("kind", ""), details.get("name", "")
    return f"{kind}/{name}" if kind and name else kind or name or "The request"


def _by_code(status: int, reason: str, message: str, details: Mapping[str, Any]) -> Cause:
    what, words = _object(details), sentence_end(message)
    namespace = _NAMESPACE.search(message)
    if status == 404 and namespace:
        hint = f"Create it (`kubectl create namespace {namespace[1]}`), or say `namespace: {{create: true}}`."
        return Cause("NamespaceMissing", f"Namespace {namespace[1]} does not exist.", hint)
    if status == 404 and not details.get("name"):
        hint = "Install it (for ComputeClusters: `oars operator install`), or use a server that has it."
        return Cause("KindMissing", "The API server does not know this kind of object.", hint)
    if status == 409:
        return _conflict(reason, what, words, details)
    if status in (400, 422):
        hint = "Correct the fields that are named; those below `pod` are passed on as they are."
        wrong = "; ".join(fields(details)) or words
        return Cause("Invalid", f"{what} was refused: {wrong}.", hint)
    todos = {
        401: ("Unauthorized", "The credentials of the kubeconfig are refused: log in anew."),
        403: ("Forbidden", "`oars rbac` prints the rights that Oars needs; else ask whoever runs the cluster."),
        404: ("NotFound", "Somebody has deleted it; it is made again where that is possible."),
        413: ("TooLarge", "Make the description smaller: one object may have about 1.5 MB."),
        429: ("TooManyRequests", "The API server is busy; it is tried again."),
    }
    word, hint = todos.get(
        status, (reason or "ServerError", "It is tried again; look at the API server if this stays.")
    )
    return Cause(word, f"The API server answered {status}: {words}.", hint)


def _conflict(reason: str, what: str, words: str, details: Mapping[str, Any]) -> Cause:
    if reason == "AlreadyExists":
        return Cause("AlreadyExists", f"{what} exists already.", "Choose another name, or delete it.")
    if any("FieldManagerConflict" in str(cause.get("reason")) for cause in details.get("causes") or ()):
        hint = "Let only one program set these fields."
        return Cause("FieldConflict", f"Another program sets the same fields: {'; '.join(fields(details))}.", hint)
    return Cause("Conflict", f"{what} was changed by somebody else meanwhile: {words}.", "It is tried again.")
