"""What can go wrong between us and an API server.

ApiError       it answered, and said no
Unreachable    it did not answer
ConfigError    we do not know whom to ask, or as whom
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oars.base.errors import OarsError

# The API server's own word for a code, where an answer (a proxy's, say) carries none.
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
    "Unauthorized": "The credentials of the kubeconfig are refused: log in anew.",
    "Forbidden": "`oars rbac` prints the rights that Oars needs.",
    "Invalid": "Correct what is refused.",
    "TooManyRequests": "The API server is busy: try again later.",
    "InternalError": "The API server failed: try again, and look at its log if this stays.",
}
_EXIT_CODES = {"NotFound": 3, "Timeout": 4, "Forbidden": 5, "Unauthorized": 5}


class ApiError(OarsError):
    """The API server refused. `status` is the HTTP code, `reason` its word for it, `status_details` what its Status
    says beside (name, kind, causes, …), `retry_after` the seconds it asks us to wait."""

    def __init__(self, status: int, body: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.status = status
        self.reason: str = body.get("reason") or _REASONS.get(status, "Unknown")
        self.status_details: dict[str, Any] = body.get("details") or {}
        self.retry_after = _seconds(retry_after, self.status_details)
        self.exit_code = _EXIT_CODES.get(self.reason, 1)
        message = str(body.get("message") or f"The API server answered {status} ({self.reason})").strip()
        lines = tuple(_cause(part) for part in self.status_details.get("causes") or ())
        super().__init__(message, _HINTS.get(self.reason, ""), lines)


class Unreachable(OarsError):
    """No answer: no connection, no TLS, or not in time."""


class ConfigError(OarsError):
    """No usable kubeconfig, context or credentials."""

    exit_code = 2


def is_not_found(error: BaseException) -> bool:
    """Whether the thing asked for is not there."""
    return isinstance(error, ApiError) and error.status == 404


def is_expired(error: BaseException) -> bool:
    """Whether a list or watch asked for a version that the server no longer has."""
    return isinstance(error, ApiError) and (error.status == 410 or error.reason == "Expired")


def is_denied(error: object) -> bool:
    """Whether it is about who we are or what we may do: to ask again changes nothing."""
    return isinstance(error, ApiError) and error.status in (401, 403)


def is_lasting(error: ApiError) -> bool:
    """Whether the same words will be refused again, until somebody changes something."""
    return 400 <= error.status < 500 and error.status not in (404, 409, 410, 429)


def is_passing(error: BaseException) -> bool:
    """Whether the same words may well be answered a little later."""
    return isinstance(error, Unreachable) or (isinstance(error, ApiError) and not is_lasting(error))


def _cause(part: Mapping[str, Any]) -> str:
    where = part.get("field", "")
    return f"{where}: {part.get('message', '')}" if where else str(part.get("message", ""))


def _seconds(header: float | None, details: Mapping[str, Any]) -> float | None:
    if header is not None:
        return header
    told = details.get("retryAfterSeconds")
    return float(told) if told else None
