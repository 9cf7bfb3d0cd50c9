"""Passes of a loop in another process or thread, for tests of what does not happen."""

from __future__ import annotations

import time

from oars import Cluster


def await_passes(cluster: Cluster, workers: int, count: int = 3) -> None:
    """Wait until the cluster's loop has made that many more passes. The number of workers is written again each time:
    that begins a new generation, and the pass that has read it reports it."""
    for _ in range(count):
        before, deadline = cluster.status().generation, time.monotonic() + 60
        cluster.scale(workers)
        while cluster.status().generation <= before:
            assert time.monotonic() < deadline, cluster.status()
            time.sleep(0.05)
