"""Defaults for what a spec does not set, on Kubernetes."""

from __future__ import annotations

from oars.plan.desired import Defaults

# A head and three workers fit on a node of two processors. Each may use a whole one while others leave it idle.
DEFAULTS = Defaults(
    head_memory=2**30, worker_memory=2 * 2**30, head_cpu_request=0.25, worker_cpu_request=0.5, dedicated_head=True
)
