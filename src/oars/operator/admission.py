"""The ValidatingAdmissionPolicies that check authors, and the operator's check that the first of them is there.

An author who sets a field outside of safe_fields.py must have the right to create such objects in the namespace. Only
the API server knows the author, so only a policy can check that. Kubernetes has such policies since 1.30; without one
the operator refuses these fields, unless it trusts all authors.

A ConfigMap of a cluster has the same effect as its spec: in one are the scripts that its pods run, or, in direct mode,
the spec itself, from which the next client that opens the cluster creates pods with its own rights. So a second policy
checks who writes one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import VALIDATING_ADMISSION_POLICY, VALIDATING_ADMISSION_POLICY_BINDING, Object
from oars.model import Cause
from oars.operator import crd
from oars.operator.rbac import RUNS
from oars.operator.safe_fields import (
    ANY,
    AREAS,
    DEPLOYMENTS,
    INGRESSES,
    POSITIVE,
    SIZES,
    Area,
    Each,
    Node,
    Right,
)  # fmt: skip
from oars.places.kube import names

NAME = crd.NAME  # of the policy for ComputeClusters and of its binding
CONFIG_MAPS = f"configmaps.{crd.GROUP}"  # of the policy for ConfigMaps of clusters and of its binding
KINDS = (VALIDATING_ADMISSION_POLICY, VALIDATING_ADMISSION_POLICY_BINDING)
LABELS = {"app.kubernetes.io/name": "oars", "app.kubernetes.io/part-of": "oars"}
PODS = Right("", "pods")
DENY, AUDIT = "Deny", "Audit"
CACHE_SECONDS = 60.0
# The API server enforces a new policy after a second or two. What was created before then may not have been checked.
EFFECTIVE_SECONDS = 5.0


# The policy


def manifests(engine_names: Iterable[str] | None = None, *, trust_authors: bool = False) -> list[Object]:
    """The policies and their bindings. If all authors are trusted, the policies only add annotations to the audit log:
    they stay, so that it is known since when they have been enforced."""
    action = AUDIT if trust_authors else DENY
    policies = (NAME, _cluster_policy(engine_names)), (CONFIG_MAPS, _config_map_policy())
    return [obj for name, spec in policies for obj in (_policy(name, spec), _binding(name, action))]


def mars_job_manifests(*, trust_authors: bool = False) -> list[Object]:
    """The policy for MarsJobs and its binding. They consist of pod templates, so their authors need the right to create
    pods. The operator has a right of its own instead: it copies MarsJobs whose authors were checked."""
    rule = {"apiGroups": list(crd.MARS_JOB_GROUPS), "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"]}
    is_same = "request.operation == 'UPDATE' && object.spec == oldObject.spec"
    is_run = f"request.operation == 'CREATE' && {_is_allowed(Right(*RUNS))}"
    validations = []
    for right, when in ((PODS, "true"), (INGRESSES, "has(object.spec.webHost)")):
        message = f"to create or change this MarsJob you need the right to create {_resource(right)} in its namespace"
        expression = f"!({when}) || ({is_same}) || ({is_run}) || {_is_allowed(right)}"
        validations.append({"expression": expression, "reason": "Forbidden", "message": message})
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{**rule, "resources": [crd.MARS_JOB_PLURAL]}]},
        "validations": validations,
    }
    name, action = crd.MARS_JOB_POLICY, AUDIT if trust_authors else DENY
    return [_policy(name, spec), _binding(name, action)]


def _cluster_policy(engine_names: Iterable[str] | None) -> Object:
    rule = {"apiGroups": [crd.GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"]}
    fixed = _fixed_fields(engine_names)
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{**rule, "resources": [crd.PLURAL]}]},
        "variables": [
            *({"name": area.name, "expression": restricted_expression(area)} for area in AREAS),
            *({"name": f"{area.name}Unchanged", "expression": _unchanged(area, fixed)} for area in AREAS),
        ],
        "validations": [_validation(area) for area in AREAS],
    }


def _config_map_policy() -> Object:
    """The selector matches if the old or the new object has the label. Owners and finalizers are free: the garbage
    collector changes them."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}
    same = (
        *(_same("object", "oldObject", field) for field in ("data", "binaryData")),
        *(_same("object.metadata", "oldObject.metadata", field) for field in ("labels", "annotations")),
    )
    unchanged = " && ".join(("request.operation == 'UPDATE'", *same))
    need = f"to write a ConfigMap of a cluster, you need the right to create {_resource(DEPLOYMENTS)}"
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [rule],
            "objectSelector": {"matchExpressions": [{"key": names.CLUSTER, "operator": "Exists"}]},
        },
        "validations": [{
            "expression": f"({unchanged}) || {_is_allowed(DEPLOYMENTS)}",
            "message": need,
            "reason": "Forbidden",
        }],
    }  # fmt: skip


