"""The operator's metrics of worker groups."""

from __future__ import annotations

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
