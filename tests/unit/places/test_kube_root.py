"""The roots: what is added to an operator's when all is well, and which object a client writes to."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from oars.base.errors import NotFound
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind
from oars.model import LoopState, MemberId, Retiring
from oars.places.kube import names
from oars.places.kube.state import replicas
from oars.places.kube.state.root import ClusterRoot, ConfigMapRoot
from tests.unit.places.test_kube_replicas import Object, resource


class Server:
    """Takes patches, or refuses them."""

    def __init__(self, refusal: int = 0, *causes: str) -> None:
        self.patches: list[Object] = []
        self.refusal = refusal
        self.details = {"causes": [{"field": field} for field in causes]}

    async def patch(self, kind: Kind, name: str, namespace: str, body: Object, subresource: str = "") -> Object:
        self.patches.append(body)
        if self.refusal:
            raise ApiError(self.refusal, {"details": self.details})
        return {}


def root(server: Server, found: Object) -> ClusterRoot:
    found["metadata"]["uid"] = "u"
    return ClusterRoot(cast(Client, server), found)


def test_autoscalers_find_the_number_when_all_is_well() -> None:
    server = Server()
    one = root(server, resource(None, 3))
    asyncio.run(one.settle())
    asyncio.run(one.settle())  # the watches have not brought our own write yet
    (patch,) = server.patches
    assert patch["spec"] == {"replicas": 3} and patch["metadata"]["annotations"] == {replicas.SAID: "default=3"}


@pytest.mark.parametrize(("refusal", "tries"), [(409, 2), (404, 2)])
def test_a_write_of_somebody_else_comes_first(refusal: int, tries: int) -> None:
    server = Server(refusal)
    one = root(server, resource(None, 3))
    for _ in range(tries):
        asyncio.run(one.settle())
    assert len(server.patches) == tries


def test_other_refusals_are_told() -> None:
    with pytest.raises(ApiError):
        asyncio.run(root(Server(403), resource(None, 3)).settle())


def test_what_agrees_is_left_alone() -> None:
    server: Any = Server()
    asyncio.run(root(server, resource(5, 3, "default=3")).settle())
    assert server.patches == []


def test_who_shall_go_is_not_taken_for_written_before_it_is() -> None:
    """Whoever takes over from an operator that died then would choose others."""
    server = Server(500)
    one, notes = root(server, resource(2, 3)), LoopState(retiring={MemberId("a"): Retiring(1.0)})
    with pytest.raises(ApiError):
        asyncio.run(one.save(notes, None, ()))
    server.refusal = 0
    asyncio.run(one.save(notes, None, ()))
    asyncio.run(one.save(notes, None, ()))
    assert [[*patch["status"]["notes"]["retiring"]] for patch in server.patches] == [["a"], ["a"]]


METADATA = {"name": "demo-oars", "namespace": "n", "uid": "r", "labels": names.labels("demo", "dask")}


def noted(server: Server) -> None:
    """A client writes down who shall go."""
    kept = ConfigMapRoot(cast(Client, server), {"metadata": METADATA})
    asyncio.run(kept.save(LoopState(retiring={MemberId("a"): Retiring(1.0)}), None, ()))


def test_a_client_writes_to_the_very_object_that_it_looks_after() -> None:
    server = Server()
    noted(server)
    assert [patch["metadata"] for patch in server.patches] == [{"uid": "r"}]


@pytest.mark.parametrize("refused", [Server(409), Server(422, "metadata.uid")], ids=["conflict", "invalid"])
def test_another_cluster_that_has_its_name_is_not_written_to(refused: Server) -> None:
    with pytest.raises(NotFound, match="The cluster 'demo' is gone, and another one has its name"):
        noted(refused)


@pytest.mark.parametrize("refused", [Server(422, "data"), Server(422), Server(403), Server(404)])
def test_any_other_refusal_is_told_as_it_is(refused: Server) -> None:
    with pytest.raises(ApiError):
        noted(refused)
