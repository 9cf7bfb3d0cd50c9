"""The operator's metrics in Prometheus' text format, and the HTTP server for /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

import oars
from oars.spec.status import Status

BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
REQUEST_TIMEOUT = 5.0
GROUP_GAUGES = {  # name → field of GroupStatus, description
    "min": ("min", "Least number of workers for autoscaling."),
    "max": ("max", "Largest number of workers for autoscaling."),
    "demand": ("needed", "Workers that the demand needs now."),
    "wanted": ("wanted", "Workers that are wanted."),
    "ready": ("ready", "Workers that the engine lists."),
}


# Name, type, description, and values by suffix: the labels, or `_sum` and the like.
Metric = tuple[str, str, str, Mapping[str, float]]
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labelled(labels: Mapping[str, str]) -> str:
    """The labels of a line, with their values escaped as the text format requires."""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in labels.items()) + "}"


class Metrics:
    """Counters of one process."""

    def __init__(
        self,
        queue_depth: Callable[[], int],
        statuses: Callable[[], Iterable[Status]] = tuple,
        api_errors: Mapping[str, int] | None = None,
    ) -> None:
        """`statuses`: of the clusters that this process reconciles. `api_errors`: counts of its client."""
        self.leading = False
        self._queue_depth = queue_depth
        self._statuses = statuses
        self._api_errors = api_errors if api_errors is not None else {}
        self._passes = {"ok": 0, "error": 0}
        self._buckets = dict.fromkeys(BUCKETS, 0)
        self._seconds = 0.0
        self._started = time.time()

    def count(self, seconds: float, failed: bool) -> None:
        self._passes["error" if failed else "ok"] += 1
        self._seconds += seconds
        for bucket in BUCKETS:
            self._buckets[bucket] += seconds <= bucket

    def text(self) -> str:
        total = sum(self._passes.values())
        usage = resource.getrusage(resource.RUSAGE_SELF)
        with open("/proc/self/statm") as statm:
            memory = int(statm.read().split()[1]) * resource.getpagesize()
        passes = {f"_total{labelled({'result': result})}": count for result, count in self._passes.items()}
        errors = {f"_total{labelled({'code': code})}": count for code, count in sorted(self._api_errors.items())}
        seconds: dict[str, float] = {f'_bucket{{le="{edge}"}}': count for edge, count in self._buckets.items()}
        seconds |= {'_bucket{le="+Inf"}': total, "_sum": round(self._seconds, 6), "_count": total}
        statuses = list(self._statuses()) if self.leading else []
        metrics: list[Metric] = [
            ("oars_build_info", "gauge", "1 for this version of Oars.", {labelled({"version": oars.__version__}): 1}),
            ("oars_reconcile", "counter", "Reconciliation passes.", passes),
            ("oars_reconcile_duration_seconds", "histogram", "Duration of a pass.", seconds),
            ("oars_api_errors", "counter", "Requests to the API server that failed, by HTTP status code.", errors),
            ("oars_queue_depth", "gauge", "Clusters that wait for a pass.", {"": self._queue_depth()}),
            ("oars_leading", "gauge", "1 in the replica that leads.", {"": int(self.leading)}),
            *_clusters(statuses),
            *_groups(statuses),
            ("process_cpu_seconds", "counter", "CPU time used.", {"_total": round(usage.ru_utime + usage.ru_stime, 3)}),
            ("process_resident_memory_bytes", "gauge", "Resident memory.", {"": memory}),
            ("process_start_time_seconds", "gauge", "Start time.", {"": round(self._started, 3)}),
        ]
        lines = []
        for name, kind, description, values in metrics:
            named = f"{name}_total" if kind == "counter" else name
            lines += [f"# HELP {named} {description}", f"# TYPE {named} {kind}"]
            lines += [f"{name}{suffix} {value}" for suffix, value in values.items()]
        return "\n".join(lines) + "\n"


def _clusters(statuses: Iterable[Status]) -> Iterable[Metric]:
    """One line per cluster, and the number of clusters by engine and phase."""
    info: dict[str, float] = {}
    counts: Counter[str] = Counter()
    for status in statuses:
        kind = {"engine": status.engine, "phase": str(status.phase)}
        info[labelled({"namespace": status.namespace, "cluster": status.name, **kind})] = 1
        counts[labelled(kind)] += 1
    yield "oars_clusters", "gauge", "Clusters by engine and phase.", counts
    yield "oars_cluster_info", "gauge", "1 for each cluster.", info


def _groups(statuses: Iterable[Status]) -> Iterable[Metric]:
    """One gauge per figure of a worker group. A group without autoscaling has no bounds and no demand."""
    groups = [
        ({"namespace": status.namespace, "cluster": status.name, "group": group.name}, asdict(group))
        for status in statuses
        for group in status.groups
    ]
    for name, (field, description) in GROUP_GAUGES.items():
        found = {labelled(labels): figures[field] for labels, figures in groups if figures[field] is not None}
        yield f"oars_group_{name}", "gauge", description, found
    decisions = {
        labelled({**labels, "reason": figures["reason"]}): 1 for labels, figures in groups if figures["reason"]
    }
    yield "oars_group_decision", "gauge", "1 for the reason of autoscaling's last decision.", decisions


class MonitoringServer:
    """Serves all paths on two ports, so that a network policy can restrict the metrics port alone."""

    def __init__(self, metrics: Callable[[], str], is_ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._is_ready = is_ready
        self._servers: list[asyncio.Server] = []

    async def start(self, metrics_port: int, health_port: int) -> None:
        """Port 0 disables a port."""
        for port in dict.fromkeys((metrics_port, health_port)):
            if port:
                self._servers.append(await asyncio.start_server(self._serve, "0.0.0.0", port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A request that breaks off, is too long or is none gets no reply.
        broken = (OSError, EOFError, TimeoutError, ValueError, IndexError, asyncio.LimitOverrunError)
        with contextlib.suppress(*broken), contextlib.closing(writer):
            async with asyncio.timeout(REQUEST_TIMEOUT):
                request = await reader.readuntil(b"\r\n")
                status, body = self._respond(request.split()[1].decode())
                head = f"HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}"
                writer.write(f"{head}\r\n\r\n{body}".encode())
                await writer.drain()

    def _respond(self, path: str) -> tuple[str, str]:
        if path == "/metrics":
            return "200 OK", self._metrics()
        if path == "/healthz" or (path == "/readyz" and self._is_ready()):
            return "200 OK", "ok\n"
        return ("503 Service Unavailable", "not ready\n") if path == "/readyz" else ("404 Not Found", "")

    async def close(self) -> None:
        for server in self._servers:
            server.close()
