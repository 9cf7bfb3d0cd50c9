"""The codec: no field is lost on the way through JSON, and reading is tolerant of other versions of Oars."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oars.base import codec
from oars.client.job_record import DirectRecord
from oars.model import Desired, Failure, LoopState, MemberId, Retiring
from oars.places.hosts.messages import HeadState, Hello, HostReport
from oars.places.intent import Intent
from oars.places.kube.state.status_codec import dump_state, load_state
from oars.places.local.jobs import DriverExit, JobRecord
from oars.places.local.process import Identity
from oars.places.local.store import ClusterRecord
from oars.places.process.ledger import Ledger
from oars.places.report import Report
from oars.plan.jobs import JobPolicy
from oars.spec.job_status import JobStatus
from oars.spec.status import Gone, Phase, Status

STORED = (
    Desired, LoopState, Ledger, Report, Status, Intent, ClusterRecord, JobRecord, JobStatus, DriverExit, Identity,
    Hello, HeadState, HostReport, Gone, JobPolicy, DirectRecord,
)  # fmt: skip

words = st.text(max_size=4)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value that the type hint allows."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return plain
    if kind is str:
        return words
    if kind is float:
        return st.floats(allow_nan=False)
    if origin is tuple:
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    if origin in (Mapping, dict):
        return st.dictionaries(words, values(inner[1]), max_size=2)
    if isinstance(kind, type) and is_dataclass(kind):
        return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items()})
    if type(None) in inner:
        return st.none() | values(next(each for each in inner if each is not type(None)))
    return st.from_type(kind)


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_no_field_is_lost_in_a_round_trip(kind: type[Any]) -> None:
    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(values(cast(Hashable, kind)))
    def round_trip(before: Any) -> None:
        after = codec.load(kind, json.loads(json.dumps(codec.dump(before))))
        assert after == before
        assert type(after) is kind

    round_trip()


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_every_field_is_dumped(kind: type[Any]) -> None:
    @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
    @given(values(cast(Hashable, kind)))
    def dump(value: Any) -> None:
        assert set(codec.dump(value)) == {each.name for each in fields(kind)}

    dump()


@dataclass(frozen=True)
class Inner:
    phase: Phase
    count: int = 1


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    named: Mapping[MemberId, Inner] = field(default_factory=dict)
    share: float = 0.5
    is_set: bool = False
    free: Mapping[str, Any] = field(default_factory=dict)


def test_unknown_keys_are_ignored() -> None:
    data = {"name": "x", "from a newer Oars": 1, "inner": {"phase": "Ready", "colour": "blue"}}
    assert codec.load(Outer, data) == Outer("x", Inner(Phase.READY))


def test_missing_keys_get_defaults() -> None:
    assert codec.load(Outer, {"name": "x", "many": [{"phase": "Failed"}]}) == Outer("x", many=(Inner(Phase.FAILED),))
    assert codec.load(LoopState, {}) == LoopState()


def test_whole_numbers_are_accepted_for_fractions() -> None:
    assert codec.load(Outer, {"name": "x", "share": 1}).share == 1.0


def test_keys_of_mappings_and_enums_are_restored() -> None:
    state = LoopState({MemberId("w"): Retiring(1.0)}, {MemberId("w"): Failure(1, 2.0, 3.0, "a", "b", ("c",))})
    assert codec.load(LoopState, json.loads(json.dumps(codec.dump(state)))) == state
    assert codec.load(Inner, {"phase": "Ready"}).phase is Phase.READY


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "name",
        {},
        {"name": 5},
        {"name": None},
        {"name": "x", "inner": "Ready"},
        {"name": "x", "inner": {"phase": "Sleeping"}},
        {"name": "x", "inner": {"phase": "Ready", "count": "many"}},
        {"name": "x", "inner": {"phase": "Ready", "count": True}},
        {"name": "x", "many": "abc"},
        {"name": "x", "many": {"phase": "Ready"}},
        {"name": "x", "named": [{"phase": "Ready"}]},
        {"name": "x", "named": {"w": []}},
        {"name": "x", "share": "half"},
        {"name": "x", "is_set": "yes"},
    ],
)
def test_wrong_data_raises_value_error(data: Any) -> None:
    with pytest.raises(ValueError, match="not a valid Outer"):
        codec.load(Outer, data)


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_data_that_is_no_mapping_raises_value_error(kind: type[Any]) -> None:
    wrong: tuple[Any, ...] = (None, [], "text", 5)
    for data in wrong:
        with pytest.raises(ValueError, match=f"not a valid {kind.__name__}"):
            codec.load(kind, data)


def test_resource_status_keeps_what_it_shows_of_the_loop_state() -> None:
    """The kubelet counts failures, and a cluster that is ready may settle again."""

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(values(cast(Hashable, LoopState)))
    def round_trip(before: LoopState) -> None:
        after = load_state(json.loads(json.dumps(dump_state(before))))
        assert after == replace(before, failures={}, ready_since=None)

    round_trip()
