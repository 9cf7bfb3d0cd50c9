"""The parts of bench.kube_jobs that need no Kubernetes."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
import yaml
from bench import kube_jobs, kube_jobs_page
from bench.peers import dashboard

from oars.spec.load_job import build_job

METRICS = """\
apiserver_request_total{verb="POST",resource="computejobs",subresource=""} 2
apiserver_request_total{verb="PATCH",resource="computejobs",subresource="status"} 5
apiserver_request_total{verb="PATCH",resource="pods",subresource="status"} 100
apiserver_request_total{verb="GET",resource="pods",subresource=""} 100
apiserver_request_total{verb="POST",resource="events",subresource=""} 100
apiserver_request_total{verb="DELETE",resource="jobs",subresource="",code="200"} 1
"""


class Metrics:
    def get(self, path: str) -> dict[str, str]:
        assert path == "/metrics"
        return {"text": METRICS}


@pytest.mark.parametrize("engine", kube_jobs.PROGRAMS)
def test_same_program_runs_in_all_ways(engine: str, tmp_path: Path) -> None:
    kube_jobs.by_oars(tmp_path, engine, "i:1")
    spec = build_job({}, manifest=yaml.safe_load((tmp_path / "job.yaml").read_text())).spec
    assert spec.cluster is not None and spec.cluster.workers[0].replicas == kube_jobs.WORKERS
    program = (tmp_path / "job.py").read_text()
    compile(program, "job.py", "exec")
    for objects in (kube_jobs.by_hand(engine, "i:1"), kube_jobs.by_kuberay(engine, "i:1")):
        (code,) = [each["data"]["job.py"] for each in objects if each["kind"] == "ConfigMap"]
        assert code.endswith(program)
        compile(code, "job.py", "exec")


def test_writes_are_those_of_users_and_operators() -> None:
    found = kube_jobs.writes(Metrics())  # type: ignore[arg-type]
    assert found == {"POST computejobs": 2, "PATCH computejobs/status": 5, "DELETE jobs 200": 1}


def test_simulated_dashboard_answers_for_every_cluster() -> None:
    with dashboard.simulated() as environ:
        proxy = urllib.request.ProxyHandler({"http": environ["HTTP_PROXY"]})
        opener = urllib.request.build_opener(proxy)
        for cluster in ("one", "two"):
            url = f"http://{cluster}-head-svc.default.svc.cluster.local:8265/api/jobs/{cluster}-x"
            with opener.open(url, timeout=10) as answer:
                found = json.load(answer)
            assert (found["submission_id"], found["status"]) == (f"{cluster}-x", "SUCCEEDED")


def test_page_shows_a_missed_limit(tmp_path: Path) -> None:
    row = {
        "engine": "ray", "by_hand": 20.0, "ours": 24.0, "kuberay": 40.0, "shown": 24.1, "ratio": 1.2, "limit": 1.15,
        "ok": False, "runs": {"ours": [{}]},
    }  # fmt: skip
    run = {"jobs": 300, "seconds": 60.0}
    ours = {**run, "cpu": 10.0, "megabytes": 90.0, "writes_per_job": 20.5, "cpu_kubernetes": 50.0}
    record = {
        "start": {"when": "now", "cores": 2, "load": [1.0], "result": {"rows": [row], "workers": 2}},
        "many": {
            "when": "now",
            "cores": 2,
            "load": [1.0],
            "result": {"by_hand": [run], "ours": [ours], "kuberay": [ours]},
        },
    }
    file = tmp_path / "kube_jobs.json"
    file.write_text(json.dumps(record))
    text = "\n".join(kube_jobs_page.section(file))
    assert "| ray, 1 + 2 | 1 | 24.00 | 20.00 | 1.200 | 1.15 | 40.00 | missed | – | 24.10 |" in text
    assert "| Oars' operator, from ComputeJobs | 1 | 60.00 | 10.00 | 90.00 | 20.50 | 50.00 |" in text
    assert "300 jobs" in text
    assert not list(kube_jobs_page.section(tmp_path / "missing.json"))
