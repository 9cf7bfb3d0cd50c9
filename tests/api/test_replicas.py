"""The number of workers of a ComputeCluster, on a real API server: one field, many writers, and no drift."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from lab.api import Object
from lab.errors import LabError
from tests.api.stage import SIMULATED_POD, Operator, Stage, group, resource

from oars.spec.cluster import API_VERSION

Operators = Callable[..., Operator]
FORCED = ("--server-side", "--force-conflicts", "--field-manager=flux")


def file_of(number: int | None = None, **spec: Any) -> str:
    """A file with two groups, the first of which has the number, if there is one."""
    numbers = {} if number is None else {"replicas": number}
    body = resource("demo", group(replicas=None), group("big", 1), **numbers, **spec)
    return json.dumps(body)


def apply(stage: Stage, text: str, *words: str) -> str:
    return stage.kube.kubectl("apply", *words, "-f", "-", text=text)


def scale(stage: Stage, number: int) -> None:
    stage.kube.kubectl("scale", "computecluster/demo", f"--replicas={number}")


def scale_path(stage: Stage) -> str:
    return stage.kube.path("computeclusters/demo/scale", f"apis/{API_VERSION}")


def put_scale(stage: Stage, number: int) -> None:
    """As the controller of HorizontalPodAutoscalers does."""
    found = stage.kube.api.get(scale_path(stage))
    stage.kube.api.request("PUT", scale_path(stage), {**found, "spec": {"replicas": number}})


def patch_scale(stage: Stage, number: int) -> None:
    stage.kube.api.patch(scale_path(stage), {"spec": {"replicas": number}})


WRITERS: tuple[Callable[[Stage, int], object], ...] = (
    lambda stage, number: apply(stage, file_of(number)),
    lambda stage, number: apply(stage, file_of(number), *FORCED),
    scale,
    put_scale,
    patch_scale,
)


# who wrote last


def test_last_writer_wins_in_every_order(stage: Stage) -> None:
    apply(stage, file_of(1))
    number = 1
    for pair in itertools.product(WRITERS, repeat=2):
        for write in pair:
            number = number % 9 + 1
            write(stage, number)
            found = stage.get("demo")["spec"]
            assert found["replicas"] == number
            assert "replicas" not in found["workers"][0] and found["workers"][1]["replicas"] == 1


def test_last_write_wins_after_files_and_a_scale(stage: Stage, operators: Operators) -> None:
    operators()
    apply(stage, file_of(2))
    assert stage.await_ready("demo")["ready"] == "3/3"
    scale(stage, 1)
    assert stage.await_ready("demo")["ready"] == "2/2"
    apply(stage, file_of(3))
    assert stage.await_ready("demo")["ready"] == "4/4"
    apply(stage, file_of(2))
    assert stage.await_ready("demo")["ready"] == "3/3"
    assert stage.get("demo")["spec"]["replicas"] == 2


def test_scale_between_two_server_side_applies(stage: Stage, operators: Operators) -> None:
    operators()
    apply(stage, file_of(1), *FORCED)
    assert stage.await_ready("demo")["ready"] == "2/2"
    scale(stage, 2)
    apply(stage, file_of(3), *FORCED)
    assert stage.await_ready("demo")["ready"] == "4/4"
    assert stage.get("demo")["spec"]["replicas"] == 3


def test_file_without_a_number_leaves_that_of_an_autoscaler_alone(stage: Stage) -> None:
    apply(stage, file_of())
    assert stage.kube.api.get(scale_path(stage))["spec"]["replicas"] == 1, "readable from the start"
    put_scale(stage, 4)
    assert apply(stage, file_of()).strip().endswith("unchanged")
    apply(stage, file_of(env={"A": "b"}))
    assert stage.kube.api.get(scale_path(stage))["spec"]["replicas"] == 4


# no drift

PLAIN: Object = {"engine": "simulated"}
FILES = {
    "nothing but the engine": PLAIN,
    "a group without a name": {**PLAIN, "workers": [{"memory": "1Gi"}]},
    "an empty group": {**PLAIN, "replicas": 2, "workers": [{}]},
    "no group": {**PLAIN, "workers": []},
    "two groups": {**PLAIN, "replicas": 2, "workers": [{"cpu": 0.5}, {"name": "big", "replicas": 2, "gpu": 1}]},
    "blocks": {
        **PLAIN, "head": {"memory": "1Gi", "cpu": "500m"}, "drain": {}, "expose": {"annotations": {"a": "b"}},
        "dask": {"config": {"a": [1, {"b": 2}]}}, "namespace": {}, "lifetime": {"orphaned": "5m"}, "ray": {},
        "workers": [{"pod": SIMULATED_POD}],
    },
}  # fmt: skip


@pytest.mark.parametrize("words", [(), FORCED], ids=["client-side", "server-side"])
@pytest.mark.parametrize("spec", FILES.values(), ids=FILES)
def test_second_apply_and_diff_show_no_change(stage: Stage, spec: Object, words: tuple[str, ...]) -> None:
    text = json.dumps(resource("demo") | {"spec": spec})
    apply(stage, text, *words)
    # As an operator does. Without it the next write stores the status' default: a new resourceVersion, once.
    status = stage.kube.path("computeclusters/demo/status", f"apis/{API_VERSION}")
    before = stage.kube.api.patch(status, {"status": {"phase": "Starting"}})["metadata"]
    assert stage.kube.kubectl("diff", *words, "-f", "-", text=text) == "", "and the exit code is 0"
    printed = apply(stage, text, *words)
    assert printed.strip().endswith("serverside-applied" if words else "unchanged")
    assert stage.get("demo")["metadata"] == before


def test_operator_writes_nothing_but_the_status(stage: Stage, operators: Operators) -> None:
    operators()
    apply(stage, file_of(2))
    created = stage.get("demo")
    stage.await_ready("demo")
    stage.await_guarded("demo")
    found = stage.get("demo")
    assert found["spec"] == created["spec"] and found["metadata"]["generation"] == 1
    assert found["metadata"]["annotations"] == created["metadata"]["annotations"]
    assert writers_outside_status(found) == {"kubectl-client-side-apply"}
    scale(stage, 3)
    stage.await_ready("demo")
    assert writers_outside_status(stage.get("demo")) == {"kubectl-client-side-apply", "kubectl"}
    assert stage.kube.kubectl("diff", "-f", "-", text=file_of(3)) == ""


def writers_outside_status(found: Object) -> set[str]:
    entries = found["metadata"]["managedFields"]
    return {entry["manager"] for entry in entries if set(entry["fieldsV1"]) - {"f:status"}}


# files that are refused


@pytest.mark.parametrize("words", [(), FORCED], ids=["client-side", "server-side"])
def test_number_in_the_first_group_is_refused_with_the_right_field(stage: Stage, words: tuple[str, ...]) -> None:
    spec = {**PLAIN, "workers": [{"replicas": 3}]}
    sentence = r"workers\[0\]\.replicas: write the number of workers of the first group in spec\.replicas"
    with pytest.raises(LabError, match=sentence):
        apply(stage, json.dumps(resource("demo") | {"spec": spec}), *words)
