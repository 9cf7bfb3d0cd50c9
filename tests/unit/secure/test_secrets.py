"""Secrets of a new cluster."""

from __future__ import annotations

import re

import pytest

from oars.places.kube.state.secrets import make_secrets
from oars.secure.secrets import cluster_secrets, new_token

TLS = {"ca.pem", "cert.pem", "key.pem"}


@pytest.mark.parametrize(
    ("kinds", "files"), [((), set()), (("token",), {"token"}), (("tls",), TLS), (("tls", "token"), {*TLS, "token"})]
)
def test_secrets_are_those_that_the_engine_needs(kinds: tuple[str, ...], files: set[str]) -> None:
    assert set(cluster_secrets("demo", kinds)) == files
    assert set(make_secrets("demo", kinds)) == {*files, "control"}


def test_clusters_have_different_secrets() -> None:
    one, other = (make_secrets("demo", ("tls", "token")) for _ in range(2))
    assert not set(one.values()) & set(other.values())


def test_tokens_are_long_and_unique() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch("[0-9a-f]{64}", token) for token in tokens)
