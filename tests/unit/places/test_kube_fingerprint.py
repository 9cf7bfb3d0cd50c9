"""What is written on a Deployment: the same is not asked for twice, and another Oars alone is no reason to ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oars import engines
from oars.places.kube import names
from oars.places.kube.render.describe import describe
from oars.places.kube.render.fingerprint import Fingerprint, group_fingerprint, head_fingerprint
from oars.places.kube.render.pod import Cluster
from oars.spec.cluster import ClusterSpec

WANTED = Fingerprint("mark", "words", "1")


def cluster(**spec: Any) -> Cluster:
    made = ClusterSpec.model_validate({"engine": "dask", "place": "kubernetes", "image": "team/it:1", **spec})
    return describe("demo", "lab", made, engines.get("dask"))


def words(**spec: Any) -> tuple[str, str]:
    made = cluster(**spec)
    return head_fingerprint(made), group_fingerprint(made, made.shape.workers[0], 0)


def test_it_is_read_as_it_was_written() -> None:
    assert Fingerprint.of({"metadata": {"annotations": {names.APPLIED: str(WANTED)}}}) == WANTED
    assert not Fingerprint.of({"metadata": {}}).covers(WANTED)


def test_the_same_words_cover_each_other_only_between_versions() -> None:
    other = replace(WANTED, mark="other")
    assert replace(WANTED, words="others").covers(WANTED)
    assert not other.covers(WANTED)
    assert replace(other, version="2").covers(WANTED)
    assert not replace(other, version="2", words="others").covers(WANTED)


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
def test_whose_words_a_change_touches(spec: dict[str, Any], changed: tuple[bool, bool]) -> None:
    before, after = words(), words(**spec)
    assert (before[0] != after[0], before[1] != after[1]) == changed
