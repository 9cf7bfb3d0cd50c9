"""Where objects are kept, and what refusals say."""

from __future__ import annotations

import json

import pytest

from oars.base.errors import OarsError
from oars.kube import kinds
from oars.kube.errors import ApiError, is_expired, is_not_found
from oars.kube.kinds import COMPUTE_CLUSTER, DEPLOYMENT, NAMESPACE, POD, Kind, of, register
from oars.kube.transport import refusal

PATHS = [
    (POD.path("a"), "/api/v1/namespaces/a/pods"),
    (POD.path(None), "/api/v1/pods"),
    (POD.path("a", "b", "log"), "/api/v1/namespaces/a/pods/b/log"),
    (DEPLOYMENT.path("a", "b"), "/apis/apps/v1/namespaces/a/deployments/b"),
    (NAMESPACE.path("a", "b"), "/api/v1/namespaces/b"),
    (COMPUTE_CLUSTER.path("a", "b", "status"), "/apis/oars.dev/v1alpha1/namespaces/a/computeclusters/b/status"),
    (POD.path("a/../b", "?"), "/api/v1/namespaces/a%2F..%2Fb/pods/%3F"),
]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_paths(path: str, expected: str) -> None:
    assert path == expected


def test_every_kind_is_found_by_its_words() -> None:
    known = [value for value in vars(kinds).values() if isinstance(value, Kind)]
    assert len(known) >= 23
    for kind in known:
        assert of({"apiVersion": kind.api_version, "kind": kind.kind}) is kind


def test_unknown_kinds() -> None:
    with pytest.raises(OarsError, match="Did you mean 'Deployment'"):
        of({"apiVersion": "apps/v1", "kind": "Deploymnet"})
    made = register(Kind("x.dev", "v1", "things", "Thing"))
    assert of({"apiVersion": "x.dev/v1", "kind": "Thing"}) is made


def status(**parts: object) -> str:
    return json.dumps({"kind": "Status", **parts})


def test_a_refusal_in_the_server_s_words() -> None:
    causes = [{"field": "spec.replicas", "message": "must be positive"}, {"message": "no"}]
    text = status(message="Deployment is invalid", reason="Invalid", details={"causes": causes, "name": "a"})
    error = refusal(422, text)
    assert (error.status, error.reason, error.message) == (422, "Invalid", "Deployment is invalid")
    assert error.details == ("spec.replicas: must be positive", "no")
    assert error.status_details["name"] == "a"


def test_a_refusal_by_something_in_between() -> None:
    error = refusal(503, "<html>\n  <b>Bad</b>\n", "7")
    assert (error.reason, error.retry_after, error.message) == ("ServiceUnavailable", 7.0, "<html> <b>Bad</b>")
    assert refusal(404, "").reason == "NotFound"
    assert "answered 418" in refusal(418, "[]").message or refusal(418, "[]").message == "[]"


def test_an_unknown_field_is_our_fault() -> None:
    text = status(message="failed to create typed patch object: .x: field not declared in schema")
    assert (refusal(500, text).status, refusal(500, text).reason) == (422, "Invalid")


def test_what_an_error_is() -> None:
    assert is_not_found(ApiError(404, {})) and not is_not_found(ApiError(403, {})) and not is_not_found(OSError())
    assert is_expired(ApiError(410, {})) and not is_expired(ApiError(404, {}))
    assert ApiError(403, {}).exit_code == 5
    assert ApiError(429, {"details": {"retryAfterSeconds": 3}}).retry_after == 3
