"""Ray."""

from __future__ import annotations

from oars.engines.base import Engine, Footprint, Shell
from oars.engines.module_engine import ModuleEngine
from oars.engines.ray import live, shape

engine: Engine = ModuleEngine(
    "ray",
    "oars.engines.ray.session",
    shape,
    live,
    Shell("import ray\nclient = ray\nray.init(log_to_driver=True)", "`client` is the connected ray module."),
    {"auth": "connected clients and workers use the old setting"},
    Footprint(shared_memory=True, temporary=("ray",), permanent=("ray",)),
)
