"""Errors of the Kubernetes client.

ApiError       The API server answered with an error status.
Unreachable    The API server did not answer.
ConfigError    There is no usable kubeconfig, context or credential.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oars.base.errors import OarsError

# The API server's reason for a status code. Responses of proxies carry none.
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_HINTS = {
    "Unauthorized": "The API server rejected the credentials in the kubeconfig. Log in again.",
    "Invalid": "Correct the fields named in the message.",
    "TooManyRequests": "The API server is overloaded. Try again later.",
    "InternalError": "Try again. If the error persists, read the API server's log.",
}
_EXIT_CODES = {"NotFound": 3, "Timeout": 4, "Forbidden": 5, "Unauthorized": 5}
_UNKNOWN_FIELD = "failed to create typed patch object"
MAX_MESSAGE = 16_000  # characters: a message quotes values of the request, which may be as long as that


def shortened(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} …"


class ApiError(OarsError):
    """The API server answered with an error status.

    `status` is the HTTP status code, `reason` and `status_details` are fields of the returned Status object, and
    `retry_after` is the delay in seconds that the server requests before a retry."""

    def __init__(self, status: int, body: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.status = status
        self.reason: str = body.get("reason") or _REASONS.get(status, "Unknown")
        self.status_details: dict[str, Any] = body.get("details") or {}
        if retry_after is None and (seconds := self.status_details.get("retryAfterSeconds")):
            retry_after = float(seconds)
        self.retry_after = retry_after
        self.exit_code = _EXIT_CODES.get(self.reason, 1)
        message = str(body.get("message") or f"The API server answered {status} ({self.reason})").strip()
        causes = self.status_details.get("causes") or ()
        lines = (": ".join(filter(None, (cause.get("field"), cause.get("message")))) for cause in causes)
        super().__init__(shortened(message), _HINTS.get(self.reason, ""), tuple(map(shortened, lines)))


class Unreachable(OarsError):
    """The API server did not answer: no connection, a failed TLS handshake, or a timeout."""


class ConfigError(OarsError):
    """There is no usable kubeconfig, context or credential."""

    exit_code = 2


def parse_error(status: int, text: str, retry_after: str | None = None) -> ApiError:
    """Return the ApiError for an error response; `text` is its body, `retry_after` its Retry-After header."""
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or body.get("kind") != "Status":  # for example an HTML page from a proxy
        body = {"message": " ".join(text.split())[:300]}
    if status == 500 and _UNKNOWN_FIELD in str(body.get("message")):
        # Server-side apply reports an unknown field as an internal error. The request is invalid; a retry is useless.
        status, body = 422, {**body, "reason": "Invalid"}
    return ApiError(status, body, seconds)


def is_not_found(error: BaseException) -> bool:
    """True if the requested object does not exist."""
    return isinstance(error, ApiError) and error.status == 404


def is_conflict(error: BaseException) -> bool:
    """True if the object exists already, or has another version than the request says."""
    return isinstance(error, ApiError) and error.status == 409


def is_expired(error: BaseException) -> bool:
    """True if a list or watch requested a resourceVersion that the server no longer has."""
    return isinstance(error, ApiError) and (error.status == 410 or error.reason == "Expired")


def is_denied(error: object) -> bool:
    """True if authentication or authorization failed. A retry does not help."""
    return isinstance(error, ApiError) and error.status in (401, 403)


def is_permanent(error: ApiError) -> bool:
    """True if the server will reject the same request again until something else changes."""
    return 400 <= error.status < 500 and error.status not in (404, 409, 410, 429)


def is_transient(error: BaseException) -> bool:
    """True if the same request may succeed later."""
    return isinstance(error, Unreachable) or (isinstance(error, ApiError) and not is_permanent(error))
