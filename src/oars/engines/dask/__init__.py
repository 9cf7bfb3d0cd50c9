"""Dask."""

from __future__ import annotations

from oars.engines.base import Engine
from oars.engines.dask import live, shape
from oars.engines.packaged import PackagedEngine

engine: Engine = PackagedEngine("dask", "oars.engines.dask.session", shape, live)
