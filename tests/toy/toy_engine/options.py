"""The `toy` block of a spec."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oars.spec.cluster import Part


class ToyOptions(Part):
    """Options of the toy engine."""

    crash: str = Field(default="", description="Number of a worker that dies with an exception when it starts.")
    give_up: str = Field(default="", description="Number of a worker that gives up when it starts.")
    wire_format: Literal["json", "text"] = Field(default="json", description="How members talk to each other.")
    items: list[str] = Field(default_factory=list, description="Items that every worker starts with.")
