"""The number of the first group's workers, which may stand in two places."""

from __future__ import annotations

from typing import Any

import pytest

from oars.client import operator_client
from oars.places.kube.state import replicas
from oars.places.kube.state.replicas import SAID
from oars.spec.load import build

Object = dict[str, Any]


def resource(replicas: int | None, own: int | None, seen: str = "", name: str = "default") -> Object:
    group = {"name": name} | ({} if own is None else {"replicas": own})
    spec: Object = {"engine": "dask", "workers": [group, {"name": "big", "replicas": 9}]}
    annotations = {SAID: seen} if seen else {}
    metadata = {"name": "demo", "namespace": "n", "resourceVersion": "7", "annotations": annotations}
    return {"metadata": metadata, "spec": spec | ({} if replicas is None else {"replicas": replicas})}


def merged(before: Object, patch: Object) -> Object:
    annotations = {**before["metadata"]["annotations"], **patch["metadata"].get("annotations", {})}
    metadata = {**before["metadata"], "annotations": annotations}
    return {"metadata": metadata, "spec": {**before["spec"], **patch["spec"]}}


@pytest.mark.parametrize(
    ("found", "holds", "writes"),
    [
        (resource(None, 3), 3, True),
        (resource(None, None), 1, True),
        (resource(3, 3, "default=3"), 3, False),
        (resource(5, 3, "default=3"), 5, False),
        (resource(0, 3, "default=3"), 0, False),
        (resource(5, 4, "default=3"), 4, True),
        (resource(5, 0, "default=3"), 0, True),
        (resource(5, 3, "other=3"), 3, True),
        (resource(5, None, "default=3"), 5, False),
        (resource(5, None), 5, False),
        (resource(5, 3), 5, True),
    ],
    ids=[
        "nobody has scaled it",
        "nobody has said anything",
        "they agree",
        "it was scaled",
        "it was scaled to nothing",
        "it was scaled, then the group was edited",
        "the group was edited to nothing",
        "another group is the first now",
        "the group no longer says a number",
        "the group never said one",
        "both were said at once: the number for all scalers holds, as in any file",
    ],
)
def test_what_was_written_last_holds(found: Object, holds: int, writes: bool) -> None:
    assert build(replicas.spec(found)).spec.workers[0].replicas == holds
    patch = replicas.agreement(found)
    assert (patch is not None) is writes
    if patch is not None:
        assert patch["spec"] == {"replicas": holds}
        assert patch["metadata"]["resourceVersion"] == "7", "nobody's write is undone"
        after = merged(found, patch)
        assert replicas.agreement(after) is None, "at rest nothing is written"
        assert build(replicas.spec(after)).spec.workers[0].replicas == holds


def test_a_story() -> None:
    """A file is applied, the cluster scaled by hand, the file applied again as it is, then with another number."""
    found = resource(None, 3)
    found = merged(found, replicas.agreement(found) or {})
    found["spec"]["replicas"] = 6
    assert replicas.agreement(found) is None and replicas.spec(found)["replicas"] == 6
    found["spec"]["workers"][0]["replicas"] = 4
    assert replicas.spec(found)["replicas"] == 4
    found = merged(found, replicas.agreement(found) or {})
    assert found["spec"]["replicas"] == 4


def test_without_a_group_there_is_no_number() -> None:
    found = resource(None, None)
    found["spec"]["workers"] = []
    assert replicas.agreement(found) is None and "replicas" not in replicas.spec(found)


def test_what_the_client_writes_counts_as_said_by_the_group() -> None:
    spec = build({"engine": "dask", "workers": 5}).spec
    found = {
        "metadata": {"annotations": operator_client._counted(spec)},
        "spec": operator_client._said("demo", spec, "n"),
    }
    found["spec"]["workers"][0]["replicas"] = 3  # by a file that somebody applies with kubectl
    assert replicas.spec(found)["replicas"] == 3
    found["spec"]["workers"][0]["replicas"] = 5
    found["spec"]["replicas"] = 8
    assert replicas.spec(found)["replicas"] == 8
