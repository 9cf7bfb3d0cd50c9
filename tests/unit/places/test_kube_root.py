"""The roots: what is written to them, and to which object."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oars.base.errors import NotFound
from oars.kube.client import Client
from oars.kube.errors import ApiError
from oars.kube.kinds import Kind, Object
from oars.model import Cause, Failure, LoopState, MemberId, Retiring
from oars.places.kube import names
from oars.places.kube.kinds import COMPUTE_CLUSTER
from oars.places.kube.state.root import ConfigMapRoot, ResourceRoot, report_of
from oars.places.kube.state.status_codec import COMPUTE_CLUSTER_STATUS
from oars.places.report import Report
from oars.spec.status import GroupStatus, Status

LEAVING = LoopState(retiring={MemberId("a"): Retiring(1.0)})


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


def test_retiring_worker_counts_as_written_only_after_the_write() -> None:
    """Whoever takes over from an operator that died then would choose others."""
    server = Server(500)
    resource = {"metadata": {"name": "demo", "namespace": "n", "uid": "u"}, "spec": {"engine": "dask"}}
    root = ResourceRoot(cast(Client, server), COMPUTE_CLUSTER, resource, COMPUTE_CLUSTER_STATUS)
    with pytest.raises(ApiError):
        asyncio.run(root.save(LEAVING, None))
    server.refusal = 0
    asyncio.run(root.save(LEAVING, None))
    asyncio.run(root.save(LEAVING, None))
    assert [[*patch["status"]["retiring"]] for patch in server.patches] == [["a"], ["a"]]


def test_worker_that_no_longer_retires_is_removed_from_the_status() -> None:
    """A merge patch keeps what it does not name."""
    server = Server()
    resource = {"metadata": {"name": "demo", "namespace": "n", "uid": "u"}, "spec": {"engine": "dask"}}
    root = ResourceRoot(cast(Client, server), COMPUTE_CLUSTER, resource, COMPUTE_CLUSTER_STATUS)
    asyncio.run(root.save(LEAVING, None))
    asyncio.run(root.save(LoopState(head_epoch=1), None))
    assert server.patches[1]["status"]["retiring"] == {"a": None}


METADATA = {"name": "demo-oars", "namespace": "n", "uid": "r", "labels": names.labels("demo", "dask")}


def noted(server: Server) -> None:
    """A client writes down who shall go."""
    root = ConfigMapRoot(cast(Client, server), {"metadata": METADATA})
    asyncio.run(root.save(LEAVING, None))


def test_write_names_the_uid_of_the_root() -> None:
    server = Server()
    noted(server)
    assert [patch["metadata"] for patch in server.patches] == [{"uid": "r"}]


@pytest.mark.parametrize("refused", [Server(409), Server(422, "metadata.uid")], ids=["conflict", "invalid"])
def test_another_cluster_that_has_its_name_is_not_written_to(refused: Server) -> None:
    with pytest.raises(NotFound, match="The cluster 'demo' was deleted, and another one has its name"):
        noted(refused)


@pytest.mark.parametrize("refused", [Server(422, "data"), Server(422), Server(403), Server(404)])
def test_other_api_error_is_raised_unchanged(refused: Server) -> None:
    with pytest.raises(ApiError):
        noted(refused)


@pytest.mark.parametrize("text", ['{"head": {"incarnation": "a:0", "epoch": 1}}', '{"retiring": 3}', '{"head'])
def test_damaged_state_is_ignored(text: str) -> None:
    """The place restores the head epoch from the Deployments; a loop that cannot start would never heal anything."""
    root = ConfigMapRoot(cast(Client, Server()), {"metadata": METADATA, "data": {"state.json": text}})
    assert root.state == LoopState()


SECONDS = st.floats(allow_nan=False, allow_infinity=False)
LINES = st.lists(st.text()).map(tuple)
STATES = st.builds(
    LoopState,
    retiring=st.dictionaries(st.text(), st.builds(Retiring, since=SECONDS)),
    failures=st.dictionaries(st.text(), st.builds(Failure, last=SECONDS, until=SECONDS, tail=LINES)),
    ready_since=st.none() | SECONDS,
)
STATUSES = st.builds(Status, groups=st.lists(st.builds(GroupStatus)).map(tuple), members=st.just(()))
REPORTS = st.builds(Report, STATUSES, st.lists(st.builds(Cause, lines=LINES, members=LINES)).map(tuple))


@settings(max_examples=20, deadline=None)
@given(STATES, REPORTS)
def test_recorded_state_is_read_by_the_next_client(state: LoopState, report: Report) -> None:
    server = Server()
    root = ConfigMapRoot(cast(Client, server), {"metadata": METADATA})
    asyncio.run(root.save(state, report))
    asyncio.run(root.save(state, report))
    (patch,) = server.patches
    found = ConfigMapRoot(cast(Client, server), {"metadata": METADATA, "data": patch["data"]})
    assert found.state == state
    assert report_of({"data": patch["data"]}) == report
