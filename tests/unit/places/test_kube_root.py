"""The roots: what is written to them, and to which object."""

from __future__ import annotations

import asyncio
from dataclasses import replace
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
from oars.places.kube.state.bounds import MAX_MEMBERS, MAX_RETIRING, bounded_report, bounded_state
from oars.places.kube.state.root import ConfigMapRoot, ResourceRoot, report_of
from oars.places.kube.state.status_codec import COMPUTE_CLUSTER_STATUS
from oars.places.report import Report
from oars.spec.status import GroupStatus, MemberStatus, Phase, Status

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
    """An operator that takes over from an operator that died then would choose others."""
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
    """A client records the members to remove."""
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
    assert found.state == bounded_state(state)
    assert report_of({"data": patch["data"]}) == bounded_report(report)


class TestSize:
    """A ConfigMap holds 1 MiB."""

    def huge(self, workers: int = 10_000) -> tuple[LoopState, Report]:
        """Every worker retires, fails and is not ready, with much to tell."""
        text, ids = "x" * 1000, [MemberId(f"demo-worker-default-5d8f9c7b6f-{n:05}") for n in range(workers)]
        failures = {m: Failure(9, float(n), float(n), m, text, (text,) * 20) for n, m in enumerate(ids)}
        retiring = {m: Retiring(1.0, n == workers - 1, text) for n, m in enumerate(ids)}
        members = [MemberStatus("head", "head", "head", Phase.READY), MemberStatus(ids[0], "worker", "w", Phase.FAILED)]
        members += [MemberStatus(m, "worker", "w", Phase.READY, "tcp://10.0.0.1:8786", None, text) for m in ids[1:]]
        causes = (Cause("CrashLoop", "m", "h", (text,) * 100, tuple(ids)),) * 100
        groups = (GroupStatus("w", workers, workers - 1),)
        status = Status("demo", "dask", "kubernetes", Phase.DEGRADED, groups=groups, members=tuple(reversed(members)))
        return LoopState(retiring, failures), Report(status, causes)

    def test_everything_fits_however_many_workers_there_are(self) -> None:
        server = Server()
        state, report = self.huge()
        asyncio.run(ConfigMapRoot(cast(Client, server), {"metadata": METADATA}).save(state, report))
        (patch,) = server.patches
        assert sum(map(len, patch["data"].values())) < 900 * 1024
        found = report_of(patch)
        assert found is not None and found.status.groups == report.status.groups, "the counts are complete"
        shown = {member.id: member.phase for member in found.status.members}
        assert len(shown) == MAX_MEMBERS and "head" in shown and Phase.FAILED in shown.values()
        stored = ConfigMapRoot(cast(Client, server), {"metadata": METADATA, "data": patch["data"]}).state
        assert len(stored.retiring) == MAX_RETIRING and any(each.drained for each in stored.retiring.values())
        assert max(each.last for each in stored.failures.values()) == 9999.0

    def test_small_clusters_are_stored_whole(self) -> None:
        state, report = self.huge(20)
        assert bounded_state(state).retiring.keys() == state.retiring.keys()
        assert [m.id for m in bounded_report(report).status.members] == [m.id for m in report.status.members]

    def test_numbers_of_tasks_cause_no_write(self) -> None:
        _, report = self.huge(20)
        status = report.status
        busy = tuple(replace(each, tasks=number) for number, each in enumerate(status.members))
        assert bounded_report(replace(report, status=replace(status, members=busy))) == bounded_report(report)

    def test_state_in_memory_is_complete(self) -> None:
        state, report = self.huge()
        root = ConfigMapRoot(cast(Client, Server()), {"metadata": METADATA})
        asyncio.run(root.save(state, report))
        assert root.state == state


class TestProgress:
    def saved(self, root: ConfigMapRoot, ready: int, phase: Phase = Phase.STARTING) -> None:
        status = Status("demo", "dask", "kubernetes", phase, groups=(GroupStatus("w", 1000, ready),))
        asyncio.run(root.save(LoopState(), Report(status)))

    def test_thousand_workers_do_not_cost_a_thousand_writes(self) -> None:
        server, now = Server(), [0.0]
        root = ConfigMapRoot(cast(Client, server), {"metadata": METADATA}, lambda: now[0])
        for ready in range(1000):
            now[0] += 0.01
            self.saved(root, ready)
        assert 5 <= len(server.patches) <= 7
        self.saved(root, 1000, Phase.READY)
        assert '"phase": "Ready"' in server.patches[-1]["data"]["report.json"], "a change of phase is written at once"

    def test_delayed_progress_is_written_later(self) -> None:
        server, now = Server(), [0.0]
        root = ConfigMapRoot(cast(Client, server), {"metadata": METADATA}, lambda: now[0])
        for now[0], ready in ((0.0, 1), (0.1, 2), (9.0, 2), (20.0, 2)):
            self.saved(root, ready)
        assert [report_of(patch).status.ready for patch in server.patches] == [1, 2]  # type: ignore[union-attr]

    def test_state_is_never_delayed(self) -> None:
        server = Server()
        root = ConfigMapRoot(cast(Client, server), {"metadata": METADATA}, lambda: 0.0)
        self.saved(root, 1)
        asyncio.run(root.save(LEAVING, None))
        assert list(server.patches[-1]["data"]) == ["state.json"]
