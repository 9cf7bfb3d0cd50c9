"""Connect to the cluster that `oars run`, `oars shell` or `oars exec` started this program for. Imports no pydantic: it
also runs in the engines' cached environments."""

from __future__ import annotations

import os
import sys
from concurrent.futures import Executor
from typing import Any

from oars import engines
from oars.base.errors import NotFound
from oars.engines.base import Access
from oars.engines.sessions import make_executor


def connect() -> Any:
    """Return the engine's own client, connected to the cluster that this program was started for."""
    access = _access()
    return engines.session(engines.get(access.engine)).connect(access)


def executor() -> Executor:
    """Return a concurrent.futures.Executor on the cluster that this program was started for."""
    return make_executor(_access(), connect=True)


def _access() -> Access:
    engine, address = os.environ.get("OARS_ENGINE"), os.environ.get("OARS_ADDRESS")
    if not engine or not address:
        raise NotFound(
            "This program was not started for a cluster: OARS_ENGINE and OARS_ADDRESS are not set.",
            f"Start it with `oars run {sys.argv[0] or 'script.py'} --engine dask`, or use oars.Cluster.attach(name).",
        )
    name, dashboard = os.environ.get("OARS_NAME", ""), os.environ.get("OARS_DASHBOARD", "")
    return Access(name, engine, address, dashboard, dict(os.environ), os.environ.get("OARS_NAMESPACE", ""))
