"""Jobs from files, mappings and options."""

from __future__ import annotations

import re
from typing import Any

import pytest

from oars.base.errors import SpecError
from oars.spec.job import MAX_ARCHIVE, WorkingDir
from oars.spec.load_job import JobManifest, build_job, check_on_kubernetes, dump_job, load_job_text

JOB = """
apiVersion: oars.dev/v1alpha1
kind: ComputeJob
metadata: {name: train}
spec:
  cluster: {engine: dask, workers: 2}
  entrypoint: [python, train.py]
  retryOn: {exitCodes: [1, 128-255]}
  deadline: 8h
"""
CLUSTER = """
apiVersion: oars.dev/v1alpha1
kind: ComputeCluster
metadata: {name: demo}
spec: {engine: ray, workers: 3}
"""


def load(text: str, fields: dict[str, Any] | None = None, *sets: str, **overrides: Any) -> JobManifest:
    return load_job_text(text, "job.yaml", fields or {}, sets, overrides)


def test_file_survives_a_round_trip() -> None:
    found = load(JOB)
    assert (found.name, found.spec.deadline, found.spec.retry_on.exit_codes) == ("train", 28800.0, ("1", "128-255"))
    again = dump_job(found.name, found.spec)
    assert build_job(again["spec"]).spec == found.spec


def test_cluster_file_is_the_cluster_of_a_job_with_a_name_of_its_own() -> None:
    found = load(CLUSTER, {"entrypoint": ["true"]})
    assert found.name is None
    assert found.spec.cluster is not None
    assert (found.spec.cluster.engine, found.spec.entrypoint) == ("ray", ("true",))


def test_cluster_file_without_a_command_says_how_to_give_one() -> None:
    with pytest.raises(SpecError, match="No command is given") as caught:
        load(CLUSTER)
    assert "oars submit -f cluster.yaml -- " in caught.value.hint
    assert load(CLUSTER, None, "entrypoint=make all").spec.entrypoint == ("sh", "-c", "make all")


def test_options_win_over_the_file() -> None:
    found = load(JOB, {"retries": 3, "env": None}, "backoff.first=2s", engine="ray")
    assert found.spec.cluster is not None
    assert (found.spec.retries, found.spec.backoff.first, found.spec.cluster.engine) == (3, 2.0, "ray")


def test_existing_cluster() -> None:
    found = build_job({"cluster": {"name": "demo"}, "entrypoint": "make all"}).spec
    assert (found.cluster, found.cluster_name, found.entrypoint) == (None, "demo", ("sh", "-c", "make all"))
    assert dump_job(None, found)["spec"]["cluster"] == {"name": "demo"}
    with pytest.raises(SpecError, match="uses an existing one"):
        build_job({"cluster": {"name": "demo"}, "entrypoint": ["true"]}, (), {"engine": "ray"})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"entrypoint": []}, "command is missing"),
        ({"cluster": None}, "cluster is missing"),
        ({"cluster": {"name": "demo", "engine": "dask"}}, "remove the other fields"),
        ({"retries": -1}, "retries"),
        ({"retry": 1}, "retry"),
        ({"retryOn": {"exitCodes": [0]}}, "not an exit code"),
        ({"env": {"1A": "b"}}, "1A"),
        ({"workingDir": {"archive": "sha256:xyz"}}, "not the hash"),
        ({"secrets": [{"name": "../x", "key": "k", "as": "S"}]}, "not a name"),
        ({"deadline": "soon"}, "deadline"),
        ({"logs": {"keep": "2Gi"}}, r"logs\.keep"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], text: str) -> None:
    given = {"cluster": {"engine": "dask"}, "entrypoint": ["true"], **fields}
    with pytest.raises(SpecError, match=text):
        build_job({key: value for key, value in given.items() if value is not None})


def test_only_fields_that_files_have_are_suggested() -> None:
    with pytest.raises(SpecError) as caught:
        build_job({"cluster": {"engine": "dask"}, "entrypoint": ["true"], "retry": 1})
    assert caught.value.hint.startswith("Known fields of spec: attemptDeadline, backoff, cleanup, cluster, deadline, ")


@pytest.mark.parametrize(
    "content", ["", "[]", "kind: Pod", CLUSTER.replace("{name: demo}", "demo"), JOB.replace("train}", f"{'x' * 49}}}")]
)
def test_files_that_are_no_jobs(content: str) -> None:
    with pytest.raises(SpecError):
        load(content)


def test_packages_on_kubernetes_need_an_image() -> None:
    packages = {"engine": "dask", "environment": {"packages": ["pandas"]}}
    with pytest.raises(SpecError, match="nobody installs packages") as caught:
        check_on_kubernetes(build_job({"cluster": packages, "entrypoint": ["true"]}).spec)
    assert "`oars image build --engine dask --package pandas`" in caught.value.hint
    check_on_kubernetes(build_job({"cluster": {**packages, "image": "i:1"}, "entrypoint": ["true"]}).spec)
    check_on_kubernetes(build_job({"cluster": {"name": "demo"}, "entrypoint": ["true"]}).spec)


@pytest.mark.parametrize("size", [MAX_ARCHIVE + 1, 10**18])
def test_packed_files_on_kubernetes_are_small(size: int) -> None:
    """The driver's pod lists a ConfigMap for each 900 KiB."""
    files = {"archive": f"sha256:{'ab' * 32}", "size": size}
    spec = build_job({"cluster": {"name": "demo"}, "entrypoint": ["true"], "workingDir": files}).spec
    with pytest.raises(SpecError, match=r"workingDir\.size is \d+: .* at most 8388608 bytes"):
        check_on_kubernetes(spec)
    check_on_kubernetes(spec.model_copy(update={"working_dir": WorkingDir(size=MAX_ARCHIVE)}))


LABELLED = JOB.replace(
    "{name: train}",
    """
  name: train
  labels: {kueue.x-k8s.io/queue-name: team-a}
  annotations: {note: "1", kubectl.kubernetes.io/last-applied-configuration: "{}"}""",
)


def test_labels_and_annotations_are_kept() -> None:
    found = load(LABELLED)
    dumped = dump_job(found.name, found.spec, found.metadata)
    labels = {"kueue.x-k8s.io/queue-name": "team-a"}
    assert dumped["metadata"] == {"name": "train", "labels": labels, "annotations": {"note": "1"}}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("labels: {oars.dev/schedule: x}", "labels.*belongs to Oars"),
        ("annotations: {oars.dev/cancel: x}", "annotations.*belongs to Oars"),
        ("labels: {a: 1}", "must be text"),
        ("labels: [a]", "must be a mapping"),
        ("labelz: {a: b}", "labels"),
    ],
)
def test_wrong_labels_are_refused(line: str, error: str) -> None:
    with pytest.raises(SpecError) as raised:
        load(JOB.replace("{name: train}", f"{{name: train, {line}}}"))
    assert re.search(error, f"{raised.value.message} {raised.value.hint}", re.DOTALL)
