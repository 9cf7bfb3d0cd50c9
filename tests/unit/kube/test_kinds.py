"""API paths of kinds, and the Kind of an object."""

from __future__ import annotations

import pytest

from oars.base.errors import OarsError
from oars.kube import kinds
from oars.kube.kinds import DEPLOYMENT, NAMESPACE, POD, Kind, kind_of, register

PATHS = [
    (POD.path("a"), "/api/v1/namespaces/a/pods"),
    (POD.path(None), "/api/v1/pods"),
    (POD.path("a", "b", "log"), "/api/v1/namespaces/a/pods/b/log"),
    (DEPLOYMENT.path("a", "b"), "/apis/apps/v1/namespaces/a/deployments/b"),
    (NAMESPACE.path("a", "b"), "/api/v1/namespaces/b"),
    (DEPLOYMENT.path("a", "b", "status"), "/apis/apps/v1/namespaces/a/deployments/b/status"),
    (POD.path("a/../b", "?"), "/api/v1/namespaces/a%2F..%2Fb/pods/%3F"),
]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_path(path: str, expected: str) -> None:
    assert path == expected


def test_every_kind_is_found_by_api_version_and_kind() -> None:
    known = [value for value in vars(kinds).values() if isinstance(value, Kind)]
    assert len(known) >= 20
    for kind in known:
        assert kind_of({"apiVersion": kind.api_version, "kind": kind.kind}) is kind


def test_unknown_kind_is_an_error_until_it_is_registered() -> None:
    with pytest.raises(OarsError, match="Did you mean 'Deployment'"):
        kind_of({"apiVersion": "apps/v1", "kind": "Deploymnet"})
    with pytest.raises(OarsError, match=r"Unknown kind 'Thing' of apiVersion 'x.dev/v1'"):
        kind_of({"apiVersion": "x.dev/v1", "kind": "Thing"})
    thing = register(Kind("x.dev", "v1", "things", "Thing"))
    assert kind_of({"apiVersion": "x.dev/v1", "kind": "Thing"}) is thing
