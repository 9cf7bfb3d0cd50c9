"""What is written on a Deployment: the same is not asked for twice, and another Oars alone is no reason to ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oars.places.kube import names
from oars.places.kube.render.fingerprint import Fingerprint
from tests.unit.places.clusters import cluster

WANTED = Fingerprint("rendered", "spec", 2, "1")


def fingerprints(**spec: Any) -> tuple[str, str]:
    """Of the head and of the first group."""
    shape = cluster(**spec).shape
    return shape.head.fingerprint, shape.workers[0].fingerprint


def test_it_is_read_as_it_was_written() -> None:
    assert Fingerprint.of({"metadata": {"annotations": {names.APPLIED: str(WANTED)}}}) == WANTED
    assert not Fingerprint.of({"metadata": {}}).covers(WANTED)


def test_without_an_annotation_the_epoch_is_the_first() -> None:
    assert Fingerprint.of({"metadata": {}}).epoch == 0
    assert Fingerprint.of({"metadata": {"annotations": {names.APPLIED: "written by hand"}}}).epoch == 0


def test_equal_specs_cover_each_other_only_between_versions() -> None:
    other = replace(WANTED, rendered="other")
    assert replace(WANTED, spec="others").covers(WANTED)
    assert not other.covers(WANTED)
    assert replace(other, version="2").covers(WANTED)
    assert not replace(other, version="2", spec="others").covers(WANTED)


def test_workers_of_another_head_epoch_are_applied_again_by_any_version() -> None:
    earlier = replace(WANTED, rendered="other", version="2", epoch=1)
    assert not earlier.covers(WANTED)
    assert earlier.same_spec_older_oars(WANTED)


@pytest.mark.parametrize(
    ("spec", "changed"),
    [
        ({"workers": 5}, (False, False)),
        ({"drain": {"timeout": 5}}, (False, False)),
        ({"expose": {"type": "NodePort"}}, (False, False)),
        ({"workers": [{"env": {"A": "b"}}]}, (False, True)),
        ({"workers": [{}, {"name": "big"}]}, (False, False)),
        ({"head": {"cpu": 2}}, (True, False)),
        ({"image": "team/it:2"}, (True, True)),
        ({"dask": {"config": {"a": 1}}}, (True, True)),
    ],
)
def test_whose_fingerprint_a_change_touches(spec: dict[str, Any], changed: tuple[bool, bool]) -> None:
    before, after = fingerprints(), fingerprints(**spec)
    assert (before[0] != after[0], before[1] != after[1]) == changed
