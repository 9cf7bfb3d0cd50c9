"""What an operator tells Prometheus of itself, in its text format."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class Metrics:
    """Counters of one process."""

    def __init__(self, depth: Callable[[], int]) -> None:
        self.leading = False
        self._depth = depth
        self._passes = {"ok": 0, "error": 0}
        self._buckets = dict.fromkeys(BUCKETS, 0)
        self._seconds = 0.0
        self._started = time.time()

    def count(self, seconds: float, *, failed: bool) -> None:
        self._passes["error" if failed else "ok"] += 1
        self._seconds += seconds
        for bucket in BUCKETS:
            self._buckets[bucket] += seconds <= bucket

    def text(self) -> str:
        total = sum(self._passes.values())
        usage = resource.getrusage(resource.RUSAGE_SELF)
        rows = [
            *_metric("oars_reconcile_total", "counter", "Passes over a cluster.", *(
                (f'result="{result}"', count) for result, count in self._passes.items()
            )),
            "# HELP oars_reconcile_seconds How long a pass took.",
            "# TYPE oars_reconcile_seconds histogram",
            *(f'oars_reconcile_seconds_bucket{{le="{edge}"}} {count}' for edge, count in self._buckets.items()),
            f'oars_reconcile_seconds_bucket{{le="+Inf"}} {total}',
            f"oars_reconcile_seconds_sum {self._seconds:.6f}",
            f"oars_reconcile_seconds_count {total}",
            *_metric("oars_queue_depth", "gauge", "Clusters that are due and wait.", ("", self._depth())),
            *_metric("oars_leading", "gauge", "1 in the replica that is at work.", ("", int(self.leading))),
            *_metric("process_cpu_seconds_total", "counter", "Processor time used.",
                     ("", round(usage.ru_utime + usage.ru_stime, 3))),
            *_metric("process_resident_memory_bytes", "gauge", "Memory in use.", ("", _resident())),
            *_metric("process_start_time_seconds", "gauge", "When it began.", ("", round(self._started, 3))),
        ]  # fmt: skip
        return "\n".join(rows) + "\n"


def _metric(name: str, kind: str, meaning: str, *values: tuple[str, float]) -> list[str]:
    lines = [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in values]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *lines]


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
