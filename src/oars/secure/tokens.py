"""Random tokens."""

from __future__ import annotations

import secrets


def new_token() -> str:
    """256 random bits as hexadecimal digits: safe in headers, URLs, files and shells."""
    return secrets.token_hex(32)
