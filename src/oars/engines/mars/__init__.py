"""Mars."""

from __future__ import annotations

from oars.engines.base import Engine, Footprint, Shell
from oars.engines.mars import live, shape
from oars.engines.module_engine import ModuleEngine

CONNECT = """
import os
if os.environ['OARS_MARS_DISTRIBUTION'] == 'pymars':
    from mars.deploy.oscar.session import new_session
else:
    import xorbits
    from xorbits._mars.deploy.oscar.session import new_session
client = new_session(os.environ['OARS_ADDRESS'], default=True)
"""

engine: Engine = ModuleEngine(
    "mars",
    "oars.engines.mars.session",
    shape,
    live,
    Shell(CONNECT, "`client` is a connected Mars session, and the default one."),
    {"distribution": "the two distributions cannot communicate with each other"},
    Footprint(shared_memory=True, temporary=("mars", "xorbits"), permanent=("mars",)),
)
