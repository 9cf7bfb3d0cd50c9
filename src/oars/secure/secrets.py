"""Secrets of a new cluster: tokens and certificates."""

from __future__ import annotations

import secrets
from collections.abc import Sequence


def new_token() -> str:
    """256 random bits as hexadecimal digits: safe in headers, URLs, files and shells."""
    return secrets.token_hex(32)


def cluster_secrets(name: str, kinds: Sequence[str]) -> dict[str, bytes]:
    """New secret files by name, of the kinds that the engine needs."""
    files: dict[str, bytes] = {}
    if "tls" in kinds:
        from oars.secure.certs import cluster_certificates  # slow to import, and most clusters have no certificates

        files |= cluster_certificates(name)
    if "token" in kinds:
        files["token"] = new_token().encode()
    return files
