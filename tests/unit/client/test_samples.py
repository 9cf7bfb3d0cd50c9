"""What groups and members use: from counters, from the metrics API, or unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from oars.client.backend import ClusterHandle, Usage
from oars.client.pod_usage import quantity, usage_of
from oars.client.samples import Load, Meter, make_sample
from oars.places.report import Report
from oars.spec.status import GroupStatus, MemberStatus, Phase, Status

MEMBERS = [("head", "head"), ("a-0", "a"), ("a-1", "a"), ("b-0", "b")]
STATUS = Status(
    "demo", "toy", "local", Phase.READY, groups=(GroupStatus("a", 2, 2), GroupStatus("b", 1, 1)),
    members=tuple(MemberStatus(name, "worker", group, Phase.READY) for name, group in MEMBERS),
)  # fmt: skip


def test_use_of_processors_is_that_between_two_measurements() -> None:
    before = {"a-0": Usage(1.0, 10), "a-1": Usage(5.0, 20), "head": Usage(9.0, 1)}
    after = {"a-0": Usage(4.0, 11), "a-1": Usage(1.0, 22), "b-0": Usage(2.0, 33), "head": Usage(9.0, 1)}
    sample = make_sample(7.0, STATUS, before, after, 2.0)
    assert [(load.cpu, load.memory) for load in sample.groups] == [(1.5, 33), (1.0, 33)], "a-1 was restarted"
    assert sample.members["head"] == Load(0.0, 1) and sample.members["b-0"] == Load(1.0, 33)


def test_measured_use_of_processors_counts_as_it_is() -> None:
    after = {"a-0": Usage(memory=5, cpu=0.25), "a-1": Usage(memory=6, cpu=0.5)}
    sample = make_sample(7.0, STATUS, {}, after, 2.0)
    assert [(load.cpu, load.memory) for load in sample.groups] == [(0.75, 11), (None, None)], "b-0 was not"


def test_tasks_of_a_group_are_those_that_its_members_report() -> None:
    tasks = {"a-0": 3, "a-1": 4}
    members = tuple(replace(each, tasks=tasks.get(each.id)) for each in STATUS.members)
    measured: tuple[dict[str, Usage] | None, ...] = ({}, None)
    for after in measured:
        sample = make_sample(7.0, replace(STATUS, members=members), {}, after, 2.0)
        assert [load.tasks for load in sample.groups] == [7, None] and sample.to_dict()["groups"][0]["tasks"] == 7


def test_group_without_members_uses_nothing() -> None:
    empty = replace(STATUS, members=())
    assert [(load.cpu, load.memory) for load in make_sample(7.0, empty, {}, {}, 2.0).groups] == [(0, 0)] * 2


def test_place_that_cannot_measure_has_no_figures() -> None:
    sample = make_sample(7.0, STATUS, None, None, 2.0)
    assert [(load.cpu, load.memory) for load in sample.groups] == [(None, None)] * 2 and sample.members == {}
    assert sample.to_dict()["groups"][0]["cpu"] is None


def test_meter_keeps_its_samples() -> None:
    class Handle:
        seconds = 0.0

        async def report(self, timeout: float | None = None) -> Report:  # noqa: ASYNC109 (as ClusterHandle)
            return Report(STATUS)

        async def usage(self) -> Mapping[str, Usage]:
            self.seconds += 1.0
            return {"a-0": Usage(self.seconds, 5)}

    async def take() -> Meter:
        meter = Meter(cast(ClusterHandle, Handle()))
        for _ in range(2):
            report, sample = await meter.sample(pause=0.05)
            assert report.status is STATUS and (sample.groups[0].cpu or 0) > 1
        return meter

    assert len(asyncio.run(take()).kept) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("2", 2), ("250m", 0.25), ("1500n", 1.5e-6), ("3u", 3e-6), ("4Ki", 4096), ("2M", 2e6), ("1Gi", 2**30)],
)
def test_quantities_of_the_metrics_api(text: str, value: float) -> None:
    assert float(quantity(text)) == pytest.approx(value)


def test_use_of_a_pod_is_that_of_its_containers() -> None:
    used: list[dict[str, Any]] = [{"usage": {"cpu": "250m", "memory": "1Mi"}}, {"usage": {"cpu": "1n"}}, {}]
    found = usage_of({"containers": used})
    assert found.cpu == pytest.approx(0.25) and found.memory == 2**20
