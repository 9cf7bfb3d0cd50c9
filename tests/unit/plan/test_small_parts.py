"""names, fill and codec."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from oars import engines
from oars.model import HEAD, Group, MemberId, Process, Role, Shape
from oars.plan import names
from oars.plan.codec import dump_shape, load_shape
from oars.plan.desired import default_memory
from oars.plan.fill import fill, fill_mapping, unfilled
from oars.spec.cluster import ClusterSpec
from oars.testing.engine import unfilled_names


@pytest.mark.parametrize(
    ("group", "count", "taken", "found"),
    [
        ("default", 2, [], ["worker-0", "worker-1"]),
        ("default", 2, ["worker-0"], ["worker-1", "worker-2"]),
        ("gpu", 1, ["gpu-1"], ["gpu-0"]),
        ("gpu", 0, [], []),
    ],
)
def test_members_get_the_first_free_names(group: str, count: int, taken: list[str], found: list[str]) -> None:
    wanted = Group(group, Role.WORKER, count, Process(()))
    assert names.member_ids(wanted, count, [MemberId(name) for name in taken]) == found


def test_the_head_is_the_head() -> None:
    assert names.member_ids(Group("head", Role.HEAD, 1, Process(())), 1) == [HEAD]
    assert (names.index(HEAD), names.index(MemberId("my-group-12"))) == (0, 12)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("$(host):$(port.client) $(x", "h:1 $(x"),
        ("$(HOME)/bin:$(host)", "$(HOME)/bin:h"),  # what is not ours is left for others
        ("$$(host) $$(HOME)", "$$(host) $$(HOME)"),  # as Kubernetes writes text that is no name
        ("$$$(host)", "$$h"),
        ("$host ${host} $() $(a b) $", "$host ${host} $() $(a b) $"),
    ],
)
def test_templates_are_filled_and_what_is_not_ours_stays(text: str, filled: str) -> None:
    values = {"host": "h", "port.client": "1"}
    assert fill(text, values) == filled
    assert fill_mapping({"A": text}, values) == {"A": filled}


def test_names_that_nothing_fills_are_found() -> None:
    assert unfilled(["$(host) $(prot.client)", "$(b) $$(c)"], {"host": "h"}) == {"prot.client", "b"}


@pytest.mark.parametrize("engine", [*engines.BUILT_IN, "toy", "played"])
def test_every_template_of_an_engine_can_be_filled(engine: str) -> None:
    assert unfilled_names(engines.get(engine).shape(ClusterSpec.model_validate({"engine": engine}))) == set()


def _misspelt(shape: Shape, **changes: Any) -> Shape:
    return replace(shape, head=replace(shape.head, process=replace(shape.head.process, **changes)))


def test_a_misspelt_name_of_an_engine_is_found_wherever_it_stands() -> None:
    shape = Shape(Group("head", Role.HEAD, 1, Process(("program",))), (), {"client": "$(head.host)"})
    text = "$(nobody)"
    for wrong in (
        _misspelt(shape, argv=(text,)),
        _misspelt(shape, env={"A": text}),
        _misspelt(shape, files={"a": text}),
        _misspelt(shape, litter=(text,)),
        replace(shape, endpoints={"client": text}),
        replace(shape, driver_env={"A": text}),
    ):
        assert unfilled_names(wrong) == {"nobody"}


@pytest.mark.parametrize("engine", engines.BUILT_IN)
def test_a_shape_survives_the_way_through_json(engine: str) -> None:
    group = {"name": "gpu", "replicas": 2, "memory": "2Gi", "resources": {"X": 1}}
    spec = ClusterSpec.model_validate({"engine": engine, "workers": [group]})
    shape = engines.get(engine).shape(spec)
    assert load_shape(json.loads(json.dumps(dump_shape(shape)))) == shape


def test_memory_is_shared_fairly_where_none_is_given() -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "workers": [{"replicas": 3}, {"name": "b", "memory": "1Gi"}]})
    filled = default_memory(spec, 10 * 2**30)
    assert filled.head.memory == filled.workers[0].memory == 10 * 2**30 * 4 // 5 // 5
    assert filled.workers[1].memory == 2**30
    assert default_memory(spec, 2**50).head.memory == 4 * 2**30