def _policy(name: str, spec: Object) -> Object:
    return {
        "apiVersion": VALIDATING_ADMISSION_POLICY.api_version,
        "kind": VALIDATING_ADMISSION_POLICY.kind,
        "metadata": {"name": name, "labels": LABELS},
        "spec": spec,
    }


def _binding(name: str, action: str) -> Object:
    return {
        "apiVersion": VALIDATING_ADMISSION_POLICY_BINDING.api_version,
        "kind": VALIDATING_ADMISSION_POLICY_BINDING.kind,
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"policyName": name, "validationActions": [action]},
    }


def _resource(right: Right) -> str:
    return f"{right.resource}.{right.group}" if right.group else right.resource


def _is_allowed(right: Right) -> str:
    check = f"authorizer.group('{right.group}').resource('{right.resource}').namespace(request.namespace)"
    return f"{check}.check('create').allowed()"


def _validation(area: Area) -> Object:
    found = f"variables.{area.name}"
    what = _resource(area.right)
    need = f"to set these fields, or to change what runs with them, you need the right to create {what}"
    return {
        "expression": f"{found} == '' || {found}Unchanged || {_is_allowed(area.right)}",
        "reason": "Forbidden",
        "message": f"{area.path}: {need}",
        "messageExpression": f"{found}.trim().replace(' ', ', ') + ': {need} in namespace ' + request.namespace",
    }


def restricted_expression(area: Area) -> str:
    """CEL: the paths of the restricted fields, separated by spaces; empty if there are none."""
    block = f"object.spec.{area.block}"
    if area.is_list:
        fields = (
            f"{block}.map(e, has(e.{area.field}) ? {_outside(area.safe, f'e.{area.field}', area.path)} : '').join()"
        )
        return f"has({block}) ? {fields} : ''"
    value = f"{block}.{area.field}" if area.field else block
    exists = f"has({block}) && has({value})" if area.field else f"has({block})"
    return f"{exists} ? {_outside(area.safe, value, area.path)} : ''"


def _outside(safe: Node, value: str, path: str, depth: int = 0) -> str:
    """CEL: as safe_fields.outside, with a space after each path. `value` is an expression that is not null."""
    if safe is ANY:
        return "''"
    refused = _text(f"{path} ")
    if safe is POSITIVE:
        return f"(type({value}) == int && {value} > 0 ? '' : {refused})"
    if isinstance(safe, tuple):
        return f"({value} in {json.dumps(safe)} ? '' : {refused})"
    if isinstance(safe, Each):
        entry = f"e{depth}"
        below = _outside(safe.entry, entry, f"{path}[]", depth + 1)
        if safe.needs:
            lacks = f"type({entry}) == map && (!('{safe.needs}' in {entry}) || {entry}['{safe.needs}'] == null)"
            below = f"({lacks} ? {_text(f'{path}[].{safe.needs} ')} : '') + {below}"
        return f"(type({value}) == list ? {value}.map({entry}, {entry} == null ? '' : {below}).join() : {refused})"
    assert isinstance(safe, Mapping)
    key = f"k{depth}"
    free = [name for name, node in safe.items() if node is ANY]
    text = f"{value}[{key}] == null ? '' : "
    text += f"{key} in {json.dumps(free)} ? '' : " if free else ""
    for name, node in safe.items():
        if node is not ANY:
            text += f"{key} == {_text(name)} ? {_outside(node, f'{value}[{key}]', f'{path}.{name}', depth + 1)} : "
    text += f"{_text(f'{path}.')} + {key} + ' '"
    return f"(type({value}) == map ? {value}.map({key}, {text}).join() : {refused})"


def _text(value: str) -> str:
    return f"'{value}'"


def _fixed_fields(engine_names: Iterable[str] | None) -> dict[str, list[str]]:
    """The fields, by block, that a user without the right must not change: all but the sizes."""
    top = crd.spec_schema(engine_names)["properties"]
    blocks = {"": top, "head": top["head"]["properties"], "workers": top["workers"]["items"]["properties"]}
    return {block: sorted(fields.keys() - SIZES[block]) for block, fields in blocks.items()}


