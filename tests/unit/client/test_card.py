"""The representation of a cluster."""

from __future__ import annotations

from oars.client import card
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Endpoints, GroupStatus, Phase, Status

SPEC = ClusterSpec.model_validate({"engine": "dask", "workers": [{"replicas": 3, "memory": "1Gi"}]})


def report(phase: Phase, message: str = "") -> Report:
    endpoints = Endpoints("tls://127.0.0.1:1", "http://127.0.0.1:2/status")
    groups = (GroupStatus("default", 3, 2),)
    return Report(Status("demo", "dask", "local", phase, "", message, endpoints, groups))


def test_repr_is_one_line() -> None:
    line = card.text("Cluster", "demo", SPEC, report(Phase.READY))
    assert line == "<Cluster demo: dask on local, Ready, workers 2/3, memory 3Gi>"
    assert "Stopped, workers 0/3" in card.text("Cluster", "demo", SPEC, None)


def test_html_card_shows_the_status() -> None:
    html = card.html("demo", SPEC, report(Phase.READY))
    for part in ("demo", "dask", "local", "2/3", "3Gi", 'href="http://127.0.0.1:2/status"', "● Ready"):
        assert part in html
    assert "<script" not in html and "src=" not in html


def test_html_card_escapes_the_message() -> None:
    html = card.html("demo", SPEC, report(Phase.DEGRADED, "<b>worker-0</b> died"))
    assert "&lt;b&gt;worker-0&lt;/b&gt; died" in html
