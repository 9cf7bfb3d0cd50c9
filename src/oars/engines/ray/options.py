"""The `ray` block of a spec."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oars.spec.cluster import Memory, Part


class RayOptions(Part):
    """Options of Ray."""

    auth: Literal["token", "none"] = Field(default="token", description="token: one secret token per cluster.")
    object_store_memory: Memory | None = Field(
        default=None, description="Object store of each raylet, part of its memory; default 30 %."
    )
    dashboard: bool = Field(default=True, description="Run Ray's dashboard.")
    fail_infeasible: bool = Field(
        default=False, description="Fail tasks that no group of an autoscaled cluster can ever run, instead of waiting."
    )
