"""Waiting until a cluster is ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest

from oars import engines
from oars.base.errors import Denied, NotFound, OarsError, SpecError, StartFailed, TimedOut, UsageError
from oars.client.backend import WHOLE_LOG, ClusterHandle, LogOptions, check_member, ignore
from oars.client.cluster import AsyncCluster
from oars.client.handles import (
    Bounds,
    is_ready,
    removed_hint,
    scale,
    wait_ready,
    with_bounds,
    with_workers,
    without_bounds,
)
from oars.model import Cause, LoopState, MemberId, Observed, View
from oars.places.report import Report
from oars.plan.autoscale import Memory
from oars.plan.desired import Defaults
from oars.plan.desired import build as build_desired
from oars.plan.scale import Scaled
from oars.plan.scale import scale as plan_scale
from oars.spec.cluster import ClusterSpec
from oars.spec.load import build
from oars.spec.status import Endpoints, GroupStatus, MemberStatus, Phase, Status


def status_of(head: Phase | None, *workers: Phase, wanted: int = 3) -> Status:
    ready = sum(phase is Phase.READY for phase in workers)
    members = [MemberStatus("head", "head", "head", head)] if head else []
    members += [MemberStatus(f"w{n}", "worker", "default", phase) for n, phase in enumerate(workers)]
    done = head is Phase.READY and ready >= wanted
    phase = Phase.READY if done else Phase.STARTING
    groups = (GroupStatus("default", wanted, ready),)
    return Status("demo", "toy", "local", phase, groups=groups, members=tuple(members))


READY, STARTING, STOPPING = Phase.READY, Phase.STARTING, Phase.STOPPING


@pytest.mark.parametrize(
    ("status", "workers", "ready"),
    [
        (status_of(None), 0, False),
        (status_of(STARTING), 0, False),
        (status_of(READY), 0, True),
        (status_of(READY, STARTING), 1, False),
        (status_of(READY, READY, STARTING), 1, True),
        (status_of(STARTING, READY, READY), 1, False),
        (status_of(READY, READY, READY, STARTING), None, False),
        (status_of(READY, READY, READY, READY), None, True),
        (status_of(READY, READY, READY, READY, STOPPING), None, False),
        (status_of(READY, READY, READY, READY, STOPPING), 3, True),
        (status_of(READY, wanted=0), None, True),
    ],
)
def test_is_ready_needs_the_head_and_enough_workers(status: Status, workers: int | None, ready: bool) -> None:
    assert is_ready(status, workers) is ready


@pytest.mark.parametrize("wanted", [3, 4])
def test_min_ready_above_the_number_of_workers_is_refused(wanted: int) -> None:
    spec = build({"engine": "toy", "workers": [{"name": "a", "replicas": 1}, {"name": "b"}], "minReady": wanted}).spec
    with pytest.raises(SpecError, match=f"minReady is {wanted}, but the cluster has only 2 workers"):
        asyncio.run(AsyncCluster(spec, name="demo").start())


def test_running_cluster_can_be_scaled_below_min_ready() -> None:
    spec = build({"engine": "toy", "workers": 3, "minReady": 2}).spec
    assert spec.with_group("default", replicas=1).min_ready == 2


class Unready:
    """A cluster that never becomes ready; without a report it never reports either."""

    name, namespace = "demo", "team"

    def __init__(self, report: Report | None) -> None:
        self._report = report

    async def generation(self) -> int:
        return 0

    async def watch(self) -> AsyncIterator[Report]:
        if self._report is not None:
            yield self._report
        await asyncio.Event().wait()

    async def members(self) -> Sequence[str]:
        return ["head"]

    async def logs(self, member: str, options: LogOptions = WHOLE_LOG) -> AsyncIterator[str]:
        yield f"a line of {member}"


CAUSE = Cause("ImagePull", "The head cannot pull image x:1.", "Check the image name.")


@pytest.mark.parametrize(
    ("report", "message", "hint"),
    [
        (
            Report(status_of(STARTING), (CAUSE,)),
            "Timed out after 0 s waiting for cluster 'demo': 0 of 3 workers ready. The head cannot pull image x:1.",
            "Check the image name.",
        ),
        (
            Report(status_of(STARTING)),
            "Timed out after 0 s waiting for cluster 'demo': 0 of 3 workers ready.",
            "Increase the timeout, or run `oars why demo -n team`.",
        ),
        (
            None,
            "Timed out after 0 s waiting for cluster 'demo': it has not reported its status.",
            "Increase the timeout, or run `oars why demo -n team`.",
        ),
    ],
)
def test_timeout_names_the_cause_and_the_last_log_lines(report: Report | None, message: str, hint: str) -> None:
    handle = cast(ClusterHandle, Unready(report))
    with pytest.raises(TimedOut) as raised:
        asyncio.run(wait_ready(handle, None, 0.05, ignore))
    assert (raised.value.message, raised.value.hint) == (message, hint)
    assert raised.value.details == ("[head] a line of head",)


class Late(Unready):
    async def members(self) -> Sequence[str]:
        return ["head", "w0", "w1", "w2"]


@pytest.mark.parametrize(
    ("report", "members"),
    [
        (Report(status_of(READY, READY, STARTING, STARTING)), ["w1", "w2"]),
        (Report(status_of(STARTING, STARTING, STARTING)), ["head"]),
        (Report(status_of(READY, READY, STARTING), (Cause("NotJoined", "No.", members=(MemberId("w2"),)),)), ["w2"]),
        (Report(status_of(READY, READY, READY, READY), (Cause("NoOperator", "No operator."),)), []),
        (None, ["head", "w0", "w1", "w2"]),
    ],
)
def test_timeout_shows_lines_of_those_that_it_waited_for(report: Report | None, members: list[str]) -> None:
    if report is not None:
        report = replace(report, status=replace(report.status, phase=STARTING))
    with pytest.raises(TimedOut) as raised:
        asyncio.run(wait_ready(cast(ClusterHandle, Late(report)), None, 0.05, ignore))
    assert raised.value.details == tuple(f"[{member}] a line of {member}" for member in members)


def test_timeout_of_scaling_down_names_the_workers_that_have_not_left() -> None:
    """Not their logs, which do not say why they stay, nor "0 of 0 workers ready", which sounds as if it were done."""
    stays = Cause("Draining", "w0 is kept: 5 MiB are referenced.", "Use --force.", members=(MemberId("w0"),))
    for causes, hint in (((stays,), "Use --force."), ((), "Increase the timeout, or run `oars why demo -n team`.")):
        report = Report(status_of(READY, STOPPING, wanted=0), causes)
        with pytest.raises(TimedOut) as raised:
            asyncio.run(wait_ready(cast(ClusterHandle, Late(report)), None, 0.05, ignore))
        message = "Timed out after 0 s waiting for cluster 'demo': w0 has not left yet."
        assert raised.value.message == " ".join([message, *(cause.message for cause in causes)])
        assert (raised.value.hint, raised.value.details) == (f"The request stays. {hint}", ())


LONGER = "To wait longer, use `--timeout 10m`, in Python `timeout='10m'`."


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            TimedOut("", "Increase the timeout, or run `oars why demo -n team`."),
            f"Cluster 'demo' was removed again. {LONGER}",
        ),
        (TimedOut("", "Check the image name."), f"Check the image name. Cluster 'demo' was removed again. {LONGER}"),
        (StartFailed("", "Read its log: `oars logs demo worker-0`."), "Cluster 'demo' was removed again."),
        (
            StartFailed("", "Raise memory. Read its log: `oars logs demo head -n a`. Or use fewer workers."),
            "Raise memory. Or use fewer workers. Cluster 'demo' was removed again.",
        ),
        (Denied("", "Run `oars rbac -n team`."), "Run `oars rbac -n team`. Cluster 'demo' was removed again."),
    ],
)
def test_hint_after_the_cluster_was_removed_names_no_command_that_reads_it(error: OarsError, hint: str) -> None:
    assert removed_hint(error, "demo") == hint


def test_waiting_for_more_workers_than_desired_fails_at_once() -> None:
    handle = cast(ClusterHandle, Unready(Report(status_of(READY, READY, READY, READY))))
    with pytest.raises(UsageError) as raised:
        asyncio.run(wait_ready(handle, 9, 60, ignore))
    assert raised.value.message == "9 workers can never be ready: cluster 'demo' has 3."
    assert raised.value.hint == "Scale it first: scale(9), or `oars scale demo 9 -n team`."


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        (Bounds(5, 2), "min is 5, but max is 2."),
        (Bounds(-1, 2), "min: Input should be greater than or equal to 0."),
        (Bounds(0, 2, None, {"horizon": "x"}), "horizon: 'x' is not a duration; write it like 30s, 2m or 1h30m."),
    ],
)
def test_wrong_bounds_are_named(bounds: Bounds, problem: str) -> None:
    with pytest.raises(SpecError) as raised:
        with_bounds("demo", build({"engine": "toy"}).spec, bounds, {})
    assert raised.value.message == f"Autoscaling is not possible with these settings: {problem}"


@pytest.mark.parametrize(
    ("member", "meant"),
    [("worker-9", ""), ("woker-0", " Did you mean 'worker-0'?"), ("haed", " Did you mean 'head'?"), ("x", "")],
)
def test_other_number_of_a_member_is_no_misspelling(member: str, meant: str) -> None:
    with pytest.raises(NotFound) as raised:
        check_member("demo", member, ["head", "worker-0", "worker-1"])
    assert raised.value.message == f"Cluster 'demo' has no member {member!r}.{meant}"
    assert raised.value.hint == "Members: head, worker-0, worker-1."


def test_cluster_without_members_lists_none() -> None:
    with pytest.raises(NotFound) as raised:
        check_member("demo", "worker-0", [])
    assert raised.value.hint == "There are none at present."


def test_wrong_number_of_workers_is_quoted() -> None:
    with pytest.raises(SpecError, match="'3' is not a valid number of workers"):
        with_workers("demo", build({"engine": "toy"}).spec, "3", None)  # type: ignore[arg-type]


def test_missing_right_ends_the_wait_with_the_rule_to_add() -> None:
    cause = Cause("RightMissing", "ann may not create secrets in namespace team.", "Add this rule to a Role: `- {…}`.")
    handle = cast(ClusterHandle, Unready(Report(status_of(STARTING), (cause,))))
    with pytest.raises(Denied) as raised:
        asyncio.run(wait_ready(handle, None, 60, ignore))
    assert (raised.value.message, raised.value.hint, raised.value.exit_code) == (cause.message, cause.hint, 5)


TWO_GROUPS = {
    "engine": "toy",
    "workers": [{"name": "cpu", "replicas": 0, "max": 5}, {"name": "gpu", "replicas": 0, "max": 3}],
}


def numbers(spec: ClusterSpec) -> list[tuple[str, int, int | None]]:
    return [(group.name, group.replicas, group.max) for group in spec.workers]


def chosen(spec: ClusterSpec, state: LoopState) -> Scaled:
    """What autoscaling decides for a cluster without work."""
    desired = build_desired("demo", spec, engines.get("toy"), Defaults(2**30, 2**30))
    return plan_scale(desired, Observed((), state), View(up=True, demand=()), Memory(), 1000.0)


@pytest.mark.parametrize("options", [{}, {"horizon": "10s"}])
def test_adapt_with_the_same_bounds_is_no_number_set_by_hand(options: dict[str, str]) -> None:
    spec = with_bounds("demo", build({"engine": "toy", "workers": 0}).spec, Bounds(0, 10), {"default": 0})
    began = chosen(spec, LoopState(head="1"))
    grown = replace(began.state, scaling={"default": replace(began.state.scaling["default"], target=7)})
    again = with_bounds("demo", spec, Bounds(0, 10, None, options), {"default": 7})
    found = chosen(again, grown)
    assert found.groups["default"].reason != "SetByHand"
    assert found.state.scaling["default"].declared == 7


def test_adapt_ends_a_number_set_by_hand_with_the_same_bounds() -> None:
    spec = with_bounds("demo", build({"engine": "toy", "workers": 0}).spec, Bounds(0, 10), {"default": 0})
    began = chosen(spec, LoopState(head="1"))
    by_hand = chosen(spec.with_group("default", replicas=3), began.state)
    assert by_hand.groups["default"].reason == "SetByHand"
    again = with_bounds("demo", spec.with_group("default", replicas=3), Bounds(0, 10), {"default": 3})
    assert chosen(again, by_hand.state).groups["default"].reason != "SetByHand"


def test_scale_ends_autoscaling_of_its_group_only() -> None:
    spec = with_workers("demo", build(TWO_GROUPS).spec, 4, "cpu")
    assert numbers(spec) == [("cpu", 4, None), ("gpu", 0, 3)] and spec.autoscaled == ("gpu",)
    assert with_workers("demo", spec, 2, "cpu").autoscaled == ("gpu",)


@pytest.mark.parametrize(
    ("group", "expected"),
    [(None, [("cpu", 2, None), ("gpu", 3, None)]), ("gpu", [("cpu", 0, 5), ("gpu", 3, None)])],
)
def test_end_of_autoscaling_keeps_the_present_numbers(
    group: str | None, expected: list[tuple[str, int, int | None]]
) -> None:
    found = without_bounds("demo", build(TWO_GROUPS).spec, group, {"cpu": 2, "gpu": 3})
    assert numbers(found) == expected


def test_adapt_before_the_first_report_keeps_the_number_of_the_spec() -> None:
    spec = build({"engine": "toy", "workers": 3}).spec
    assert numbers(with_bounds("demo", spec, Bounds(0, 10), {})) == [("default", 3, 10)]


def test_scale_says_that_autoscaling_ends() -> None:
    class Handle:
        name, spec_now = "demo", build(TWO_GROUPS).spec

        async def spec(self) -> ClusterSpec:
            return self.spec_now

        async def change(self, change: Callable[[ClusterSpec], ClusterSpec], *, force: bool) -> None:
            self.spec_now = change(self.spec_now)

    said: list[str] = []
    handle = Handle()
    for number in (4, 2):
        asyncio.run(scale(cast(ClusterHandle, handle), number, "gpu", note=said.append))
    assert said == ["demo: autoscaling of group gpu is off from now on"]
    assert numbers(handle.spec_now) == [("cpu", 0, 5), ("gpu", 2, None)]


def test_progress_has_no_line_twice_in_a_row() -> None:
    begun, done = status_of(READY, STARTING), status_of(READY, READY, READY, READY)

    class Handle:
        name = "demo"

        async def watch(self) -> AsyncIterator[Report]:
            for status in (begun, begun, replace(begun, endpoints=Endpoints("tcp://h:1")), done):
                yield Report(status)

        async def generation(self) -> int:
            return 0

    said: list[str] = []
    reports: list[Report] = []
    handle = cast(ClusterHandle, Handle())
    assert asyncio.run(wait_ready(handle, None, 9, said.append, reports.append)) == done
    assert said == ["demo: Starting, 0/3 workers ready", "demo: Ready, 3/3 workers ready"]
    assert len(reports) == 4
