"""The operator's check that an admission policy has checked the authors of restricted fields. The policy itself is
tested on a real API server (tests/api/test_authors.py)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from oars.kube.client import Client
from oars.kube.errors import ApiError, Unreachable
from oars.kube.kinds import Kind, Object
from oars.operator import admission
from oars.operator.admission import CACHE_SECONDS, EFFECTIVE_SECONDS, NAME, AuthorCheck
from oars.operator.safe_fields import DEPLOYMENTS, SERVICES

INSTALLED = 1_800_000_000.0
RESTRICTED = {DEPLOYMENTS: ["head.pod.spec.hostNetwork"], SERVICES: ["expose.type"]}


def stamped(obj: Object, at: float) -> Object:
    stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**obj, "metadata": {**obj.get("metadata", {}), "creationTimestamp": stamp}}


class Api:
    """An API server with the policy and its binding."""

    def __init__(self, *, trusting: bool = False) -> None:
        policy, binding, *_ = admission.manifests(["dask"], trust_authors=trusting)
        self.objects = {"ValidatingAdmissionPolicy": stamped(policy, INSTALLED - 60)}
        self.objects["ValidatingAdmissionPolicyBinding"] = stamped(binding, INSTALLED)
        self.error: Exception | None = None
        self.reads = 0
        self.now = 0.0

    async def get(self, kind: Kind, name: str) -> Object:
        assert name == NAME
        self.reads += 1
        if self.error is not None:
            raise self.error
        if kind.kind not in self.objects:
            raise ApiError(404, {})
        return self.objects[kind.kind]

    def check(self, **options: Any) -> AuthorCheck:
        return AuthorCheck(cast(Client, self), **{"trust_authors": False, **options}, clock=lambda: self.now)


def objection(check: AuthorCheck, created: float = INSTALLED + EFFECTIVE_SECONDS + 1, restricted: Any = None) -> str:
    resource = stamped({}, created)
    cause = asyncio.run(check.objection(resource, RESTRICTED if restricted is None else restricted))
    assert cause is None or cause.reason == "AuthorNotChecked"
    return f"{cause.message} {cause.hint}" if cause else ""


def test_cluster_that_the_policy_has_checked_is_accepted() -> None:
    api = Api()
    check = api.check()
    assert objection(check) == ""
    assert objection(check, INSTALLED + 1e6) == "" and api.reads == 2, "the policy is read once"
    del api.objects["ValidatingAdmissionPolicy"]
    api.now += CACHE_SECONDS + 1
    assert "does not exist" in objection(check)


@pytest.mark.parametrize("missing", ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"])
def test_without_the_policy_the_fields_and_the_rights_are_named(missing: str) -> None:
    api = Api()
    del api.objects[missing]
    text = objection(api.check())
    assert text.startswith("head.pod.spec.hostNetwork, expose.type: nobody has checked that the author may create")
    assert "deployments and services" in text and f"ValidatingAdmissionPolicy {NAME} does not exist" in text
    assert "oars operator install" in text and "--trust-authors" in text


def test_policy_that_only_audits_checks_nobody() -> None:
    assert "does not deny requests" in objection(Api(trusting=True).check())


@pytest.mark.parametrize("age", [-1000.0, 0.0, EFFECTIVE_SECONDS])
def test_cluster_from_before_the_policy_is_refused(age: float) -> None:
    assert "the cluster is older than" in objection(Api().check(), INSTALLED + age)


def test_policy_that_cannot_be_read_checks_nobody() -> None:
    api = Api()
    api.error = ApiError(403, {})
    assert "the operator may not read" in objection(api.check())


@pytest.mark.parametrize("error", [ApiError(503, {}), Unreachable("away", "")])
def test_error_of_the_api_server_is_no_refusal(error: Exception) -> None:
    api = Api()
    api.error = error
    with pytest.raises(type(error)):
        objection(api.check())


def test_trusted_authors_and_safe_specs_cost_no_request() -> None:
    api = Api()
    assert objection(api.check(trust_authors=True), 0.0) == ""
    assert objection(api.check(), 0.0, restricted={}) == ""
    assert api.reads == 0


@pytest.mark.parametrize(
    ("api", "trusting", "expected"),
    [(Api(), False, "checked"), (Api(), True, "trusted"), (Api(trusting=True), False, "not checked")],
)
def test_state_for_operator_status(api: Api, trusting: bool, expected: str) -> None:
    assert asyncio.run(admission.state(cast(Client, api), trust_authors=trusting)) == expected


def test_state_without_policy_or_right() -> None:
    api = Api()
    for status, expected in ((404, "not checked"), (403, "unknown")):
        api.error = ApiError(status, {})
        assert asyncio.run(admission.state(cast(Client, api), trust_authors=False)) == expected
