"""The driver of a job on Kubernetes: its Job, the parts of its files, and its status."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oars import engines
from oars.exposure import Exposure
from oars.model import Desired
from oars.places.kube import names
from oars.places.kube.render import driver
from oars.places.kube.render.defaults import DEFAULTS
from oars.places.kube.render.driver import PART_BYTES, Attempted, archive_parts, driver_job
from oars.places.kube.state.job_codec import dump_status, load_policy, load_status
from oars.plan.desired import build
from oars.plan.jobs import JobPolicy
from oars.spec import load
from oars.spec.job import JobSpec
from oars.spec.job_status import Attempt, JobState, JobStatus, Outcome
from tests.unit.places.test_kube_network import ports_for, served

OWNER = {"apiVersion": "oars.dev/v1alpha1", "kind": "ComputeJob", "name": "train", "uid": "u"}


def cluster_of(engine: str, **fields: Any) -> Desired:
    cluster = load.build({"engine": engine, "place": "kubernetes", "image": "i:1", **fields}).spec
    return build("train-2", cluster, engines.get(engine), DEFAULTS, namespace="team")


def rendered(
    engine: str = "dask", seconds: float | None = None, expose: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    desired = cluster_of(engine, expose=expose or {})
    spec = JobSpec.model_validate({"cluster": {"engine": engine}, "entrypoint": ["python", "x.py", "$(A)"], **fields})
    return driver_job(Attempted("train", OWNER, 2, desired, seconds), spec)


@pytest.mark.parametrize("engine", ["dask", "ray", "mars"])
def test_driver_runs_once_in_the_clusters_image_and_finds_it(engine: str) -> None:
    job = rendered(engine)
    assert job["metadata"]["name"] == "train-2"
    assert job["metadata"]["ownerReferences"] == [OWNER]
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["completions"], spec["podReplacementPolicy"]) == (0, 1, "Failed")
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    assert (pod["restartPolicy"], container["name"], container["image"]) == ("Never", "driver", "i:1")
    assert container["command"][-3:] == ["python", "x.py", "$$(A)"], "Kubernetes expands nothing"
    env = {each["name"]: each.get("value", "") for each in container["env"]}
    assert (env["OARS_JOB"], env["OARS_ATTEMPT"], env["OARS_NAME"]) == ("train", "2", "train-2")
    assert "train-2-head" in env["OARS_ADDRESS"]
    labels = spec["template"]["metadata"]["labels"]
    assert labels[names.JOB] == "train"
    assert names.CLUSTER not in labels, "it must not become a member"


def test_driver_has_no_labels_of_the_author_and_reaches_the_cluster() -> None:
    """Services, policies and webhooks of others select pods by their labels."""
    job = rendered(expose={"clients": {"app": "shop", names.CLUSTER: "other"}})
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels == {
        "app.kubernetes.io/managed-by": "oars", names.JOB: "train", names.ATTEMPT: "2", names.DRIVER_OF: "train-2",
    }  # fmt: skip
    desired = replace(cluster_of("dask", expose={"clients": {"app": "shop"}}), mode="operator")
    assert ports_for(desired, labels, "team") == served(desired)
    assert ports_for(desired, labels, "elsewhere") == set()
    assert ports_for(replace(desired, name="other"), labels, "team") == set()
    assert ports_for(replace(desired, expose=Exposure()), labels, "team") == served(desired)


def test_options_of_the_driver() -> None:
    archive = {"archive": f"sha256:{'ab' * 32}", "size": 2 * PART_BYTES + 1}
    secrets = [{"name": "hf", "key": "token", "as": "TOKEN"}]
    overlay = {"spec": {"nodeSelector": {"a": "b"}}}
    job = rendered(
        workingDir=archive, secrets=secrets, env={"A": "b"}, priorityClass="batch",
        driver={"cpu": 2, "memory": "3Gi", "pod": overlay},
    )  # fmt: skip
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert (pod["nodeSelector"], pod["priorityClassName"]) == ({"a": "b"}, "batch")
    assert container["resources"]["limits"] == {"cpu": "2", "memory": str(3 * 2**30)}
    reference = {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert {"name": "TOKEN", "valueFrom": reference} in container["env"]
    code = next(each for each in pod["volumes"] if each["name"] == "oars-code")
    assert len(code["projected"]["sources"]) == 3


def test_start_script_unpacks_the_files_and_becomes_the_command(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("x.py")
        text = b"import os, sys; print(os.listdir(), sys.argv[1:]); sys.exit(7)"
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    (tmp_path / "code").mkdir()
    (tmp_path / "work").mkdir()
    data = buffer.getvalue()
    for number, part in enumerate((data[:50], data[50:])):
        (tmp_path / f"code/part-{number:03}").write_bytes(part)
    script = driver.START.replace(repr(driver.WORK), repr(str(tmp_path / "work")))
    script = script.replace(repr(driver.CODE), repr(str(tmp_path / "code")))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)

    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    wrong = run(f"sha256:{'ab' * 32}", sys.executable, "x.py")
    assert (wrong.returncode, list((tmp_path / "work").iterdir())) == (driver.WRONG_FILES, [])
    assert "other content" in wrong.stderr
    done = run(digest, sys.executable, "x.py", "a b")
    assert (done.returncode, done.stdout) == (7, "['x.py'] ['a b']\n")
    lost = run("", "/missing")
    assert lost.returncode == 127
    assert "'/missing' could not be started" in lost.stderr


def test_kubernetes_ends_a_driver_some_time_after_its_deadline() -> None:
    assert "activeDeadlineSeconds" not in rendered()["spec"]
    assert rendered(seconds=59.5)["spec"]["activeDeadlineSeconds"] == 60 + driver.LATE_SECONDS


def test_closed_attempt_has_the_name_of_its_driver_and_no_pod() -> None:
    closed = driver.closed_job("train", OWNER, 2, "team")
    assert closed["metadata"] == rendered()["metadata"]
    assert closed["spec"]["suspend"] is True


def test_parts_of_an_archive_are_named_after_its_content() -> None:
    data = bytes(PART_BYTES + 1)
    parts = archive_parts("sha256:" + "ab" * 32, data)
    assert [(name, key) for name, key, _ in parts] == [
        ("oars-files-" + "ab" * 16 + "-0", "part-000"),
        ("oars-files-" + "ab" * 16 + "-1", "part-001"),
    ]
    assert b"".join(part for *_, part in parts) == data


def test_status_survives_a_round_trip() -> None:
    ended = Attempt(1, "train-1", 10.0, "h", 11.0, 12.5, 137, Outcome.LOST, "HeadLost", "text", "HeadLost", 12.0)
    status = JobStatus(JobState.SUCCEEDED, "", "", "dask", "train-2", 2, 0, 1, 10.0, 20.0, 0, 9.0, None, None)
    status = replace(status, attempts=(ended, Attempt(2, "train-2", 13.0)))
    stored = dump_status(status, 3, JobPolicy(retries=2, retried=((1, 9),)))
    without_nulls = {**stored, "record": {name: value for name, value in stored["record"].items() if value is not None}}
    assert load_status(without_nulls) == status
    assert (stored["state"], stored["completionTime"]) == ("Succeeded", "1970-01-01T00:00:20Z")
    conditions = {each["type"]: each["status"] for each in stored["conditions"]}
    assert conditions == {"Admitted": "True", "ClusterReady": "False", "Complete": "True"}
    waiting = dump_status(JobStatus(), 1, JobPolicy())
    assert waiting["conditions"] == []
    running = JobStatus(JobState.RUNNING, attempt=1, started=1.0, attempts=(Attempt(1, "train-1", 1.0, "h", 2.0),))
    (_, ready) = dump_status(running, 1, JobPolicy())["conditions"]
    assert (ready["status"], ready["lastTransitionTime"]) == ("True", "1970-01-01T00:00:02Z")
    assert load_status(None) == JobStatus()
    assert load_policy(stored) == JobPolicy(retries=2, retried=((1, 9),))
    assert load_policy(None) == JobPolicy()
