"""What stands in the way of looking after a cluster: as a cause, and as an error that says the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oars.base.errors import Denied, OarsError, SpecError
from oars.kube.errors import ApiError, is_denied, is_lasting
from oars.model import Cause
from oars.places.kube.why.refusal import refusal


class Taken(OarsError):
    """What we would make is there already, and is somebody else's."""

    def __init__(self, kind: str, name: str, namespace: str) -> None:
        article = "an" if kind[0] in "AEIOU" else "a"
        message = f"There is already {article} {kind} {name} in namespace {namespace} that is not of this cluster."
        super().__init__(message, "Rename one of the two, or delete the other one if nobody needs it.")


def cause_of(error: OarsError) -> Cause:
    if isinstance(error, ApiError):
        return refusal(error.status, error.reason, error.message, error.status_details)
    if isinstance(error, Taken):
        return Cause("NameTaken", error.message, error.hint)
    if isinstance(error, SpecError):
        return Cause("InvalidSpec", error.message, error.hint)
    return Cause("ApiServerUnreachable", f"The Kubernetes API server does not answer: {error.message}", error.hint)


def is_for_good(error: OarsError) -> bool:
    """Whether it will be the same again, until somebody changes something."""
    return isinstance(error, Taken) or (isinstance(error, ApiError) and is_lasting(error))


def is_about_roles(error: ApiError) -> bool:
    return str(error.status_details.get("group", "")) == "rbac.authorization.k8s.io"


@contextmanager
def rights_told() -> Iterator[None]:
    """Whoever lacks a right reads which rule to add."""
    try:
        yield
    except ApiError as error:
        if not is_denied(error):
            raise
        cause = cause_of(error)
        raise Denied(cause.message, cause.hint) from error
