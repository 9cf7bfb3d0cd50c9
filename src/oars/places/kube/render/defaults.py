"""Defaults for what a spec does not set, on Kubernetes."""

from __future__ import annotations

from oars.plan.desired import Defaults

DEFAULTS = Defaults(head_memory=2**30, worker_memory=2 * 2**30, dedicated_head=True)
