"""What this machine has, and whether a cluster fits on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from oars.base.errors import SpecError
from oars.spec.resources import show_memory

if TYPE_CHECKING:
    from oars.spec.cluster import ClusterSpec


def total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_fits(spec: ClusterSpec, memory: int) -> None:
    """No member may be given more memory than there is; processors may be shared."""
    asked = [("head", spec.head.memory or 0)]
    asked += [(f"workers[{number}]", group.memory or 0) for number, group in enumerate(spec.workers)]
    for where, amount in asked:
        if amount > memory:
            raise SpecError(
                f"spec.{where}.memory is {show_memory(amount)}, but this machine has only {show_memory(memory)}.",
                "Ask for less, or run it on a larger place.",
            )
    workers = sum(group.replicas for group in spec.workers)
    if workers > MOST_WORKERS:
        raise SpecError(
            f"spec.workers asks for {workers} workers on one machine; {MOST_WORKERS} is the most.",
            "Ask for fewer, or run it on a larger place.",
        )


MOST_WORKERS = 200  # each is a process of at least 100 MB
