"""The dashboard for Grafana: one row per panel, with its title, unit and queries."""

from __future__ import annotations

import json
from typing import Any

CHOSEN = 'namespace=~"$namespace",cluster=~"$cluster"'
# Title, unit, and queries with their legends.
PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Clusters", "short", (("sum by (engine, phase) (oars_clusters)", "{{engine}} {{phase}}"),)),
    (
        "Workers",
        "short",
        tuple(
            (
                f"sum by (namespace, cluster) (oars_group_{figure}{{{CHOSEN}}})",
                f"{{{{namespace}}}}/{{{{cluster}}}} {figure}",
            )
            for figure in ("demand", "wanted", "ready")
        ),
    ),
    (
        "Dask: tasks",
        "short",
        ((f"sum by (cluster, state) (dask_scheduler_tasks{{{CHOSEN}}})", "{{cluster}} {{state}}"),),
    ),
    (
        "Dask: memory of workers",
        "bytes",
        ((f"sum by (cluster, type) (dask_worker_memory_bytes{{{CHOSEN}}})", "{{cluster}} {{type}}"),),
    ),
    ("Ray: processors", "percent", ((f"ray_node_cpu_utilization{{{CHOSEN}}}", "{{cluster}} {{pod}}"),)),
    ("Ray: memory", "bytes", ((f"ray_node_mem_used{{{CHOSEN}}}", "{{cluster}} {{pod}}"),)),
    (
        "Operator: duration of passes",
        "s",
        tuple(
            (
                f"histogram_quantile({share}, sum by (le) (rate(oars_reconcile_duration_seconds_bucket[5m])))",
                f"{share:.0%}",
            )
            for share in (0.5, 0.99)
        ),
    ),
    (
        "Operator: failures",
        "ops",
        (
            ('sum(rate(oars_reconcile_total{result="error"}[5m]))', "passes"),
            ("sum by (code) (rate(oars_api_errors_total[5m]))", "API server: {{code}}"),
        ),
    ),
    ("Operator: waiting clusters", "short", (("sum(oars_queue_depth)", "waiting"),)),
    ("Operator: replicas that lead", "short", (("sum(oars_leading)", "leaders"),)),
)
WIDTH, HEIGHT = 12, 8


def text() -> str:
    return json.dumps(_board(), indent=2) + "\n"


def _board() -> dict[str, Any]:
    return {
        "uid": "oars",
        "title": "Oars",
        "tags": ["oars"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                _variable("namespace", "label_values(oars_cluster_info, namespace)"),
                _variable("cluster", 'label_values(oars_cluster_info{namespace=~"$namespace"}, cluster)'),
            ]
        },
        "panels": [_panel(number, *panel) for number, panel in enumerate(PANELS)],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, title: str, unit: str, queries: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries)
        ],
    }
