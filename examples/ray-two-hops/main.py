"""Passes a hundred values through two Ray tasks each and counts the machines on their way. Run it with:

oars run examples/ray-two-hops/main.py --engine ray --workers 3
"""

import socket
import time
from collections import Counter

import ray


@ray.remote
def hop(path: tuple[str, ...]) -> tuple[str, ...]:
    time.sleep(0.01)
    return (*path, socket.gethostname())


def work() -> str:
    ray.init(ignore_reinit_error=True, log_to_driver=False)  # finds the cluster of `oars run`
    paths = Counter(ray.get([hop.remote(hop.remote(())) for _ in range(100)]))
    return f"{paths.total()} values over {len(paths)} path(s)"


if __name__ == "__main__":
    print(work())
