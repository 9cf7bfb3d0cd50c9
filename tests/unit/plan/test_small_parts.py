"""names, fill and desired."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from oars import engines
from oars.base import codec
from oars.model import HEAD, Desired, Group, MemberId, Process, Role, Shape
from oars.places.local.defaults import defaults
from oars.plan import names
from oars.plan.desired import Defaults, build, with_memory
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


def test_head_has_a_fixed_name() -> None:
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
def test_known_placeholders_are_filled_and_others_stay(text: str, filled: str) -> None:
    values = {"host": "h", "port.client": "1"}
    assert fill(text, values) == filled
    assert fill_mapping({"A": text}, values) == {"A": filled}


def test_unknown_placeholders_are_found() -> None:
    assert unfilled(["$(host) $(prot.client)", "$(b) $$(c)"], {"host": "h"}) == {"prot.client", "b"}


@pytest.mark.parametrize("engine", [*engines.BUILT_IN, "toy", "simulated"])
def test_every_template_of_an_engine_can_be_filled(engine: str) -> None:
    assert unfilled_names(engines.get(engine).shape(ClusterSpec.model_validate({"engine": engine}))) == set()


def _misspelt(shape: Shape, **changes: Any) -> Shape:
    return replace(shape, head=replace(shape.head, process=replace(shape.head.process, **changes)))


def test_misspelt_placeholder_is_found_in_every_field() -> None:
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
def test_shape_survives_a_round_trip_through_json(engine: str) -> None:
    group = {"name": "gpu", "replicas": 2, "memory": "2Gi", "resources": {"X": 1}}
    spec = ClusterSpec.model_validate({"engine": engine, "workers": [group]})
    shape = engines.get(engine).shape(spec)
    assert codec.load(Shape, json.loads(json.dumps(codec.dump(shape)))) == shape


def test_memory_is_shared_equally_where_none_is_given() -> None:
    spec = ClusterSpec.model_validate({"engine": "dask", "workers": [{"replicas": 3}, {"name": "b", "memory": "1Gi"}]})
    filled = with_memory(spec, defaults(spec, 10 * 2**30))
    assert filled.head.memory == filled.workers[0].memory == 10 * 2**30 * 4 // 5 // 5
    assert filled.workers[1].memory == 2**30
    assert with_memory(spec, defaults(spec, 2**50)).head.memory == 4 * 2**30


@pytest.mark.parametrize(
    ("change", "head_changes", "workers_change"),
    [
        ({"workers": [{"replicas": 7}]}, False, False),
        ({"drain": {"timeout": "9s"}}, False, False),
        ({"workers": [{"replicas": 3, "cpu": 2}]}, False, True),
        ({"head": {"cpu": 2}}, True, False),
        ({"env": {"A": "b"}}, True, True),
        ({"image": "other:1"}, True, True),
    ],
)
def test_fingerprint_changes_with_what_members_depend_on(
    change: dict[str, Any], head_changes: bool, workers_change: bool
) -> None:
    before, after = (_built({"engine": "dask", "workers": [{"replicas": 3}], **more}) for more in ({}, change))
    assert (before.shape.head.fingerprint != after.shape.head.fingerprint) is head_changes
    assert (before.shape.workers[0].fingerprint != after.shape.workers[0].fingerprint) is workers_change


def _built(data: dict[str, Any]) -> Desired:
    spec = ClusterSpec.model_validate(data)
    return build("demo", spec, engines.get(spec.engine), Defaults(2**30, 2**31))
