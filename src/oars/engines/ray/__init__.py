"""Ray."""

from __future__ import annotations

from oars.engines.base import Engine
from oars.engines.ray import live, shape
from oars.engines.packaged import PackagedEngine

engine: Engine = PackagedEngine("ray", "oars.engines.ray.session", shape, live)
