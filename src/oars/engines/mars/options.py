"""The `mars` block of a spec."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from oars.spec.cluster import Part


class MarsOptions(Part):
    """Options of Mars."""

    distribution: Literal["xorbits", "pymars"] = Field(
        default="xorbits", description="The distribution of Mars: xorbits or pymars."
    )
    config: dict[str, Any] = Field(default_factory=dict, description="Mars configuration, merged over its default.")
