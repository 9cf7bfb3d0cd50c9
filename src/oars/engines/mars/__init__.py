"""Mars."""

from __future__ import annotations

from oars.engines.base import Engine
from oars.engines.mars import live, shape
from oars.engines.packaged import PackagedEngine

engine: Engine = PackagedEngine("mars", "oars.engines.mars.session", shape, live)
