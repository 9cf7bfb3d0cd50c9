"""Ray."""

from __future__ import annotations

from oars.engines.base import Engine
from oars.engines.packaged import PackagedEngine
from oars.engines.ray import live, shape

engine: Engine = PackagedEngine("ray", "oars.engines.ray.session", shape, live)
