"""Dask."""

from __future__ import annotations

from oars.engines.base import Engine, Shell
from oars.engines.dask import live, shape
from oars.engines.module_engine import ModuleEngine

engine: Engine = ModuleEngine(
    "dask",
    "oars.engines.dask.session",
    shape,
    live,
    Shell("from distributed import Client\nclient = Client()", "`client` is a connected distributed.Client."),
    {"protocol": "connected clients and workers use the old protocol"},
)
