"""What a new cluster is given to keep to itself."""

from __future__ import annotations

from collections.abc import Sequence

from oars.secure.certs import cluster_certificates
from oars.secure.tokens import new_token


def cluster_secrets(name: str, kinds: Sequence[str]) -> dict[str, bytes]:
    """Fresh files of the kinds that its engine uses, by name."""
    made: dict[str, bytes] = {}
    if "tls" in kinds:
        made |= cluster_certificates(name)
    if "token" in kinds:
        made["token"] = new_token().encode()
    return made
