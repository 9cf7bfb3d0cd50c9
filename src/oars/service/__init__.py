"""The operations that every front door (command line, web API) offers.

Service has the operations on clusters. Beside it: diagnostics of this machine, cached environments, plain manifests and
the installation of the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oars.client.backend import ClusterHandle, Driver, ExecSession, Location, Progress, ignore, make_location
from oars.model import Cause
from oars.places.report import Report
from oars.service.clusters import Dashboard, Execution, Listing, Program, Service
from oars.service.logs import LogLine, LogRequest

if TYPE_CHECKING:  # loads pydantic
    from oars.places.kube.render.changes import Change as Change

__all__ = [
    "Cause",
    "ClusterHandle",
    "Dashboard",
    "Driver",
    "ExecSession",
    "Execution",
    "Listing",
    "Location",
    "LogLine",
    "LogRequest",
    "Program",
    "Progress",
    "Report",
    "Service",
    "ignore",
    "make_location",
]
