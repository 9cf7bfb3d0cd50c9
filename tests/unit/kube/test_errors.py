"""Error responses of the API server."""

from __future__ import annotations

import json

import pytest

from oars.kube.errors import (
    ApiError,
    Unreachable,
    is_denied,
    is_expired,
    is_not_found,
    is_permanent,
    is_transient,
    parse_error,
)


def status(**fields: object) -> str:
    return json.dumps({"kind": "Status", **fields})


def test_status_object_is_parsed() -> None:
    causes = [{"field": "spec.replicas", "message": "must be positive"}, {"message": "no"}]
    text = status(message="Deployment is invalid", reason="Invalid", details={"causes": causes, "name": "a"})
    error = parse_error(422, text)
    assert (error.status, error.reason, error.message) == (422, "Invalid", "Deployment is invalid")
    assert error.details == ("spec.replicas: must be positive", "no")
    assert error.status_details["name"] == "a"


def test_response_of_a_proxy_is_quoted() -> None:
    error = parse_error(503, "<html>\n  <b>Bad</b>\n", "7")
    assert (error.reason, error.retry_after, error.message) == ("ServiceUnavailable", 7.0, "<html> <b>Bad</b>")
    assert parse_error(404, "").message == "The API server answered 404 (NotFound)"
    assert parse_error(418, "[]").message == "[]"


def test_unknown_field_in_apply_is_an_invalid_request() -> None:
    text = status(message="failed to create typed patch object: .x: field not declared in schema")
    assert (parse_error(500, text).status, parse_error(500, text).reason) == (422, "Invalid")


def test_retry_after_and_exit_code() -> None:
    assert ApiError(429, {"details": {"retryAfterSeconds": 3}}).retry_after == 3
    assert ApiError(429, {"details": {"retryAfterSeconds": 3}}, 7.0).retry_after == 7
    assert (ApiError(403, {}).exit_code, ApiError(404, {}).exit_code, ApiError(409, {}).exit_code) == (5, 3, 1)


@pytest.mark.parametrize("error", [ApiError(404, {}), ApiError(409, {}), ApiError(410, {}), ApiError(500, {})])
def test_transient_errors(error: ApiError) -> None:
    assert is_transient(error) and not is_permanent(error)
    assert is_not_found(error) is (error.status == 404)
    assert is_expired(error) is (error.status == 410)


@pytest.mark.parametrize("error", [ApiError(400, {}), ApiError(401, {}), ApiError(403, {}), ApiError(422, {})])
def test_permanent_errors(error: ApiError) -> None:
    assert is_permanent(error) and not is_transient(error)
    assert is_denied(error) is (error.status in (401, 403))


def test_errors_that_are_not_api_errors() -> None:
    assert is_transient(Unreachable("no connection")) and not is_transient(OSError())
    assert not is_not_found(OSError()) and not is_expired(OSError()) and not is_denied(OSError())