def _unchanged(area: Area, fixed: Mapping[str, Sequence[str]]) -> str:
    """CEL: an update that leaves what runs in this area as it is. `kubectl scale` and the garbage collector change
    clusters whose restricted fields somebody else set."""
    now, old = f"object.spec.{area.block}", f"oldObject.spec.{area.block}"
    if not area.field:
        same = [f"object.spec[?'{area.block}'] == oldObject.spec[?'{area.block}']"]
    else:
        same = [_same("object.spec", "oldObject.spec", field) for field in fixed[""]]
        if area.is_list:
            of_group = " && ".join(_same("e", "o", field) for field in fixed[area.block])
            same.append(f"has({old}) && {now}.all(e, !has(e.{area.field}) || {old}.exists(o, {of_group}))")
        else:
            same.append(f"has({old})")
            same += [_same(now, old, field) for field in fixed[area.block]]
    return " && ".join(["request.operation == 'UPDATE'", *same])


def _same(new: str, old: str, field: str) -> str:
    return f"{new}[?'{field}'] == {old}[?'{field}']"


# Whether it is enforced


async def apply(client: Client, obj: Object) -> None:
    """Apply a policy or a binding. A binding whose action changes is created anew, for its creation time shows since
    when it denies: Kubernetes keeps no other time of such a change."""
    if obj["kind"] == VALIDATING_ADMISSION_POLICY_BINDING.kind:
        try:
            found = await client.get(VALIDATING_ADMISSION_POLICY_BINDING, obj["metadata"]["name"])
        except ApiError as error:
            if not is_not_found(error):
                raise
            found = obj
        if found["spec"].get("validationActions") != obj["spec"]["validationActions"]:
            await client.delete(VALIDATING_ADMISSION_POLICY_BINDING, obj["metadata"]["name"])
    await client.apply(obj)


async def enforced_since(client: Client, name: str = NAME) -> float | None:
    """When the younger of the policy and its binding was created; None if the binding does not deny. Raises ApiError
    404 if one does not exist."""
    policy, binding = [await client.get(kind, name) for kind in KINDS]
    if DENY not in binding["spec"].get("validationActions", ()):
        return None
    return max(_created(policy), _created(binding))


async def state(client: Client, *, trust_authors: bool) -> str:
    """What happens to restricted fields: their authors are "trusted" or "checked", or the operator refuses them
    ("not checked"); "unknown" if the policy cannot be read."""
    if trust_authors:
        return "trusted"
    try:
        return "not checked" if await enforced_since(client) is None else "checked"
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return "unknown" if error.status == 403 else "not checked"


class AuthorCheck:
    """The operator's check that the authors of restricted fields were checked."""

    def __init__(self, client: Client, *, trust_authors: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._trust_authors = trust_authors
        self._clock = clock
        self._read: dict[str, tuple[float, float]] = {}  # policy → when it was read, and since when it is enforced

    async def objection(
        self, resource: Object, restricted: Mapping[Right, Sequence[str]], policy: str = NAME
    ) -> Cause | None:
        """Why the resource must not be reconciled; None if it may."""
        if self._trust_authors or not restricted:
            return None
        problem, remedy = await self._problem(resource, policy)
        if not problem:
            return None
        fields = ", ".join(path for paths in restricted.values() for path in paths)
        rights = " and ".join(right.resource for right in restricted)
        return Cause(
            "AuthorNotChecked",
            f"{fields}: nobody has checked that the author may create {rights}: {problem}.",
            f"Remove these fields; or {remedy}; or run the operator with --trust-authors if all authors may create any "
            "pod.",
        )

    async def _problem(self, resource: Object, name: str) -> tuple[str, str]:
        """What keeps the policy from having checked the author, and what to do about it; empty if nothing does."""
        policy = f"the ValidatingAdmissionPolicy {name}"
        now = self._clock()
        if name not in self._read or now - self._read[name][0] > CACHE_SECONDS:
            try:
                since = await enforced_since(self._client, name)
            except ApiError as error:
                if error.status == 403:
                    return f"the operator may not read {policy}", "update its roles with `oars operator install`"
                if error.status != 404:
                    raise
                remedy = "install it with `oars operator install` (Kubernetes 1.30 or newer)"
                return f"{policy} does not exist", f"{remedy} and create the cluster again"
            if since is None:
                return f"{policy} does not deny requests", "enforce it with `oars operator install`"
            self._read[name] = now, since
        if _created(resource) <= self._read[name][1] + EFFECTIVE_SECONDS:
            return f"the cluster is older than {policy}", "delete the cluster and create it again"
        return "", ""


def _created(obj: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(obj["metadata"]["creationTimestamp"]).timestamp()
