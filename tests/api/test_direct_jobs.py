"""Jobs on Kubernetes without an operator, on a real control plane with simulated pods: `oars submit` runs the loop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.kube import Kube
from lab.wait import until
from tests.api.stage import OARS, SECONDS, Stage, group, resource
from tests.api.test_jobs import Jobs

from oars.places.kube import names

Submit = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def jobs(kube_api: Kube, kwok: Callable[[int], list[str]]) -> Jobs:
    """Pods are simulated, and no operator runs."""
    kwok(2)
    return Jobs(Stage(kube_api))


@pytest.fixture
def submit(jobs: Jobs, tmp_path: Path) -> Iterator[Submit]:
    """Start `oars submit` in direct mode with a job.yaml of these fields."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *options: str, **spec: object) -> subprocess.Popen[str]:
        cluster = {**resource("any", group(replicas=1))["spec"], "place": "kubernetes"}
        body = {"cluster": cluster, "entrypoint": ["python", "train.py"], "backoff": {"first": "0.1s"}, **spec}
        manifest = {"apiVersion": "oars.dev/v1alpha1", "kind": "ComputeJob", "metadata": {"name": name}, "spec": body}
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(manifest))
        words = [OARS, "submit", "-f", str(file), "--mode", "direct", "-n", jobs.kube.namespace, "--working-dir", ""]
        env = {**os.environ, "KUBECONFIG": str(jobs.kube.kubeconfig), "OARS_STATE_DIR": str(tmp_path / "state")}
        made = subprocess.Popen(
            [*words, *options], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        started.append(made)
        return made

    yield start
    for each in started:
        each.kill()
        print(each.communicate(timeout=60)[0])  # noqa: T201 (shown by pytest with a failed test)


@pytest.fixture
def oars(jobs: Jobs, tmp_path: Path) -> Callable[..., Any]:
    """Run `oars jobs` as another client would; its output as JSON. code: the expected exit code."""
    env = {**os.environ, "KUBECONFIG": str(jobs.kube.kubeconfig), "OARS_STATE_DIR": str(tmp_path / "other")}

    def call(verb: str, *words: str, code: int = 0) -> Any:
        options = ["-n", jobs.kube.namespace, *([] if verb == "rm" else ["-o", "json"])]
        done = subprocess.run(
            [OARS, "jobs", verb, *words, *options], env=env, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return json.loads(done.stdout or "null")

    return call


def clusters(jobs: Jobs) -> list[str]:
    return jobs.stage.left()


def test_attached_job_passes_on_the_exit_code_and_leaves_no_cluster(jobs: Jobs, submit: Submit) -> None:
    command = submit("alone")
    jobs.run_driver("alone")
    job = jobs.api.get(jobs.kube.path("jobs/alone-1", "apis/batch/v1"))
    assert job["spec"]["backoffLimit"] == 0
    root = jobs.api.get(jobs.kube.path(f"configmaps/{names.root('alone-1')}"))
    assert [each["uid"] for each in job["metadata"]["ownerReferences"]] == [root["metadata"]["uid"]]
    jobs.end_driver("alone", 1, 7)
    assert command.wait(SECONDS) == 7
    until("nothing is left", lambda: not clusters(jobs) and not jobs.drivers("alone"), SECONDS)


def test_retry_gets_a_new_cluster_while_the_command_runs(jobs: Jobs, submit: Submit) -> None:
    command = submit("again", retries=1)
    jobs.end_driver("again", 1, 3)
    jobs.end_driver("again", 2, 0)
    assert command.wait(SECONDS) == 0
    until("nothing is left", lambda: not clusters(jobs), SECONDS)


def test_interrupted_command_cancels_the_job(jobs: Jobs, submit: Submit) -> None:
    command = submit("stop")
    jobs.run_driver("stop")
    command.send_signal(signal.SIGINT)
    assert command.wait(SECONDS) == 130
    until("nothing is left", lambda: not clusters(jobs), SECONDS)


def test_other_clients_see_and_cancel_the_job_of_a_command(
    jobs: Jobs, submit: Submit, oars: Callable[..., Any]
) -> None:
    command = submit("shared")
    jobs.run_driver("shared")
    until("others see that it runs", lambda: [each["state"] for each in oars("ls")] == ["Running"], SECONDS)
    assert oars("why", "shared") == []
    refused = submit("shared")
    assert refused.wait(SECONDS) != 0
    assert refused.stdout is not None and "Job 'shared' exists already" in refused.stdout.read()
    assert oars("cancel", "shared")["state"] == "Cancelled"
    assert command.wait(SECONDS) == 130
    assert oars("wait", "shared", code=130)["attempts"][0]["outcome"] == "Stopped"
    oars("rm", "shared")
    assert oars("ls") == []
    until("nothing is left", lambda: not clusters(jobs), SECONDS)


def test_what_a_job_without_an_operator_cannot_have_is_refused(jobs: Jobs, submit: Submit) -> None:
    for options, spec, sentence in (
        (["--detach"], {}, "ends with the command that submitted it"),
        ([], {"schedule": {"cron": "0 3 * * *"}}, "schedule: without an operator"),
        ([], {"cleanup": {"policy": "none"}}, "cleanup.policy: none: without an operator"),
    ):
        command = submit("refused", *options, **spec)
        assert command.wait(SECONDS) != 0
        assert command.stdout is not None
        assert sentence in command.stdout.read()
    assert not clusters(jobs)
