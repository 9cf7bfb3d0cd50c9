"""The fingerprint of a Deployment: nothing is applied twice, and an upgrade of Oars alone replaces no pods."""

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


def test_fingerprint_is_read_as_it_was_written() -> None:
    assert Fingerprint.of({"metadata": {"annotations": {names.APPLIED: str(WANTED)}}}) == WANTED
    assert not Fingerprint.of({"metadata": {}}).covers(WANTED)
    assert not Fingerprint.of(None).covers(WANTED)
    head = replace(WANTED, network="hash")
    assert Fingerprint.of({"metadata": {"annotations": {names.APPLIED: str(head)}}}) == head


def test_epoch_without_an_annotation_is_the_first() -> None:
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
def test_change_affects_the_fingerprint_of(spec: dict[str, Any], changed: tuple[bool, bool]) -> None:
    before, after = fingerprints(), fingerprints(**spec)
    assert (before[0] != after[0], before[1] != after[1]) == changed
