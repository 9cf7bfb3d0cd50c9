"""`oars convert`, and foreign manifests as files of other commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from oars.cli import errors
from oars.cli.main import call
from tests.compat.blocks import MARS_BY_HAND, page

MANIFESTS = Path(__file__).parents[1] / "convert/manifests"


def run(*words: str, code: int = 0) -> None:
    assert errors.guard(lambda: call(list(words))) == code


def test_converted_manifests_are_printed_and_the_rest_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    run("convert", str(MANIFESTS / "ray-job.yaml"))
    shown = capsys.readouterr()
    assert [each["kind"] for each in yaml.safe_load_all(shown.out)] == ["ComputeJob", "ConfigMap"]
    assert "not honoured: RayJob rayjob-demo: spec.runtimeEnvYAML.pip: " in shown.err


def test_example_of_kubedls_document_is_converted_as_it_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its second block is an outline, with types instead of values: it is no YAML."""
    example, outline = (code for language, code in page(MARS_BY_HAND) if language == "yaml")
    file = tmp_path / "mars-test-demo.yaml"
    file.write_text(example)
    run("convert", str(file))
    shown = capsys.readouterr()
    made = yaml.safe_load(shown.out)
    assert (made["kind"], made["metadata"]) == ("ComputeCluster", {"name": "mars-test-demo", "namespace": "default"})
    spec, (group,) = made["spec"], made["spec"]["workers"]
    assert (spec["image"], spec["replicas"], spec["expose"]) == ("mars-image", 2, {"host": "mars.domain.com"})
    assert [(part["cpu"], part["memory"]) for part in (spec["head"], group)] == [(2, "2Gi")] * 2
    assert [part["pod"]["metadata"]["labels"]["mars/service-type"] for part in (spec["head"], group)] == [
        "marsscheduler",
        "marsworker",
    ]
    roles = "not honoured: MarsJob mars-test-demo: spec.marsReplicaSpecs"
    assert [line[: line.index(": ", len(roles))] for line in shown.err.splitlines()] == [
        f"{roles}.{field}"
        for field in (
            "Scheduler.restartPolicy",
            "WebService.restartPolicy",
            "WebService.template",
            "Worker.restartPolicy",
        )
    ]
    run("render", "-q", "-f", str(file), "--secrets", "reference")
    assert {each["kind"] for each in yaml.safe_load_all(capsys.readouterr().out)} >= {
        "Deployment",
        "Service",
        "Ingress",
    }
    file.write_text(outline)
    run("convert", str(file), code=2)
    assert f"{file}:11:" in capsys.readouterr().err


def test_output_formats(capsys: pytest.CaptureFixture[str]) -> None:
    run("convert", str(MANIFESTS / "dask-cluster.yaml"), "-o", "json")
    assert [each["kind"] for each in json.loads(capsys.readouterr().out)["items"]] == ["ComputeCluster"]
    run("convert", str(MANIFESTS / "ray-deployments.yaml"), "-o", "name")
    assert capsys.readouterr().out.split() == ["namespace/ray", "computecluster/ray", "deployment/web"]


def test_strict_makes_it_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run("convert", "--strict", str(MANIFESTS / "ray-service.yaml"), code=2)
    shown = capsys.readouterr()
    assert not shown.out and "2 fields are not honoured" in shown.err and "serveConfigV2" in shown.err
    job = yaml.safe_load((MANIFESTS / "dask-job.yaml").read_text())
    job["spec"]["job"]["spec"]["restartPolicy"] = "Never"
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    run("convert", "--strict", str(file))
    assert not capsys.readouterr().err


def test_other_commands_read_foreign_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(MANIFESTS / "dask-cluster.yaml")
    run("render", "-f", file, "--secrets", "reference", "--set", "workers.additional.replicas=2", "-q")
    shown = capsys.readouterr()
    found = {each["metadata"]["name"]: each for each in yaml.safe_load_all(shown.out) if each["kind"] == "Deployment"}
    assert set(found) == {"simple-head", "simple-worker", "simple-additional"}
    assert found["simple-additional"]["spec"]["replicas"] == 2
    assert "not honoured: DaskCluster simple: metadata.labels: " in shown.err


@pytest.mark.parametrize(
    ("words", "file"),
    [(("submit", "--detach"), "ray-job"), (("up",), "dask-cluster"), (("render", "-q"), "dask-cluster")],
)
def test_strict_creates_nothing(words: tuple[str, ...], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(*words, "-f", str(MANIFESTS / f"{file}.yaml"), "--strict", code=2)
    assert "not honoured" in capsys.readouterr().err


def test_job_is_not_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    run("render", "-f", str(MANIFESTS / "dask-job.yaml"), code=2)
    assert "is ComputeJob, not a cluster" in capsys.readouterr().err


def test_namespace_of_a_job_is_that_of_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    run("submit", "-f", str(MANIFESTS / "ray-job-on-cluster.yaml"), "-n", "other", "--detach", code=2)
    assert "The file has namespace 'lab', but --namespace is 'other'." in capsys.readouterr().err
