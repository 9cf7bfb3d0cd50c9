"""Tokens."""

from __future__ import annotations

import re

from oars.secure.tokens import new_token


def test_tokens_are_long_and_unique() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch("[0-9a-f]{64}", token) for token in tokens)
