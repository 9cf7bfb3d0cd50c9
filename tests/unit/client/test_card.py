"""How a cluster looks, and what its two faces have in common."""

from __future__ import annotations

import inspect

from oars.client import card
from oars.client.cluster import AsyncCluster
from oars.client.sync import Cluster
from oars.places.report import Report
from oars.spec.cluster import ClusterSpec
from oars.spec.status import Endpoints, GroupStatus, Phase, Status

SPEC = ClusterSpec.model_validate({"engine": "dask", "workers": [{"replicas": 3, "memory": "1Gi"}]})


def report(phase: Phase, message: str = "") -> Report:
    endpoints = Endpoints("tls://127.0.0.1:1", "http://127.0.0.1:2/status")
    groups = (GroupStatus("default", 3, 2),)
    return Report(Status("demo", "dask", "local", phase, "", message, endpoints, groups))


def test_a_line_in_a_terminal() -> None:
    line = card.text("Cluster", "demo", SPEC, report(Phase.READY))
    assert line == "<Cluster demo: dask on local, Ready, workers 2/3, memory 3Gi>"
    assert "Stopped, workers 0/3" in card.text("Cluster", "demo", SPEC, None)


def test_a_card_in_a_notebook() -> None:
    html = card.html("demo", SPEC, report(Phase.READY))
    for part in ("demo", "dask", "local", "2/3", "3Gi", 'href="http://127.0.0.1:2/status"', "● Ready"):
        assert part in html
    assert "<script" not in html and "src=" not in html


def test_the_card_says_what_is_wrong_and_lets_nothing_through() -> None:
    html = card.html("demo", SPEC, report(Phase.DEGRADED, "<b>worker-0</b> died"))
    assert "&lt;b&gt;worker-0&lt;/b&gt; died" in html


def test_both_faces_offer_the_same() -> None:
    """Cluster is AsyncCluster without await: what the one has, the other has, with the same arguments."""
    skipped = {"start", "follow_logs", "_repr_html_"}
    for name, member in inspect.getmembers(AsyncCluster):
        if name.startswith("_") or name in skipped:
            continue
        twin = getattr(Cluster, name)
        if inspect.isfunction(member):
            theirs, ours = inspect.signature(member).parameters, inspect.signature(twin).parameters
            assert set(theirs) <= set(ours), name
