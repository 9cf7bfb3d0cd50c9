"""Secrets of a new cluster."""

from __future__ import annotations

from collections.abc import Sequence

from oars.secure.certs import cluster_certificates
from oars.secure.tokens import new_token


def cluster_secrets(name: str, kinds: Sequence[str]) -> dict[str, bytes]:
    """New secret files by name, of the kinds that the engine needs."""
    files: dict[str, bytes] = {}
    if "tls" in kinds:
        files |= cluster_certificates(name)
    if "token" in kinds:
        files["token"] = new_token().encode()
    return files
