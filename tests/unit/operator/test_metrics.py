"""The operator's metrics."""

from __future__ import annotations

import oars
from oars.operator.monitoring import Metrics
from oars.spec.status import GroupStatus, Phase, Status

ELASTIC = GroupStatus("default", wanted=3, ready=2, min=0, max=9, needed=4, reason="Blocked")
FIXED = GroupStatus("big", wanted=1, ready=1)
STATUS = Status("demo", "dask", "kubernetes", Phase.READY, groups=(ELASTIC, FIXED), namespace="team")


def gauges(metrics: Metrics) -> dict[str, str]:
    lines = (line.rpartition(" ") for line in metrics.text().splitlines() if line.startswith("oars_group_"))
    return {name: value for name, _, value in lines}


def test_leader_exports_the_figures_of_each_group() -> None:
    metrics = Metrics(lambda: 0, lambda: [STATUS])
    assert not gauges(metrics), "a standby knows nothing current"
    metrics.leading = True
    elastic = '{namespace="team",cluster="demo",group="default"}'
    fixed = '{namespace="team",cluster="demo",group="big"}'
    assert gauges(metrics) == {
        f"oars_group_min{elastic}": "0",
        f"oars_group_max{elastic}": "9",
        f"oars_group_demand{elastic}": "4",
        f"oars_group_wanted{elastic}": "3",
        f"oars_group_ready{elastic}": "2",
        f'oars_group_decision{elastic[:-1]},reason="Blocked"}}': "1",
        f"oars_group_wanted{fixed}": "1",
        f"oars_group_ready{fixed}": "1",
    }
    assert "# TYPE oars_group_demand gauge" in metrics.text()


def lines(metrics: Metrics, prefix: str) -> list[str]:
    return [line for line in metrics.text().splitlines() if line.startswith(prefix)]


def test_clusters_are_counted_by_engine_and_phase() -> None:
    other = Status("other", "ray", "kubernetes", Phase.STARTING, namespace="team")
    metrics = Metrics(lambda: 0, lambda: [STATUS, other, other])
    assert not lines(metrics, "oars_cluster"), "a standby knows nothing current"
    metrics.leading = True
    assert lines(metrics, "oars_cluster_info{") == [
        'oars_cluster_info{namespace="team",cluster="demo",engine="dask",phase="Ready"} 1',
        'oars_cluster_info{namespace="team",cluster="other",engine="ray",phase="Starting"} 1',
    ]
    assert lines(metrics, "oars_clusters{") == [
        'oars_clusters{engine="dask",phase="Ready"} 1',
        'oars_clusters{engine="ray",phase="Starting"} 2',
    ]


def test_values_of_labels_are_escaped() -> None:
    metrics = Metrics(lambda: 0, lambda: [Status('a"b\\c\nd', "dask", "kubernetes", Phase.READY)])
    metrics.leading = True
    (line,) = lines(metrics, "oars_cluster_info{")
    assert r'cluster="a\"b\\c\nd"' in line


def test_version_errors_and_durations_have_the_usual_names() -> None:
    metrics = Metrics(lambda: 0, api_errors={"409": 2, "none": 1})
    metrics.count(0.01, failed=False)
    text = metrics.text()
    assert f'oars_build_info{{version="{oars.__version__}"}} 1' in text
    assert lines(metrics, "oars_api_errors_total{") == [
        'oars_api_errors_total{code="409"} 2',
        'oars_api_errors_total{code="none"} 1',
    ]
    assert "# TYPE oars_reconcile_duration_seconds histogram" in text
    assert 'oars_reconcile_duration_seconds_bucket{le="0.005"} 0' in text
    assert 'oars_reconcile_duration_seconds_bucket{le="0.02"} 1' in text
